// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cudnn_conv2d_plan.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace vitrine::cuda {
namespace {

using Ids = CudnnConv2dIds;

/// The graph's attributes for one pass.
struct PassAttributes {
  cudnnBackendDescriptorType_t operation;
  cudnnBackendAttributeName_t x, w, y, geometry, alpha, beta;
};

PassAttributes attributes_of(Conv2dPass pass) {
  switch (pass) {
    case Conv2dPass::forward:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
    case Conv2dPass::backward_data:
      return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
              CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
    case Conv2dPass::backward_weight:
      break;
  }
  return {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
          CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
}

CudnnDescriptor geometry_of(const CudnnConv2d& convolution) {
  const std::array<int64_t, 2> pads{convolution.pad, convolution.pad}, strides{convolution.stride, convolution.stride},
      ones{1, 1};
  CudnnDescriptor geometry(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  geometry.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, int64_t{2});
  geometry.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  geometry.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_CROSS_CORRELATION);
  geometry.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, std::span<const int64_t>(pads));
  geometry.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, std::span<const int64_t>(pads));
  geometry.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, std::span<const int64_t>(strides));
  geometry.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, std::span<const int64_t>(ones));
  geometry.finalize();
  return geometry;
}

/// Calls `use` with the graph of the convolution. requires that no tensor is empty
template <class Use>
auto with_graph(const CudnnConv2d& c, const Use& use) {
  const bool forward = c.pass == Conv2dPass::forward;
  const bool bias = forward && c.bias, relu = forward && c.relu;
  const DType w_dtype = c.pass == Conv2dPass::backward_weight ? c.dw_dtype : c.dtype;
  const auto in_memory = [&](int64_t id, const std::array<int64_t, 4>& shape, DType dtype) {
    return cudnn_tensor({id, shape, dtype, c.alignment, true});
  };
  const auto between = [&](int64_t id) { return cudnn_tensor({id, c.y, DType::f32, c.alignment, false}); };
  // Images of three channels are passed unchanged: cuDNN's tensor-core engines pad them in their workspace.
  const CudnnDescriptor x = in_memory(Ids::x, c.x, c.dtype), w = in_memory(Ids::w, c.w, w_dtype),
                        y = in_memory(Ids::y, c.y, c.dtype);
  const CudnnDescriptor b = in_memory(Ids::bias, {1, 1, 1, c.w[0]}, c.dtype), product = between(5), sum = between(6);
  const CudnnDescriptor geometry = geometry_of(c);

  const PassAttributes attributes = attributes_of(c.pass);
  CudnnDescriptor convolution(attributes.operation);
  convolution.set(attributes.x, x);
  convolution.set(attributes.w, w);
  convolution.set(attributes.y, bias || relu ? product : y);
  convolution.set(attributes.geometry, geometry);
  convolution.set(attributes.alpha, 1.0F);
  convolution.set(attributes.beta, c.accumulate ? 1.0F : 0.0F);
  convolution.finalize();

  std::vector<CudnnDescriptor> operations;
  operations.push_back(std::move(convolution));
  if (bias) operations.push_back(cudnn_pointwise(CUDNN_POINTWISE_ADD, product, &b, relu ? sum : y));
  if (relu) operations.push_back(cudnn_pointwise(CUDNN_POINTWISE_RELU_FWD, bias ? sum : product, nullptr, y));
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const CudnnDescriptor& operation : operations) raw.push_back(operation.get());
  return use(std::span<const cudnnBackendDescriptor_t>(raw),
             CudnnRules{c.tf32 || c.dtype != DType::f32, c.workspace_bytes});
}

bool is_empty(const CudnnConv2d& c) {
  const std::array<std::array<int64_t, 4>, 3> shapes{c.x, c.w, c.y};
  return std::ranges::any_of(shapes, [](const auto& shape) { return std::ranges::find(shape, 0) != shape.end(); });
}
constexpr const char* kEmpty = "cuDNN takes no empty tensors";

}  // namespace

CudnnChoice choose_conv2d_plan(const CudnnConv2d& convolution, const CudnnTarget& target) {
  if (is_empty(convolution)) return {nullptr, kEmpty};
  return with_graph(convolution, [&](const auto& operations, const CudnnRules& rules) {
    return choose_cudnn_plan(operations, rules, target);
  });
}

CudnnChoices find_conv2d_plans(const CudnnConv2d& convolution, const CudnnTarget& target, int most) {
  if (is_empty(convolution)) return {{}, kEmpty};
  return with_graph(convolution, [&](const auto& operations, const CudnnRules& rules) {
    return find_cudnn_plans(operations, rules, target, most);
  });
}

CudnnChoice restore_conv2d_plan(const CudnnConv2d& convolution, const CudnnTarget& target, const std::string& text) {
  if (is_empty(convolution)) return {nullptr, kEmpty};
  return with_graph(convolution, [&](const auto& operations, const CudnnRules& rules) {
    return restore_cudnn_plan(operations, rules, target, text);
  });
}

std::string conv2d_signature(const CudnnConv2d& c) {
  const char* const pass = c.pass == Conv2dPass::forward         ? "forward"
                           : c.pass == Conv2dPass::backward_data ? "backward_data"
                                                                 : "backward_weight";
  std::string text = fmt::format("cudnn {} x {} w {} stride {} pad {}, {}", pass, fmt::join(c.x, " "),
                                 fmt::join(c.w, " "), c.stride, c.pad, dtype_name(c.dtype));
  if (c.pass == Conv2dPass::backward_weight) text += fmt::format(" to {}", dtype_name(c.dw_dtype));
  if (c.bias) text += ", bias";
  if (c.relu) text += ", ReLU";
  if (c.accumulate) text += ", accumulated";
  if (c.tf32) text += ", tf32";
  return text + fmt::format(", workspace {}", c.workspace_bytes);
}

}  // namespace vitrine::cuda
