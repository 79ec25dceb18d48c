// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/runtime/reason.h>

/// Settings of runtime/ that messages refer to, and the list of all of them. A program that names them in its own words
/// checks the list.
namespace vitrine::settings {

inline constexpr Setting kMemoryBytes{"DeviceGroupOptions::memory_bytes"};
inline constexpr Setting kThreadsPerDevice{"DeviceGroupOptions::threads_per_device"};
inline constexpr Setting kTf32{"DeviceGroupOptions::tf32"};
inline constexpr Setting kWinograd{"DeviceGroupOptions::winograd"};
inline constexpr Setting kRendezvous{"ProcessGroupOptions::rendezvous"};
inline constexpr Setting kTimeoutMs{"ProcessGroupOptions::timeout_ms"};
inline constexpr Setting kRank{"ProcessGroupOptions::rank"};
inline constexpr Setting kSize{"ProcessGroupOptions::size"};
inline constexpr Setting kLaunchRank{"LaunchFlags::rank"};
inline constexpr Setting kLaunchWorldSize{"LaunchFlags::world_size"};
inline constexpr Setting kLaunchLocalRank{"LaunchFlags::local_rank"};
inline constexpr Setting kReserveWorkspace{"ExecContext::reserve_workspace"};

inline constexpr Setting kRuntimeSettings[] = {
    kMemoryBytes, kTf32, kThreadsPerDevice, kWinograd,        kRendezvous,      kTimeoutMs,
    kRank,        kSize, kLaunchRank,       kLaunchWorldSize, kLaunchLocalRank, kReserveWorkspace};

}  // namespace vitrine::settings
