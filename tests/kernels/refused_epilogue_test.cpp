// SPDX-License-Identifier: Apache-2.0
// Products that cuBLASLt refuses, or their epilogues, on the stand-ins.
#include "kernels/linear.h"
#include "runtime/error.h"
#include "tests/standins/controls.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"
#include "tests/support/stored.h"

namespace vitrine::test::refused_epilogue_test {
namespace {

class RefusedEpilogue : public DtypeTest {
 protected:
  void SetUp() override {
    if (!on_gpu()) GTEST_SKIP() << "cuBLASLt is for GPUs";
    standins::refuse_epilogues(true);
  }
  void TearDown() override {
    standins::refuse_epilogues(false);
    standins::refuse_products(false);
  }
};
INSTANTIATE_TEST_SUITE_P(Dtypes, RefusedEpilogue, ::testing::ValuesIn(kStorageTypes), dtype_test_name);

TEST_P(RefusedEpilogue, RunsAsAKernelOfItsOwn) {
  const int64_t n = 33, in = 20, out = 17;
  const std::vector<float> x = random(n * in, 1), w = random(out * in, 2), bias = random(out, 3);
  const Tensor x_device = tensor({n, in}, x), w_device = tensor({out, in}, w), bias_device = tensor({out}, bias);
  for (const bool with_bias : {false, true}) {
    for (const bool relu : {false, true}) {
      Reference expected = reference_gemm(false, true, n, out, in, x, w);
      if (with_bias) add_bias(expected, bias);
      if (relu) apply_relu(expected);
      const GuardedTensor y = guarded({n, out});
      linear_forward(ctx(), x_device, w_device, with_bias ? ConstView(bias_device) : ConstView(), relu, y);
      // The product, which is below 20, is rounded before the bias is added.
      expect_rounded(values(y), expected,
                     dtype_name(dtype()) + std::string(with_bias ? " bias" : "") + (relu ? " ReLU" : ""), roundoff(),
                     underflow() + 20 * roundoff());
    }
  }
}

TEST_P(RefusedEpilogue, TheGradientOfABiasRunsAsAKernelOfItsOwn) {
  const int64_t n = 33, in = 20, out = 17;
  const std::vector<float> x = random(n * in, 1), grad_y = random(n * out, 2);
  const GuardedTensor grad_w = device.guarded({out, in}), grad_bias = device.guarded({out});
  linear_backward_weight(ctx(), tensor({n, in}, x), tensor({n, out}, grad_y), grad_w, grad_bias, GradMode::overwrite);
  expect_rounded(device.values(grad_bias), reference_column_sums(n, out, grad_y), dtype_name(dtype()));
  expect_rounded(device.values(grad_w), reference_gemm(true, false, out, in, n, grad_y, x), dtype_name(dtype()));
}

TEST_P(RefusedEpilogue, AProductWithoutAnAlgorithmIsReportedWithItsSizes) {
  standins::refuse_products(true);
  const Tensor x = tensor({33, 20}, random(33 * 20, 1)), w = tensor({17, 20}, random(17 * 20, 2)),
               bias = tensor({17}, random(17, 3));
  const GuardedTensor y = guarded({33, 17});
  expect_contains(error_of<UnsupportedError>([&] { linear_forward(ctx(), x, w, bias, true, y); }),
                  "no algorithm for m 33, n 17, k 20");
}

}  // namespace
}  // namespace vitrine::test::refused_epilogue_test
