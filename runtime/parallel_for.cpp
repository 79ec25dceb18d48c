// SPDX-License-Identifier: Apache-2.0
#include "runtime/parallel_for.h"

#include <exception>
#include <mutex>
#include <string>

#include "runtime/cpu/parallel.h"
#include "runtime/error.h"

namespace vitrine {

void parallel_for(int64_t count, int64_t grain, const std::function<void(int64_t begin, int64_t end)>& body) {
  if (grain < 1) throw ConfigError("parallel_for: grain is " + std::to_string(grain) + ", expected at least 1");
  struct Failure {
    int64_t begin;
    std::exception_ptr error;
  };
  std::mutex mutex;
  Failure first{count, nullptr};
  cpu::parallel_for(count, grain, [&](int64_t begin, int64_t end) {
    try {
      body(begin, end);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (begin < first.begin) first = {begin, std::current_exception()};
    }
  });
  if (first.error) std::rethrow_exception(first.error);
}

int team_size() { return cpu::team_size(); }

}  // namespace vitrine
