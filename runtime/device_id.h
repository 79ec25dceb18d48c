// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vitrine {

enum class Backend : uint8_t { cpu, cuda, meta };

/// "cpu", "cuda", "meta".
const char* backend_name(Backend backend);

/// A device: cuda:1 is a GPU, cpu:1 a virtual device of this process, meta:1 allocates and computes nothing.
struct DeviceId {
  Backend backend = Backend::cpu;
  int index = 0;

  /// Ordinary (or pinned) host memory, outside all pools.
  static DeviceId host() { return {Backend::cpu, -1}; }
  bool is_host() const { return backend == Backend::cpu && index < 0; }
  /// "cpu:1", or "host".
  std::string str() const;
  bool operator==(const DeviceId&) const = default;
};

/// Parses "cpu:0-3", "cpu:0,cpu:1", "cuda:0,cuda:0", "cuda:all", "meta:0-63" and combinations. Keeps order and
/// repetition.
///   cuda_device_count  number of devices that "cuda:all" expands to
/// throws ConfigError naming the item for an empty list, mixed backends, a repeated cpu or meta device;
///        UnsupportedError for cuda:all without a GPU.
std::vector<DeviceId> parse_device_list(std::string_view text, int cuda_device_count);

}  // namespace vitrine
