// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/arena.h"

#include "runtime/error.h"

namespace vitrine::cpu {

Arena::Arena(const View& workspace) : device_(workspace.device) {
  if (!workspace) return;
  const auto address = reinterpret_cast<uintptr_t>(workspace.data);
  const auto skipped = static_cast<int64_t>((kAlignment - address % kAlignment) % kAlignment);
  if (skipped >= workspace.bytes()) return;
  next_ = workspace.as<char>() + skipped;
  left_ = workspace.bytes() - skipped;
}

bool Arena::fits(std::initializer_list<int64_t> pieces) const {
  int64_t total = 0;
  for (const int64_t bytes : pieces) total += aligned(bytes);
  return total <= left_;
}

void* Arena::take(int64_t bytes) {
  if (bytes == 0) return nullptr;
  VITRINE_ASSERT(aligned(bytes) <= left_, "a kernel uses more of the workspace than it requested");
  char* piece = next_;
  next_ += aligned(bytes);
  left_ -= aligned(bytes);
  return piece;
}

View Arena::remaining() const { return left_ > 0 ? View{next_, {left_}, DType::u8, device_} : View{}; }

}  // namespace vitrine::cpu
