// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include <dnnl.hpp>

#include "kernels/cpu/arena.h"
#include "kernels/cpu/onednn.h"
#include "runtime/exec_context.h"

/// What is kept between calls of oneDNN. Private to the files onednn_*.cpp.
namespace vitrine::cpu::onednn {

/// A primitive with its arguments, whose addresses are set at each call. Empty when oneDNN has only a reference loop.
struct Plan {
  dnnl::primitive primitive;
  std::unordered_map<int, dnnl::memory> arguments;
  int64_t scratch_bytes = 0;

  explicit operator bool() const { return static_cast<bool>(primitive); }
};

/// The primitive of one convolution pass, and the reorders between (K, R, S, C) and the layout of its weights, and
/// between NHWC and the layout of its images. Empty when oneDNN has no fast implementation.
struct ConvolutionPlan {
  Plan pass;
  Plan reorder;
  Plan reorder_accumulate;   // weight gradient: adds to the content
  bool same_layout = false;  // the pass works on (K, R, S, C)
  int64_t weight_bytes = 0;  // weights or their gradient in the pass's layout
  Plan reorder_x, reorder_y;
  int64_t x_bytes = 0, y_bytes = 0;  // in the pass's layout; 0: it works on NHWC
  int64_t bytes = 0;                 // of workspace, for all of these
  std::set<std::string> refused;     // implementations before this one that have failed their trials
};

struct OneDnnPlans {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  std::map<std::pair<Product, int64_t>, Plan> products;  // by the bytes of the workspace, too
  std::map<std::pair<dnnl::algorithm, RecordedConv2d::Key>, ConvolutionPlan> convolutions;

  /// Adds an argument of this layout, whose address is set at each call.
  void add_argument(Plan& plan, int argument, const dnnl::memory::desc& layout) const;
  /// Runs the plan with its scratch at `scratch`. throws UnsupportedError with oneDNN's message when it fails
  void run(Plan& plan, std::initializer_list<std::pair<int, const void*>> addresses, void* scratch);
};

/// The plan of a pass, made when first needed. Direct convolutions take images as NHWC, Winograd's in blocks of 16
/// channels.
ConvolutionPlan& convolution_plan(OneDnnPlans& plans, RecordedConv2d convolution, dnnl::algorithm algorithm);
/// Runs a plan that is not empty.   requires  the workspace has plan.bytes
///   weights_packed  the same plan has run in this workspace since the weights changed
void run(OneDnnPlans& plans, ConvolutionPlan& plan, const View& workspace, const Conv2dCall& call,
         bool weights_packed = false);

/// True where implementations of oneDNN have been wrong: where windows or strides exceed the image, or the first rows
/// or columns of windows are over padding only.
bool needs_trial(const RecordedConv2d& convolution);
/// True if the plan turns ones into the right sums in buffers of its own, in which all that it has to write is NaN.
bool passes_trial(OneDnnPlans& plans, ConvolutionPlan& plan, const RecordedConv2d& convolution);

/// Attributes of primitives whose scratch the caller provides, from the workspace.
dnnl::primitive_attr workspace_attributes();

/// f32 or bf16.
dnnl::memory::data_type data_type_of(DType dtype);

/// Bytes of scratch of an implementation.
template <class Descriptor>
int64_t scratch_bytes(const Descriptor& descriptor) {
  return static_cast<int64_t>(descriptor.scratchpad_desc().get_size());
}

/// Advances to the first implementation that is not a reference loop; false when there is none.
template <class Descriptor>
bool skip_reference(Descriptor& descriptor) {
  while (std::string_view(descriptor.impl_info_str()).starts_with("ref")) {
    if (!descriptor.next_impl()) return false;
  }
  return true;
}

}  // namespace vitrine::cpu::onednn
