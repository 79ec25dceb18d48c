// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>

#include "runtime/copy.h"
#include "runtime/exec_context.h"

namespace vitrine::cuda {

/// Queue on ctx's stream what the functions in runtime/copy.h have validated; at least one byte. throw CudaError
void copy_on_gpu(ExecContext& ctx, const ConstView& source, const View& destination);
void zero_on_gpu(ExecContext& ctx, const View& destination);
void copy_blocks_on_gpu(ExecContext& ctx, std::span<const CopiedBlock> blocks, const CopiedBlock& last);

}  // namespace vitrine::cuda
