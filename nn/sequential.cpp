// SPDX-License-Identifier: Apache-2.0
#include "nn/sequential.h"

#include <algorithm>
#include <exception>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "nn/parameter_store.h"
#include "runtime/copy.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

/// Calls `body` and adds the layer to errors about its use of tensors (see View::as, Pool::allocate).
template <class Body>
auto name_layer(const Sequential::Part& part, const Body& body) {
  try {
    return body();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::dtype && error.kind() != ErrorKind::unsupported) throw;
    rethrow_with_prefix(std::current_exception(), fmt::format("layer '{}' ({}): ", part.label, part.layer->describe()));
  }
}

/// The pass of the parts after the first one.
Pass without_form(Pass pass) {
  pass.input_form = {};
  return pass;
}

/// The pass of a layer that computes one leaf.
Pass pass_of_leaf(Pass pass, const Leaf& leaf) {
  pass.leaves = nullptr;
  pass.first_sample += leaf.rows.begin;
  return pass;
}

Saved forward_leaves(const Layer& layer, const ForwardCall& call) {
  if (call.pass.leaves == nullptr || layer.handles_leaves()) return layer.forward(call);
  Saved saved;
  for (const Leaf& leaf : call.pass.leaves->own) {
    const auto& [begin, end] = leaf.rows;
    const Pass pass = pass_of_leaf(call.pass, leaf);
    saved.parts.push_back(
        layer.forward({call.ctx, call.params, call.x.rows(begin, end), call.y.rows(begin, end), pass, call.buffers}));
  }
  return saved;
}

/// One row for each leaf's part of a gradient.
Tensor allocate_by_leaf(ExecContext& ctx, const Leaves& leaves, const View& grad) {
  if (!grad) return {};
  return ctx.allocate({static_cast<int64_t>(leaves.own.size()), grad.numel()}, DType::f32, Category::gradients,
                      "gradients of leaves");
}

/// What becomes of the leaves' parts of a gradient. By default they are added up where the layer is done.
struct LeafGradients {
  Tensor held = {};  // not empty: those of the only parameter
  GradMode mode = GradMode::overwrite;
  bool complete = true;  // false: other layers add to them
};

void backward_leaves(const Layer& layer, const BackwardCall& call, const LeafGradients& gradients = {}) {
  if (call.pass.leaves == nullptr || layer.handles_leaves()) return layer.backward(call);
  const Leaves& leaves = *call.pass.leaves;
  std::vector<Tensor> by_leaf;
  if (gradients.held) by_leaf.push_back(gradients.held);
  for (size_t p = by_leaf.size(); p < call.grad_params.size(); ++p)
    by_leaf.push_back(allocate_by_leaf(call.ctx, leaves, call.grad_params[p]));
  const Tensor sums_by_leaf = allocate_by_leaf(call.ctx, leaves, call.grad_x_sums);
  const auto row = [](const Tensor& rows, size_t i, const View& like) {
    const auto at = static_cast<int64_t>(i);
    return rows ? rows.view().rows(at, at + 1).reshape(like.shape) : View();
  };
  for (size_t i = 0; i < leaves.own.size(); ++i) {
    const auto& [begin, end] = leaves.own[i].rows;
    const Pass pass = pass_of_leaf(call.pass, leaves.own[i]);
    std::vector<View> grads;
    for (size_t p = 0; p < by_leaf.size(); ++p)
      grads.push_back(row(by_leaf[p], i, gradients.held ? call.params[p] : call.grad_params[p]));
    layer.backward({call.ctx, call.params, call.saved.parts[i], call.grad_y.rows(begin, end),
                    call.grad_x ? call.grad_x.rows(begin, end) : Tensor(), grads, gradients.mode, pass, call.buffers,
                    row(sums_by_leaf, i, call.grad_x_sums)});
  }
  for (size_t p = 0; gradients.complete && p < by_leaf.size(); ++p) {
    if (by_leaf[p]) leaves.sums->add_gradient(call.ctx, by_leaf[p], call.grad_params[p]);
  }
  if (sums_by_leaf) leaves.sums->add_gradient(call.ctx, sums_by_leaf, call.grad_x_sums);
}

std::string joined(const std::string& part, const std::string& name) { return part.empty() ? name : part + "." + name; }

}  // namespace

struct Sequential::SharedGradients {
  std::map<int, Tensor> held;  // by parameter: what later parts have computed, in exact mode for each leaf
  std::set<int> begun;         // parameters whose gradients later parts have written to where they stay
};

Sequential::Sequential(std::vector<Part> parts) : parts_(std::move(parts)) {
  std::set<std::string> names;
  int first = 0;
  size_t first_buffer = 0;
  for (Part& part : parts_) {
    part.label = part.name;
    part.layer->prefix_labels(joined(part.name, ""));
    if (!part.name.empty() && !names.insert(part.name).second)
      throw ConfigError(fmt::format("Sequential: two parts are named '{}'; give each part its own name", part.name));
    first_parameter_.push_back(first);
    first_buffer_.push_back(first_buffer);
    first += static_cast<int>(part.layer->parameters().size());
    first_buffer += part.layer->buffers().size();
  }
  first_parameter_.push_back(first);
  first_buffer_.push_back(first_buffer);
  frozen_.resize(static_cast<size_t>(first));
  const std::vector<ParamSpec> specs = parameters();
  for (size_t i = 0; i < parts_.size(); ++i) {
    const std::string shared = parts_[i].layer->shared_parameter();
    shared_parameter_.push_back(-1);
    for (size_t owner = 0; owner < i; ++owner) {
      const int parameter = first_parameter_[owner];
      if (parameter + 1 == first_parameter_[owner + 1] && specs[static_cast<size_t>(parameter)].name == shared)
        shared_parameter_.back() = parameter;
    }
    if (!shared.empty() && shared_parameter_.back() < 0) {
      throw ConfigError(fmt::format("Sequential: '{}' shares {}, expected the only parameter of an earlier part",
                                    parts_[i].name, shared));
    }
  }
}

void Sequential::prefix_labels(const std::string& prefix) {
  for (Part& part : parts_) {
    part.label = part.label.empty() ? prefix.substr(0, prefix.size() - 1) : prefix + part.label;
    part.layer->prefix_labels(prefix);
  }
}

void Sequential::freeze(const std::vector<std::string>& patterns) {
  const std::vector<ParamSpec> specs = parameters();
  for (const std::string& pattern : patterns) {
    for (const size_t i : parameters_matching(pattern, specs)) frozen_[i] = true;
  }
  const auto trained = std::find(frozen_.begin(), frozen_.end(), false);
  if (trained == frozen_.end()) {
    throw ConfigError(fmt::format("\"{}\": no parameter of the model is left to train", fmt::join(patterns, "\", \"")));
  }
  const auto first = static_cast<int>(trained - frozen_.begin());
  first_trained_part_ = 0;
  while (first_parameter_[first_trained_part_ + 1] <= first) ++first_trained_part_;
}

std::string Sequential::describe() const {
  std::string text;
  for (const Part& part : parts_)
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", part.name, part.layer->describe());
  return fmt::format("sequential({})", text);
}

std::vector<ParamSpec> Sequential::parameters() const {
  std::vector<ParamSpec> specs;
  for (const Part& part : parts_) {
    for (ParamSpec& spec : part.layer->parameters()) {
      spec.name = joined(part.name, spec.name);
      spec.trained = !frozen_[specs.size()];
      for (size_t i = 0; i < shared_parameter_.size(); ++i) {
        if (shared_parameter_[i] == static_cast<int>(specs.size()))
          spec.other_names.push_back(joined(parts_[i].name, "weight"));
      }
      specs.push_back(std::move(spec));
    }
  }
  return specs;
}

std::vector<BufferSpec> Sequential::buffers() const {
  std::vector<BufferSpec> specs;
  for (const Part& part : parts_) {
    for (BufferSpec& spec : part.layer->buffers()) {
      spec.name = joined(part.name, spec.name);
      specs.push_back(std::move(spec));
    }
  }
  return specs;
}

std::vector<std::string> Sequential::counters() const {
  std::vector<std::string> names;
  for (const Part& part : parts_) {
    for (const std::string& name : part.layer->counters()) names.push_back(joined(part.name, name));
  }
  return names;
}

DType Sequential::input_dtype(DType activations) const {
  return parts_.empty() ? activations : parts_.front().layer->input_dtype(activations);
}

Shape Sequential::output_shape(const Shape& x) const {
  Shape shape = x;
  for (const Part& part : parts_) {
    try {
      shape = part.layer->output_shape(shape);
    } catch (const ShapeError&) {
      rethrow_with_prefix(std::current_exception(), part.name + ": ");
    }
  }
  return shape;
}

bool Sequential::is_identity(const Shape& x, const Pass& pass) const { return computing_parts(x, pass).empty(); }

Work Sequential::forward_work(const Shape& x) const {
  const std::vector<Shape> shapes = shapes_of_parts(x);
  Work work;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!part_is_identity(i, shapes[i], Pass{})) work += parts_[i].layer->forward_work(shapes[i]);
  }
  return work;
}

bool Sequential::can_be_replayed() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const Part& part) { return part.layer->can_be_replayed(); });
}

ImageForm Sequential::input_form(const Shape& x, const InputTarget& target) const {
  return parts_.empty() ? ImageForm() : parts_.front().layer->input_form(x, target);
}

Saved Sequential::forward(const ForwardCall& call) const {
  Tensor output = call.y;
  return forward_from(call.ctx, call.params, call.x, output, call.pass, nullptr, {}, call.buffers);
}

void Sequential::backward(const BackwardCall& call) const {
  run_backward(call.ctx, call.params, call.buffers, call.saved, call.grad_y, call.grad_x, call.grad_params, call.mode,
               call.pass, call.hooks, {}, nullptr);
}

void Sequential::report(const ParametersUsed& used, Use use, size_t begin, size_t end) const {
  if (used && first_parameter_[begin] < first_parameter_[end])
    used(use, first_parameter_[begin], first_parameter_[end]);
  for (size_t i = begin; used && i < end; ++i) {
    if (shared_parameter_[i] >= 0) used(use, shared_parameter_[i], shared_parameter_[i] + 1);
  }
}

void Sequential::forward_empty(const EmptyCall& call, const ParametersUsed& used) const {
  const std::vector<Shape> shapes = shapes_of_parts(call.x);
  for (size_t i = 0; i < parts_.size(); ++i) {
    const LayerScope scope(call.ctx, parts_[i].label.c_str());
    report(used, Use::begins, i, i + 1);
    if (call.pass.sums_over_devices())
      parts_[i].layer->forward_empty({call.ctx, shapes[i], call.pass, buffers_of_part(call.buffers, i)});
    report(used, Use::ends, i, i + 1);
  }
}

void Sequential::backward_empty(const EmptyCall& call, Recomputed recomputed, const ParametersUsed& used) const {
  const std::vector<Shape> shapes = shapes_of_parts(call.x);
  for (size_t i = parts_.size(); i-- > first_trained_part_;) {
    if (!recomputed.empty() && i + 1 == static_cast<size_t>(recomputed.back().end)) {
      report(used, Use::begins, static_cast<size_t>(recomputed.back().begin), i + 1);
      recomputed = recomputed.first(recomputed.size() - 1);
    }
    const Layer& layer = *parts_[i].layer;
    const bool called = call.pass.sums_over_devices(), calls_hooks = called && layer.calls_hooks();
    {
      const LayerScope scope(call.ctx, parts_[i].label.c_str());
      report(used, Use::begins, i, i + 1);
      if (called) {
        layer.backward_empty({call.ctx, shapes[i], call.pass, buffers_of_part(call.buffers, i),
                              calls_hooks ? call.hooks.of_layer(first_parameter_[i]) : GradientHooks()});
      }
      report(used, Use::ends, i, i + 1);
    }
    if (call.hooks.ready && !calls_hooks && has_parameters(i)) call.hooks.ready(first_parameter_[i]);
  }
}

void Sequential::backward_from(ExecContext& ctx, ParamViews params, Saved saved, Tensor grad_output,
                               ParamViews grad_params, GradMode mode, const Pass& pass, const GradientHooks& hooks,
                               Recomputed recomputed, BufferViews buffers, const ParametersUsed& used) const {
  run_backward(ctx, params, buffers, std::move(saved), std::move(grad_output), {}, grad_params, mode, pass, hooks,
               recomputed, used);
}

ParamViews Sequential::of_part(ParamViews all, size_t part) const {
  if (shared_parameter_[part] >= 0) return all.subspan(static_cast<size_t>(shared_parameter_[part]), 1);
  const auto begin = static_cast<size_t>(first_parameter_[part]);
  return all.subspan(begin, static_cast<size_t>(first_parameter_[part + 1]) - begin);
}

BufferViews Sequential::buffers_of_part(BufferViews all, size_t part) const {
  VITRINE_ASSERT(all.size() == first_buffer_.back(), "a model with buffers gets views of all of them");
  return all.subspan(first_buffer_[part], first_buffer_[part + 1] - first_buffer_[part]);
}

// The input shape of each part, then the shape of the output.
std::vector<Shape> Sequential::shapes_of_parts(const Shape& input) const {
  std::vector<Shape> shapes{input};
  for (const Part& part : parts_) shapes.push_back(part.layer->output_shape(shapes.back()));
  return shapes;
}

std::vector<int> Sequential::computing_parts(const Shape& input, const Pass& pass) const {
  const std::vector<Shape> shapes = shapes_of_parts(input);
  std::vector<int> computing;
  for (size_t i = 0; i < parts_.size(); ++i) {
    if (!part_is_identity(i, shapes[i], pass)) computing.push_back(static_cast<int>(i));
  }
  return computing;
}

bool Sequential::output_is_free(const Shape& input, const Pass& pass) const {
  const std::vector<int> computing = computing_parts(input, pass);
  for (size_t i = computing.size(); i-- > 0;) {
    const Layer& layer = *parts_[static_cast<size_t>(computing[i])].layer;
    if (layer.output_need() != OutputNeed::nothing) return false;
    if (!layer.forward_in_place()) return true;
  }
  return false;  // the output may share the memory of the input
}

std::vector<Sequential::Run> Sequential::runs_of(Recomputed recomputed) const {
  const size_t parts = parts_.size();
  std::vector<Run> runs;
  // Parts that run no backward are runs of their own.
  const auto add_kept = [&](size_t begin, size_t end) {
    const size_t middle = std::clamp(first_trained_part_, begin, end);
    if (begin < middle) runs.push_back({begin, middle, true});
    if (middle < end || runs.empty()) runs.push_back({middle, end, true});
  };
  size_t at = 0;
  for (const PartRange& range : recomputed) {
    const auto begin = static_cast<size_t>(range.begin), end = static_cast<size_t>(range.end);
    VITRINE_ASSERT(at <= begin && begin < end && end <= parts, "segments are ascending, disjoint and within the model");
    add_kept(at, begin);
    runs.push_back({begin, end, false});
    at = end;
  }
  if (at < parts || runs.empty()) add_kept(at, parts);
  return runs;
}

// Returns the output of the last part of `run`. If `output` is given, the last part of the model that computes writes
// to it. What the parts keep goes to `saved`, or is released at once if that is null.
Tensor Sequential::run_parts(ExecContext& ctx, ParamViews params, BufferViews buffers, Tensor x, const Run& run,
                             std::span<const Shape> shapes, const Tensor& output, std::vector<Saved>* saved,
                             const Pass& pass, const OutputReady& observe, const ParametersUsed& used) const {
  size_t last = run.end;  // past the part that writes to `output`
  while (output && last > run.begin && part_is_identity(last - 1, shapes[last - 1], pass)) --last;
  const Layer* before = nullptr;  // the layer that computed x
  const Pass inner = without_form(pass);
  for (size_t i = run.begin; i < run.end; ++i) {
    if (part_is_identity(i, shapes[i], pass)) {
      x = x.reshape(shapes[i + 1]);
      continue;
    }
    const Layer& layer = *parts_[i].layer;
    const LayerScope scope(ctx, parts_[i].label.c_str());
    report(used, Use::begins, i, i + 1);
    Tensor y;
    if (output && i + 1 == last) {
      y = output.reshape(shapes[i + 1]);
    } else if (layer.forward_in_place() && before != nullptr && before->output_need() != OutputNeed::values) {
      y = x;
    } else {
      const DType dtype = x.dtype() == DType::i32 ? of_part(params, i).front().dtype : x.dtype();
      y = ctx.allocate(shapes[i + 1], dtype, Category::activations, parts_[i].label + ".output");
    }
    Saved kept = name_layer(parts_[i], [&] {
      return forward_leaves(layer, {ctx, of_part(params, i), x, y, i == 0 ? pass : inner, buffers_of_part(buffers, i)});
    });
    report(used, Use::ends, i, i + 1);
    if (saved != nullptr) (*saved)[i] = std::move(kept);
    if (observe) observe(static_cast<int>(i), y);
    x = std::move(y);  // releases the input unless the part kept it
    before = &layer;
  }
  return x;
}

Saved Sequential::forward_from(ExecContext& ctx, ParamViews params, const Tensor& input, Tensor& output,
                               const Pass& pass, const OutputReady& observe, Recomputed recomputed, BufferViews buffers,
                               const ParametersUsed& used) const {
  Tensor x = input;
  Saved saved;
  const Shape images = pass.input_form ? pass.input_form.image_shape(x.shape()[0]) : x.shape();
  saved.shapes = shapes_of_parts(images);
  saved.parts.resize(parts_.size());
  const std::vector<int> computing = computing_parts(images, pass);
  const size_t last = computing.empty() ? 0 : static_cast<size_t>(computing.back());
  for (const Run& run : runs_of(recomputed)) {
    const bool runs_backward = run.end > first_trained_part_;
    if (!run.kept && pass.training) saved.tensors.push_back(runs_backward ? x : Tensor());
    const bool writes_output = output && !computing.empty() && run.begin <= last && last < run.end;
    x = run_parts(ctx, params, buffers, std::move(x), run, saved.shapes, writes_output ? output : Tensor(),
                  run.kept && runs_backward ? &saved.parts : nullptr, pass, observe, used);
  }
  if (!output) {
    output = std::move(x);
  } else if (computing.empty()) {
    copy(ctx, x.reshape(output.shape()), output);
  }
  return pass.training ? std::move(saved) : Saved();
}

// The index of the bias that the part before `part` adds to its output last, -1 if it has none. Parts that are the
// identity are not parts here.
int Sequential::bias_before(size_t part, std::span<const Shape> shapes, const Pass& pass) const {
  for (size_t i = part; i-- > 0;) {
    if (part_is_identity(i, shapes[i], pass)) continue;
    const int bias = parts_[i].layer->bias_parameter();
    return bias < 0 ? -1 : first_parameter_[i] + bias;
  }
  return -1;
}

namespace {

void release(std::vector<Saved>& parts) {
  for (Saved& part : parts) {
    release(part.parts);
    for (Tensor& tensor : part.tensors) tensor = {};
  }
  parts.clear();
}

/// Frees in an order of its own: that in which vectors destroy their elements differs between standard libraries, and
/// with it the places of blocks in a plan (the planner's page has another library than the program).
void release(Saved& saved) {
  for (Tensor& tensor : saved.tensors) tensor = {};
  release(saved.parts);
  saved = {};
}

}  // namespace

void Sequential::backward_part(size_t i, const BackwardCall& call, SharedGradients& shared, bool in_buckets) const {
  const Layer& layer = *parts_[i].layer;
  const bool shares = shared_parameter_[i] >= 0;
  const int parameter = shares ? shared_parameter_[i] : first_parameter_[i];
  const bool by_leaf = call.pass.leaves != nullptr;
  if (shares && !frozen_[static_cast<size_t>(parameter)]) {
    BackwardCall own = call;
    Tensor& held = shared.held[parameter];
    const bool first = by_leaf || in_buckets ? !held : shared.begun.insert(parameter).second;
    if (first && (by_leaf || in_buckets)) {
      const Shape& shape = call.params[0].shape;
      held =
          call.ctx.allocate(by_leaf ? Shape{static_cast<int64_t>(call.pass.leaves->own.size()), shape.numel()} : shape,
                            DType::f32, Category::gradients, "gradient of a shared parameter");
      own.mode = GradMode::overwrite;
    } else if (!first) {
      own.mode = GradMode::accumulate;
    }
    if (by_leaf) return backward_leaves(layer, call, {held, own.mode, false});
    const View view = held;
    if (in_buckets) own.grad_params = std::span(&view, 1);
    return layer.backward(own);
  }
  const auto held = shared.held.extract(parameter);
  const bool owns = has_parameters(i) && !shares;
  if (owns && by_leaf && held) return backward_leaves(layer, call, {held.mapped(), GradMode::accumulate});
  if (owns && (held || shared.begun.contains(parameter))) {
    BackwardCall own = call;
    if (held && held.mapped()) copy(call.ctx, held.mapped(), call.grad_params[0]);
    own.mode = GradMode::accumulate;
    return layer.backward(own);
  }
  backward_leaves(layer, call);
}

// Computes the gradient of the input if grad_input is given; otherwise stops at the first part with parameters.
void Sequential::run_backward(ExecContext& ctx, ParamViews params, BufferViews buffers, Saved saved, Tensor grad,
                              const Tensor& grad_input, ParamViews grad_params, GradMode mode, const Pass& pass,
                              const GradientHooks& hooks, Recomputed recomputed, const ParametersUsed& used) const {
  const std::vector<Shape>& shapes = saved.shapes;
  VITRINE_ASSERT(shapes.size() == parts_.size() + 1 && saved.tensors.size() == recomputed.size(),
                 "Sequential::backward: saved is not from a forward pass in training with the same segments");
  size_t first = parts_.size();  // the first part that runs backward
  for (size_t i = parts_.size(); i-- > first_trained_part_;) {
    const bool wanted = grad_input ? !part_is_identity(i, shapes[i], pass) : has_parameters(i);
    if (wanted) first = i;
  }
  grad = grad.reshape(shapes.back());
  size_t segments = recomputed.size();  // not yet recomputed
  const Pass inner = without_form(pass);
  SharedGradients shared;
  bool bias_done = false;  // part i + 1 has computed the gradient of the bias of the part before it
  for (size_t i = parts_.size(); i-- > first;) {
    if (segments > 0 && i + 1 == static_cast<size_t>(recomputed[segments - 1].end)) {
      const PhaseScope phase(ctx, Phase::recompute);
      --segments;
      const Run run{static_cast<size_t>(recomputed[segments].begin), i + 1, false};
      Pass again = pass;
      again.recomputes = true;
      report(used, Use::begins, run.begin, run.end);
      run_parts(ctx, params, buffers, std::exchange(saved.tensors[segments], {}), run, shapes, {}, &saved.parts, again,
                nullptr, nullptr);
    }
    if (part_is_identity(i, shapes[i], pass)) {
      grad = grad.reshape(shapes[i]);
      continue;
    }
    const Layer& layer = *parts_[i].layer;
    const LayerScope scope(ctx, parts_[i].label.c_str());
    report(used, Use::begins, i, i + 1);
    Tensor grad_x;
    if (i == first) {
      if (grad_input) grad_x = pass.input_form ? grad_input : grad_input.reshape(shapes[i]);
    } else if (layer.backward_in_place()) {
      grad_x = grad;
    } else {
      grad_x = ctx.allocate(shapes[i], grad.dtype(), Category::activations, parts_[i].label + ".grad_input");
    }
    const int bias = i > first && layer.sums_grad_x() ? bias_before(i, shapes, pass) : -1;
    const bool calls_hooks = layer.calls_hooks();
    if (hooks.begin && !calls_hooks) hooks.begin(bias < 0 ? first_parameter_[i] : bias);
    const ParamViews own = of_part(grad_params, i);
    std::vector<View> without_bias;
    if (bias_done) {
      without_bias.assign(own.begin(), own.end());
      without_bias[static_cast<size_t>(layer.bias_parameter())] = View();
    }
    View sums = bias < 0 ? View() : grad_params[static_cast<size_t>(bias)];
    if (sums.numel() != shapes[i][shapes[i].rank() - 1]) sums = View();  // an identity changed the last dimension
    name_layer(parts_[i], [&] {
      backward_part(i,
                    {ctx, of_part(params, i), saved.parts[i], grad, grad_x, bias_done ? without_bias : own, mode,
                     i == 0 ? pass : inner, buffers_of_part(buffers, i), sums,
                     calls_hooks ? hooks.of_layer(first_parameter_[i]) : GradientHooks()},
                    shared, static_cast<bool>(hooks.begin));
    });
    report(used, Use::ends, i, i + 1);
    bias_done = static_cast<bool>(sums);
    release(saved.parts[i]);
    grad = std::move(grad_x);
    if (hooks.ready && !calls_hooks && has_parameters(i)) hooks.ready(first_parameter_[i]);
  }
  if (grad_input && first == parts_.size()) copy(ctx, grad.reshape(grad_input.shape()), grad_input);
}

}  // namespace vitrine
