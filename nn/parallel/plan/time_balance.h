// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace vitrine {

/// Seconds that a device needs for a slice of n samples: fixed + each * n; 0 for none.
struct SliceTime {
  double fixed = 0, each = 0;
  double seconds_for(int64_t samples) const { return samples == 0 ? 0.0 : fixed + each * static_cast<double>(samples); }
};

/// One measurement of a device.
struct SliceMeasurement {
  int64_t samples = 0;
  double seconds = 0;
};

/// Fits the measurements by least squares; neither part is negative. If all slices have one size, there is no fixed
/// part. throws ConfigError when no measurement has samples.
SliceTime fit_slice_time(std::span<const SliceMeasurement> measurements);

/// Returns the slices that sum to `total` and minimize the longest time of any device. Device d gets at most most[d]
/// samples; their sum must be at least `total`.
std::vector<int64_t> balance_time(std::span<const SliceTime> times, int64_t total, std::span<const int64_t> most);

/// The longest time of any device.
double longest_time(std::span<const SliceTime> times, std::span<const int64_t> slices);

}  // namespace vitrine
