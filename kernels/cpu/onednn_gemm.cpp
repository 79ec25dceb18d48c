// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/cpu/onednn.h"
#include "kernels/cpu/onednn_descriptors.h"
#include "kernels/cpu/onednn_plans.h"

namespace vitrine::cpu::onednn {
namespace {

using dnnl::memory;

memory::desc matrix(int64_t rows, int64_t columns, bool transposed, DType dtype) {
  return {{rows, columns}, data_type_of(dtype), transposed ? memory::dims{1, rows} : memory::dims{columns, 1}};
}

// Returns the first implementation that is not a reference loop and whose scratch fits into `most_scratch` bytes. From
// version 3 on, the fastest one may pack its operands there, while another needs no scratch.
bool skip_unfit(dnnl::matmul::primitive_desc& descriptor, int64_t most_scratch) {
  if (!skip_reference(descriptor)) return false;
  while (Arena::aligned(scratch_bytes(descriptor)) > most_scratch) {
    if (!descriptor.next_impl() || !skip_reference(descriptor)) return false;
  }
  return true;
}

Plan make_plan(const OneDnnPlans& plans, const Product& p, int64_t most_scratch) {
  const memory::desc a = p.a_stride > 0 ? memory::desc({p.m, p.k}, data_type_of(p.dtype), memory::dims{p.a_stride, 1})
                                        : matrix(p.m, p.k, p.transpose_a, p.dtype);
  const memory::desc b = matrix(p.k, p.n, p.transpose_b, p.dtype);
  const memory::desc c({p.m, p.n}, data_type_of(p.c_dtype), memory::dims{p.c_stride, 1});
  const memory::desc bias = matrix(1, p.n, false, p.dtype);
  dnnl::primitive_attr attributes = workspace_attributes();
  dnnl::post_ops epilogue;
  if (p.accumulate) epilogue.append_sum(1.0F);
  if (p.relu) append_relu(epilogue);
  attributes.set_post_ops(epilogue);
  Plan plan;
  try {
    auto described = describe_product(plans.engine, a, b, p.bias ? &bias : nullptr, c, attributes);
    auto& descriptor = described.descriptor;
    if (!skip_unfit(descriptor, most_scratch)) return plan;
    plan.primitive = dnnl::matmul(descriptor);
    plan.scratch_bytes = scratch_bytes(descriptor);
    if (plan.scratch_bytes > 0) plans.add_argument(plan, DNNL_ARG_SCRATCHPAD, descriptor.scratchpad_desc());
  } catch (const dnnl::error&) {
    return {};  // no implementation: the caller uses another one
  }
  plans.add_argument(plan, DNNL_ARG_SRC, a);
  plans.add_argument(plan, DNNL_ARG_WEIGHTS, b);
  plans.add_argument(plan, DNNL_ARG_DST, c);
  if (p.bias) plans.add_argument(plan, DNNL_ARG_BIAS, bias);
  return plan;
}

/// Bytes of scratch that a product may take of a workspace, wherever its pieces begin. Without one, an implementation
/// that needs none runs.
int64_t most_scratch(int64_t workspace_bytes) { return std::max<int64_t>(0, workspace_bytes - Arena::kAlignment); }

/// The size of the workspace decides, not what was multiplied before.
Plan& plan_for(OneDnnPlans& plans, const Product& product, const View& workspace) {
  const int64_t bytes = workspace ? workspace.bytes() : 0;
  auto [found, fresh] = plans.products.try_emplace({product, bytes});
  if (fresh) found->second = make_plan(plans, product, most_scratch(bytes));
  return found->second;
}

bool multiply(ExecContext& ctx, const View& workspace, const Product& product, const void* a, const void* b,
              const void* bias, void* c) {
  auto& plans = ctx.plans().get<OneDnnPlans>();
  Plan& plan = plan_for(plans, product, workspace);
  if (!plan) return false;
  Arena arena(workspace);
  void* scratch = arena.take(plan.scratch_bytes);
  plans.run(plan, {{DNNL_ARG_SRC, a}, {DNNL_ARG_WEIGHTS, b}, {DNNL_ARG_BIAS, bias}, {DNNL_ARG_DST, c}}, scratch);
  return true;
}

/// Calls body(product, row of b) for the products that make up one. If neither matrix is transposed and b is large,
/// oneDNN 2.6 and 3.7 take up to three times as long as with blocks of K, which are added up
/// (bench/results/notes-2026-11-23.md).
template <class Body>
void for_each_block(const Product& whole, const Body& body) {
  constexpr int64_t kLarge = int64_t{1} << 23, kDepth = 256;
  const bool blocks = whole.dtype == DType::f32 && !whole.transpose_a && !whole.transpose_b && !whole.bias &&
                      !whole.relu && whole.n * whole.k >= kLarge;
  if (!blocks) return body(whole, int64_t{0});
  for (int64_t row = 0; row < whole.k; row += kDepth) {
    Product block = whole;
    block.k = std::min(kDepth, whole.k - row);
    block.a_stride = whole.k;
    block.accumulate = whole.accumulate || row > 0;
    body(block, row);
  }
}

}  // namespace

bool eigen_is_faster(bool transpose_a, bool transpose_b) {
  const auto isa = static_cast<int>(dnnl::get_effective_cpu_isa());
  const auto avx512 = static_cast<int>(dnnl::cpu_isa::avx512_core);
  return !transpose_a && !transpose_b && (isa & avx512) != avx512;
}

bool takes(ExecContext& ctx, const View& workspace, const Product& product) {
  return static_cast<bool>(plan_for(ctx.plans().get<OneDnnPlans>(), product, workspace));
}

int64_t product_bytes(ExecContext& ctx, const RecordedProduct& p, int64_t allowed_bytes) {
  if (!computes(p.dtype) || (!p.bias && !p.relu && eigen_is_faster(p.transpose_a, p.transpose_b))) return -1;
  int64_t most = 0;
  for_each_block({p, p.n}, [&](const Product& block, int64_t) {
    const Plan plan = make_plan(ctx.plans().get<OneDnnPlans>(), block, most_scratch(allowed_bytes));
    const int64_t bytes = plan.scratch_bytes > 0 ? Arena::kAlignment + Arena::aligned(plan.scratch_bytes) : 0;
    most = plan && most >= 0 ? std::max(most, bytes) : -1;
  });
  return most;
}

bool gemm(ExecContext& ctx, const View& workspace, bool transpose_a, bool transpose_b, ConstView a, ConstView b, View c,
          int64_t c_stride, GradMode mode) {
  if (eigen_is_faster(transpose_a, transpose_b)) return false;
  const Product product{{.m = c.shape[0],
                         .n = c.shape[1],
                         .k = a.shape[transpose_a ? 0 : 1],
                         .dtype = a.dtype,
                         .c_dtype = c.dtype,
                         .transpose_a = transpose_a,
                         .transpose_b = transpose_b,
                         .accumulate = mode == GradMode::accumulate},
                        c_stride};
  bool fits = true;  // all blocks, before the first one is computed
  for_each_block(product, [&](const Product& block, int64_t) { fits = fits && takes(ctx, workspace, block); });
  if (!fits) return false;
  for_each_block(product, [&](const Product& block, int64_t row) {
    const int64_t bytes = size_of(a.dtype);
    const auto* const from_a = static_cast<const char*>(a.data) + row * bytes;
    const auto* const from_b = static_cast<const char*>(b.data) + row * block.n * bytes;
    multiply(ctx, workspace, block, from_a, from_b, nullptr, c.data);
  });
  return true;
}

bool linear_forward(ExecContext& ctx, const View& workspace, ConstView x, ConstView w, ConstView bias, bool relu,
                    View y) {
  const Product product{{.m = y.shape[0],
                         .n = y.shape[1],
                         .k = x.shape[1],
                         .dtype = x.dtype,
                         .c_dtype = y.dtype,
                         .transpose_b = true,
                         .bias = static_cast<bool>(bias),
                         .relu = relu},
                        y.shape[1]};
  return multiply(ctx, workspace, product, x.data, w.data, bias.data, y.data);
}

}  // namespace vitrine::cpu::onednn
