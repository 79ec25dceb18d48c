// SPDX-License-Identifier: Apache-2.0
// Stand-in for cuDNN: graphs of a convolution, a bias and ReLU, and the checks of their tensors.
#include <algorithm>
#include <bit>
#include <set>

#include "tests/standins/cudnn_objects.h"

namespace vitrine::standins::cudnn {
namespace {

struct Tensor {
  int64_t id = 0;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  std::array<int64_t, 4> sizes{};  // (N, H, W, C)
  int64_t alignment = 0;
  bool in_memory = true;

  cudaDataType_t cuda_type() const {
    return type == CUDNN_DATA_FLOAT ? CUDA_R_32F : type == CUDNN_DATA_HALF ? CUDA_R_16F : CUDA_R_16BF;
  }
};

cudnnStatus_t read_tensor(const Object& object, Tensor& tensor) {
  const auto sizes = object.values<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS),
             strides = object.values<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
  tensor.id = object.value<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID);
  tensor.type = object.value<cudnnDataType_t>(CUDNN_ATTR_TENSOR_DATA_TYPE);
  tensor.alignment = object.value<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
  tensor.in_memory = object.value<uint8_t>(CUDNN_ATTR_TENSOR_IS_VIRTUAL) == 0;
  if (sizes.size() != 4)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED_SHAPE, "tensor %ld has %zu dimensions, not 4", tensor.id, sizes.size());
  const int64_t n = sizes[0], c = sizes[1], h = sizes[2], w = sizes[3];
  if (strides != std::vector<int64_t>{h * w * c, 1, w * c, c})
    return refuse(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT, "tensor %ld is not stored as (N, H, W, C) without gaps",
                  tensor.id);
  if (tensor.type != CUDNN_DATA_FLOAT && tensor.type != CUDNN_DATA_HALF && tensor.type != CUDNN_DATA_BFLOAT16)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "tensor %ld has data type %d", tensor.id, tensor.type);
  tensor.sizes = {n, h, w, c};
  return CUDNN_STATUS_SUCCESS;
}

/// Names of the operands of a pass.
struct Names {
  Convolution::Pass pass;
  cudnnBackendAttributeName_t x, w, y, geometry, alpha, beta;
};
constexpr Names kForward = {Convolution::Pass::forward,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                            CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
constexpr Names kBackwardData = {Convolution::Pass::backward_data,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                                 CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
constexpr Names kBackwardWeight = {Convolution::Pass::backward_weight,
                                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                                   CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};

const Names* names_of(const Object& operation) {
  switch (operation.type) {
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
      return &kForward;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
      return &kBackwardData;
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
      return &kBackwardWeight;
    default:
      return nullptr;
  }
}

cudnnStatus_t read_geometry(const Object& geometry, Convolution& c) {
  if (geometry.value<int64_t>(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS) != 2)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED_SHAPE, "only convolutions over two dimensions are supported");
  if (geometry.value<cudnnConvolutionMode_t>(CUDNN_ATTR_CONVOLUTION_CONV_MODE) != CUDNN_CROSS_CORRELATION)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "only cross-correlations are supported");
  if (geometry.value<cudnnDataType_t>(CUDNN_ATTR_CONVOLUTION_COMP_TYPE) != CUDNN_DATA_FLOAT)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "only sums in f32 are supported");
  const auto before = geometry.values<int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS),
             strides = geometry.values<int64_t>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
  if (before != geometry.values<int64_t>(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS) || std::ranges::min(before) < 0)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED_PADDING, "only the same padding on both sides is supported");
  if (geometry.values<int64_t>(CUDNN_ATTR_CONVOLUTION_DILATIONS) != std::vector<int64_t>{1, 1})
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "only dilations of 1 are supported");
  if (std::ranges::min(strides) < 1) return refuse(CUDNN_STATUS_BAD_PARAM, "a stride is below 1");
  std::copy(before.begin(), before.end(), c.pads.begin());
  std::copy(strides.begin(), strides.end(), c.strides.begin());
  return CUDNN_STATUS_SUCCESS;
}

bool shapes_match(const Convolution& c) {
  for (size_t i = 0; i < 2; ++i) {
    const int64_t room = c.x_sizes[i + 1] + 2 * c.pads[i] - c.w_sizes[i + 1];
    if (room < 0 || c.y_sizes[i + 1] != room / c.strides[i] + 1) return false;
  }
  return c.y_sizes[0] == c.x_sizes[0] && c.w_sizes[3] == c.x_sizes[3] && c.y_sizes[3] == c.w_sizes[0];
}

/// Adds a bias or ReLU. `last` is the result so far, and becomes that of the operation.
cudnnStatus_t add_pointwise(const Object& operation, Graph& graph, Tensor& last) {
  const Object& function = operation.object(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  if (function.value<cudnnDataType_t>(CUDNN_ATTR_POINTWISE_MATH_PREC) != CUDNN_DATA_FLOAT)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "only pointwise operations in f32 are supported");
  Tensor x, y;
  for (const auto& [name, tensor] :
       {std::pair{CUDNN_ATTR_OPERATION_POINTWISE_XDESC, &x}, {CUDNN_ATTR_OPERATION_POINTWISE_YDESC, &y}}) {
    if (const cudnnStatus_t status = read_tensor(operation.object(name), *tensor); status != CUDNN_STATUS_SUCCESS)
      return status;
  }
  if (x.id != last.id)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                  "an operation does not take the result of the one before it");
  if (last.in_memory)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "tensor %ld is in memory and between operations", last.id);
  if (last.type != CUDNN_DATA_FLOAT)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "tensor %ld, between operations, is not in f32", last.id);
  if (y.sizes != x.sizes)
    return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "a pointwise operation changes the shape of tensor %ld", x.id);
  last = y;
  Convolution& c = graph.convolution;
  const std::vector<Shared> summand = operation.objects(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
  const auto mode = function.value<cudnnPointwiseMode_t>(CUDNN_ATTR_POINTWISE_MODE);
  if (mode == CUDNN_POINTWISE_RELU_FWD && summand.empty() && !c.relu) {
    c.relu = true;
    c.relu_keeps_nan =
        function.has(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION) &&
        function.value<cudnnNanPropagation_t>(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION) == CUDNN_PROPAGATE_NAN;
    return CUDNN_STATUS_SUCCESS;
  }
  if (mode != CUDNN_POINTWISE_ADD || c.bias || c.relu)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "only a bias, then ReLU, can follow a convolution");
  if (summand.empty()) return refuse(CUDNN_STATUS_BAD_PARAM, "a sum has no second summand");
  Tensor bias;
  if (const cudnnStatus_t status = read_tensor(*summand.front(), bias); status != CUDNN_STATUS_SUCCESS) return status;
  if (bias.sizes != std::array<int64_t, 4>{1, 1, 1, c.w_sizes[0]})
    return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "the bias %ld has not one value for each output channel",
                  bias.id);
  if (!bias.in_memory)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "the bias is the result of no operation");
  c.bias = true;
  graph.bias = bias.id;
  graph.alignments[bias.id] = bias.alignment;
  if (bias.cuda_type() != c.x_type)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE, "the bias has another data type than the images");
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

int64_t Graph::least_alignment() const {
  return std::ranges::min_element(alignments, {}, [](const auto& alignment) { return alignment.second; })->second;
}

cudnnStatus_t finalize_tensor(const Object& tensor) {
  const auto sizes = tensor.values<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS),
             strides = tensor.values<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
  if (sizes.size() != strides.size())
    return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "a tensor has %zu sizes and %zu strides", sizes.size(),
                  strides.size());
  if (std::ranges::min(sizes) < 1 || std::ranges::min(strides) < 1)
    return refuse(CUDNN_STATUS_BAD_PARAM, "a tensor has a size or stride below 1");
  const auto alignment = tensor.value<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
  if (alignment < 1 || !std::has_single_bit(static_cast<uint64_t>(alignment)))
    return refuse(CUDNN_STATUS_BAD_PARAM, "a tensor is aligned to %ld bytes, which is no power of two", alignment);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t make_graph(const std::vector<Shared>& operations, Graph& graph) {
  const Object& first = *operations.front();
  const Names* const names = names_of(first);
  if (names == nullptr)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "the first operation is no convolution");
  Tensor x, w, y;
  for (const auto& [name, tensor] : {std::pair{names->x, &x}, {names->w, &w}, {names->y, &y}}) {
    if (const cudnnStatus_t status = read_tensor(first.object(name), *tensor); status != CUDNN_STATUS_SUCCESS)
      return status;
  }
  Convolution& c = graph.convolution;
  c.pass = names->pass;
  c.x_sizes = x.sizes;
  c.w_sizes = w.sizes;
  c.y_sizes = y.sizes;
  c.x_type = x.cuda_type();
  c.w_type = w.cuda_type();
  c.alpha = first.value<float>(names->alpha);
  c.beta = first.value<float>(names->beta);
  if (const cudnnStatus_t status = read_geometry(first.object(names->geometry), c); status != CUDNN_STATUS_SUCCESS)
    return status;
  if (!shapes_match(c))
    return refuse(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH, "the shapes of the tensors of a convolution do not match");
  graph.alignments = {{x.id, x.alignment}, {w.id, w.alignment}};
  std::set<int64_t> ids{x.id, w.id, y.id};
  for (size_t i = 1; i < operations.size(); ++i) {
    if (names != &kForward || operations[i]->type != CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR || c.beta != 0)
      return refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN,
                    "only a bias, then ReLU, can follow a forward convolution that adds to nothing");
    if (const cudnnStatus_t status = add_pointwise(*operations[i], graph, y); status != CUDNN_STATUS_SUCCESS)
      return status;
    ids.insert(y.id);
  }
  if (graph.bias) ids.insert(*graph.bias);
  if (ids.size() != 2 + operations.size() + (graph.bias ? 1 : 0))
    return refuse(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, "two tensors of the graph have the same id");
  if (!x.in_memory || !w.in_memory || !y.in_memory)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN, "an input or the result of the graph is not in memory");
  c.y_type = y.cuda_type();
  graph.alignments[y.id] = y.alignment;
  graph.x = x.id;
  graph.w = w.id;
  graph.y = y.id;
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace vitrine::standins::cudnn
