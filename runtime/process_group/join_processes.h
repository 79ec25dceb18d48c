// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <vitrine/runtime/device.h>
#include <vitrine/runtime/process_group/process_group.h>

namespace vitrine {

/// Takes the devices of `options` into a process group: registers them with the other processes, learns about theirs,
/// and divides cores that several processes of this machine may use. All processes call it, and then open their
/// DeviceGroup. Returns the options unchanged if process_group is null. throws ConfigError, UnsupportedError if the
/// devices cannot work together; CommError.
DeviceGroupOptions join_processes(DeviceGroupOptions options, std::shared_ptr<ProcessGroup> process_group);

}  // namespace vitrine
