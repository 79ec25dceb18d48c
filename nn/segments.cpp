// SPDX-License-Identifier: Apache-2.0
#include "nn/segments.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include <fmt/format.h>

#include "nn/buffer_layout.h"
#include "runtime/device.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

constexpr Pass kTraining{.training = true};

/// Sizes of memory blocks by address.
using Blocks = std::map<const void*, int64_t>;

void add_blocks(const Saved& saved, Blocks& blocks) {
  for (const Tensor& tensor : saved.tensors) {
    int64_t& bytes = blocks[tensor.view().data];
    bytes = std::max(bytes, tensor.bytes());
  }
  for (const Saved& part : saved.parts) add_blocks(part, blocks);
}

int64_t total_bytes(const Blocks& blocks) {
  int64_t total = 0;
  for (const auto& [address, bytes] : blocks) total += bytes;
  return total;
}

/// Memory for two samples (a batch norm needs more than one value), for each part that computes: `inputs` is the block that it reads, `kept` the
/// blocks that it keeps.
struct Kept {
  std::vector<Blocks> inputs, kept;
};

Kept measure(const Sequential& net, const Shape& batch, DType compute) {
  DeviceGroup group({.devices = {DeviceId{Backend::meta, 0}}, .memory_bytes = {int64_t{1} << 42}});
  ExecContext& ctx = group[0].compute();
  const FlatLayout layout(net.parameters(), 0);
  const Tensor flat = ctx.allocate({layout.parameter_elements()}, compute, Category::parameters, "parameters");
  const Tensor masters = ctx.allocate({layout.parameter_elements()}, DType::f32, Category::parameters, "f32 parameters");
  const std::vector<View> parameters = layout.views(flat, masters);
  const BufferLayout buffer_layout(net);
  const auto allocate_buffers = [&](const FlatLayout& of) {
    return ctx.allocate({of.parameter_elements()}, DType::f32, Category::parameters, "buffers");
  };
  const Tensor saved_buffers = allocate_buffers(buffer_layout.saved()), transient_buffers = allocate_buffers(buffer_layout.transient());
  const std::vector<View> buffers = buffer_layout.views(saved_buffers, transient_buffers);
  const Tensor input = ctx.allocate(batch.with_dim0(2), compute, Category::activations, "input");
  // Keep all outputs alive so that addresses are unique.
  std::vector<Tensor> outputs{input};
  Tensor output;
  const Saved saved = net.forward_from(
      ctx, parameters, input, output, kTraining, [&](int, const Tensor& y) { outputs.push_back(y); }, {}, buffers);
  Kept result;
  const std::vector<int> computing = net.computing_parts(input.shape(), kTraining);
  for (size_t k = 0; k < computing.size(); ++k) {
    result.inputs.push_back({{outputs[k].view().data, outputs[k].bytes()}});
    add_blocks(saved.parts[static_cast<size_t>(computing[k])], result.kept.emplace_back());
  }
  return result;
}

/// bytes[i][j]: bytes that parts i to j (of those that compute) keep together, including the input of part i.
std::vector<std::vector<int64_t>> bytes_of_runs(const Kept& parts) {
  const size_t count = parts.kept.size();
  std::vector<std::vector<int64_t>> bytes(count, std::vector<int64_t>(count));
  for (size_t i = 0; i < count; ++i) {
    Blocks blocks = parts.inputs[i];
    for (size_t j = i; j < count; ++j) {
      for (const auto& [address, size] : parts.kept[j]) blocks.try_emplace(address, size);
      bytes[i][j] = total_bytes(blocks);
    }
  }
  return bytes;
}

}  // namespace

int most_segments(const Sequential& net, const Shape& input) { return static_cast<int>(net.computing_parts(input.with_dim0(1), kTraining).size()); }

int square_root_segments(const Sequential& net, const Shape& input) {
  return std::max(1, static_cast<int>(std::lround(std::sqrt(most_segments(net, input)))));
}

std::vector<int> cut_in_segments(const Sequential& net, const Shape& input, DType compute, int segments) {
  if (segments < 1) throw ConfigError(fmt::format("recompute segments: got {}, expected a positive number; 1 recomputes nothing", segments));
  if (segments == 1) return {};
  const std::vector<int> computing = net.computing_parts(input.with_dim0(1), kTraining);
  const size_t count = computing.size(), runs = static_cast<size_t>(segments);
  if (runs > count) {
    throw ConfigError(
        fmt::format("recompute segments: got {}, but the model has {} parts that compute; use at most {}, or sqrt", segments, count, count));
  }
  const Kept parts = measure(net, input, compute);
  const std::vector<std::vector<int64_t>> bytes = bytes_of_runs(parts);
  // most[s][i]: the lowest peak of kept bytes over all ways to cut the parts from i on into s + 1 runs.
  constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  std::vector<std::vector<int64_t>> most(runs, std::vector<int64_t>(count, kNever));
  std::vector<std::vector<size_t>> next(runs, std::vector<size_t>(count, count));
  for (size_t i = 0; i < count; ++i) most[0][i] = bytes[i][count - 1];
  for (size_t s = 1; s < runs; ++s) {
    for (size_t i = 0; i + s < count; ++i) {
      for (size_t j = i + 1; j + s <= count; ++j) {
        const int64_t behind = total_bytes(parts.inputs[i]) + most[s - 1][j];
        const int64_t at_once = std::max(bytes[i][j - 1], behind);
        if (most[s - 1][j] == kNever || at_once >= most[s][i]) continue;
        most[s][i] = at_once;
        next[s][i] = j;
      }
    }
  }
  std::vector<int> cuts;
  size_t at = 0;
  for (size_t s = runs - 1; s > 0; --s) {
    at = next[s][at];
    cuts.push_back(computing[at]);
  }
  return cuts;
}

}  // namespace vitrine
