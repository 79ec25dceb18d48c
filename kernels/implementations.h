// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <type_traits>

#include "kernels/conv2d.h"
#include "kernels/cross_entropy.h"
#include "kernels/difference.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "kernels/image.h"
#include "kernels/linear.h"
#include "kernels/non_finite.h"
#include "kernels/optimizer.h"
#include "kernels/pool2d.h"
#include "kernels/relu.h"
#include "kernels/step_control.h"

/// Private to kernels. The implementations of every operation, one for each backend.
namespace vitrine {

/// Called on the stream's worker. They read workspace(), plans() and thread_count() of the context and never allocate.
namespace cpu {
#include "kernels/implementations.inc"
}

/// Called on the issuing thread; they queue work on the context's stream and never allocate or wait. Only in builds with CUDA.
namespace cuda {
#include "kernels/implementations.inc"
}

#ifdef VITRINE_HAVE_CUDA
#define VITRINE_IMPLEMENTATIONS(name) &cpu::name, &cuda::name
#else
#define VITRINE_IMPLEMENTATIONS(name) &cpu::name, nullptr
#endif

/// Dispatches to the implementation of the context's backend: run(ctx, {name, reads, writes}, VITRINE_IMPLEMENTATIONS(add), a, b, y).
template <class CpuFunction, class CudaFunction, class... Arguments>
void run(ExecContext& ctx, const OpInfo& info, CpuFunction cpu, CudaFunction cuda, Arguments... arguments) {
  if constexpr (std::is_same_v<CudaFunction, std::nullptr_t>) {
    ctx.dispatch(info, [=, &ctx] { cpu(ctx, arguments...); });
  } else {
    ctx.dispatch(
        info, [=, &ctx] { cpu(ctx, arguments...); }, [&] { cuda(ctx, arguments...); });
  }
}

}  // namespace vitrine
