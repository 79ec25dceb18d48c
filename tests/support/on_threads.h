// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <thread>
#include <vector>

namespace vitrine::test {

/// Calls work(0) to work(count - 1) on one thread each, and throws what the first of them threw.
inline void on_threads(int count, const std::function<void(int)>& work) {
  std::vector<std::exception_ptr> errors(static_cast<size_t>(count));
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) {
    threads.emplace_back([&work, &error = errors[static_cast<size_t>(i)], i] {
      try {
        work(i);
      } catch (...) {
        error = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

}  // namespace vitrine::test
