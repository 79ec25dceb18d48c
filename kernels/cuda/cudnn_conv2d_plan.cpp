// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cudnn_conv2d_plan.h"

#include <algorithm>

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
  const std::array<int64_t, 2> pads{convolution.pad, convolution.pad}, strides{convolution.stride, convolution.stride}, ones{1, 1};
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

}  // namespace

CudnnChoice choose_conv2d_plan(const CudnnConv2d& c, const CudnnTarget& target) {
  for (const auto& shape : {c.x, c.w, c.y}) {
    if (std::ranges::find(shape, 0) != shape.end()) return {nullptr, "cuDNN takes no empty tensors"};
  }
  const bool forward = c.pass == Conv2dPass::forward;
  const bool bias = forward && c.bias, relu = forward && c.relu;
  const DType w_dtype = c.pass == Conv2dPass::backward_weight ? c.dw_dtype : c.dtype;
  const auto in_memory = [&](int64_t id, const std::array<int64_t, 4>& shape, DType dtype) {
    return cudnn_tensor({id, shape, dtype, c.alignment, true});
  };
  const auto between = [&](int64_t id) { return cudnn_tensor({id, c.y, DType::f32, c.alignment, false}); };
  // Images of three channels are passed unchanged: cuDNN's tensor-core engines pad them in their workspace.
  const CudnnDescriptor x = in_memory(Ids::x, c.x, c.dtype), w = in_memory(Ids::w, c.w, w_dtype), y = in_memory(Ids::y, c.y, c.dtype);
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
  return choose_cudnn_plan(raw, {c.tf32 || c.dtype != DType::f32, c.workspace_bytes}, target);
}

}  // namespace vitrine::cuda
