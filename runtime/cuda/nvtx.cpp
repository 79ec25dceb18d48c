// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/nvtx.h"

#include <fmt/format.h>
#include <nvtx3/nvToolsExt.h>

namespace vitrine::cuda {

void initialize_nvtx() {
  static const bool done = [] {  // once: NVTX reads its own state without synchronization
    nvtxInitialize(nullptr);
    return true;
  }();
  static_cast<void>(done);
}

void push_range(const SpanInfo& info) {
  const char* const detail = *info.operation != '\0' ? info.operation : *info.layer != '\0' ? info.layer : info.cause;
  if (*detail == '\0') {
    nvtxRangePushA(phase_name(info.phase));
  } else {
    nvtxRangePushA(fmt::format("{} {}", phase_name(info.phase), detail).c_str());
  }
}

void pop_range() { nvtxRangePop(); }

}  // namespace vitrine::cuda
