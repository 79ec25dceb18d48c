// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>

namespace vitrine::tools {

/// Runs several steps, none of which may prevent the others: all are tried, and the first error is thrown at the end.
class Attempts {
 public:
  /// Returns whether the step succeeded. Errors after the first go to stderr, unless they say the same.
  bool run(const std::function<void()>& step);
  /// Whether a step has failed.
  bool failed() const { return first_ != nullptr; }
  /// throws the first error, if any.
  void rethrow() const;

 private:
  std::exception_ptr first_;
};

}  // namespace vitrine::tools
