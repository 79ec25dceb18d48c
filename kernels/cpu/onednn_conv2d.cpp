// SPDX-License-Identifier: Apache-2.0
#include <functional>

#include "kernels/cpu/onednn.h"
#include "kernels/cpu/onednn_descriptors.h"
#include "kernels/cpu/onednn_plans.h"

namespace vitrine::cpu::onednn {
namespace {

// With more images, implementations that failed with this number of them are refused: a trial takes as long as a pass.
constexpr int64_t kMostTrialImages = 32;

using dnnl::memory;
using Tag = memory::format_tag;

// Layouts and windows of one convolution. oneDNN chooses the layout of the weights. Gradients of weights and bias are
// f32.
struct Convolution : ConvolutionLayouts {
  Convolution(const Conv2dConfig& config, const Shape& x_shape, const Shape& w_shape, const Shape& y_shape, DType dtype,
              dnnl::algorithm by)
      : ConvolutionLayouts{.algorithm = by,
                           .x = images(x_shape, layout_of(by), dtype),
                           .y = images(y_shape, layout_of(by), dtype),
                           .w = weights(w_shape, Tag::any, dtype),
                           .bias = {{w_shape[0]}, data_type_of(dtype), Tag::x},
                           .grad_w = weights(w_shape, Tag::any, DType::f32),
                           .grad_bias = {{w_shape[0]}, memory::data_type::f32, Tag::x},
                           .strides = {config.stride, config.stride},
                           .pad_before = {config.pad, config.pad},
                           .pad_after = {(y_shape[1] - 1) * config.stride + w_shape[1] - x_shape[1] - config.pad,
                                         (y_shape[2] - 1) * config.stride + w_shape[2] - x_shape[2] - config.pad}},
        plain_x(images(x_shape, Tag::nhwc, dtype)),
        plain_y(images(y_shape, Tag::nhwc, dtype)),
        plain_w(weights(w_shape, Tag::ohwi, dtype)),
        plain_grad_w(weights(w_shape, Tag::ohwi, DType::f32)) {}

  static Tag layout_of(dnnl::algorithm by) {
    return by == dnnl::algorithm::convolution_winograd ? Tag::nChw16c : Tag::nhwc;
  }
  static memory::desc images(const Shape& s, Tag tag, DType dtype) {
    return {{s[0], s[3], s[1], s[2]}, data_type_of(dtype), tag};
  }
  static memory::desc weights(const Shape& s, Tag tag, DType dtype) {
    return {{s[0], s[3], s[1], s[2]}, data_type_of(dtype), tag};
  }

  memory::desc plain_x, plain_y, plain_w, plain_grad_w;
};

template <class Primitive, class Descriptor>
Plan make_pass(const OneDnnPlans& plans, const Descriptor& descriptor) {
  Plan plan;
  plan.primitive = Primitive(descriptor);
  plan.scratch_bytes = scratch_bytes(descriptor);
  if (plan.scratch_bytes > 0) plans.add_argument(plan, DNNL_ARG_SCRATCHPAD, descriptor.scratchpad_desc());
  return plan;
}

Plan make_reorder(const OneDnnPlans& plans, const memory::desc& from, const memory::desc& to, bool accumulate) {
  dnnl::primitive_attr attributes = workspace_attributes();
  if (accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0F);
    attributes.set_post_ops(sum);
  }
  const dnnl::reorder::primitive_desc descriptor(plans.engine, from, plans.engine, to, attributes);
  Plan plan = make_pass<dnnl::reorder>(plans, descriptor);
  plans.add_argument(plan, DNNL_ARG_FROM, from);
  plans.add_argument(plan, DNNL_ARG_TO, to);
  return plan;
}

/// Sets how the pass of the plan holds its weights, or their gradient, and the reorder between that and (K, R, S, C).
void set_weights(const OneDnnPlans& plans, ConvolutionPlan& plan, const memory::desc& layout, const memory::desc& plain,
                 bool are_written) {
  plan.same_layout = layout == plain;
  plan.weight_bytes = static_cast<int64_t>(layout.get_size());
  plan.reorder = make_reorder(plans, are_written ? layout : plain, are_written ? plain : layout, false);
  if (are_written) plan.reorder_accumulate = make_reorder(plans, layout, plain, true);
}

/// Sets how the pass holds its images, and the reorders between that and NHWC.
void set_images(const OneDnnPlans& plans, ConvolutionPlan& plan, const Convolution& c, Conv2dPass pass) {
  if (c.x == c.plain_x && c.y == c.plain_y) return;
  const auto reorder = [&](const memory::desc& layout, const memory::desc& plain, bool is_written) {
    return make_reorder(plans, is_written ? layout : plain, is_written ? plain : layout, false);
  };
  plan.reorder_x = reorder(c.x, c.plain_x, pass == Conv2dPass::backward_data);
  plan.reorder_y = reorder(c.y, c.plain_y, pass == Conv2dPass::forward);
  plan.x_bytes = static_cast<int64_t>(c.x.get_size());
  plan.y_bytes = static_cast<int64_t>(c.y.get_size());
}

int64_t most_scratch_bytes(const ConvolutionPlan& plan) {
  return std::max({plan.pass.scratch_bytes, plan.reorder.scratch_bytes, plan.reorder_accumulate.scratch_bytes,
                   plan.reorder_x.scratch_bytes, plan.reorder_y.scratch_bytes});
}

/// Completes the plan that an implementation of this name has begun; false if it must not be used.
using Complete = std::function<bool(ConvolutionPlan& plan, const std::string& implementation)>;

/// The plan of the first implementation that is no reference loop and that `complete` accepts.
///   begin  sets the pass of a plan, and its weights, from the descriptor
template <class Descriptor, class Begin>
ConvolutionPlan first_accepted(Descriptor& descriptor, const Complete& complete, const Begin& begin) {
  do {
    if (!skip_reference(descriptor)) break;
    ConvolutionPlan plan;
    begin(plan);
    if (complete(plan, descriptor.impl_info_str())) return plan;
  } while (descriptor.next_impl());
  return {};
}

ConvolutionPlan make_forward(const OneDnnPlans& plans, const Convolution& c, bool with_bias, bool relu,
                             const Complete& complete) {
  dnnl::primitive_attr attributes = workspace_attributes();
  if (relu) {
    dnnl::post_ops epilogue;
    append_relu(epilogue);
    attributes.set_post_ops(epilogue);
  }
  auto described = describe_forward(plans.engine, c, with_bias, attributes);
  auto& descriptor = described.descriptor;
  return first_accepted(descriptor, complete, [&](ConvolutionPlan& plan) {
    plan.pass = make_pass<dnnl::convolution_forward>(plans, descriptor);
    plans.add_argument(plan.pass, DNNL_ARG_SRC, c.x);
    plans.add_argument(plan.pass, DNNL_ARG_WEIGHTS, descriptor.weights_desc());
    plans.add_argument(plan.pass, DNNL_ARG_DST, c.y);
    if (with_bias) plans.add_argument(plan.pass, DNNL_ARG_BIAS, c.bias);
    set_weights(plans, plan, descriptor.weights_desc(), c.plain_w, false);
  });
}

ConvolutionPlan make_backward_data(const OneDnnPlans& plans, const Convolution& c, const Complete& complete) {
  const auto hint = describe_forward(plans.engine, c, false, {});
  auto described = describe_backward_data(plans.engine, c, hint.descriptor, workspace_attributes());
  auto& descriptor = described.descriptor;
  return first_accepted(descriptor, complete, [&](ConvolutionPlan& plan) {
    plan.pass = make_pass<dnnl::convolution_backward_data>(plans, descriptor);
    plans.add_argument(plan.pass, DNNL_ARG_DIFF_SRC, c.x);
    plans.add_argument(plan.pass, DNNL_ARG_WEIGHTS, descriptor.weights_desc());
    plans.add_argument(plan.pass, DNNL_ARG_DIFF_DST, c.y);
    set_weights(plans, plan, descriptor.weights_desc(), c.plain_w, false);
  });
}

ConvolutionPlan make_backward_weight(const OneDnnPlans& plans, const Convolution& c, bool with_bias,
                                     const Complete& complete) {
  const auto hint = describe_forward(plans.engine, c, with_bias, {});
  auto described = describe_backward_weight(plans.engine, c, with_bias, hint.descriptor, workspace_attributes());
  auto& descriptor = described.descriptor;
  return first_accepted(descriptor, complete, [&](ConvolutionPlan& plan) {
    plan.pass = make_pass<dnnl::convolution_backward_weights>(plans, descriptor);
    plans.add_argument(plan.pass, DNNL_ARG_SRC, c.x);
    plans.add_argument(plan.pass, DNNL_ARG_DIFF_WEIGHTS, descriptor.diff_weights_desc());
    plans.add_argument(plan.pass, DNNL_ARG_DIFF_DST, c.y);
    if (with_bias) plans.add_argument(plan.pass, DNNL_ARG_DIFF_BIAS, c.grad_bias);
    set_weights(plans, plan, descriptor.diff_weights_desc(), c.plain_grad_w, true);
  });
}

int64_t workspace_bytes(const ConvolutionPlan& plan, const RecordedConv2d& c) {
  const int64_t bias = c.pass == Conv2dPass::backward_weight && c.bias ? c.w[0] * size_of(DType::f32) : 0;
  int64_t bytes = Arena::kAlignment;
  for (const int64_t piece : {most_scratch_bytes(plan), plan.weight_bytes, bias, plan.x_bytes, plan.y_bytes})
    bytes += Arena::aligned(piece);
  return bytes;
}

// oneDNN's AVX2 kernel for 1x1 windows with a stride sums the first weights of odd channel counts while another thread
// still writes them. Seen in 2.6; the kernel's source is the same in 3.7.
bool is_racing(const RecordedConv2d& c, const std::string& implementation) {
  return c.pass == Conv2dPass::backward_weight && c.config.stride > 1 && implementation.starts_with("jit_1x1");
}

ConvolutionPlan make_convolution(OneDnnPlans& plans, const RecordedConv2d& c, dnnl::algorithm algorithm) {
  const bool on_trial = needs_trial(c);
  std::set<std::string> refused;
  if (on_trial && c.x[0] > kMostTrialImages) {
    RecordedConv2d few = c;
    few.x = c.x.with_dim0(kMostTrialImages);
    refused = convolution_plan(plans, few, algorithm).refused;
  }
  const auto is_right = [&](ConvolutionPlan& begun) {
    return !on_trial || c.x[0] > kMostTrialImages || passes_trial(plans, begun, c);
  };
  ConvolutionPlan plan;
  try {
    const Convolution convolution(c.config, c.x, c.w, conv2d_output_shape(c.config, c.x, c.w), c.dtype, algorithm);
    const Complete complete = [&](ConvolutionPlan& begun, const std::string& implementation) {
      if (is_racing(c, implementation) || refused.contains(implementation)) return false;
      set_images(plans, begun, convolution, c.pass);
      begun.bytes = workspace_bytes(begun, c);
      if (is_right(begun)) return true;
      refused.insert(implementation);
      return false;
    };
    if (c.pass == Conv2dPass::forward) plan = make_forward(plans, convolution, c.bias, c.config.relu, complete);
    if (c.pass == Conv2dPass::backward_data) plan = make_backward_data(plans, convolution, complete);
    if (c.pass == Conv2dPass::backward_weight) plan = make_backward_weight(plans, convolution, c.bias, complete);
  } catch (const dnnl::error&) {
    plan = {};  // no implementation: the caller uses another one
  }
  plan.refused = std::move(refused);
  return plan;
}

}  // namespace

ConvolutionPlan& convolution_plan(OneDnnPlans& plans, RecordedConv2d c, dnnl::algorithm algorithm) {
  c.config.relu = c.config.relu && c.pass == Conv2dPass::forward;
  c.accumulate = false;
  const std::pair key(algorithm, c.key());
  const auto found = plans.convolutions.find(key);
  if (found != plans.convolutions.end()) return found->second;
  return plans.convolutions.emplace(key, make_convolution(plans, c, algorithm)).first->second;
}

void run(OneDnnPlans& plans, ConvolutionPlan& plan, const View& workspace, const Conv2dCall& c, bool weights_packed) {
  const bool writes_weights = c.pass == Conv2dPass::backward_weight, accumulate = c.mode == GradMode::accumulate;
  const bool in_place = plan.same_layout && !accumulate;
  const int64_t weight_bytes = in_place ? 0 : plan.weight_bytes;
  const int64_t bias_bytes = accumulate && c.bias ? c.bias.bytes() : 0;
  Arena arena(workspace);
  void* scratch = arena.take(most_scratch_bytes(plan));
  void* weights = in_place ? c.w.data : arena.take(weight_bytes);
  void* bias = bias_bytes > 0 ? arena.take(bias_bytes) : c.bias.data;
  void* x = plan.x_bytes > 0 ? arena.take(plan.x_bytes) : c.x.data;
  void* y = plan.y_bytes > 0 ? arena.take(plan.y_bytes) : c.y.data;
  const auto reorder = [&](Plan& by, const void* from, const void* to) {
    if (from != to) plans.run(by, {{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, to}}, scratch);
  };
  if (!writes_weights && !weights_packed) reorder(plan.reorder, c.w.data, weights);
  if (c.pass != Conv2dPass::backward_data) reorder(plan.reorder_x, c.x.data, x);
  if (c.pass != Conv2dPass::forward) reorder(plan.reorder_y, c.y.data, y);
  // Each pass has some of these arguments.
  plans.run(plan.pass,
            {{DNNL_ARG_SRC, x},
             {DNNL_ARG_DIFF_SRC, x},
             {DNNL_ARG_WEIGHTS, weights},
             {DNNL_ARG_DIFF_WEIGHTS, weights},
             {DNNL_ARG_BIAS, bias},
             {DNNL_ARG_DIFF_BIAS, bias},
             {DNNL_ARG_DST, y},
             {DNNL_ARG_DIFF_DST, y}},
            scratch);
  if (c.pass == Conv2dPass::forward) reorder(plan.reorder_y, y, c.y.data);
  if (c.pass == Conv2dPass::backward_data) reorder(plan.reorder_x, x, c.x.data);
  if (writes_weights) reorder(accumulate ? plan.reorder_accumulate : plan.reorder, weights, c.w.data);
  if (bias_bytes > 0) {
    const auto* fresh = static_cast<const float*>(bias);
    for (int64_t k = 0; k < c.bias.numel(); ++k) c.bias.as<float>()[k] += fresh[k];
  }
}

bool conv2d(ExecContext& ctx, const View& workspace, const Conv2dCall& c) {
  auto& plans = ctx.plans().get<OneDnnPlans>();
  ConvolutionPlan& plan = convolution_plan(plans, c.recorded(), dnnl::algorithm::convolution_direct);
  if (!plan.pass || plan.bytes > (workspace ? workspace.bytes() : 0)) return false;
  run(plans, plan, workspace, c);
  return true;
}

int64_t conv2d_bytes(ExecContext& ctx, const RecordedConv2d& c) {
  const ConvolutionPlan& plan =
      convolution_plan(ctx.plans().get<OneDnnPlans>(), c, dnnl::algorithm::convolution_direct);
  return plan.pass ? plan.bytes : -1;
}

}  // namespace vitrine::cpu::onednn
