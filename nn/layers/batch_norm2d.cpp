// SPDX-License-Identifier: Apache-2.0
#include "nn/layers/batch_norm2d.h"

#include <fmt/format.h>

#include "kernels/elementwise.h"
#include "runtime/copy.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

enum Buffer : size_t { kRunningMean, kRunningVar, kStatistics, kBuffers };  // in the order of buffers()

Tensor allocate_sums(ExecContext& ctx, const Shape& shape, const char* name) {
  return ctx.allocate(shape, DType::f32, Category::activations, name);
}

}  // namespace

BatchNorm2d::BatchNorm2d(int64_t channels, const BatchNormConfig& config) : channels_(channels), config_(config) {
  if (channels >= 1 && config.eps > 0.0F && config.momentum >= 0.0F && config.momentum <= 1.0F) return;
  throw ConfigError(fmt::format(
      "BatchNorm2d: channels is {}, eps {} and momentum {}; expected channels >= 1, eps > 0 and momentum from 0 to 1",
      channels, config.eps, config.momentum));
}

std::string BatchNorm2d::describe() const {
  return fmt::format("batch_norm2d({}, eps {}, momentum {}){}", channels_, config_.eps, config_.momentum,
                     config_.relu ? " + relu" : "");
}

std::vector<ParamSpec> BatchNorm2d::parameters() const {
  return {{"weight", {channels_}, {Init::Kind::ones}, {}, /*of_norm=*/true, /*stays_f32=*/true},
          {"bias", {channels_}, {Init::Kind::zeros}, {}, /*of_norm=*/true, /*stays_f32=*/true}};
}

std::vector<BufferSpec> BatchNorm2d::buffers() const {
  return {{"running_mean", {channels_}, {Init::Kind::zeros}, true},
          {"running_var", {channels_}, {Init::Kind::ones}, true},
          {"batch_statistics", {2, channels_}, {Init::Kind::zeros}, false}};
}

Shape BatchNorm2d::output_shape(const Shape& x) const {
  if (x.rank() == 4 && x[3] == channels_) return x;
  throw ShapeError(
      fmt::format("{}: input has shape {}, expected images (N, H, W, {})", describe(), x.str(), channels_));
}

int64_t BatchNorm2d::rows_of_batch(const Shape& x, const Pass& pass) const {
  const int64_t samples = pass.batch_sum != nullptr && pass.batch_samples > 0 ? pass.batch_samples : x[0];
  const int64_t rows = samples * x[1] * x[2];
  if (rows > 1) return rows;
  throw ShapeError(
      fmt::format("{}: input has shape {} in training, expected more than one value for each channel; use more samples "
                  "in each micro-batch{}, or larger images",
                  describe(), x.str(), pass.batch_sum == nullptr ? " of each device" : ""));
}

void BatchNorm2d::finish_statistics(ExecContext& ctx, int64_t rows, int64_t rows_of_batch, const Tensor& moments,
                                    const Pass& pass, BufferViews buffers) const {
  if (pass.batch_sum != nullptr) {
    const Tensor sums = allocate_sums(ctx, {channels_}, "batch_norm2d.sums");
    batch_norm_sums(ctx, rows, moments, sums);
    pass.batch_sum->sum(ctx, sums);
    batch_norm_recenter(ctx, rows, rows_of_batch, sums, moments);
    pass.batch_sum->sum(ctx, moments.rows(1, 2));
  }
  const bool updates = pass.updates_buffers;
  batch_norm_statistics(ctx, config_, rows_of_batch, moments, buffers[kStatistics],
                        updates ? buffers[kRunningMean] : View{}, updates ? buffers[kRunningVar] : View{});
}

namespace {

/// Element i of dimension 0 without that dimension.
View at(const View& views, int64_t i) {
  const Shape& s = views.shape;
  const View row = views.rows(i, i + 1);
  return s.rank() == 3 ? row.reshape({s[1], s[2]}) : row.reshape({s[1]});
}

int64_t count_of(const Leaves& leaves) { return static_cast<int64_t>(leaves.own.size()); }
int64_t group_count(const Leaves& leaves) { return static_cast<int64_t>(leaves.group_samples.size()); }

}  // namespace

View BatchNorm2d::leaf_statistics(ExecContext& ctx, const Tensor& x, const Shape& shape, const Pass& pass,
                                  BufferViews buffers, Saved& saved) const {
  const Leaves& leaves = *pass.leaves;
  const int64_t count = count_of(leaves), groups = group_count(leaves), channels = channels_;
  View statistics = buffers[kStatistics].reshape({1, 2, channels});
  if (groups > 1) {
    const Tensor& kept = saved.tensors.emplace_back(allocate_sums(ctx, {groups, 2, channels}, "batch_norm2d.groups"));
    statistics = kept;
  }
  if (pass.recomputes) return statistics;
  const int64_t pixels = shape[1] * shape[2];
  const auto rows_of_group = [&](int64_t group) {
    Pass whole = pass;
    whole.batch_sum = nullptr;
    return rows_of_batch({leaves.group_samples[static_cast<size_t>(group)], shape[1], shape[2], channels}, whole);
  };
  Tensor moments, by_leaf;
  if (count > 0) {
    moments = allocate_sums(ctx, {count, 2, channels}, "batch_norm2d.moments");
    by_leaf = allocate_sums(ctx, {count, channels}, "batch_norm2d.sums");
  }
  const auto for_each_leaf = [&](const auto& work) {
    for (int64_t i = 0; i < count; ++i) {
      const Leaf& leaf = leaves.own[static_cast<size_t>(i)];
      work(leaf, at(moments, i), at(by_leaf, i));
    }
  };
  for_each_leaf([&](const Leaf& leaf, const View& own, const View& sums) {
    batch_norm_moments(ctx, x.rows(leaf.rows.begin, leaf.rows.end), own);
    batch_norm_sums(ctx, leaf.rows.size() * pixels, own, sums);
  });
  const Tensor sums = allocate_sums(ctx, {groups, channels}, "batch_norm2d.sums of groups");
  leaves.sums->sum_groups(ctx, by_leaf, sums);
  for_each_leaf([&](const Leaf& leaf, const View& own, const View& deviations) {
    batch_norm_recenter(ctx, leaf.rows.size() * pixels, rows_of_group(leaf.group), at(sums, leaf.group), own);
    copy(ctx, own.rows(1, 2).reshape({channels}), deviations);
  });
  const Tensor all = allocate_sums(ctx, {groups, channels}, "batch_norm2d.deviations of groups");
  leaves.sums->sum_groups(ctx, by_leaf, all);
  const Tensor of_group = allocate_sums(ctx, {2, channels}, "batch_norm2d.moments of a group");
  for (int64_t g = 0; g < groups; ++g) {
    if (leaves.group_samples[static_cast<size_t>(g)] == 0) continue;
    const int64_t rows = rows_of_group(g);
    zero(ctx, of_group);
    batch_norm_recenter(ctx, 0, rows, at(sums, g), of_group);  // the mean
    copy(ctx, at(all, g), of_group.view().rows(1, 2).reshape({channels}));
    const bool updates = pass.updates_buffers;
    batch_norm_statistics(ctx, config_, rows, of_group, at(statistics, g), updates ? buffers[kRunningMean] : View{},
                          updates ? buffers[kRunningVar] : View{});
  }
  return statistics;
}

void BatchNorm2d::backward_by_leaf(const BackwardCall& call) const {
  const auto& [ctx, params, saved, grad_y, grad_x, grad_params, mode, pass, buffers, grad_x_sums, hooks] = call;
  const Leaves& leaves = *pass.leaves;
  const Tensor& x = saved.tensors[0];
  const int64_t count = count_of(leaves), groups = group_count(leaves), pixels = x.shape()[1] * x.shape()[2];
  const View statistics = groups > 1 ? saved.tensors.back().view() : buffers[kStatistics].reshape({1, 2, channels_});
  const auto rows = [](const Tensor& tensor, const Leaf& leaf) { return tensor.rows(leaf.rows.begin, leaf.rows.end); };
  const Tensor by_leaf = allocate_sums(ctx, {count, 2, channels_}, "batch_norm2d.gradient_sums");
  const Tensor weights = allocate_sums(ctx, {count, channels_}, "gradients of leaves");
  const Tensor biases = allocate_sums(ctx, {count, channels_}, "gradients of leaves");
  for (int64_t i = 0; i < count; ++i) {
    const Leaf& leaf = leaves.own[static_cast<size_t>(i)];
    batch_norm_backward_sums(ctx, rows(x, leaf), rows(grad_y, leaf), at(statistics, leaf.group), at(by_leaf, i),
                             at(weights, i), at(biases, i), GradMode::overwrite);
  }
  if (grad_params[0]) leaves.sums->add_gradient(ctx, weights, grad_params[0]);
  if (grad_params[1]) leaves.sums->add_gradient(ctx, biases, grad_params[1]);
  const Tensor sums = allocate_sums(ctx, {groups, 2, channels_}, "batch_norm2d.gradient_sums of groups");
  leaves.sums->sum_groups(ctx, by_leaf.reshape({count, 2 * channels_}), sums.reshape({groups, 2 * channels_}));
  if (!grad_x) return;
  for (const Leaf& leaf : leaves.own) {
    batch_norm_backward_data(ctx, rows(x, leaf), rows(grad_y, leaf), at(statistics, leaf.group), params[0],
                             at(sums, leaf.group), leaves.group_samples[static_cast<size_t>(leaf.group)] * pixels,
                             rows(grad_x, leaf));
  }
}

Saved BatchNorm2d::forward(const ForwardCall& call) const {
  const auto& [ctx, params, x, y, pass, buffers] = call;
  VITRINE_ASSERT(buffers.size() == kBuffers, "a layer gets views of its buffers");
  if (!pass.training) {
    const Tensor statistics = allocate_sums(ctx, {2, channels_}, "batch_norm2d.statistics");
    batch_norm_running(ctx, config_, buffers[kRunningMean], buffers[kRunningVar], statistics);
    batch_norm_forward(ctx, config_, x, statistics, params[0], params[1], y);
    return {};
  }
  Saved saved;
  saved.tensors.push_back(x);
  if (config_.relu) saved.tensors.push_back(y);
  if (pass.leaves != nullptr) {
    const View statistics = leaf_statistics(ctx, x, x.shape(), pass, buffers, saved);
    for (const Leaf& leaf : pass.leaves->own) {
      const auto& [begin, end] = leaf.rows;
      batch_norm_forward(ctx, config_, x.rows(begin, end), at(statistics, leaf.group), params[0], params[1],
                         y.rows(begin, end));
    }
    return saved;
  }
  if (!pass.recomputes) {
    const int64_t all_rows = rows_of_batch(x.shape(), pass);
    const Tensor moments = allocate_sums(ctx, {2, channels_}, "batch_norm2d.moments");
    batch_norm_moments(ctx, x, moments);
    finish_statistics(ctx, x.numel() / channels_, all_rows, moments, pass, buffers);
  }
  batch_norm_forward(ctx, config_, x, buffers[kStatistics], params[0], params[1], y);
  return saved;
}

void BatchNorm2d::backward(const BackwardCall& call) const {
  const auto& [ctx, params, saved, grad_y, grad_x, grad_params, mode, pass, buffers, grad_x_sums, hooks] = call;
  const Tensor& x = saved.tensors[0];
  const View& statistics = buffers[kStatistics];
  if (config_.relu) relu_backward(ctx, saved.tensors[1], grad_y, grad_y);
  if (pass.leaves != nullptr) return backward_by_leaf(call);
  const Tensor sums = allocate_sums(ctx, {2, channels_}, "batch_norm2d.gradient_sums");
  // A frozen parameter's gradient goes to scratch memory: it is one of the sums that the gradient of x needs.
  const auto gradient = [&](size_t i, Tensor& scratch) -> View {
    if (call.grad_params[i]) return call.grad_params[i];
    scratch = allocate_sums(call.ctx, {channels_}, "batch_norm2d.gradient of a frozen parameter");
    if (call.mode == GradMode::accumulate) zero(call.ctx, scratch);
    return scratch;
  };
  Tensor scratch_weight, scratch_bias;
  batch_norm_backward_sums(ctx, x, grad_y, statistics, sums, gradient(0, scratch_weight), gradient(1, scratch_bias),
                           mode);
  // The sums are part of every device's gradient of x, so all devices add them up, even if one of them did not need its
  // own.
  if (pass.batch_sum != nullptr) pass.batch_sum->sum(ctx, sums);
  if (grad_x)
    batch_norm_backward_data(ctx, x, grad_y, statistics, params[0], sums, rows_of_batch(x.shape(), pass), grad_x);
}

void BatchNorm2d::forward_empty(const EmptyCall& call) const {
  const auto& [ctx, x, pass, buffers, hooks] = call;
  if (pass.leaves != nullptr) {
    Saved saved;
    leaf_statistics(ctx, {}, x, pass, buffers, saved);
    return;
  }
  const Tensor moments = allocate_sums(ctx, {2, channels_}, "batch_norm2d.moments");
  zero(ctx, moments);
  finish_statistics(ctx, 0, rows_of_batch(x, pass), moments, pass, buffers);
}

void BatchNorm2d::backward_empty(const EmptyCall& call) const {
  if (const Leaves* leaves = call.pass.leaves; leaves != nullptr) {
    const int64_t groups = group_count(*leaves);
    return leaves->sums->sum_groups(call.ctx, {},
                                    allocate_sums(call.ctx, {groups, 2 * channels_}, "batch_norm2d.gradient_sums"));
  }
  const Tensor sums = allocate_sums(call.ctx, {2, channels_}, "batch_norm2d.gradient_sums");
  zero(call.ctx, sums);
  call.pass.batch_sum->sum(call.ctx, sums);
}

}  // namespace vitrine
