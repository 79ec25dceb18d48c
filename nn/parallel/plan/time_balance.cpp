// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/plan/time_balance.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "runtime/error.h"

namespace vitrine {

SliceTime fit_slice_time(std::span<const SliceMeasurement> measurements) {
  double count = 0, samples = 0, seconds = 0;
  for (const SliceMeasurement& m : measurements) {
    if (m.samples == 0) continue;
    ++count;
    samples += static_cast<double>(m.samples);
    seconds += m.seconds;
  }
  if (count == 0)
    throw ConfigError(
        "fit_slice_time: expected a measurement with samples, got none; measure the device on a slice of one sample or "
        "more");
  const double mean_samples = samples / count, mean_seconds = seconds / count;
  double spread = 0, slope = 0;
  for (const SliceMeasurement& m : measurements) {
    if (m.samples == 0) continue;
    const double off = static_cast<double>(m.samples) - mean_samples;
    spread += off * off;
    slope += off * (m.seconds - mean_seconds);
  }
  SliceTime time;
  if (spread > 0) time.each = std::max(0.0, slope / spread);
  time.fixed = mean_seconds - time.each * mean_samples;
  if (spread == 0 || time.fixed < 0 || time.each == 0) {
    // A line through the origin.
    time.fixed = 0;
    time.each = mean_seconds / mean_samples;
  }
  return time;
}

std::vector<int64_t> balance_time(std::span<const SliceTime> times, int64_t total, std::span<const int64_t> most) {
  VITRINE_ASSERT(times.size() == most.size(), "each device has a time and a limit");
  VITRINE_ASSERT(std::accumulate(most.begin(), most.end(), int64_t{0}) >= total, "the devices take the whole batch");
  // Greedy: each sample goes to the device that would finish first. That is optimal for every prefix, because times
  // grow with the samples.
  std::vector<int64_t> slices(times.size(), 0);
  for (int64_t sample = 0; sample < total; ++sample) {
    size_t best = 0;
    double best_seconds = std::numeric_limits<double>::infinity();
    for (size_t d = 0; d < times.size(); ++d) {
      if (slices[d] >= most[d]) continue;
      const double seconds = times[d].seconds_for(slices[d] + 1);
      if (seconds < best_seconds) {
        best_seconds = seconds;
        best = d;
      }
    }
    ++slices[best];
  }
  return slices;
}

double longest_time(std::span<const SliceTime> times, std::span<const int64_t> slices) {
  double longest = 0;
  for (size_t d = 0; d < times.size(); ++d) longest = std::max(longest, times[d].seconds_for(slices[d]));
  return longest;
}

}  // namespace vitrine
