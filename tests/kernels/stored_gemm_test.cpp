// SPDX-License-Identifier: Apache-2.0
// Matrix products and linear layers of f16 and bf16: accumulated in f32, rounded once.
#include <cmath>
#include <iterator>
#include <limits>
#include <span>

#include "kernels/cpu/widened.h"
#include "kernels/gemm.h"
#include "kernels/linear.h"
#include "runtime/error.h"
#include "tests/kernels/expect_error.h"
#include "tests/kernels/shifted.h"
#include "tests/support/reference.h"
#include "tests/support/stored.h"

namespace vitrine::test {
namespace {

void widened_gemm(ExecContext& ctx, bool transpose_a, bool transpose_b, ConstView a, ConstView b, View c, GradMode mode) {
  ctx.dispatch({"gemm", {a, b}, {c}}, [=, &ctx] { cpu::widened::gemm(ctx, transpose_a, transpose_b, a, b, c, mode); });
}
void widened_forward(ExecContext& ctx, ConstView x, ConstView w, ConstView bias, bool relu, View y) {
  ctx.dispatch({"linear_forward", {x, w, bias}, {y}}, [=, &ctx] { cpu::widened::linear_forward(ctx, x, w, bias, relu, y); });
}

/// Where the CPU has instructions for bf16, what serves elsewhere is tested beside them.
struct Path {
  const char* name;
  void (*gemm)(ExecContext&, bool, bool, ConstView, ConstView, View, GradMode);
  decltype(&vitrine::linear_forward) forward;
};
constexpr Path kAllPaths[] = {{"dispatched", &vitrine::gemm, &vitrine::linear_forward}, {"widened", &widened_gemm, &widened_forward}};
std::span<const Path> paths() { return {kAllPaths, on_gpu() ? size_t{1} : std::size(kAllPaths)}; }

constexpr int64_t kWorkspace = int64_t{4} << 20;

class StoredGemmTest : public StoredTest {
 protected:
  StoredGemmTest() { ctx().reserve_workspace(kWorkspace); }

  void expect_stored(const std::vector<float>& actual, const Reference& expected, const std::string& what) {
    expect_rounded(actual, expected, std::string(dtype_name(dtype())) + " " + what, unit_roundoff(dtype()), half_smallest(dtype()));
  }

  /// Every pass of c = op(a) op(b): rounded, to f32, and added to f32.
  void check(TestDevice& on, int64_t m, int64_t n, int64_t k, bool ta, bool tb, uint64_t seed) {
    const std::vector<float> a = random(m * k, seed + 1000), b = random(k * n, seed + 2000), old = random_floats(m * n, seed + 3000);
    const Tensor a_device = stored_tensor(on, dtype(), ta ? Shape{k, m} : Shape{m, k}, a);
    const Tensor b_device = stored_tensor(on, dtype(), tb ? Shape{n, k} : Shape{k, n}, b);
    const Reference expected = reference_gemm(ta, tb, m, n, k, a, b), sum = reference_gemm(ta, tb, m, n, k, a, b, old);
    for (const Path& path : paths()) {
      const std::string what = std::string(path.name) + " " + Shape{m, n, k}.str() + (ta ? " transposed a" : "") + (tb ? " transposed b" : "");
      const GuardedTensor narrow = on.guarded(Shape{m, n}, dtype()), wide = on.guarded(Shape{m, n}), added = on.guarded(Shape{m, n}, old);
      path.gemm(on.ctx(), ta, tb, a_device, b_device, narrow, GradMode::overwrite);
      path.gemm(on.ctx(), ta, tb, a_device, b_device, wide, GradMode::overwrite);
      path.gemm(on.ctx(), ta, tb, a_device, b_device, added, GradMode::accumulate);
      expect_stored(stored_values(on, narrow), expected, what);
      expect_rounded(on.values(wide), expected, what + " to f32");
      expect_rounded(on.values(added), sum, what + " added");
    }
  }
};

TEST_P(StoredGemmTest, EqualsTheReferenceOnRandomShapes) {
  for (const int threads : {1, 2, 3}) {
    if (on_gpu() && threads > 1) continue;
    TestDevice on(threads);
    on.ctx().reserve_workspace(kWorkspace);
    for (uint64_t seed = 0; seed < 24; ++seed) {
      const auto sizes = random_integers<int32_t>(3, seed, 1, seed % 4 == 0 ? 150 : 37);
      check(on, sizes[0], sizes[1], sizes[2], seed % 2 == 1, seed / 2 % 2 == 1, seed);
    }
  }
}

/// Tiles that are cut along M, N and K: the sums of a tile are kept over the chunks of K.
TEST_P(StoredGemmTest, AnyWorkspaceAboveTheLeastWillDo) {
  const Shape shapes[] = {{7, 900, 300}, {900, 7, 300}, {300, 290, 64}, {150, 170, 1300}, {3, 5, 9001}, {70, 1, 2111}, {1, 333, 777}};
  for (const int64_t bytes : {kWidenedGemmWorkspaceBytes, kWidenedGemmWorkspaceBytes + 1000, int64_t{300'000}}) {
    ctx().reserve_workspace(bytes);
    uint64_t seed = 50;
    for (const Shape& s : shapes) {
      for (int transposed = 0; transposed < 4; ++transposed) check(device, s[0], s[1], s[2], transposed % 2 == 1, transposed / 2 == 1, ++seed);
    }
  }
}

TEST_P(StoredGemmTest, TooLittleWorkspaceIsSaidWithTheBytesNeeded) {
  if (on_gpu()) GTEST_SKIP() << "a GPU multiplies f16 and bf16 directly";
  const Tensor a = device.empty({3, 4}, dtype()), b = device.empty({4, 2}, dtype()), c = device.empty({3, 2}, dtype());
  const std::string expected = std::string(dtype_name(dtype())) + " needs a workspace of at least 65536 bytes, but ";
  for (const int64_t bytes : {kWidenedGemmWorkspaceBytes - 1, int64_t{0}}) {
    ctx().release_workspace();
    if (bytes > 0) ctx().reserve_workspace(bytes);
    expect_error<OutOfMemory>(
        [&] {
          widened_gemm(ctx(), false, false, a, b, c, GradMode::overwrite);
          device.synchronize();
        },
        "gemm: " + expected + std::to_string(bytes) + " bytes are reserved");
    expect_error<OutOfMemory>(
        [&] {
          widened_forward(ctx(), a, b.reshape({2, 4}), {}, false, c);
          device.synchronize();
        },
        "linear_forward: " + expected);
  }
}

/// What a product that accumulates in 16 bits would give: after every 16 terms, as the units of GPUs would, and after every one.
std::vector<float> accumulated_in_16_bits(DType dtype, int64_t n, int64_t k, int64_t step, const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<float> y;
  for (int64_t j = 0; j < n; ++j) {
    double sum = 0;
    for (int64_t l = 0; l < k; ++l) {
      sum += static_cast<double>(a[static_cast<size_t>(l)]) * static_cast<double>(b[static_cast<size_t>(j * k + l)]);
      if ((l + 1) % step == 0) sum = from_bits(dtype, to_bits(dtype, sum));
    }
    y.push_back(static_cast<float>(from_bits(dtype, to_bits(dtype, sum))));
  }
  return y;
}

TEST_P(StoredGemmTest, LongSumsAreMadeInF32) {
  const int64_t n = 33, k = 9216;
  const std::vector<float> a = random(k, 1, 0.5F, 1.0F), b = random(n * k, 2, 0.5F, 1.0F);
  const Reference expected = reference_gemm(false, true, 1, n, k, a, b);
  for (const int64_t step : {1, 16}) {
    const std::vector<float> narrow = accumulated_in_16_bits(dtype(), n, k, step, a, b);
    double worst = 0;
    for (size_t i = 0; i < narrow.size(); ++i) worst = std::max(worst, std::abs(static_cast<double>(narrow[i]) / expected.values[i] - 1));
    ASSERT_GT(worst, 1.5 * unit_roundoff(dtype())) << "the test would not see sums in 16 bits, rounded after " << step;
  }
  for (const Path& path : paths()) {
    const GuardedTensor y = guarded({1, n});
    path.gemm(ctx(), false, true, tensor({1, k}, a), tensor({n, k}, b), y, GradMode::overwrite);
    expect_stored(values(y), expected, path.name);
  }
}

TEST_P(StoredGemmTest, NonFiniteNumbersPassOnAndOverflowIsInfinity) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> a(5 * 40, 1.0F), b(40 * 19, 1.0F);
  a[1 * 40 + 7] = kInfinity;
  a[2 * 40 + 3] = std::numeric_limits<float>::quiet_NaN();
  a[3 * 40] = kInfinity;
  a[3 * 40 + 39] = -kInfinity;
  const float largest = dtype() == DType::f16 ? 65504.0F : 0x1.FEp127F;
  a[4 * 40] = a[4 * 40 + 1] = largest;
  for (const Path& path : paths()) {
    const GuardedTensor c = guarded({5, 19});
    path.gemm(ctx(), false, false, tensor({5, 40}, a), tensor({40, 19}, b), c, GradMode::overwrite);
    const std::vector<float> v = from_bits(dtype(), device.values<uint16_t>(ConstView(c.view)));
    for (size_t j = 0; j < 19; ++j) {
      EXPECT_EQ(v[j], 40.0F) << path.name;
      EXPECT_EQ(v[19 + j], kInfinity) << path.name;
      EXPECT_TRUE(std::isnan(v[2 * 19 + j])) << path.name;
      EXPECT_TRUE(std::isnan(v[3 * 19 + j])) << path.name;
      EXPECT_EQ(v[4 * 19 + j], kInfinity) << path.name;
    }
  }
}

/// The smallest number of f16 and three of them; in bf16, what is far below those of f16.
TEST_P(StoredGemmTest, SmallNumbersAreKept) {
  const float factor = dtype() == DType::f16 ? 0x1p-12F : 0x1p-60F;
  const GuardedTensor c = guarded({1, 2});
  gemm(ctx(), false, false, tensor({1, 1}, {factor}), tensor({1, 2}, {factor, 3 * factor}), c, GradMode::overwrite);
  EXPECT_EQ(values(c), (std::vector<float>{factor * factor, 3 * factor * factor}));
}

TEST_P(StoredGemmTest, AnyAlignmentWillDo) {
  const int64_t m = 21, n = 35, k = 50;
  const std::vector<float> a = random(m * k, 1), b = random(n * k, 2);
  const Reference expected = reference_gemm(false, true, m, n, k, a, b);
  for (const auto& [i, j, l] : std::vector<std::array<int64_t, 3>>{{1, 1, 1}, {0, 3, 7}, {5, 0, 2}}) {
    for (const Path& path : paths()) {
      const Shifted<uint16_t> c(device, {m, n}, l, dtype());
      path.gemm(ctx(), false, true, Shifted<uint16_t>(device, {m, k}, i, to_bits(dtype(), a), dtype()),
                Shifted<uint16_t>(device, {n, k}, j, to_bits(dtype(), b), dtype()), c, GradMode::overwrite);
      expect_stored(from_bits(dtype(), c.values()), expected, path.name);
    }
  }
}

TEST_P(StoredGemmTest, GivesTheSameBitsEveryTime) {
  const Tensor a = tensor({70, 301}, random(int64_t{70} * 301, 1)), b = tensor({301, 45}, random(int64_t{301} * 45, 2));
  std::vector<uint16_t> first;
  for (int repeat = 0; repeat < 5; ++repeat) {
    const GuardedTensor c = guarded({70, 45});
    gemm(ctx(), false, false, a, b, c);
    if (repeat == 0) first = device.values<uint16_t>(c);
    EXPECT_EQ(device.values<uint16_t>(c), first);
  }
}

TEST_P(StoredGemmTest, LinearLayersEqualTheReference) {
  for (uint64_t seed = 0; seed < 24; ++seed) {
    const auto sizes = random_integers<int32_t>(3, seed, 1, seed % 4 == 0 ? 130 : 35);
    const int64_t n = sizes[0], in = sizes[1], out = sizes[2];
    const bool with_bias = seed % 2 == 0, relu = seed / 2 % 2 == 0, accumulate = seed % 3 == 0;
    const std::vector<float> x = random(n * in, seed + 100), w = random(out * in, seed + 200), bias = random(out, seed + 300);
    const std::vector<float> grad_y = random(n * out, seed + 400), old_w = random_floats(out * in, seed + 500),
                             old_bias = random_floats(out, seed + 600);
    const Tensor x_device = tensor({n, in}, x), w_device = tensor({out, in}, w), grad_y_device = tensor({n, out}, grad_y);
    const std::string what = Shape{n, in, out}.str();
    Reference expected = reference_gemm(false, true, n, out, in, x, w);
    if (with_bias) add_bias(expected, bias);
    if (relu) apply_relu(expected);
    for (const Path& path : paths()) {
      const GuardedTensor y = guarded({n, out});
      path.forward(ctx(), x_device, w_device, with_bias ? tensor({out}, bias) : Tensor(), relu, y);
      expect_stored(values(y), expected, path.name + (" forward " + what));
    }
    const GuardedTensor grad_x = guarded({n, in});
    linear_backward_data(ctx(), grad_y_device, w_device, grad_x);
    expect_stored(values(grad_x), reference_gemm(false, false, n, in, out, grad_y, w), "grad_x " + what);

    const auto initial = [&](const std::vector<float>& old) { return accumulate ? std::span<const float>(old) : std::span<const float>(); };
    const GuardedTensor grad_w = accumulate ? device.guarded(Shape{out, in}, old_w) : device.guarded(Shape{out, in});
    const GuardedTensor grad_bias = accumulate ? device.guarded(Shape{out}, old_bias) : device.guarded(Shape{out});
    linear_backward_weight(ctx(), x_device, grad_y_device, grad_w, grad_bias, accumulate ? GradMode::accumulate : GradMode::overwrite);
    expect_rounded(device.values(grad_w), reference_gemm(true, false, out, in, n, grad_y, x, initial(old_w)), "grad_w " + what);
    expect_rounded(device.values(grad_bias), reference_column_sums(n, out, grad_y, initial(old_bias)), "grad_bias " + what);
  }
}

TEST_P(StoredGemmTest, TypesThatDoNotGoTogetherAreRefused) {
  const Tensor a = device.empty({4, 4}, dtype()), b = device.empty({4, 4}, dtype()), c = device.empty({4, 4}, dtype()), wide = device.empty({4, 4});
  const std::string type = dtype_name(dtype());
  expect_error<DtypeError>([&] { gemm(ctx(), false, false, a, wide, c); }, "gemm: b is f32, expected " + type);
  expect_error<DtypeError>([&] { gemm(ctx(), false, false, wide, wide, c); }, "gemm: c is " + type + ", expected f32");
  expect_error<DtypeError>([&] { gemm(ctx(), false, false, a, b, c, GradMode::accumulate); }, "gemm: c is " + type + ", expected f32");
  expect_error<DtypeError>([&] { linear_forward(ctx(), a, b, {}, false, wide); }, "linear_forward: y is f32, expected " + type);
  expect_error<DtypeError>([&] { linear_backward_weight(ctx(), a, b, c, {}, GradMode::overwrite); },
                           "linear_backward_weight: grad_w is " + type + ", expected f32");
}

INSTANTIATE_TEST_SUITE_P(Stored, StoredGemmTest, ::testing::ValuesIn(kStoredTypes), stored_type_name);

}  // namespace
}  // namespace vitrine::test
