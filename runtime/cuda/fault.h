// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace vitrine::cuda {

/// Pinned host memory in which a kernel says that its data are wrong (a target out of range, say): values first, then raised = 1; the first fault
/// that is seen counts. The stream's failed() and synchronize() look at it: it becomes a DataError. Work behind the faulty kernel still runs, so
/// the kernel must also poison what decides whether parameters change.
struct Fault {
  int32_t raised;
  int32_t unused;
  int64_t values[4];
};

/// Words the error from Fault::values.
using FaultMessage = std::string (*)(const int64_t* values);

}  // namespace vitrine::cuda
