// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/exec_context.h"

namespace vitrine {

/// y = a + b. Equal shapes, f32. y may be a or b.
void add(ExecContext& ctx, ConstView a, ConstView b, View y);

}  // namespace vitrine
