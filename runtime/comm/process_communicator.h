// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "runtime/comm/local_communicator.h"

namespace vitrine {

/// Communicators of a group of CPU (or meta) devices whose process group has several processes: the devices of a process sum and copy among
/// themselves as in one process, and the first of them exchanges with the other processes over MPI. Ranks go over the devices of all processes, in
/// rank order of these. 16-bit sums of several devices in a process, or of many processes, travel in f32 and are rounded once. Every collective is
/// told to the process group, which learns so who is late. Scratch comes from the first device's pool, Category::communication. throws
/// UnsupportedError where the processes cannot exchange over MPI.
std::vector<std::unique_ptr<Communicator>> make_process_communicators(DeviceGroup& devices, std::vector<std::unique_ptr<LocalCommunicator>> locals);

}  // namespace vitrine
