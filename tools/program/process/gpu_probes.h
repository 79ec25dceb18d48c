// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "tools/program/flags/options.h"

namespace vitrine::tools {

/// Turns graphs on, unless their variable is set, and tries the GPU features that are on, on the GPUs that the command
/// uses (info: all), once for each kind of GPU, driver and build: what passed is noted in $XDG_CACHE_HOME/vitrine, and
/// processes that start together wait for one of them. A feature that fails is turned off for this process and those
/// that it starts, by its variable (runtime/gpu_features.h), with the reason. Each trial is a new process of this
/// program, because a GPU or a library can end a process; call it before MPI starts. Does nothing without GPUs.
void probe_gpus(const Options& options);
/// Whether the command may use a GPU.
bool uses_gpus(const Options& options);

/// The exit status of such a new process; nothing in a process that was started otherwise.
std::optional<int> run_probe(int argc, const char* const* argv);

}  // namespace vitrine::tools
