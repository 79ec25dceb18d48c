// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/exec_context.h"

namespace vitrine::cuda {

/// Queue on ctx's stream what vitrine::copy and vitrine::zero have validated; at least one byte. throw CudaError
void copy_on_gpu(ExecContext& ctx, const ConstView& source, const View& destination);
void zero_on_gpu(ExecContext& ctx, const View& destination);

}  // namespace vitrine::cuda
