// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/trace/span.h"

/// Ranges for Nsight; they cost next to nothing when no tool is attached. Builds without NVTX's headers have
/// no_nvtx.cpp.
namespace vitrine::cuda {

/// Call before the first range: NVTX's own initialization is not thread-safe.
void initialize_nvtx();
void push_range(const SpanInfo& info);
void pop_range();

}  // namespace vitrine::cuda
