// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace vitrine::tools {

/// Devices that are shown as one, by their indices in a list of all devices, ascending.
struct DeviceSet {
  std::vector<size_t> members;

  size_t first() const { return members.front(); }
  bool single() const { return members.size() == 1; }
  /// "cuda:0", "cuda:1 to cuda:63", "cpu:0, cpu:4 to cpu:7".
  std::string name(std::span<const std::string> names) const;
};

/// The sets of devices that agree, in the order of their first members.
///   agree  an equivalence relation on indices
std::vector<DeviceSet> group_devices(size_t devices, const std::function<bool(size_t, size_t)>& agree);
/// All devices as one set.
DeviceSet all_devices(size_t devices);

/// A figure over devices or rounds; 0 without values.
struct Spread {
  double least = 0, median = 0, most = 0;
  size_t most_at = 0;  // the first value or member with the maximum
};
Spread spread_of(std::vector<double> values);
/// That of the members' values. requires at least one member
Spread spread_of(const DeviceSet& set, const std::function<double(size_t)>& value);

}  // namespace vitrine::tools
