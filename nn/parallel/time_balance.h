// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace vitrine {

/// Seconds that a device works on a slice of n samples: fixed + each * n.
struct SliceTime {
  double fixed = 0, each = 0;
  double of(int64_t samples) const { return samples == 0 ? 0.0 : fixed + each * static_cast<double>(samples); }
};

/// What was measured on a device.
struct SliceMeasurement {
  int64_t samples = 0;
  double seconds = 0;
};

/// The line through the measurements by least squares; neither part is below 0. Of one size of slice only: no fixed part.
/// throws ConfigError when there is none with samples.
SliceTime fit_slice_time(std::span<const SliceMeasurement> measurements);

/// The slices that sum to `total` with the shortest longest time of any device. A device gets at most most[d] samples, which together must be enough.
std::vector<int64_t> balance_time(std::span<const SliceTime> times, int64_t total, std::span<const int64_t> most);

/// The longest time of any device.
double longest_time(std::span<const SliceTime> times, std::span<const int64_t> slices);

}  // namespace vitrine
