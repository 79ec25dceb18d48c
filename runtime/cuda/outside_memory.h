// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/device.h"
#include "runtime/exec_context.h"

namespace vitrine::cuda {

/// What libraries hold of a GPU for one context, kept in its plan cache.
struct OutsideMemory {
  std::vector<OutsideBytes> owners;
};

/// Measures what an object of a library takes of the GPU: the difference between what is in use when the meter is made
/// and when it ends.
class OutsideMeter {
 public:
  /// owner  a literal; a later measurement for the same owner and context replaces the earlier one
  OutsideMeter(ExecContext& ctx, const char* owner);
  ~OutsideMeter();
  OutsideMeter(const OutsideMeter&) = delete;
  OutsideMeter& operator=(const OutsideMeter&) = delete;

 private:
  ExecContext& ctx_;
  const char* owner_;
  int64_t before_;
};

}  // namespace vitrine::cuda
