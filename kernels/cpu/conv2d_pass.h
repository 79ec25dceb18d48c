// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace vitrine::cpu {

enum class Conv2dPass { forward, backward_data, backward_weight };

}  // namespace vitrine::cpu
