// SPDX-License-Identifier: Apache-2.0
#include "nn/layer.h"

namespace vitrine {

GradientHooks GradientHooks::of_layer(int parameter) const {
  using Hook = std::function<void(int)>;
  const auto shifted = [parameter](const Hook& hook) {
    return hook ? Hook([&hook, parameter](int first) { hook(parameter + first); }) : Hook();
  };
  return {shifted(begin), shifted(ready)};
}

Work Layer::forward_work(const Shape& x) const {
  const Shape y = output_shape(x);
  Work work{0, x.numel() + y.numel()};
  for (const ParamSpec& spec : parameters()) {
    work.elements += spec.shape.numel();
    // Each element of a row of weights is multiplied and added once for each position of the output.
    if (spec.shape.rank() >= 2) work.flops += 2 * spec.shape.numel() * (y.numel() / spec.shape[0]);
  }
  return work;
}

}  // namespace vitrine
