// SPDX-License-Identifier: Apache-2.0
#include "kernels/tree_sum.h"

#include <vector>

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/run.h"
#include "runtime/cpu/tree_sum.h"
#include "runtime/error.h"
#include "runtime/note_reads.h"

namespace vitrine {
namespace cpu {
namespace {

void add_inputs(ExecContext&, const std::vector<uint8_t>& folds, const std::vector<const void*>& inputs, View output) {
  tree_sum(output.dtype, folds, inputs, {&output.data, 1}, output.numel());
}

}  // namespace
}  // namespace cpu

namespace cuda {  // tree_sum_cuda.cpp
void add_inputs(ExecContext& ctx, const std::vector<uint8_t>& folds, const std::vector<const void*>& inputs,
                View output);
}  // namespace cuda

void tree_sum(ExecContext& ctx, std::span<const Subtree> nodes, std::span<const ConstView> inputs, View output) {
  constexpr const char* kName = "tree_sum";
  const TreeOrder order(nodes);
  if (inputs.size() != nodes.size()) {
    throw ShapeError(
        fmt::format("{}: there are {} inputs for {} nodes, expected one for each", kName, inputs.size(), nodes.size()));
  }
  check::tensor(kName, "output", output, ctx);
  std::vector<const void*> data;
  for (const ConstView& input : inputs) {
    check::tensor(kName, "input", input, output.shape, output.dtype, ctx);
    check::same_or_apart(kName, {"output", output}, {{"input", input}});
    data.push_back(input.data);
  }
  if (output.numel() == 0) return;
  note_reads(ctx, kName, inputs);
  run(ctx, {kName, {}, {output}}, cpu::add_inputs, VITRINE_IF_CUDA(cuda::add_inputs),
      std::vector(order.folds().begin(), order.folds().end()), std::move(data), output);
}

}  // namespace vitrine
