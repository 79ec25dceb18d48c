// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/device.h"

namespace vitrine::test {

/// Runs every collective on the devices of the group, with inputs whose sums are exact in every dtype; throws at the
/// first wrong element.
/// @param threads issue from one thread per device, as GPUs always need
/// @param segments also tensors that processes exchange in several segments
void run_collective_cases(DeviceGroup& devices, bool threads, bool segments);

}  // namespace vitrine::test
