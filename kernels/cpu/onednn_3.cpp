// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/onednn_descriptors.h"

namespace vitrine::cpu::onednn {
namespace {

constexpr auto kTraining = dnnl::prop_kind::forward_training;

}  // namespace

Described<dnnl::convolution_forward::primitive_desc> describe_forward(const dnnl::engine& engine,
                                                                      const ConvolutionLayouts& c, bool with_bias,
                                                                      const dnnl::primitive_attr& attributes) {
  using Descriptor = dnnl::convolution_forward::primitive_desc;
  return {nullptr, with_bias ? Descriptor(engine, kTraining, c.algorithm, c.x, c.w, c.bias, c.y, c.strides,
                                          c.pad_before, c.pad_after, attributes)
                             : Descriptor(engine, kTraining, c.algorithm, c.x, c.w, c.y, c.strides, c.pad_before,
                                          c.pad_after, attributes)};
}

Described<dnnl::convolution_backward_data::primitive_desc> describe_backward_data(
    const dnnl::engine& engine, const ConvolutionLayouts& c, const dnnl::convolution_forward::primitive_desc& hint,
    const dnnl::primitive_attr& attributes) {
  return {nullptr, {engine, c.algorithm, c.x, c.w, c.y, c.strides, c.pad_before, c.pad_after, hint, attributes}};
}

Described<dnnl::convolution_backward_weights::primitive_desc> describe_backward_weight(
    const dnnl::engine& engine, const ConvolutionLayouts& c, bool with_bias,
    const dnnl::convolution_forward::primitive_desc& hint, const dnnl::primitive_attr& attributes) {
  using Descriptor = dnnl::convolution_backward_weights::primitive_desc;
  return {nullptr, with_bias ? Descriptor(engine, c.algorithm, c.x, c.grad_w, c.grad_bias, c.y, c.strides, c.pad_before,
                                          c.pad_after, hint, attributes)
                             : Descriptor(engine, c.algorithm, c.x, c.grad_w, c.y, c.strides, c.pad_before, c.pad_after,
                                          hint, attributes)};
}

Described<dnnl::matmul::primitive_desc> describe_product(const dnnl::engine& engine, const dnnl::memory::desc& a,
                                                         const dnnl::memory::desc& b, const dnnl::memory::desc* bias,
                                                         const dnnl::memory::desc& c,
                                                         const dnnl::primitive_attr& attributes) {
  using Descriptor = dnnl::matmul::primitive_desc;
  return {nullptr,
          bias != nullptr ? Descriptor(engine, a, b, *bias, c, attributes) : Descriptor(engine, a, b, c, attributes)};
}

void append_relu(dnnl::post_ops& epilogue) { epilogue.append_eltwise(dnnl::algorithm::eltwise_relu, 0.0F, 0.0F); }

}  // namespace vitrine::cpu::onednn
