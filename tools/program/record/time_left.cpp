// SPDX-License-Identifier: Apache-2.0
#include "tools/program/record/time_left.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include <fmt/format.h>

#include "runtime/trace/span.h"
#include "tools/program/record/reproduction.h"

namespace vitrine::tools {

void TimeLeft::add_step(int64_t runs) {
  constexpr int64_t kSteps = 10, kNanoseconds = 5'000'000'000;
  const int64_t now = steady_now_ns();
  --steps_left_;
  if (steps_++ == 0) {  // includes the first use of memory and libraries
    begin_ns_ = now;
    return;
  }
  ++timed_;
  nanoseconds_ += now - std::exchange(begin_ns_, now);
  if (printed_ || (timed_ < kSteps && nanoseconds_ < kNanoseconds)) return;
  printed_ = true;
  fmt::print(stderr, "vitrine: about {} left for {} run{} on this machine, by {} step{} of {}\n",
             format_duration(seconds_left()), runs, runs == 1 ? "" : "s", timed_, timed_ == 1 ? "" : "s", name_);
  std::fflush(stderr);
}

void TimeLeft::end_run(int64_t done, int64_t runs) const {
  if (timed_ == 0 || done == runs) return;
  fmt::print(stderr, "vitrine: {} of {} runs are done; about {} left\n", done, runs, format_duration(seconds_left()));
  std::fflush(stderr);
}

double TimeLeft::seconds_left() const {
  const double per_step = static_cast<double>(nanoseconds_) * 1e-9 / static_cast<double>(timed_);
  // Each epoch is evaluated by training and again from its files. The time of whole epochs includes the former.
  const double evaluations = timed_ < steps_per_epoch_ ? 2.0 : 1.0;
  return per_step * static_cast<double>(std::max<int64_t>(steps_left_, 0)) * (1.0 + evaluations * evaluation_);
}

}  // namespace vitrine::tools
