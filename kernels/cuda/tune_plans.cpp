// SPDX-License-Identifier: Apache-2.0
// Runs recorded operations in scratch tensors, so that the libraries choose their plans.

#include <fmt/format.h>

#include "kernels/conv2d.h"
#include "kernels/cuda/cublaslt.h"
#include "kernels/plan_tuner.h"
#include "kernels/recorded_operations.h"
#include "runtime/copy.h"
#include "runtime/error.h"
#include "runtime/trace/span.h"

namespace vitrine {
namespace {

/// The pool has no room for the operands of an operation.
struct NoRoom {};

Tensor scratch(ExecContext& ctx, const Shape& shape, DType dtype) {
  Tensor tensor;
  try {
    tensor = ctx.allocate(shape, dtype, Category::workspace, "operand of a timed operation");
  } catch (const UnsupportedError&) {  // of a reserved pool
    throw NoRoom();
  }
  zero(ctx, tensor);
  return tensor;
}

void run(ExecContext& ctx, const RecordedConv2d& c) {
  const Tensor x = scratch(ctx, c.x, c.dtype), y = scratch(ctx, c.y, c.dtype);
  if (c.pass == Conv2dPass::backward_weight) {
    // A separate kernel computes the gradient of the bias; it has no plans.
    const Tensor w = scratch(ctx, c.w, DType::f32);
    return conv2d_backward_weight(ctx, c.config, x, y, w, {},
                                  c.accumulate ? GradMode::accumulate : GradMode::overwrite);
  }
  const Tensor w = scratch(ctx, c.w, c.dtype);
  if (c.pass == Conv2dPass::backward_data) return conv2d_backward_data(ctx, c.config, y, w, x);
  const Tensor bias = c.bias ? scratch(ctx, {c.w[0]}, c.dtype) : Tensor();
  conv2d_forward(ctx, c.config, x, w, bias, y);
}

void run(ExecContext& ctx, const RecordedProduct& p) {
  using cuda::Epilogue;
  const Epilogue epilogue = p.row_sums ? Epilogue::row_sums : p.bias ? Epilogue::bias : Epilogue::none;
  const cuda::Matmul product{p.m, p.n, p.k, p.transpose_a, p.transpose_b, p.dtype, p.c_dtype, p.accumulate, epilogue};
  const Tensor a = scratch(ctx, {p.m, p.k}, p.dtype), b = scratch(ctx, {p.k, p.n}, p.dtype),
               c = scratch(ctx, {p.m, p.n}, p.c_dtype);
  const Tensor bias = p.bias || p.row_sums ? scratch(ctx, {p.row_sums ? p.m : p.n}, p.c_dtype) : Tensor();
  const View a_view = a, b_view = b, c_view = c, bias_view = bias;
  ctx.dispatch(
      {"timed product", {a_view, b_view, c_view}, {c_view, bias_view}}, [] {},
      [&] { cuda::matmul(ctx, product, a_view.data, b_view.data, c_view.data, bias_view.data, ctx.workspace()); });
}

/// Runs the operation; notes it instead where its operands have no room in the pool.
template <class Operation>
void run_or_note(ExecContext& ctx, const Operation& operation, const std::string& name) {
  try {
    run(ctx, operation);
  } catch (const NoRoom&) {
    ctx.plans().get<PlanTuner>().result().notes.push_back(fmt::format(
        "{}: its operands do not fit into the {} bytes that are planned for {}, so it has the library's choice", name,
        ctx.pool().statistics().reserved_bytes, ctx.pool().device_name()));
  }
  ctx.stream().synchronize();
}

std::string name_of(const RecordedProduct& p) { return fmt::format("a product of m {} n {} k {}", p.m, p.n, p.k); }

}  // namespace

TuneResult tune_plans(ExecContext& ctx, const std::vector<std::string>& operations, const TunedPlans& known,
                      int64_t workspace_bytes, double most_seconds, Setting workspace_setting) {
  if (ctx.backend() != Backend::cuda)
    throw UnsupportedError("tune_plans: " + ctx.device().str() +
                           " is not a GPU, so its libraries have no plans to time");
  VITRINE_ASSERT(!ctx.workspace(), "a workspace is reserved while plans are timed");
  RecordedOperations recorded;
  for (const std::string& line : operations) recorded.add_line(line);
  const OnDevice on_device(ctx);
  auto& tuner = ctx.plans().get<PlanTuner>();
  ctx.reserve_workspace(workspace_bytes, workspace_setting);
  tuner.begin(known, steady_now_ns() + static_cast<int64_t>(most_seconds * 1e9));
  const auto end = [&] {
    ctx.release_workspace();
    return tuner.end();
  };
  try {
    for (const auto& [key, convolution] : recorded.convolutions) run_or_note(ctx, convolution, convolution.str());
    for (const auto& [product, unused] : recorded.products) run_or_note(ctx, product, name_of(product));
  } catch (...) {
    end();
    throw;
  }
  return end();
}

}  // namespace vitrine
