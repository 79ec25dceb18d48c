// SPDX-License-Identifier: Apache-2.0
#include "runtime/tensor.h"

namespace vitrine {

Tensor::Tensor(std::shared_ptr<Pool> pool, const Pool::Block& block, const Shape& shape, DType dtype, DeviceId device)
    : storage_(block.address, [pool, block](void*) { pool->free(block); }),
      view_{block.address, shape, dtype, device} {}

Tensor Tensor::rows(int64_t begin, int64_t end) const {
  Tensor t = *this;
  t.view_ = view_.rows(begin, end);
  return t;
}

Tensor Tensor::reshape(const Shape& to) const {
  Tensor t = *this;
  t.view_ = view_.reshape(to);
  return t;
}

}  // namespace vitrine
