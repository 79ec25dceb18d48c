// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/program/run/run.h"

namespace vitrine::tools {

/// Warnings about output files whose names suggest another format.
std::vector<std::string> file_warnings(const Options& options);
/// Warnings about classes without samples in the training set, and in the part of it that --limit-samples leaves.
std::vector<std::string> class_warnings(const Dataset& all, const Dataset& used);
/// A warning about a batch size that no step of this training set reaches.
std::vector<std::string> batch_warnings(const Options& options, const Job& job);
/// A warning about a batch that leaves a device without samples.
std::vector<std::string> idle_device_warnings(const BatchPlan& batch);

/// What a plan that sizes the workspace could not do: ask cuDNN, or give convolutions what their best algorithms need.
std::vector<std::string> workspace_warnings(const DevicePlan& plan);

/// Prints "vitrine: warning: ..." on stderr for each; nothing in a process that does not print.
void print_warnings(const Options& options, const std::vector<std::string>& warnings);
/// Prints the warnings of a device group. Processes on one machine have the same warnings, so only the first prints
/// them.
void print_device_warnings(const Options& options, const DeviceGroup& devices);

}  // namespace vitrine::tools
