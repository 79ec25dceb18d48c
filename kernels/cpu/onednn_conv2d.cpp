// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/onednn_descriptors.h"
#include "kernels/cpu/onednn_plans.h"

namespace vitrine::cpu::onednn {
namespace {

using dnnl::memory;
using Tag = memory::format_tag;

// Layouts and windows of one convolution. Activations are NHWC; oneDNN chooses the layout of the weights. Gradients of
// weights and bias are f32.
struct Convolution : ConvolutionLayouts {
  Convolution(const Conv2dConfig& config, const Shape& x_shape, const Shape& w_shape, const Shape& y_shape, DType dtype)
      : ConvolutionLayouts{.x = activations(x_shape, dtype),
                           .y = activations(y_shape, dtype),
                           .w = weights(w_shape, Tag::any, dtype),
                           .bias = {{w_shape[0]}, data_type_of(dtype), Tag::x},
                           .grad_w = weights(w_shape, Tag::any, DType::f32),
                           .grad_bias = {{w_shape[0]}, memory::data_type::f32, Tag::x},
                           .strides = {config.stride, config.stride},
                           .pad_before = {config.pad, config.pad},
                           .pad_after = {(y_shape[1] - 1) * config.stride + w_shape[1] - x_shape[1] - config.pad,
                                         (y_shape[2] - 1) * config.stride + w_shape[2] - x_shape[2] - config.pad}},
        plain_w(weights(w_shape, Tag::ohwi, dtype)),
        plain_grad_w(weights(w_shape, Tag::ohwi, DType::f32)) {}

  static memory::desc activations(const Shape& s, DType dtype) {
    return {{s[0], s[3], s[1], s[2]}, data_type_of(dtype), Tag::nhwc};
  }
  static memory::desc weights(const Shape& s, Tag tag, DType dtype) {
    return {{s[0], s[3], s[1], s[2]}, data_type_of(dtype), tag};
  }

  memory::desc plain_w, plain_grad_w;
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

ConvolutionPlan make_forward(const OneDnnPlans& plans, const Convolution& c, bool with_bias, bool relu) {
  dnnl::primitive_attr attributes = workspace_attributes();
  if (relu) {
    dnnl::post_ops epilogue;
    append_relu(epilogue);
    attributes.set_post_ops(epilogue);
  }
  auto described = describe_forward(plans.engine, c, with_bias, attributes);
  auto& descriptor = described.descriptor;
  ConvolutionPlan plan;
  if (!skip_reference(descriptor)) return plan;
  plan.pass = make_pass<dnnl::convolution_forward>(plans, descriptor);
  plans.add_argument(plan.pass, DNNL_ARG_SRC, c.x);
  plans.add_argument(plan.pass, DNNL_ARG_WEIGHTS, descriptor.weights_desc());
  plans.add_argument(plan.pass, DNNL_ARG_DST, c.y);
  if (with_bias) plans.add_argument(plan.pass, DNNL_ARG_BIAS, c.bias);
  set_weights(plans, plan, descriptor.weights_desc(), c.plain_w, false);
  return plan;
}

ConvolutionPlan make_backward_data(const OneDnnPlans& plans, const Convolution& c) {
  const auto hint = describe_forward(plans.engine, c, false, {});
  auto described = describe_backward_data(plans.engine, c, hint.descriptor, workspace_attributes());
  auto& descriptor = described.descriptor;
  ConvolutionPlan plan;
  if (!skip_reference(descriptor)) return plan;
  plan.pass = make_pass<dnnl::convolution_backward_data>(plans, descriptor);
  plans.add_argument(plan.pass, DNNL_ARG_DIFF_SRC, c.x);
  plans.add_argument(plan.pass, DNNL_ARG_WEIGHTS, descriptor.weights_desc());
  plans.add_argument(plan.pass, DNNL_ARG_DIFF_DST, c.y);
  set_weights(plans, plan, descriptor.weights_desc(), c.plain_w, false);
  return plan;
}

// oneDNN's AVX2 kernel for 1x1 windows with a stride sums the first weights of odd channel counts while another thread
// still writes them. Seen in 2.6; the kernel's source is the same in 3.7.
bool skip_racing_kernel(dnnl::convolution_backward_weights::primitive_desc& descriptor, const Convolution& c) {
  if (c.strides[0] == 1) return true;
  while (std::string_view(descriptor.impl_info_str()).starts_with("jit_1x1")) {
    if (!descriptor.next_impl()) return false;
  }
  return skip_reference(descriptor);
}

ConvolutionPlan make_backward_weight(const OneDnnPlans& plans, const Convolution& c, bool with_bias) {
  const auto hint = describe_forward(plans.engine, c, with_bias, {});
  auto described = describe_backward_weight(plans.engine, c, with_bias, hint.descriptor, workspace_attributes());
  auto& descriptor = described.descriptor;
  ConvolutionPlan plan;
  if (!skip_reference(descriptor) || !skip_racing_kernel(descriptor, c)) return plan;
  plan.pass = make_pass<dnnl::convolution_backward_weights>(plans, descriptor);
  plans.add_argument(plan.pass, DNNL_ARG_SRC, c.x);
  plans.add_argument(plan.pass, DNNL_ARG_DIFF_WEIGHTS, descriptor.diff_weights_desc());
  plans.add_argument(plan.pass, DNNL_ARG_DIFF_DST, c.y);
  if (with_bias) plans.add_argument(plan.pass, DNNL_ARG_DIFF_BIAS, c.grad_bias);
  set_weights(plans, plan, descriptor.diff_weights_desc(), c.plain_grad_w, true);
  return plan;
}

ConvolutionPlan& plan_for(OneDnnPlans& plans, RecordedConv2d c) {
  c.config.relu = c.config.relu && c.pass == Conv2dPass::forward;
  c.accumulate = false;
  const auto found = plans.convolutions.find(c.key());
  if (found != plans.convolutions.end()) return found->second;
  ConvolutionPlan plan;
  try {
    const Convolution convolution(c.config, c.x, c.w, conv2d_output_shape(c.config, c.x, c.w), c.dtype);
    if (c.pass == Conv2dPass::forward) plan = make_forward(plans, convolution, c.bias, c.config.relu);
    if (c.pass == Conv2dPass::backward_data) plan = make_backward_data(plans, convolution);
    if (c.pass == Conv2dPass::backward_weight) plan = make_backward_weight(plans, convolution, c.bias);
  } catch (const dnnl::error&) {
    plan = {};  // no implementation: the caller uses another one
  }
  return plans.convolutions.emplace(c.key(), std::move(plan)).first->second;
}

int64_t most_scratch_bytes(const ConvolutionPlan& plan) {
  return std::max({plan.pass.scratch_bytes, plan.reorder.scratch_bytes, plan.reorder_accumulate.scratch_bytes});
}

}  // namespace

bool conv2d(ExecContext& ctx, const View& workspace, const Conv2dCall& c) {
  auto& plans = ctx.plans().get<OneDnnPlans>();
  ConvolutionPlan& plan = plan_for(plans, c.recorded());
  const bool writes_weights = c.pass == Conv2dPass::backward_weight, accumulate = c.mode == GradMode::accumulate;
  const bool in_place = plan.same_layout && !accumulate;
  const int64_t weight_bytes = in_place ? 0 : plan.weight_bytes;
  const int64_t bias_bytes = accumulate && c.bias ? c.bias.bytes() : 0;
  Arena arena(workspace);
  if (!plan.pass || !arena.fits({most_scratch_bytes(plan), weight_bytes, bias_bytes})) return false;
  void* scratch = arena.take(most_scratch_bytes(plan));
  void* weights = in_place ? c.w.data : arena.take(weight_bytes);
  void* bias = bias_bytes > 0 ? arena.take(bias_bytes) : c.bias.data;
  if (!in_place && !writes_weights)
    plans.run(plan.reorder, {{DNNL_ARG_FROM, c.w.data}, {DNNL_ARG_TO, weights}}, scratch);
  // Each pass has some of these arguments.
  plans.run(plan.pass,
            {{DNNL_ARG_SRC, c.x.data},
             {DNNL_ARG_DIFF_SRC, c.x.data},
             {DNNL_ARG_WEIGHTS, weights},
             {DNNL_ARG_DIFF_WEIGHTS, weights},
             {DNNL_ARG_BIAS, bias},
             {DNNL_ARG_DIFF_BIAS, bias},
             {DNNL_ARG_DST, c.y.data},
             {DNNL_ARG_DIFF_DST, c.y.data}},
            scratch);
  if (!in_place && writes_weights) {
    plans.run(accumulate ? plan.reorder_accumulate : plan.reorder, {{DNNL_ARG_FROM, weights}, {DNNL_ARG_TO, c.w.data}},
              scratch);
  }
  if (bias_bytes > 0) {
    const auto* fresh = static_cast<const float*>(bias);
    for (int64_t k = 0; k < c.bias.numel(); ++k) c.bias.as<float>()[k] += fresh[k];
  }
  return true;
}

int64_t conv2d_bytes(ExecContext& ctx, const RecordedConv2d& c) {
  const ConvolutionPlan& plan = plan_for(ctx.plans().get<OneDnnPlans>(), c);
  if (!plan.pass) return -1;
  const int64_t bias_bytes = c.pass == Conv2dPass::backward_weight && c.bias ? c.w[0] * size_of(DType::f32) : 0;
  return Arena::kAlignment + Arena::aligned(most_scratch_bytes(plan)) + Arena::aligned(plan.weight_bytes) +
         Arena::aligned(bias_bytes);
}

}  // namespace vitrine::cpu::onednn
