// SPDX-License-Identifier: Apache-2.0
// The stand-in for cuBLASLt multiplies, and refuses what the real one refuses.
#include <cstdint>
#include <random>
#include <type_traits>
#include <vector>

#include <cublasLt.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <gtest/gtest.h>

#include "tests/standins/library_fixture.h"

namespace vitrine::standins {
namespace {

struct Case {
  int64_t m, n, k;
  bool transpose_a, transpose_b, row_major_d;
  uint32_t epilogue;
  float alpha, beta;
};

class CublasLt : public LibraryTest {
 protected:
  void SetUp() override {
    LibraryTest::SetUp();
    ASSERT_EQ(cublasLtCreate(&handle_), CUBLAS_STATUS_SUCCESS);
  }
  void TearDown() override {
    for (auto* layout : layouts_) cublasLtMatrixLayoutDestroy(layout);
    cublasLtMatmulDescDestroy(operation_);
    EXPECT_EQ(cublasLtDestroy(handle_), CUBLAS_STATUS_SUCCESS);
    LibraryTest::TearDown();
  }
  cublasLtMatrixLayout_t layout(int64_t rows, int64_t columns, int64_t stride, cudaDataType_t type = CUDA_R_32F) {
    cublasLtMatrixLayout_t made = nullptr;
    EXPECT_EQ(
        cublasLtMatrixLayoutCreate(&made, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), stride),
        CUBLAS_STATUS_SUCCESS);
    layouts_.push_back(made);
    return made;
  }
  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, T value) {
    EXPECT_EQ(cublasLtMatmulDescSetAttribute(operation_, attribute, &value, sizeof value), CUBLAS_STATUS_SUCCESS);
  }
  void make_operation(const Case& c) {
    ASSERT_EQ(cublasLtMatmulDescCreate(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
    set(CUBLASLT_MATMUL_DESC_TRANSA, static_cast<int32_t>(c.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N));
    set(CUBLASLT_MATMUL_DESC_TRANSB, static_cast<int32_t>(c.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N));
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, c.epilogue);
  }

  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t operation_ = nullptr;
  std::vector<cublasLtMatrixLayout_t> layouts_;
};

class CublasLtProducts : public CublasLt, public ::testing::WithParamInterface<Case> {};

TEST_P(CublasLtProducts, EqualTheDefinition) {
  const Case& c = GetParam();
  constexpr int64_t kGap = 3;  // leading dimensions are larger than necessary
  uint32_t seed = 7;
  const auto values = [&](int64_t count) { return random(count, seed++); };
  const int64_t a_rows = c.transpose_a ? c.k : c.m, a_columns = c.transpose_a ? c.m : c.k,
                b_rows = c.transpose_b ? c.n : c.k, b_columns = c.transpose_b ? c.k : c.n,
                d_stride = (c.row_major_d ? c.n : c.m) + kGap, d_other = c.row_major_d ? c.m : c.n;
  const auto a = values((a_rows + kGap) * a_columns), b = values((b_rows + kGap) * b_columns),
             d = values(d_stride * d_other), bias = values(c.m);
  make_operation(c);
  if ((c.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0)
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(upload(bias)));
  float* const result_data = upload(d);
  auto* const d_layout = layout(c.m, c.n, c.row_major_d ? d_stride : d_stride);
  const int32_t order = c.row_major_d ? CUBLASLT_ORDER_ROW : CUBLASLT_ORDER_COL;
  ASSERT_EQ(cublasLtMatrixLayoutSetAttribute(d_layout, CUBLASLT_MATRIX_LAYOUT_ORDER, &order, sizeof order),
            CUBLAS_STATUS_SUCCESS);
  ASSERT_EQ(cublasLtMatmul(handle_, operation_, &c.alpha, upload(a), layout(a_rows, a_columns, a_rows + kGap),
                           upload(b), layout(b_rows, b_columns, b_rows + kGap), &c.beta, result_data, d_layout,
                           result_data, d_layout, nullptr, nullptr, 0, stream_),
            CUBLAS_STATUS_SUCCESS);
  const std::vector<float> result = download(result_data, d.size());
  std::vector<float> expected = d;
  for (int64_t i = 0; i < c.m; ++i) {
    for (int64_t j = 0; j < c.n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < c.k; ++l) {
        const auto at_a = static_cast<size_t>(c.transpose_a ? l + i * (a_rows + kGap) : i + l * (a_rows + kGap));
        const auto at_b = static_cast<size_t>(c.transpose_b ? j + l * (b_rows + kGap) : l + j * (b_rows + kGap));
        sum += double{a[at_a]} * double{b[at_b]};
      }
      float& out = expected[static_cast<size_t>(c.row_major_d ? i * d_stride + j : i + j * d_stride)];
      sum = double{c.alpha} * sum + double{c.beta} * double{out};
      if ((c.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0) sum += double{bias[static_cast<size_t>(i)]};
      if ((c.epilogue & CUBLASLT_EPILOGUE_RELU) != 0) sum = std::max(sum, 0.0);
      out = static_cast<float>(sum);
    }
  }
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(result[i], expected[i], 1e-4) << i;
}

INSTANTIATE_TEST_SUITE_P(Shapes, CublasLtProducts,
                         ::testing::Values(Case{1, 1, 1, false, false, false, CUBLASLT_EPILOGUE_DEFAULT, 1, 0},
                                           Case{17, 5, 33, false, false, false, CUBLASLT_EPILOGUE_DEFAULT, 2, 1},
                                           Case{40, 9, 300, true, false, false, CUBLASLT_EPILOGUE_BIAS, 1, 0},
                                           Case{16, 4, 2, false, true, true, CUBLASLT_EPILOGUE_RELU, 1, 0.5F},
                                           Case{31, 130, 64, true, true, true, CUBLASLT_EPILOGUE_RELU_BIAS, -1, 1}));

template <class T>
constexpr cudaDataType_t kType = std::is_same_v<T, float>    ? CUDA_R_32F
                                 : std::is_same_v<T, __half> ? CUDA_R_16F
                                                             : CUDA_R_16BF;

template <class In, class Out>
struct Types {
  using Input = In;
  using Output = Out;
};
template <class T>
class CublasLtHalves : public CublasLt {};
using HalfTypes = ::testing::Types<Types<__half, __half>, Types<__half, float>, Types<__nv_bfloat16, __nv_bfloat16>,
                                   Types<__nv_bfloat16, float>>;
TYPED_TEST_SUITE(CublasLtHalves, HalfTypes, );

/// Sums of many terms, which would be far off if intermediate results were rounded to halves.
TYPED_TEST(CublasLtHalves, AddInF32AndRoundOnce) {
  using In = typename TypeParam::Input;
  using Out = typename TypeParam::Output;
  const Case c{5, 3, 4000, true, false, false, CUBLASLT_EPILOGUE_RELU_BIAS, 1, 0};
  std::mt19937 random(11);
  std::uniform_real_distribution<float> uniform(-1, 1);
  const auto values = [&]<class T>(size_t count, T) {
    std::vector<T> v(count);
    for (T& x : v) x = static_cast<T>(uniform(random));
    return v;
  };
  const auto a = values(5 * 4000, In{}), b = values(4000 * 3, In{});
  const auto bias = values(5, Out{});
  this->make_operation(c);
  this->set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(this->upload(bias)));
  this->set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(kType<Out>));
  Out* const d = this->upload(std::vector<Out>(15));
  auto* const d_layout = this->layout(5, 3, 5, kType<Out>);
  ASSERT_EQ(
      cublasLtMatmul(this->handle_, this->operation_, &c.alpha, this->upload(a), this->layout(4000, 5, 4000, kType<In>),
                     this->upload(b), this->layout(4000, 3, 4000, kType<In>), &c.beta, d, d_layout, d, d_layout,
                     nullptr, nullptr, 0, this->stream_),
      CUBLAS_STATUS_SUCCESS);
  const std::vector<Out> result = this->download(d, 15);
  const double relative = std::is_same_v<Out, float> ? 0 : std::is_same_v<Out, __half> ? 0x1p-11 : 0x1p-8;
  for (size_t i = 0; i < 5; ++i) {
    for (size_t j = 0; j < 3; ++j) {
      auto sum = static_cast<double>(static_cast<float>(bias[i]));
      for (size_t l = 0; l < 4000; ++l) {
        sum += static_cast<double>(static_cast<float>(a[l + i * 4000])) *
               static_cast<double>(static_cast<float>(b[l + j * 4000]));
      }
      sum = std::max(sum, 0.0);
      EXPECT_NEAR(static_cast<double>(static_cast<float>(result[i + j * 5])), sum, relative * sum + 1e-3)
          << i << " " << j;
    }
  }
}

TEST_F(CublasLt, RefusesCombinationsOfTypes) {
  const Case c{8, 8, 8, false, false, false, CUBLASLT_EPILOGUE_BIAS, 1, 0};
  const auto memory = upload(std::vector<float>(64));
  const auto multiply = [&](cudaDataType_t a, cudaDataType_t b, cudaDataType_t d, cudaDataType_t bias,
                            cublasComputeType_t compute) {
    cublasLtMatmulDescDestroy(operation_);
    EXPECT_EQ(cublasLtMatmulDescCreate(&operation_, compute, CUDA_R_32F), CUBLAS_STATUS_SUCCESS);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, c.epilogue);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, static_cast<const void*>(memory));
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(bias));
    auto* const d_layout = layout(8, 8, 8, d);
    return cublasLtMatmul(handle_, operation_, &c.alpha, memory, layout(8, 8, 8, a), memory, layout(8, 8, 8, b),
                          &c.beta, memory, d_layout, memory, d_layout, nullptr, nullptr, 0, stream_);
  };
  for (const cudaDataType_t half : {CUDA_R_16F, CUDA_R_16BF}) {
    const cudaDataType_t other = half == CUDA_R_16F ? CUDA_R_16BF : CUDA_R_16F;
    EXPECT_EQ(multiply(half, half, half, half, CUBLAS_COMPUTE_32F), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(multiply(half, half, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F), CUBLAS_STATUS_SUCCESS);
    EXPECT_EQ(multiply(half, other, half, half, CUBLAS_COMPUTE_32F), CUBLAS_STATUS_NOT_SUPPORTED) << "a and b differ";
    EXPECT_EQ(multiply(half, half, other, other, CUBLAS_COMPUTE_32F), CUBLAS_STATUS_NOT_SUPPORTED)
        << "another half comes out";
    EXPECT_EQ(multiply(CUDA_R_32F, CUDA_R_32F, half, half, CUBLAS_COMPUTE_32F), CUBLAS_STATUS_NOT_SUPPORTED)
        << "f32 becomes a half";
    EXPECT_EQ(multiply(half, half, half, CUDA_R_32F, CUBLAS_COMPUTE_32F), CUBLAS_STATUS_NOT_SUPPORTED)
        << "a bias of another type";
    EXPECT_EQ(multiply(half, half, half, half, CUBLAS_COMPUTE_32F_FAST_TF32), CUBLAS_STATUS_NOT_SUPPORTED)
        << "TF32 is for f32";
  }
}

TEST_F(CublasLt, RefusesWrongArguments) {
  const Case c{8, 4, 16, false, false, false, CUBLASLT_EPILOGUE_DEFAULT, 1, 0};
  make_operation(c);
  float* const a = upload(std::vector<float>(8 * 16));
  float* const b = upload(std::vector<float>(16 * 4));
  float* const d = upload(std::vector<float>(8 * 4));
  auto *const a_layout = layout(8, 16, 8), *const b_layout = layout(16, 4, 16), *const d_layout = layout(8, 4, 8);
  const auto multiply = [&](cublasLtMatrixLayout_t la, const float* pa, const cublasLtMatmulAlgo_t* algorithm,
                            size_t scratch_bytes) {
    return cublasLtMatmul(handle_, operation_, &c.alpha, pa, la, b, b_layout, &c.beta, d, d_layout, d, d_layout,
                          algorithm, a, scratch_bytes, stream_);
  };
  EXPECT_EQ(multiply(layout(8, 15, 8), a, nullptr, 0), CUBLAS_STATUS_INVALID_VALUE) << "k disagrees";
  EXPECT_EQ(multiply(layout(8, 16, 7), a, nullptr, 0), CUBLAS_STATUS_INVALID_VALUE) << "leading dimension";
  const uint32_t gelu = CUBLASLT_EPILOGUE_GELU;
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, gelu);
  EXPECT_EQ(multiply(a_layout, a, nullptr, 0), CUBLAS_STATUS_NOT_SUPPORTED);
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, uint32_t{CUBLASLT_EPILOGUE_DEFAULT});

  cublasLtMatmulPreference_t preference = nullptr;
  ASSERT_EQ(cublasLtMatmulPreferenceCreate(&preference), CUBLAS_STATUS_SUCCESS);
  const uint64_t scratch = 4096;
  ASSERT_EQ(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &scratch,
                                                 sizeof scratch),
            CUBLAS_STATUS_SUCCESS);
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  ASSERT_EQ(cublasLtMatmulAlgoGetHeuristic(handle_, operation_, a_layout, b_layout, d_layout, d_layout, preference, 1,
                                           &result, &found),
            CUBLAS_STATUS_SUCCESS);
  cublasLtMatmulPreferenceDestroy(preference);
  ASSERT_EQ(found, 1);
  EXPECT_GT(result.workspaceSize, 0U);
  EXPECT_EQ(multiply(a_layout, a, &result.algo, result.workspaceSize - 1), CUBLAS_STATUS_INVALID_VALUE)
      << "too little workspace";
  EXPECT_EQ(multiply(a_layout, a + 1, &result.algo, result.workspaceSize), CUBLAS_STATUS_INVALID_VALUE) << "alignment";
  EXPECT_EQ(cublasLtMatmul(handle_, operation_, &c.alpha, a, a_layout, b, b_layout, &c.beta, d, d_layout, d, d_layout,
                           &result.algo, a + 16, result.workspaceSize, stream_),
            CUBLAS_STATUS_INVALID_VALUE)
      << "alignment of the workspace";
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_EQ(multiply(a_layout, a, &result.algo, result.workspaceSize), CUBLAS_STATUS_INVALID_VALUE)
      << "another device is current";
  EXPECT_EQ(cublasLtDestroy(handle_), CUBLAS_STATUS_INVALID_VALUE) << "another device is current";
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  EXPECT_EQ(multiply(a_layout, a + 1, nullptr, 0), CUBLAS_STATUS_SUCCESS)
      << "beyond the allocation: seen later, as on a GPU";
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorIllegalAddress);
}

}  // namespace
}  // namespace vitrine::standins
