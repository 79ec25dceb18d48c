// SPDX-License-Identifier: Apache-2.0
#include <utility>

#include "kernels/cpu/onednn_descriptors.h"

namespace vitrine::cpu::onednn {
namespace {

constexpr auto kTraining = dnnl::prop_kind::forward_training;

dnnl::convolution_forward::desc forward(const ConvolutionLayouts& c, bool with_bias) {
  return with_bias ? dnnl::convolution_forward::desc(kTraining, c.algorithm, c.x, c.w, c.bias, c.y, c.strides,
                                                     c.pad_before, c.pad_after)
                   : dnnl::convolution_forward::desc(kTraining, c.algorithm, c.x, c.w, c.y, c.strides, c.pad_before,
                                                     c.pad_after);
}

/// The operation must outlive the descriptor created from it.
template <class Descriptor, class Operation, class... Rest>
Described<Descriptor> described(Operation operation, const Rest&... rest) {
  auto kept = std::make_shared<const Operation>(std::move(operation));
  Descriptor descriptor(*kept, rest...);
  return {std::move(kept), std::move(descriptor)};
}

}  // namespace

Described<dnnl::convolution_forward::primitive_desc> describe_forward(const dnnl::engine& engine,
                                                                      const ConvolutionLayouts& c, bool with_bias,
                                                                      const dnnl::primitive_attr& attributes) {
  return described<dnnl::convolution_forward::primitive_desc>(forward(c, with_bias), attributes, engine);
}

Described<dnnl::convolution_backward_data::primitive_desc> describe_backward_data(
    const dnnl::engine& engine, const ConvolutionLayouts& c, const dnnl::convolution_forward::primitive_desc& hint,
    const dnnl::primitive_attr& attributes) {
  const dnnl::convolution_backward_data::desc operation(c.algorithm, c.x, c.w, c.y, c.strides, c.pad_before,
                                                        c.pad_after);
  return described<dnnl::convolution_backward_data::primitive_desc>(operation, attributes, engine, hint);
}

Described<dnnl::convolution_backward_weights::primitive_desc> describe_backward_weight(
    const dnnl::engine& engine, const ConvolutionLayouts& c, bool with_bias,
    const dnnl::convolution_forward::primitive_desc& hint, const dnnl::primitive_attr& attributes) {
  using Descriptor = dnnl::convolution_backward_weights::desc;
  const Descriptor operation =
      with_bias ? Descriptor(c.algorithm, c.x, c.grad_w, c.grad_bias, c.y, c.strides, c.pad_before, c.pad_after)
                : Descriptor(c.algorithm, c.x, c.grad_w, c.y, c.strides, c.pad_before, c.pad_after);
  return described<dnnl::convolution_backward_weights::primitive_desc>(operation, attributes, engine, hint);
}

Described<dnnl::matmul::primitive_desc> describe_product(const dnnl::engine& engine, const dnnl::memory::desc& a,
                                                         const dnnl::memory::desc& b, const dnnl::memory::desc* bias,
                                                         const dnnl::memory::desc& c,
                                                         const dnnl::primitive_attr& attributes) {
  const dnnl::matmul::desc operation =
      bias != nullptr ? dnnl::matmul::desc(a, b, *bias, c) : dnnl::matmul::desc(a, b, c);
  return described<dnnl::matmul::primitive_desc>(operation, attributes, engine);
}

void append_relu(dnnl::post_ops& epilogue) { epilogue.append_eltwise(1.0F, dnnl::algorithm::eltwise_relu, 0.0F, 0.0F); }

}  // namespace vitrine::cpu::onednn
