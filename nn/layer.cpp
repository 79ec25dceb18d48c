// SPDX-License-Identifier: Apache-2.0
#include "nn/layer.h"

namespace vitrine {

bool Layer::is_identity(std::span<const Shape> /*inputs*/, const Pass& /*pass*/) const { return false; }

OutputNeed Layer::output_need() const { return OutputNeed::values; }

bool Layer::forward_in_place() const { return false; }

bool Layer::backward_in_place() const { return false; }

}  // namespace vitrine
