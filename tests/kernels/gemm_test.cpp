// SPDX-License-Identifier: Apache-2.0
// Matrix products: accumulated in f32, rounded once.
#include "kernels/gemm.h"

#include <array>
#include <cmath>
#include <limits>
#include <span>

#include "kernels/cpu/portable.h"
#include "kernels/cpu/widened.h"
#include "runtime/error.h"
#include "tests/kernels/expect_error.h"
#include "tests/support/seeds.h"
#include "tests/support/stored.h"

namespace vitrine::test::gemm_test {
namespace {

void portable_gemm(ExecContext& ctx, bool transpose_a, bool transpose_b, ConstView a, ConstView b, View c,
                   GradMode mode) {
  ctx.dispatch({"gemm", {a, b}, {c}},
               [=] { cpu::portable::gemm(transpose_a, transpose_b, a, b, c, c.shape[1], mode); });
}
void widened_gemm(ExecContext& ctx, bool transpose_a, bool transpose_b, ConstView a, ConstView b, View c,
                  GradMode mode) {
  ctx.dispatch({"gemm", {a, b}, {c}}, [=, &ctx] { cpu::widened::gemm(ctx, transpose_a, transpose_b, a, b, c, mode); });
}

struct Path {
  const char* name;
  void (*gemm)(ExecContext&, bool, bool, ConstView, ConstView, View, GradMode);
};
constexpr Path kFloatPaths[] = {{"dispatched", &vitrine::gemm}, {"portable", &portable_gemm}};
constexpr Path kHalfPaths[] = {{"dispatched", &vitrine::gemm}, {"widened", &widened_gemm}};

constexpr int64_t kWorkspace = int64_t{4} << 20;

class GemmTest : public DtypeTest {
 protected:
  GemmTest() {
    if (is_half()) ctx().reserve_workspace(kWorkspace);
  }
  /// On the CPU, the implementation without oneDNN is tested as well.
  std::span<const Path> paths() { return std::span(is_half() ? kHalfPaths : kFloatPaths).first(on_gpu() ? 1 : 2); }

  /// Every form of c = op(a) op(b): in the dtype, in f32, and added to f32.
  void check(TestDevice& on, int64_t m, int64_t n, int64_t k, bool ta, bool tb, uint64_t seed) {
    const std::vector<float> a = random(m * k, seed + 1000), b = random(k * n, seed + 2000),
                             old = random_floats(m * n, seed + 3000);
    const Tensor a_device = stored_tensor(on, dtype(), ta ? Shape{k, m} : Shape{m, k}, a);
    const Tensor b_device = stored_tensor(on, dtype(), tb ? Shape{n, k} : Shape{k, n}, b);
    const Reference expected = reference_gemm(ta, tb, m, n, k, a, b), sum = reference_gemm(ta, tb, m, n, k, a, b, old);
    for (const Path& path : paths()) {
      const std::string what = std::string(path.name) + " " + Shape{m, n, k}.str() + (ta ? " transposed a" : "") +
                               (tb ? " transposed b" : "");
      const GuardedTensor c = on.guarded(Shape{m, n}, dtype()), wide = on.guarded(Shape{m, n}),
                          added = on.guarded(Shape{m, n}, old);
      path.gemm(on.ctx(), ta, tb, a_device, b_device, c, GradMode::overwrite);
      path.gemm(on.ctx(), ta, tb, a_device, b_device, wide, GradMode::overwrite);
      path.gemm(on.ctx(), ta, tb, a_device, b_device, added, GradMode::accumulate);
      expect_stored(stored_values(on, c), expected, what);
      expect_rounded(on.values(wide), expected, what + " to f32");
      expect_rounded(on.values(added), sum, what + " added");
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Dtypes, GemmTest, ::testing::ValuesIn(kStorageTypes), dtype_test_name);

class GemmHalfTest : public GemmTest {};
INSTANTIATE_TEST_SUITE_P(Dtypes, GemmHalfTest, ::testing::ValuesIn(kHalfTypes), dtype_test_name);

TEST_P(GemmTest, EqualsTheReferenceOnRandomShapes) {
  for (const int threads : {1, 2, 3}) {
    if (on_gpu() && threads > 1) continue;
    TestDevice on(threads);
    if (is_half()) on.ctx().reserve_workspace(kWorkspace);
    for (uint64_t seed = 0; seed < (is_half() ? 24 : 48); seed += kSeedStep) {
      const auto sizes = random_integers<int32_t>(3, seed, 1, seed % 4 == 0 ? 150 : 37);
      check(on, sizes[0], sizes[1], sizes[2], seed % 2 == 1, seed / 2 % 2 == 1, seed);
      if (HasFailure()) return;
    }
  }
}

/// The CPU adds up blocks of K where the matrix on the right is large and not transposed.
TEST_P(GemmTest, EqualsTheReferenceWithALargeMatrix) {
  if (is_half()) GTEST_SKIP() << "16-bit matrices are widened tile by tile";
  check(device, 3, 4099, 2053, false, false, 7);
}

TEST_P(GemmTest, GivesTheSameBitsEveryTime) {
  const Tensor a = tensor({70, 301}, random(int64_t{70} * 301, 1)), b = tensor({301, 45}, random(int64_t{301} * 45, 2));
  for (const Path& path : paths()) {
    std::vector<uint32_t> first;
    for (int repeat = 0; repeat < 6; ++repeat) {
      const GuardedTensor c = guarded({70, 45});
      path.gemm(ctx(), false, false, a, b, c, GradMode::overwrite);
      if (repeat == 0) first = bits(c);
      expect_same_bits(bits(c), first, path.name);
    }
  }
}

TEST_P(GemmTest, AcceptsAnyAlignment) {
  const int64_t m = 21, n = 35, k = 50;
  const std::vector<float> a = random(m * k, 1), b = random(n * k, 2);
  const Reference expected = reference_gemm(false, true, m, n, k, a, b);
  for (const auto& [i, j, l] : std::vector<std::array<int64_t, 3>>{{1, 1, 1}, {0, 3, 7}, {5, 0, 2}}) {
    for (const Path& path : paths()) {
      const ShiftedStored c = shifted({m, n}, l);
      path.gemm(ctx(), false, true, shifted({m, k}, i, a), shifted({n, k}, j, b), c, GradMode::overwrite);
      expect_stored(c.values(), expected, path.name);
    }
  }
}

TEST_P(GemmTest, OfNothingIsZero) {
  const Tensor a = empty({3, 0}), b = empty({0, 2});
  const GuardedTensor c = device.guarded(Shape{3, 2}, std::vector<float>(6, 7.0F));
  gemm(ctx(), false, false, a, b, c, GradMode::accumulate);
  expect_same_bits(device.values(c), std::vector<float>(6, 7.0F));
  gemm(ctx(), false, false, a, b, c, GradMode::overwrite);
  expect_same_bits(device.values(c), std::vector<float>(6, 0.0F));
}

TEST_P(GemmTest, PropagatesNonFiniteNumbersAndOverflowsToInfinity) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<float> a(5 * 40, 1.0F), b(40 * 19, 1.0F);
  a[1 * 40 + 7] = kInfinity;
  a[2 * 40 + 3] = std::numeric_limits<float>::quiet_NaN();
  a[3 * 40] = kInfinity;
  a[3 * 40 + 39] = -kInfinity;
  const float largest = dtype() == DType::f32   ? std::numeric_limits<float>::max()
                        : dtype() == DType::f16 ? 65504.0F
                                                : 0x1.FEp127F;
  a[4 * 40] = a[4 * 40 + 1] = largest;
  for (const Path& path : paths()) {
    const GuardedTensor c = guarded({5, 19});
    path.gemm(ctx(), false, false, tensor({5, 40}, a), tensor({40, 19}, b), c, GradMode::overwrite);
    const std::vector<float> v = unchecked_values(c);
    for (size_t j = 0; j < 19; ++j) {
      EXPECT_EQ(v[j], 40.0F) << path.name;
      EXPECT_EQ(v[19 + j], kInfinity) << path.name;
      EXPECT_TRUE(std::isnan(v[2 * 19 + j])) << path.name;
      EXPECT_TRUE(std::isnan(v[3 * 19 + j])) << path.name;
      EXPECT_EQ(v[4 * 19 + j], kInfinity) << path.name;
    }
  }
}

/// Tiles are cut along M, N and K; the sums of a tile are kept over the chunks of K.
TEST_P(GemmHalfTest, AcceptsAnyWorkspaceAboveTheLeast) {
  const Shape shapes[] = {{7, 900, 300}, {900, 7, 300}, {300, 290, 64}, {150, 170, 1300},
                          {3, 5, 9001},  {70, 1, 2111}, {1, 333, 777}};
  for (const int64_t bytes : {kWidenedGemmWorkspaceBytes, kWidenedGemmWorkspaceBytes + 1000, int64_t{300'000}}) {
    ctx().reserve_workspace(bytes);
    uint64_t seed = 50;
    for (const Shape& s : shapes) {
      for (int transposed = 0; transposed < 4; transposed += kSeedStep)
        check(device, s[0], s[1], s[2], transposed % 2 == 1, transposed / 2 == 1, ++seed);
    }
  }
}

TEST_P(GemmHalfTest, NamesTheWorkspaceThatItNeeds) {
  if (on_gpu()) GTEST_SKIP() << "a GPU multiplies f16 and bf16 directly";
  const Tensor a = device.empty({3, 4}, dtype()), b = device.empty({4, 2}, dtype()), c = device.empty({3, 2}, dtype());
  const std::string expected = std::string(dtype_name(dtype())) + " needs a workspace of at least 65536 bytes, but ";
  for (const int64_t bytes : {kWidenedGemmWorkspaceBytes - 1, int64_t{0}}) {
    ctx().release_workspace();
    if (bytes > 0) ctx().reserve_workspace(bytes);
    expect_error<OutOfMemory>("gemm: " + expected + std::to_string(bytes) + " bytes are reserved", [&] {
      widened_gemm(ctx(), false, false, a, b, c, GradMode::overwrite);
      device.synchronize();
    });
  }
}

/// The result of a product that accumulates in 16 bits, rounded after every `step` terms.
std::vector<float> accumulated_in_16_bits(DType dtype, int64_t n, int64_t k, int64_t step, const std::vector<float>& a,
                                          const std::vector<float>& b) {
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

TEST_P(GemmHalfTest, AddsLongSumsInF32) {
  const int64_t n = 33, k = 9216;
  const std::vector<float> a = random(k, 1, 0.5F, 1.0F), b = random(n * k, 2, 0.5F, 1.0F);
  const Reference expected = reference_gemm(false, true, 1, n, k, a, b);
  for (const int64_t step : {1, 16}) {
    const std::vector<float> narrow = accumulated_in_16_bits(dtype(), n, k, step, a, b);
    double worst = 0;
    for (size_t i = 0; i < narrow.size(); ++i)
      worst = std::max(worst, std::abs(static_cast<double>(narrow[i]) / expected.values[i] - 1));
    ASSERT_GT(worst, 1.5 * unit_roundoff(dtype())) << "the test would not see sums in 16 bits, rounded after " << step;
  }
  for (const Path& path : paths()) {
    const GuardedTensor y = guarded({1, n});
    path.gemm(ctx(), false, true, tensor({1, k}, a), tensor({n, k}, b), y, GradMode::overwrite);
    expect_stored(values(y), expected, path.name);
  }
}

/// The smallest number of f16 and three times it; in bf16, numbers far below those of f16.
TEST_P(GemmHalfTest, KeepsSmallNumbers) {
  const float factor = dtype() == DType::f16 ? 0x1p-12F : 0x1p-60F;
  const GuardedTensor c = guarded({1, 2});
  gemm(ctx(), false, false, tensor({1, 1}, {factor}), tensor({1, 2}, {factor, 3 * factor}), c, GradMode::overwrite);
  EXPECT_EQ(values(c), (std::vector<float>{factor * factor, 3 * factor * factor}));
}

TEST_P(GemmHalfTest, RefusesTypesThatDoNotMatch) {
  const Tensor a = device.empty({4, 4}, dtype()), b = device.empty({4, 4}, dtype()), c = device.empty({4, 4}, dtype()),
               wide = device.empty({4, 4});
  const std::string type = dtype_name(dtype());
  expect_error<DtypeError>("gemm: b is f32, expected " + type, [&] { gemm(ctx(), false, false, a, wide, c); });
  expect_error<DtypeError>("gemm: c is " + type + ", expected f32", [&] { gemm(ctx(), false, false, wide, wide, c); });
  expect_error<DtypeError>("gemm: c is " + type + ", expected f32",
                           [&] { gemm(ctx(), false, false, a, b, c, GradMode::accumulate); });
}

TEST_F(DeviceTest, GemmRefusesWrongArguments) {
  const Tensor a = device.empty({3, 4});
  const Tensor b = device.empty({5, 2});
  const Tensor c = device.empty({3, 2});
  expect_error<ShapeError>("gemm: b has shape (5, 2) but a (3, 4) needs b of shape (4, N)",
                           [&] { gemm(ctx(), false, false, a, b, c); });
  expect_error<ShapeError>("gemm: b has shape (5, 2) but transposed a (3, 4) needs b of shape (N, 3)",
                           [&] { gemm(ctx(), true, true, a, b, c); });
  expect_error<ShapeError>("gemm: c has shape (3, 2), expected (3, 3)", [&] {
    gemm(ctx(), false, false, a, a.reshape({4, 3}), c);
  });
  expect_error<ShapeError>("gemm: b has shape (2, 2, 3) of rank 3", [&] {
    gemm(ctx(), false, false, a, a.reshape({2, 2, 3}), c);
  });
  const Tensor square = device.empty({4, 4});
  expect_error<ShapeError>("gemm: c (4, 4) and a (4, 4) share memory",
                           [&] { gemm(ctx(), false, false, square, square, square); });
  const Tensor integers = device.empty({4, 4}, DType::i32);
  expect_error<DtypeError>("gemm: a is i32, expected f32",
                           [&] { gemm(ctx(), false, false, integers, square, square); });
  std::vector<float> host(16);
  const View host_view{host.data(), {4, 4}, DType::f32, DeviceId::host()};
  expect_error<DeviceError>("gemm: a is on host, expected " + ctx().device().str(),
                            [&] { gemm(ctx(), false, false, host_view, square, square); });
}

}  // namespace
}  // namespace vitrine::test::gemm_test
