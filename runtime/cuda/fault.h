// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace vitrine::cuda {

/// Pinned host memory in which a kernel reports invalid data (for example, a target out of range): values first, then
/// raised = 1; the first fault counts. The stream's failed() and synchronize() check it and throw a DataError. Work
/// after the faulty kernel still runs, so the kernel must also invalidate the data that decides whether parameters
/// change.
struct Fault {
  int32_t raised;
  int32_t claimed;  // where several threads may find a fault: 1 once one of them writes the values
  int64_t values[4];
};

/// Formats the error from Fault::values.
using FaultMessage = std::string (*)(const int64_t* values);

}  // namespace vitrine::cuda
