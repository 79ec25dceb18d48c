// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/local_communicator.h"

namespace vitrine {

/// Creates communicators for CPU (or meta) devices in a process group with several processes. The devices of a process
/// sum and copy as in one process, and the first of them exchanges data with the other processes over MPI. Ranks count
/// the devices of all processes, in the order of the processes. 16-bit sums of several devices in a process, or of many
/// processes, are sent in f32 and rounded once. Every collective is reported to the process group, so that it can name
/// late ranks. Scratch memory comes from the first device's pool, Category::communication. throws UnsupportedError if
/// the processes cannot exchange data over MPI.
std::vector<std::unique_ptr<Communicator>> make_process_communicators(
    DeviceGroup& devices, std::vector<std::unique_ptr<LocalCommunicator>> locals);

}  // namespace vitrine
