// SPDX-License-Identifier: Apache-2.0
// The stand-in for cuDNN convolves, and refuses what the real one refuses.
#include <cstdint>

#include "tests/standins/cudnn_fixture.h"

namespace vitrine::standins {
namespace {

constexpr Sizes kXSizes{2, 7, 5, 3}, kWSizes{4, 3, 2, 3}, kYSizes{2, 4, 3, 4};
constexpr int64_t kStride = 2, kPad = 1;

int64_t count_of(const Sizes& s) { return s[0] * s[1] * s[2] * s[3]; }

/// Calls use(x, w, y) with the elements of every product of the convolution.
template <class Use>
void for_each_product(const Use& use) {
  const auto [N, P, Q, K] = kYSizes;
  const auto [unused_k, R, S, C] = kWSizes;
  for (int64_t y = 0; y < N * P * Q * K; ++y) {
    const int64_t k = y % K, q = y / K % Q, p = y / K / Q % P, n = y / K / Q / P;
    for (int64_t i = 0; i < R * S * C; ++i) {
      const int64_t h = p * kStride - kPad + i / C / S, w = q * kStride - kPad + i / C % S;
      if (h < 0 || h >= kXSizes[1] || w < 0 || w >= kXSizes[2]) continue;
      use(((n * kXSizes[1] + h) * kXSizes[2] + w) * C + i % C, k * R * S * C + i, y);
    }
  }
}

/// A convolution with values for all tensors.
class CudnnConvolution : public CudnnTest {
 protected:
  void SetUp() override {
    CudnnTest::SetUp();
    x_ = random(count_of(kXSizes), 1);
    w_ = random(count_of(kWSizes), 2);
    y_ = random(count_of(kYSizes), 3);
    bias_ = random(kWSizes[0], 4);
    pointers_ = {{kX, upload(x_)}, {kW, upload(w_)}, {kY, upload(y_)}};
    scratch_ = scratch();
  }
  Descriptor forward_graph() {
    return graph({forward(tensor(kX, kXSizes), tensor(kW, kWSizes), tensor(kY, kYSizes), geometry(kStride, kPad))});
  }
  std::vector<float> content(size_t i, size_t count) {
    return download(static_cast<const float*>(pointers_.at(i).second), count);
  }
  void expect_near(const std::vector<float>& actual, const std::vector<double>& expected) {
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t i = 0; i < actual.size(); ++i) EXPECT_NEAR(double{actual[i]}, expected[i], 1e-5) << i;
  }

  std::vector<float> x_, w_, y_, bias_;
  Pointers pointers_;
  char* scratch_ = nullptr;
};

TEST_F(CudnnConvolution, ForwardWithBiasAndReluEqualsTheDefinition) {
  Descriptor product = tensor(5, kYSizes, {.between = true}), sum = tensor(6, kYSizes, {.between = true});
  Descriptor with_bias = pointwise(CUDNN_POINTWISE_ADD, product, tensor(kBias, {1, 1, 1, kWSizes[0]}), sum);
  Descriptor with_relu = pointwise(CUDNN_POINTWISE_RELU_FWD, sum, nullptr, tensor(kY, kYSizes));
  pointers_.emplace_back(kBias, upload(bias_));
  run(plan(graph(
          {forward(tensor(kX, kXSizes), tensor(kW, kWSizes), product, geometry(kStride, kPad)), with_bias, with_relu})),
      pointers_, scratch_);
  std::vector<double> expected(y_.size());
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = double{bias_[i % bias_.size()]};
  for_each_product([&](int64_t x, int64_t w, int64_t y) {
    expected[static_cast<size_t>(y)] += double{x_[static_cast<size_t>(x)]} * double{w_[static_cast<size_t>(w)]};
  });
  for (double& value : expected) value = std::max(value, 0.0);
  expect_near(content(2, y_.size()), expected);
}

TEST_F(CudnnConvolution, TheGradientsEqualTheDefinitionAndAddToTheContent) {
  Descriptor x = tensor(kX, kXSizes), w = tensor(kW, kWSizes), y = tensor(kY, kYSizes), sizes = geometry(kStride, kPad);
  Descriptor to_x =
      convolution(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR, kBackwardData, {x, w, y, sizes});
  Descriptor to_w = convolution(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, kBackwardWeight,
                                {x, w, y, sizes}, 2, 1);
  std::vector<double> expected_x(x_.size()), expected_w(w_.begin(), w_.end());
  for_each_product([&](int64_t i, int64_t j, int64_t k) {
    const double grad_y = double{y_[static_cast<size_t>(k)]};
    expected_x[static_cast<size_t>(i)] += grad_y * double{w_[static_cast<size_t>(j)]};
    expected_w[static_cast<size_t>(j)] += 2 * grad_y * double{x_[static_cast<size_t>(i)]};
  });
  run(plan(graph({to_w})), pointers_, scratch_);
  expect_near(content(1, w_.size()), expected_w);
  pointers_[1].second = upload(w_);
  run(plan(graph({to_x})), pointers_, scratch_);
  expect_near(content(0, x_.size()), expected_x);
}

TEST_F(CudnnConvolution, TheWorkspaceIsFilledWithGarbage) {
  Descriptor made = plan(forward_graph());
  EXPECT_EQ(get<int64_t>(made, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64), kScratchBytes);
  run(made, pointers_, scratch_);
  EXPECT_EQ(download(scratch_, static_cast<size_t>(kScratchBytes)),
            std::vector<char>(static_cast<size_t>(kScratchBytes), '\xFF'));
}

TEST_F(CudnnConvolution, EnginesDifferInTheirBitsAndTimes) {
  cudaEvent_t begin = nullptr, end = nullptr;
  ASSERT_EQ(cudaEventCreate(&begin), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&end), cudaSuccess);
  std::vector<std::vector<float>> results;
  for (const double time_ms : {500.0, 0.0, 0.0}) {
    set_convolution_engines({{.index = static_cast<int64_t>(results.size()), .simulated_ms = time_ms}});
    Descriptor made = plan(forward_graph());
    EXPECT_EQ(cudaEventRecord(begin, stream_), cudaSuccess);
    run(made, pointers_, nullptr);
    EXPECT_EQ(cudaEventRecord(end, stream_), cudaSuccess);
    results.push_back(content(2, y_.size()));
    float elapsed_ms = 0;
    EXPECT_EQ(cudaEventElapsedTime(&elapsed_ms, begin, end), cudaSuccess);
    EXPECT_EQ(elapsed_ms >= 500, time_ms > 0) << elapsed_ms;
  }
  EXPECT_NE(results[1], results[0]);
  EXPECT_NE(results[2], results[1]);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
}

TEST_F(CudnnConvolution, ACapturedExecutionRunsWhenItsGraphIsLaunched) {
  Descriptor made = plan(forward_graph());
  cudaGraph_t captured = nullptr;
  cudaGraphExec_t executable = nullptr;
  take_call_counts();
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  run(made, pointers_, scratch_);
  cudnnHandle_t other = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream_, &captured), cudaSuccess);
  EXPECT_EQ(take_call_counts().convolutions, 1);
  EXPECT_EQ(content(2, y_.size()), y_) << "it has not run yet";
  ASSERT_EQ(cudaGraphInstantiate(&executable, captured, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
  EXPECT_NE(content(2, y_.size()), y_);
  ASSERT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_NE(cudnnCreate(&other), CUDNN_STATUS_SUCCESS) << "it allocates memory";
  cudaGraph_t none = nullptr;
  EXPECT_NE(cudaStreamEndCapture(stream_, &none), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(captured), cudaSuccess);
}

TEST_F(CudnnConvolution, AnExecutionNeedsTheTensorsOfThePlan) {
  Descriptor made = plan(forward_graph());
  const auto status_of = [&](const Pointers& pointers, const void* workspace) {
    return cudnnBackendExecute(handle_, made, pack(pointers, workspace));
  };
  const auto with = [&](size_t i, const void* p) {
    Pointers changed = pointers_;
    changed[i].second = p;
    return changed;
  };
  EXPECT_EQ(status_of(pointers_, scratch_), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(status_of({pointers_[0], pointers_[1]}, scratch_), CUDNN_STATUS_BAD_PARAM) << "without y";
  Pointers more = pointers_;
  more.emplace_back(kBias, pointers_[0].second);
  EXPECT_EQ(status_of(more, scratch_), CUDNN_STATUS_BAD_PARAM) << "an unknown id";
  EXPECT_EQ(status_of(with(0, nullptr), scratch_), CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
  EXPECT_EQ(status_of(with(0, static_cast<const float*>(pointers_[0].second) + 1), scratch_),
            CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER);
  EXPECT_EQ(status_of(pointers_, nullptr), CUDNN_STATUS_BAD_PARAM_NULL_POINTER) << "no workspace";
  EXPECT_EQ(status_of(pointers_, scratch_ + 16), CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER) << "workspace";
  EXPECT_EQ(status_of(with(2, pointers_[0].second), scratch_), CUDNN_STATUS_BAD_PARAM) << "y overlaps x";
  EXPECT_EQ(status_of(with(1, scratch_), scratch_), CUDNN_STATUS_BAD_PARAM) << "the workspace overlaps w";
  Descriptor twice = create(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  set(twice, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, std::vector{kX, kX});
  set(twice, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
      std::vector{pointers_[0].second, pointers_[0].second});
  set(twice, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, std::vector<void*>{scratch_});
  EXPECT_EQ(cudnnBackendFinalize(twice), CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  // Beyond the allocation: seen later, as on a GPU.
  EXPECT_EQ(status_of(with(2, static_cast<const float*>(pointers_[2].second) + 4), scratch_), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorIllegalAddress);
  EXPECT_EQ(status_of(pointers_, scratch_), CUDNN_STATUS_EXECUTION_FAILED_CUDART);
}

TEST_F(CudnnConvolution, AnExecutionNeedsTheDeviceOfThePlan) {
  Descriptor made = plan(forward_graph()), tensors = pack(pointers_, scratch_);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(cudnnBackendExecute(handle_, made, tensors), CUDNN_STATUS_BAD_PARAM) << "another device is current";
  EXPECT_EQ(cudnnDestroy(handle_), CUDNN_STATUS_BAD_PARAM) << "another device is current";
  cudnnHandle_t other = nullptr;
  ASSERT_EQ(cudnnCreate(&other), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(cudnnSetStream(other, stream_), CUDNN_STATUS_BAD_PARAM) << "a stream of device 0";
  EXPECT_EQ(cudnnBackendExecute(other, made, tensors), CUDNN_STATUS_BAD_PARAM) << "a plan for device 0";
  EXPECT_EQ(cudnnDestroy(other), CUDNN_STATUS_SUCCESS);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudnnBackendExecute(other, made, tensors), CUDNN_STATUS_BAD_PARAM_NULL_POINTER) << "a destroyed handle";
  EXPECT_EQ(cudnnDestroy(other), CUDNN_STATUS_NOT_INITIALIZED);
  EXPECT_EQ(cudnnBackendExecute(handle_, tensors, made), CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE);
  EXPECT_EQ(cudnnBackendExecute(handle_, made, tensors), CUDNN_STATUS_SUCCESS);
  ASSERT_EQ(cudnnCreate(&other), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(cudnnBackendExecute(other, made, tensors), CUDNN_STATUS_BAD_PARAM) << "a handle without a stream";
  EXPECT_EQ(cudnnDestroy(other), CUDNN_STATUS_SUCCESS);
}

TEST_F(CudnnConvolution, EnginesFailWhereTheTestWants) {
  using Fault = ConvolutionEngine::Fault;
  set_convolution_engines({{.index = 1, .fault = Fault::at_finalization},
                           {.index = 2, .least_alignment = 32},
                           {.index = 3, .fault = Fault::at_execution}});
  const std::vector<Descriptor> proposals = propose(forward_graph());
  ASSERT_EQ(proposals.size(), 3U);
  EXPECT_EQ(cudnnBackendFinalize(open_plan(proposals[0])), CUDNN_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(cudnnBackendFinalize(open_plan(proposals[1])), CUDNN_STATUS_NOT_SUPPORTED)
      << "its tensors are aligned to 16 bytes";
  EXPECT_EQ(cudnnBackendExecute(handle_, finalized(open_plan(proposals[2])), pack(pointers_, nullptr)),
            CUDNN_STATUS_EXECUTION_FAILED);
  EXPECT_EQ(message(), "engine 3 fails");
  EXPECT_EQ(message(), "") << "it is read once";
}

TEST_F(CudnnConvolution, AttributesAreChecked) {
  Descriptor d = create(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  EXPECT_EQ(cudnnBackendFinalize(d), CUDNN_STATUS_BAD_PARAM) << "nothing is set";
  EXPECT_EQ(try_set(d, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, std::vector{CUDNN_DATA_FLOAT}),
            CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(try_set(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT32, std::vector<int32_t>{1}),
            CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
  EXPECT_EQ(try_set(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, std::vector<int64_t>{1, 2}),
            CUDNN_STATUS_BAD_PARAM)
      << "two ids";
  EXPECT_EQ(cudnnBackendSetAttribute(d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, nullptr),
            CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
  int64_t value = 0, count = 0;
  const auto get_id = [&](Descriptor from) {
    return cudnnBackendGetAttribute(from, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &count, &value);
  };
  EXPECT_EQ(get_id(d), CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
  Descriptor whole = tensor(9, kXSizes);
  EXPECT_EQ(get_id(whole), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(value, 9);
  EXPECT_EQ(try_set(whole, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, std::vector{kX}), CUDNN_STATUS_BAD_PARAM)
      << "it is finalized";
  EXPECT_EQ(cudnnBackendFinalize(whole), CUDNN_STATUS_BAD_PARAM) << "twice";

  Descriptor operation = create(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
  const auto try_x = [&](Descriptor x) {
    return try_set(operation, kForward[0], CUDNN_TYPE_BACKEND_DESCRIPTOR, std::vector{x});
  };
  EXPECT_EQ(try_x(d), CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
  EXPECT_EQ(try_x(geometry(1, 1)), CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE);
  Descriptor gone = nullptr;
  EXPECT_EQ(cudnnBackendCreateDescriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR, &gone), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(cudnnBackendDestroyDescriptor(gone), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(cudnnBackendDestroyDescriptor(nullptr), CUDNN_STATUS_BAD_PARAM_NULL_POINTER);

  Descriptor made = plan(forward_graph());
  EXPECT_EQ(try_set(made, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, std::vector<int64_t>{1}),
            CUDNN_STATUS_BAD_PARAM);
  Descriptor open = create(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  EXPECT_EQ(try_set(open, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, std::vector<int64_t>{1}),
            CUDNN_STATUS_BAD_PARAM)
      << "a result";
}

TEST_F(CudnnConvolution, GraphsAreChecked) {
  Descriptor x = tensor(kX, kXSizes), w = tensor(kW, kWSizes), y = tensor(kY, kYSizes), sizes = geometry(kStride, kPad);
  Descriptor between = tensor(5, kYSizes, {.between = true}), bias = tensor(kBias, {1, 1, 1, kWSizes[0]});
  const auto status_of = [&](const std::vector<Descriptor>& operations) {
    return cudnnBackendFinalize(open_graph(operations));
  };
  EXPECT_EQ(status_of({forward(tensor(kX, kXSizes, {.nchw = true}), w, y, sizes)}), CUDNN_STATUS_NOT_SUPPORTED_LAYOUT);
  EXPECT_EQ(status_of({forward(tensor(kX, kXSizes, {.type = CUDNN_DATA_DOUBLE}), w, y, sizes)}),
            CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE);
  EXPECT_EQ(status_of({forward(x, w, y, geometry(1, kPad))}), CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH);
  EXPECT_EQ(status_of({forward(x, tensor(kX, kWSizes), y, sizes)}), CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES);
  EXPECT_EQ(status_of({forward(x, w, between, sizes)}), CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN)
      << "no result in memory";
  EXPECT_EQ(status_of({pointwise(CUDNN_POINTWISE_RELU_FWD, x, nullptr, y)}), CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN)
      << "no convolution";
  EXPECT_EQ(status_of({forward(x, w, y, sizes), pointwise(CUDNN_POINTWISE_ADD, y, bias, tensor(6, kYSizes))}),
            CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN)
      << "y lies in memory";
  EXPECT_EQ(status_of({forward(x, w, between, sizes), pointwise(CUDNN_POINTWISE_ADD, x, bias, y)}),
            CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN)
      << "another input";
  EXPECT_EQ(status_of({forward(x, w, between, sizes),
                       pointwise(CUDNN_POINTWISE_ADD, between, tensor(kBias, {1, 1, 1, 3}), y)}),
            CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH);
  EXPECT_EQ(status_of({convolution(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, kForward,
                                   {x, w, between, sizes}, 1, 1),
                       pointwise(CUDNN_POINTWISE_ADD, between, bias, y)}),
            CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN)
      << "beta with a bias";
}

TEST_F(CudnnConvolution, SomeGraphsHaveNoEngine) {
  Descriptor x = tensor(kX, kXSizes), w = tensor(kW, kWSizes), y = tensor(kY, kYSizes), sizes = geometry(kStride, kPad);
  Descriptor between = tensor(5, kYSizes, {.between = true});
  EXPECT_TRUE(
      propose(graph({forward(x, w, between, sizes), pointwise(CUDNN_POINTWISE_RELU_FWD, between, nullptr, y)})).empty())
      << "ReLU without a bias";
  for (const cudnnDataType_t type : {CUDNN_DATA_HALF, CUDNN_DATA_BFLOAT16}) {
    Descriptor half_x = tensor(kX, kXSizes, {.type = type}), half_y = tensor(kY, kYSizes, {.type = type});
    const auto gradient = [&](Descriptor to) {
      return propose(graph({convolution(CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, kBackwardWeight,
                                        {half_x, to, half_y, sizes})}));
    };
    EXPECT_TRUE(gradient(w).empty()) << "an f32 gradient of 16-bit images";
    EXPECT_EQ(gradient(tensor(kW, kWSizes, {.type = type})).size(), 1U);
  }
}

TEST_F(CudnnConvolution, HeuristicsProposeTheEnginesInOrderWithTheirNotes) {
  using Proposed = ConvolutionEngine::Proposed;
  set_convolution_engines({{.index = 5, .tensor_cores = true},
                           {.index = 3, .knobs = {{2, 8}}, .deterministic = false},
                           {.index = 9, .proposed = Proposed::fallback},
                           {.index = 4, .compiled = true, .proposed = Proposed::both}});
  const auto indices = [&](cudnnBackendHeurMode_t mode) {
    std::vector<int64_t> all;
    for (Descriptor proposal : propose(forward_graph(), mode)) {
      all.push_back(get<int64_t>(engine_of(proposal), CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64));
    }
    return all;
  };
  EXPECT_EQ(indices(CUDNN_HEUR_MODE_A), (std::vector<int64_t>{5, 3, 4}));
  EXPECT_EQ(indices(CUDNN_HEUR_MODE_FALLBACK), (std::vector<int64_t>{9, 4}));
  const std::vector<Descriptor> proposals = propose(forward_graph());
  const auto note = [&](size_t i) {
    return get<cudnnBackendNumericalNote_t>(engine_of(proposals[i]), CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                                            CUDNN_TYPE_NUMERICAL_NOTE);
  };
  EXPECT_EQ(note(0), CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
  EXPECT_EQ(note(1), CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
  EXPECT_EQ(get<cudnnBackendBehaviorNote_t>(engine_of(proposals[2]), CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE,
                                            CUDNN_TYPE_BEHAVIOR_NOTE),
            CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION);
}

TEST_F(CudnnConvolution, AnEngineIsConfiguredByItsIndexAndKnobs) {
  const auto engine = [&](int64_t index) {
    Descriptor d = create(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
    set(d, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, forward_graph());
    set(d, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, std::vector{index});
    return d;
  };
  const auto knob = [&](int32_t type, int64_t value) {
    Descriptor d = create(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    set(d, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, std::vector{type});
    set(d, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, std::vector{value});
    return d;
  };
  const auto configure_status = [&](const std::vector<Descriptor>& knobs) {
    Descriptor d = create(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    set(d, CUDNN_ATTR_ENGINECFG_ENGINE, finalized(engine(7)));
    set(d, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, knobs);
    return cudnnBackendFinalize(d);
  };
  EXPECT_EQ(cudnnBackendFinalize(engine(8)), CUDNN_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(cudnnBackendFinalize(knob(CUDNN_KNOB_TYPE_COUNTS, 1)), CUDNN_STATUS_BAD_PARAM);
  EXPECT_EQ(configure_status({finalized(knob(18, 4)), finalized(knob(2, 1))}), CUDNN_STATUS_SUCCESS);
  EXPECT_EQ(configure_status({finalized(knob(18, 4)), finalized(knob(2, 2))}), CUDNN_STATUS_NOT_SUPPORTED);
  EXPECT_EQ(configure_status({finalized(knob(18, 4))}), CUDNN_STATUS_NOT_SUPPORTED) << "a knob is missing";
}

TEST_F(CudnnConvolution, WithoutEnginesTheGpuIsRefused) {
  set_convolution_engines({});
  Descriptor x = tensor(kX, kXSizes), w = tensor(kW, kWSizes), y = tensor(kY, kYSizes);
  EXPECT_EQ(cudnnBackendFinalize(open_graph({forward(x, w, y, geometry(kStride, kPad))})),
            CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH);
  Descriptor properties = create(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  set(properties, CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, std::vector<int32_t>{0});
  EXPECT_EQ(cudnnBackendFinalize(properties), CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH);
}

TEST_F(CudnnConvolution, AHandleTakesMemoryOfItsDevice) {
  size_t before = 0, after = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&before, &total), cudaSuccess);
  const int64_t objects = live_objects();
  cudnnHandle_t other = nullptr;
  ASSERT_EQ(cudnnCreate(&other), CUDNN_STATUS_SUCCESS);
  ASSERT_EQ(cudaMemGetInfo(&after, &total), cudaSuccess);
  EXPECT_EQ(static_cast<int64_t>(before - after), kHandleBytes);
  EXPECT_EQ(live_objects(), objects + 1);
  EXPECT_EQ(cudnnDestroy(other), CUDNN_STATUS_SUCCESS);
}

TEST(CudnnMachine, ThereIsNoHandleInFullMemory) {
  configure({.capacity_bytes = kContextBytes + kHandleBytes - 1});
  cudnnHandle_t handle = nullptr;
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudnnCreate(&handle), CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED);
  reset();
}

}  // namespace
}  // namespace vitrine::standins
