// SPDX-License-Identifier: Apache-2.0
#include "nn/segments.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "nn/parameter_store.h"
#include "runtime/device.h"
#include "runtime/error.h"
#include "runtime/memory/offset_allocator.h"

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

/// Memory for two samples (a batch norm needs more than one value), for each part that computes: `inputs` is the block
/// that it reads, `kept` the blocks that it keeps.
struct Kept {
  std::vector<Blocks> inputs, kept;
};

/// A model on a meta device of its own, with parameters and buffers.
class MetaModel {
 public:
  MetaModel(const Sequential& net, DType compute)
      : group_({.devices = {DeviceId{Backend::meta, 0}}, .memory_bytes = {int64_t{1} << 42}}),
        layout_(net.parameters(), 0),
        buffer_layout_(net) {
    const Tensor flat = allocate(layout_, compute), masters = allocate(layout_, DType::f32),
                 gradients = allocate(layout_, DType::f32);
    const Tensor saved = allocate(buffer_layout_.saved(), DType::f32),
                 transient = allocate(buffer_layout_.transient(), DType::f32);
    parameters = layout_.views(flat, masters);
    grads = layout_.gradient_views(gradients);
    buffers = buffer_layout_.views(saved, transient);
    memory_ = {flat, masters, gradients, saved, transient};
  }

  ExecContext& ctx() { return group_[0].compute(); }
  int64_t allocated() { return group_[0].pool().statistics().allocated_bytes; }
  /// The largest sum of blocks during `work`, beyond what is allocated before.
  template <class Body>
  int64_t peak_of_call(const Body& work) {
    const int64_t before = allocated();
    group_[0].pool().reset_peak();
    work();
    return allocated_bytes(group_[0].pool().statistics().peak_by_category) - before;
  }

  std::vector<View> parameters, grads, buffers;

 private:
  Tensor allocate(const FlatLayout& layout, DType dtype) {
    return ctx().allocate({layout.parameter_elements()}, dtype, Category::parameters, "parameters");
  }

  DeviceGroup group_;
  FlatLayout layout_;
  BufferLayout buffer_layout_;
  std::vector<Tensor> memory_;
};

Kept measure(const Sequential& net, const Shape& batch, DType compute) {
  MetaModel model(net, compute);
  ExecContext& ctx = model.ctx();
  const Tensor input = ctx.allocate(batch.with_dim0(2), net.input_dtype(compute), Category::activations, "input");
  // Keep all outputs alive so that addresses are unique.
  std::vector<Tensor> outputs{input};
  Tensor output;
  const Saved saved = net.forward_from(
      ctx, model.parameters, input, output, kTraining, [&](int, const Tensor& y) { outputs.push_back(y); }, {},
      model.buffers);
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

int most_segments(const Sequential& net, const Shape& input) {
  return static_cast<int>(net.computing_parts(input.with_dim0(1), kTraining).size());
}

int square_root_segments(const Sequential& net, const Shape& input) {
  return std::max(1, static_cast<int>(std::lround(std::sqrt(most_segments(net, input)))));
}

std::vector<PartRange> cut_in_segments(const Sequential& net, const Shape& input, DType compute, int segments) {
  if (segments < 1)
    throw ConfigError(
        fmt::format("recompute segments: got {}, expected a positive number; 1 recomputes nothing", segments));
  if (segments == 1) return {};
  const std::vector<int> computing = net.computing_parts(input.with_dim0(1), kTraining);
  const size_t count = computing.size(), runs = static_cast<size_t>(segments);
  if (runs > count) {
    throw ConfigError(
        fmt::format("recompute segments: got {}, but the model has {} parts that compute; use at most {}, or sqrt",
                    segments, count, count));
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
        const int64_t later = total_bytes(parts.inputs[i]) + most[s - 1][j];
        const int64_t at_once = std::max(bytes[i][j - 1], later);
        if (most[s - 1][j] == kNever || at_once >= most[s][i]) continue;
        most[s][i] = at_once;
        next[s][i] = j;
      }
    }
  }
  std::vector<PartRange> recomputed;
  size_t at = 0;
  for (size_t s = runs - 1; s > 0; --s) {
    at = next[s][at];
    recomputed.push_back({recomputed.empty() ? 0 : recomputed.back().end, computing[at]});
  }
  return recomputed;
}

std::vector<PartRange> find_segments(const Sequential& net, const std::vector<std::string>& names) {
  std::map<std::string, int> parts;
  std::vector<std::string> known;
  for (const Sequential::Part& part : net.parts()) {
    parts.emplace(part.name, static_cast<int>(known.size()));
    known.push_back(part.name);
  }
  std::vector<std::pair<PartRange, std::string>> segments;
  for (const std::string& name : names) {
    std::optional<PartRange> range;
    if (const auto part = parts.find(name); part != parts.end()) range = PartRange{part->second, part->second + 1};
    // A part's name may contain a hyphen.
    for (size_t hyphen = name.find('-'); hyphen != std::string::npos && !range; hyphen = name.find('-', hyphen + 1)) {
      const auto first = parts.find(name.substr(0, hyphen)), last = parts.find(name.substr(hyphen + 1));
      if (first != parts.end() && last != parts.end()) range = PartRange{first->second, last->second + 1};
    }
    if (!range) {
      throw ConfigError(
          fmt::format("recompute: '{}' is no part of the model, and no FIRST-LAST of two parts; its parts are {}", name,
                      fmt::join(known, ", ")));
    }
    if (range->begin >= range->end) {
      throw ConfigError(fmt::format("recompute: in '{}' the first part comes after the last one; write {}-{}", name,
                                    known[static_cast<size_t>(range->end) - 1],
                                    known[static_cast<size_t>(range->begin)]));
    }
    segments.emplace_back(*range, name);
  }
  std::ranges::sort(segments, [](const auto& a, const auto& b) { return a.first.begin < b.first.begin; });
  std::vector<PartRange> ranges;
  for (size_t i = 0; i < segments.size(); ++i) {
    if (i > 0 && segments[i].first.begin < segments[i - 1].first.end) {
      throw ConfigError(fmt::format("recompute: '{}' and '{}' overlap; name each part once", segments[i - 1].second,
                                    segments[i].second));
    }
    ranges.push_back(segments[i].first);
  }
  return ranges;
}

std::vector<std::string> name_segments(const Sequential& net, const std::vector<PartRange>& segments) {
  std::vector<std::string> names;
  for (const PartRange& range : segments) {
    const std::string& first = net.parts()[static_cast<size_t>(range.begin)].name;
    const std::string& last = net.parts()[static_cast<size_t>(range.end) - 1].name;
    names.push_back(range.end - range.begin == 1 ? first : first + '-' + last);
  }
  return names;
}

int64_t units_of(const Work& work, DType dtype) { return work.flops + kFlopsPerByte * work.elements * size_of(dtype); }

std::vector<PartCost> measure_parts(const Sequential& net, const Shape& input, DType compute, const Pass& pass) {
  MetaModel model(net, compute);
  ExecContext& ctx = model.ctx();
  const auto bytes_of = [](const Tensor& tensor) { return OffsetAllocator::aligned(tensor.bytes()); };
  const auto block = [&](const Shape& shape, const char* name) {
    return ctx.allocate(shape, compute, Category::activations, name);
  };
  std::vector<PartCost> costs;
  Tensor x = ctx.allocate(pass.input_form ? pass.input_form.packed_shape(input[0]) : input, net.input_dtype(compute),
                          Category::activations, "input");
  size_t buffer = 0;
  bool runs_backward = false;
  const Layer* before = nullptr;
  for (size_t i = 0; i < net.parts().size(); ++i) {
    const Layer& layer = *net.parts()[i].layer;
    const Shape images = i == 0 ? input : x.shape();
    const Shape shape = layer.output_shape(images);
    Pass own = pass;
    if (i > 0) own.input_form = {};
    Pass again = own;
    again.recomputes = true;
    const size_t buffers = layer.buffers().size();
    const ParamViews params = net.of_part(model.parameters, i), grads = net.of_part(model.grads, i);
    const BufferViews views = BufferViews(model.buffers).subspan(buffer, buffers);
    buffer += buffers;
    if (layer.is_identity(images, own)) {
      x = x.reshape(shape);
      continue;
    }
    PartCost cost;
    cost.part = static_cast<int>(i);
    cost.work = units_of(layer.forward_work(images), compute);
    const Tensor y = block(shape, "output");
    cost.input = bytes_of(x);
    cost.output = bytes_of(y);
    cost.in_place = layer.forward_in_place() && before != nullptr && before->output_need() != OutputNeed::values;
    const int64_t held = model.allocated();
    Saved saved;
    cost.forward = model.peak_of_call([&] { saved = layer.forward({ctx, params, x, y, own, views}); });
    cost.own = model.allocated() - held;
    saved = {};
    cost.recompute = model.peak_of_call([&] { saved = layer.forward({ctx, params, x, y, again, views}); });
    Blocks blocks;
    add_blocks(saved, blocks);
    cost.keeps_input = blocks.contains(x.view().data);
    cost.keeps_output = blocks.contains(y.view().data);
    const bool first = !runs_backward;
    runs_backward = runs_backward || std::ranges::any_of(grads, [](const View& g) { return bool(g); });
    cost.runs_backward = runs_backward;
    if (runs_backward) {
      const Tensor grad_y = block(shape, "gradient");
      const Tensor grad_x = first ? Tensor() : layer.backward_in_place() ? grad_y : block(x.shape(), "gradient");
      cost.grad_input = first || layer.backward_in_place() ? 0 : cost.input;
      cost.backward = model.peak_of_call([&] {
        layer.backward({ctx, params, saved, grad_y, grad_x, grads, GradMode::overwrite, own, views});
      });
    }
    costs.push_back(cost);
    before = &layer;
    x = y;
  }
  if (!costs.empty()) set_gradients(costs, costs.back().output);
  return costs;
}

}  // namespace vitrine
