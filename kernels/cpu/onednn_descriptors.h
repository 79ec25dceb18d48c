// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <dnnl.hpp>

/// The calls that differ between the major versions of oneDNN. onednn_2.cpp and onednn_3.cpp each implement all of
/// them; CMake builds the file for the installed version. Private to the files onednn_*.cpp.
///
/// A describe function returns the first implementation that oneDNN offers.
/// requires  `hint`, the forward pass of the same convolution without attributes, outlives the result: oneDNN 2 reads
///           it in next_impl()
/// throws    dnnl::error when there is no implementation
namespace vitrine::cpu::onednn {

/// A convolution in oneDNN's terms: layouts of its arguments, and its windows as {rows, columns}.
struct ConvolutionLayouts {
  dnnl::algorithm algorithm = dnnl::algorithm::convolution_direct;
  dnnl::memory::desc x, y, w, bias, grad_w, grad_bias;
  dnnl::memory::dims strides, pad_before, pad_after;
};

/// A descriptor and the operation that it was created from, which oneDNN 2 reads again in next_impl(); empty with
/// oneDNN 3.
template <class Descriptor>
struct Described {
  std::shared_ptr<const void> operation;
  Descriptor descriptor;
};

Described<dnnl::convolution_forward::primitive_desc> describe_forward(const dnnl::engine& engine,
                                                                      const ConvolutionLayouts& c, bool with_bias,
                                                                      const dnnl::primitive_attr& attributes);
Described<dnnl::convolution_backward_data::primitive_desc> describe_backward_data(
    const dnnl::engine& engine, const ConvolutionLayouts& c, const dnnl::convolution_forward::primitive_desc& hint,
    const dnnl::primitive_attr& attributes);
Described<dnnl::convolution_backward_weights::primitive_desc> describe_backward_weight(
    const dnnl::engine& engine, const ConvolutionLayouts& c, bool with_bias,
    const dnnl::convolution_forward::primitive_desc& hint, const dnnl::primitive_attr& attributes);

/// c = a b, plus `bias` of shape (1, N) unless it is null.
Described<dnnl::matmul::primitive_desc> describe_product(const dnnl::engine& engine, const dnnl::memory::desc& a,
                                                         const dnnl::memory::desc& b, const dnnl::memory::desc* bias,
                                                         const dnnl::memory::desc& c,
                                                         const dnnl::primitive_attr& attributes);

void append_relu(dnnl::post_ops& epilogue);

}  // namespace vitrine::cpu::onednn
