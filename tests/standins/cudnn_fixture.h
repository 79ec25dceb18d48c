// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include <cudnn.h>

#include "tests/standins/library_fixture.h"

namespace vitrine::standins {

using Descriptor = cudnnBackendDescriptor_t;
using Sizes = std::array<int64_t, 4>;  // (N, H, W, C)

/// Calls of cuDNN with f32 tensors. Descriptors are destroyed at the end.
class CudnnTest : public LibraryTest {
 protected:
  static constexpr int64_t kX = 1, kW = 2, kY = 3, kBias = 4;
  static constexpr int64_t kScratchBytes = 512;

  void SetUp() override {
    LibraryTest::SetUp();
    set_convolution_engines({{.index = 7, .knobs = {{2, 1}, {18, 4}}, .workspace_bytes = kScratchBytes}});
    ASSERT_EQ(cudnnCreate(&handle_), CUDNN_STATUS_SUCCESS);
    ASSERT_EQ(cudnnSetStream(handle_, stream_), CUDNN_STATUS_SUCCESS);
  }
  void TearDown() override {
    for (Descriptor descriptor : descriptors_)
      EXPECT_EQ(cudnnBackendDestroyDescriptor(descriptor), CUDNN_STATUS_SUCCESS);
    EXPECT_EQ(cudnnDestroy(handle_), CUDNN_STATUS_SUCCESS);
    LibraryTest::TearDown();
  }
  Descriptor create(cudnnBackendDescriptorType_t type) {
    Descriptor descriptor = nullptr;
    EXPECT_EQ(cudnnBackendCreateDescriptor(type, &descriptor), CUDNN_STATUS_SUCCESS);
    descriptors_.push_back(descriptor);
    return descriptor;
  }
  template <class T>
  static cudnnStatus_t try_set(Descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                               const std::vector<T>& values) {
    return cudnnBackendSetAttribute(d, name, type, static_cast<int64_t>(values.size()), values.data());
  }
  template <class T>
  static void set(Descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                  const std::vector<T>& values) {
    EXPECT_EQ(try_set(d, name, type, values), CUDNN_STATUS_SUCCESS) << name << ": " << message();
  }
  static void set(Descriptor d, cudnnBackendAttributeName_t name, Descriptor value) {
    set(d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, std::vector<Descriptor>{value});
  }
  static Descriptor finalized(Descriptor d) {
    EXPECT_EQ(cudnnBackendFinalize(d), CUDNN_STATUS_SUCCESS) << message();
    return d;
  }
  static std::string message() {
    std::array<char, 256> text{};
    cudnnGetLastErrorString(text.data(), text.size());
    return text.data();
  }
  template <class T>
  static T get(Descriptor d, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type) {
    T value{};
    int64_t count = 0;
    EXPECT_EQ(cudnnBackendGetAttribute(d, name, type, 1, &count, &value), CUDNN_STATUS_SUCCESS) << message();
    EXPECT_EQ(count, 1);
    return value;
  }

  struct TensorSettings {
    cudnnDataType_t type = CUDNN_DATA_FLOAT;
    bool between = false;  // operations
    bool nchw = false;
    int64_t alignment = 16;
  };
  Descriptor tensor(int64_t id, const Sizes& sizes, const TensorSettings& settings) {
    const auto [n, h, w, c] = sizes;
    Descriptor d = create(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    set(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, std::vector{id});
    set(d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, std::vector{settings.type});
    set(d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, std::vector{n, c, h, w});
    set(d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64,
        settings.nchw ? std::vector<int64_t>{c * h * w, h * w, w, 1} : std::vector<int64_t>{h * w * c, 1, w * c, c});
    set(d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, std::vector{settings.alignment});
    set(d, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN,
        std::vector<uint8_t>{settings.between ? uint8_t{1} : uint8_t{0}});
    return finalized(d);
  }
  Descriptor tensor(int64_t id, const Sizes& sizes) { return tensor(id, sizes, {}); }

  Descriptor geometry(int64_t stride, int64_t pad) {
    Descriptor d = create(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
    set(d, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, std::vector<int64_t>{2});
    set(d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, std::vector{CUDNN_DATA_FLOAT});
    set(d, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, std::vector{CUDNN_CROSS_CORRELATION});
    for (const auto name : {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS}) {
      set(d, name, CUDNN_TYPE_INT64, std::vector{pad, pad});
    }
    set(d, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, CUDNN_TYPE_INT64, std::vector{stride, stride});
    set(d, CUDNN_ATTR_CONVOLUTION_DILATIONS, CUDNN_TYPE_INT64, std::vector<int64_t>{1, 1});
    return finalized(d);
  }

  /// The attributes' names of a pass: of x, w, y, the geometry, alpha and beta, in this order.
  using Names = std::array<cudnnBackendAttributeName_t, 6>;
  static constexpr Names kForward = {
      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
  static constexpr Names kBackwardData = {
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
  static constexpr Names kBackwardWeight = {
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,    CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA};
  Descriptor convolution(cudnnBackendDescriptorType_t type, const Names& names, const std::array<Descriptor, 4>& values,
                         float alpha = 1, float beta = 0) {
    Descriptor d = create(type);
    for (size_t i = 0; i < 4; ++i) set(d, names[i], values[i]);
    set(d, names[4], CUDNN_TYPE_FLOAT, std::vector{alpha});
    set(d, names[5], CUDNN_TYPE_FLOAT, std::vector{beta});
    return finalized(d);
  }
  Descriptor forward(Descriptor x, Descriptor w, Descriptor y, Descriptor geometry) {
    return convolution(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, kForward, {x, w, y, geometry});
  }
  Descriptor pointwise(cudnnPointwiseMode_t mode, Descriptor x, Descriptor b, Descriptor y) {
    Descriptor function = create(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    set(function, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, std::vector{mode});
    set(function, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, std::vector{CUDNN_DATA_FLOAT});
    Descriptor d = create(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    set(d, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, finalized(function));
    set(d, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
    if (b != nullptr) set(d, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
    set(d, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
    return finalized(d);
  }
  /// A graph of this handle that is not finalized yet.
  Descriptor open_graph(const std::vector<Descriptor>& operations) {
    Descriptor d = create(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    set(d, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, std::vector{handle_});
    set(d, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, operations);
    return d;
  }
  Descriptor graph(const std::vector<Descriptor>& operations) { return finalized(open_graph(operations)); }
  /// The proposals for a graph.
  std::vector<Descriptor> propose(Descriptor graph, cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A) {
    Descriptor heuristics = create(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    set(heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    set(heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, std::vector{mode});
    finalized(heuristics);
    int64_t count = 0;
    EXPECT_EQ(cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0,
                                       &count, nullptr),
              CUDNN_STATUS_SUCCESS);
    std::vector<Descriptor> results;
    for (int64_t i = 0; i < count; ++i) results.push_back(create(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR));
    EXPECT_EQ(cudnnBackendGetAttribute(heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count,
                                       &count, results.data()),
              CUDNN_STATUS_SUCCESS);
    return results;
  }
  Descriptor engine_of(Descriptor configuration) {
    Descriptor engine = create(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    int64_t count = 0;
    EXPECT_EQ(cudnnBackendGetAttribute(configuration, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
                                       &count, &engine),
              CUDNN_STATUS_SUCCESS);
    return engine;
  }
  Descriptor open_plan(Descriptor configuration) {
    Descriptor plan = create(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    set(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration);
    return plan;
  }
  Descriptor plan(Descriptor graph) { return finalized(open_plan(propose(graph).at(0))); }
  using Pointers = std::vector<std::pair<int64_t, const void*>>;
  Descriptor pack(const Pointers& pointers, const void* workspace) {
    std::vector<int64_t> ids;
    std::vector<const void*> data;
    for (const auto& [id, p] : pointers) {
      ids.push_back(id);
      data.push_back(p);
    }
    Descriptor d = create(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    set(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, ids);
    set(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, data);
    set(d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, std::vector{workspace});
    return finalized(d);
  }
  void run(Descriptor plan, const Pointers& pointers, const void* workspace) {
    ASSERT_EQ(cudnnBackendExecute(handle_, plan, pack(pointers, workspace)), CUDNN_STATUS_SUCCESS) << message();
  }
  char* scratch() { return upload(std::vector<char>(static_cast<size_t>(kScratchBytes))); }

  cudnnHandle_t handle_ = nullptr;
  std::vector<Descriptor> descriptors_;
};

}  // namespace vitrine::standins
