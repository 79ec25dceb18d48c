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
  plan.same_layout = descriptor.weights_desc() == c.plain_w;
  plan.weight_bytes = static_cast<int64_t>(descriptor.weights_desc().get_size());
  plan.reorder = make_reorder(plans, c.plain_w, descriptor.weights_desc(), false);
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
  plan.same_layout = descriptor.weights_desc() == c.plain_w;
  plan.weight_bytes = static_cast<int64_t>(descriptor.weights_desc().get_size());
  plan.reorder = make_reorder(plans, c.plain_w, descriptor.weights_desc(), false);
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
  plan.same_layout = descriptor.diff_weights_desc() == c.plain_grad_w;
  plan.weight_bytes = static_cast<int64_t>(descriptor.diff_weights_desc().get_size());
  plan.reorder = make_reorder(plans, descriptor.diff_weights_desc(), c.plain_grad_w, false);
  plan.reorder_accumulate = make_reorder(plans, descriptor.diff_weights_desc(), c.plain_grad_w, true);
  return plan;
}

ConvolutionPlan& plan_for(OneDnnPlans& plans, Conv2dPass pass, const Conv2dConfig& config, const Shape& x,
                          const Shape& w, bool with_bias, DType dtype) {
  const bool relu = pass == Conv2dPass::forward && config.relu;
  const PlanKey key{static_cast<int64_t>(pass),
                    static_cast<int64_t>(dtype),
                    x[0],
                    x[1],
                    x[2],
                    x[3],
                    w[0],
                    w[1],
                    w[2],
                    config.stride,
                    config.pad,
                    relu,
                    with_bias};
  const auto found = plans.convolutions.find(key);
  if (found != plans.convolutions.end()) return found->second;
  ConvolutionPlan plan;
  try {
    const Convolution convolution(config, x, w, conv2d_output_shape(config, x, w), dtype);
    if (pass == Conv2dPass::forward) plan = make_forward(plans, convolution, with_bias, relu);
    if (pass == Conv2dPass::backward_data) plan = make_backward_data(plans, convolution);
    if (pass == Conv2dPass::backward_weight) plan = make_backward_weight(plans, convolution, with_bias);
  } catch (const dnnl::error&) {
    plan = {};  // no implementation: the caller uses another one
  }
  return plans.convolutions.emplace(key, std::move(plan)).first->second;
}

// Returns the weights in the layout of the plan's pass.
const void* packed_weights(OneDnnPlans& plans, ConvolutionPlan& plan, const ConstView& w, Arena& arena, void* scratch) {
  if (plan.same_layout) return w.data;
  void* packed = arena.take(plan.weight_bytes);
  plans.run(plan.reorder, {{DNNL_ARG_FROM, w.data}, {DNNL_ARG_TO, packed}}, scratch);
  return packed;
}

int64_t most_scratch_bytes(const ConvolutionPlan& plan) {
  return std::max({plan.pass.scratch_bytes, plan.reorder.scratch_bytes, plan.reorder_accumulate.scratch_bytes});
}

}  // namespace

bool conv2d_forward(ExecContext& ctx, const View& workspace, const Conv2dConfig& config, ConstView x, ConstView w,
                    ConstView bias, View y) {
  auto& plans = ctx.plans().get<OneDnnPlans>();
  ConvolutionPlan& plan =
      plan_for(plans, Conv2dPass::forward, config, x.shape, w.shape, static_cast<bool>(bias), x.dtype);
  Arena arena(workspace);
  if (!plan.pass || !arena.fits({most_scratch_bytes(plan), plan.same_layout ? 0 : plan.weight_bytes})) return false;
  void* scratch = arena.take(most_scratch_bytes(plan));
  const void* weights = packed_weights(plans, plan, w, arena, scratch);
  plans.run(plan.pass,
            {{DNNL_ARG_SRC, x.data}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_BIAS, bias.data}, {DNNL_ARG_DST, y.data}},
            scratch);
  return true;
}

bool conv2d_backward_data(ExecContext& ctx, const View& workspace, const Conv2dConfig& config, ConstView grad_y,
                          ConstView w, View grad_x) {
  auto& plans = ctx.plans().get<OneDnnPlans>();
  ConvolutionPlan& plan =
      plan_for(plans, Conv2dPass::backward_data, config, grad_x.shape, w.shape, false, grad_y.dtype);
  Arena arena(workspace);
  if (!plan.pass || !arena.fits({most_scratch_bytes(plan), plan.same_layout ? 0 : plan.weight_bytes})) return false;
  void* scratch = arena.take(most_scratch_bytes(plan));
  const void* weights = packed_weights(plans, plan, w, arena, scratch);
  plans.run(plan.pass,
            {{DNNL_ARG_DIFF_DST, grad_y.data}, {DNNL_ARG_WEIGHTS, weights}, {DNNL_ARG_DIFF_SRC, grad_x.data}}, scratch);
  return true;
}

bool conv2d_backward_weight(ExecContext& ctx, const View& workspace, const Conv2dConfig& config, ConstView x,
                            ConstView grad_y, View grad_w, View grad_bias, GradMode mode) {
  auto& plans = ctx.plans().get<OneDnnPlans>();
  ConvolutionPlan& plan = plan_for(plans, Conv2dPass::backward_weight, config, x.shape, grad_w.shape,
                                   static_cast<bool>(grad_bias), x.dtype);
  const bool accumulate = mode == GradMode::accumulate;
  const bool in_place = plan.same_layout && !accumulate;
  const int64_t weight_bytes = in_place ? 0 : plan.weight_bytes;
  const int64_t bias_bytes = accumulate && grad_bias ? grad_bias.bytes() : 0;
  Arena arena(workspace);
  if (!plan.pass || !arena.fits({most_scratch_bytes(plan), weight_bytes, bias_bytes})) return false;
  void* scratch = arena.take(most_scratch_bytes(plan));
  void* weights = in_place ? grad_w.data : arena.take(weight_bytes);
  void* bias = bias_bytes > 0 ? arena.take(bias_bytes) : grad_bias.data;
  plans.run(plan.pass,
            {{DNNL_ARG_SRC, x.data},
             {DNNL_ARG_DIFF_DST, grad_y.data},
             {DNNL_ARG_DIFF_WEIGHTS, weights},
             {DNNL_ARG_DIFF_BIAS, bias}},
            scratch);
  if (!in_place)
    plans.run(accumulate ? plan.reorder_accumulate : plan.reorder,
              {{DNNL_ARG_FROM, weights}, {DNNL_ARG_TO, grad_w.data}}, scratch);
  if (bias_bytes > 0) {
    const auto* fresh = static_cast<const float*>(bias);
    for (int64_t k = 0; k < grad_bias.numel(); ++k) grad_bias.as<float>()[k] += fresh[k];
  }
  return true;
}

int64_t conv2d_bytes(ExecContext& ctx, Conv2dPass pass, const Conv2dConfig& config, const Shape& x, const Shape& w,
                     bool with_bias, DType dtype) {
  const ConvolutionPlan& plan = plan_for(ctx.plans().get<OneDnnPlans>(), pass, config, x, w, with_bias, dtype);
  if (!plan.pass) return -1;
  const int64_t bias_bytes = pass == Conv2dPass::backward_weight && with_bias ? w[0] * size_of(DType::f32) : 0;
  return Arena::kAlignment + Arena::aligned(most_scratch_bytes(plan)) + Arena::aligned(plan.weight_bytes) +
         Arena::aligned(bias_bytes);
}

}  // namespace vitrine::cpu::onednn
