// SPDX-License-Identifier: Apache-2.0
// Products whose epilogue cuBLASLt refuses, on the stand-ins.
#include "kernels/linear.h"
#include "tests/standins/controls.h"
#include "tests/support/stored.h"

namespace vitrine::test {
namespace {

class RefusedEpilogue : public DtypeTest {
 protected:
  void SetUp() override {
    if (!on_gpu()) GTEST_SKIP() << "cuBLASLt is for GPUs";
    standins::refuse_epilogues(true);
  }
  void TearDown() override { standins::refuse_epilogues(false); }
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
      expect_rounded(values(y), expected, dtype_name(dtype()) + std::string(with_bias ? " bias" : "") + (relu ? " ReLU" : ""), roundoff(),
                     underflow() + 20 * roundoff());
    }
  }
}

}  // namespace
}  // namespace vitrine::test
