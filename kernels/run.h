// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <initializer_list>
#include <type_traits>

#include "kernels/accumulate.h"
#include "runtime/copy.h"
#include "runtime/exec_context.h"

namespace vitrine {

/// Stands for the CUDA implementation of an operation; builds without CUDA do not refer to it.
#ifdef VITRINE_HAVE_CUDA
#define VITRINE_IF_CUDA(function) &function
#else
#define VITRINE_IF_CUDA(function) nullptr
#endif

/// What an operation reads of a gradient that it overwrites or adds to.
inline ConstView content_of(const View& gradient, GradMode mode) {
  return mode == GradMode::accumulate ? ConstView(gradient) : ConstView();
}

/// The gradients of an empty batch, some of which may be empty views.
inline void add_nothing(ExecContext& ctx, GradMode mode, std::initializer_list<View> gradients) {
  for (const View& gradient : gradients) {
    if (gradient && mode == GradMode::overwrite) zero(ctx, gradient);
  }
}

/// Dispatches a validated operation to the implementation of the context's backend:
///
///     run(ctx, {name, reads, writes}, cpu::add, VITRINE_IF_CUDA(cuda::add), a, b, y);
///
/// Both functions take (ctx, arguments...) and never allocate. The CPU's is called on the worker of the stream and uses
/// only workspace(), plans() and thread_count() of the context. CUDA's is called on the issuing thread and queues work
/// on the context's stream without waiting.
template <class Cpu, class Cuda, class... Arguments>
void run(ExecContext& ctx, const OpInfo& info, Cpu cpu, [[maybe_unused]] Cuda cuda, Arguments... arguments) {
  if constexpr (std::is_null_pointer_v<Cuda>) {
    ctx.dispatch(info, [=, &ctx] { cpu(ctx, arguments...); });
  } else {
    ctx.dispatch(
        info, [=, &ctx] { cpu(ctx, arguments...); }, [&] { cuda(ctx, arguments...); });
  }
}

}  // namespace vitrine
