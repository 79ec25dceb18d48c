// SPDX-License-Identifier: Apache-2.0
#include "kernels/gemm.h"

#include <iterator>
#include <span>

#include "kernels/cpu/portable.h"
#include "runtime/error.h"
#include "tests/kernels/expect_error.h"
#include "tests/support/device_fixture.h"
#include "tests/support/reference.h"

namespace vitrine::test {
namespace {

void portable_gemm(ExecContext& ctx, bool transpose_a, bool transpose_b, ConstView a, ConstView b, View c, GradMode mode) {
  ctx.dispatch({"gemm", {a, b}, {c}}, [=] { cpu::portable::gemm(transpose_a, transpose_b, a, b, c, c.shape[1], mode); });
}

struct Path {
  const char* name;
  void (*gemm)(ExecContext&, bool, bool, ConstView, ConstView, View, GradMode);
};
constexpr Path kAllPaths[] = {{"dispatched", &vitrine::gemm}, {"portable", &portable_gemm}};
/// The portable implementation is one of the CPU's.
std::span<const Path> paths() { return {kAllPaths, on_gpu() ? size_t{1} : std::size(kAllPaths)}; }

class GemmTest : public ThreadsTest {};

TEST_P(GemmTest, EqualsTheReferenceOnRandomShapes) {
  TestDevice device(GetParam());
  for (uint64_t seed = 0; seed < 48; ++seed) {
    const auto sizes = random_integers<int32_t>(3, seed, 1, seed % 4 == 0 ? 150 : 37);
    const int64_t m = sizes[0], n = sizes[1], k = sizes[2];
    const bool ta = seed % 2 == 1, tb = seed / 2 % 2 == 1;
    const auto a = random_floats(m * k, seed + 1000);
    const auto b = random_floats(k * n, seed + 2000);
    const auto old = random_floats(m * n, seed + 3000);
    const Tensor a_device = device.tensor(ta ? Shape{k, m} : Shape{m, k}, a);
    const Tensor b_device = device.tensor(tb ? Shape{n, k} : Shape{k, n}, b);
    for (const Path& path : paths()) {
      for (const GradMode mode : {GradMode::overwrite, GradMode::accumulate}) {
        const bool accumulate = mode == GradMode::accumulate;
        const GuardedTensor c = accumulate ? device.guarded(Shape{m, n}, old) : device.guarded(Shape{m, n});
        path.gemm(device.ctx(), ta, tb, a_device, b_device, c, mode);
        const Reference expected = reference_gemm(ta, tb, m, n, k, a, b, accumulate ? std::span<const float>(old) : std::span<const float>());
        expect_rounded(device.values(c), expected, std::string(path.name) + " " + c.view.shape.str() + " k " + std::to_string(k));
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Threads, GemmTest, ::testing::Values(1, 2, 3));

TEST_F(DeviceTest, GemmGivesTheSameBitsEveryTime) {
  const Tensor a = device.random({70, 301}, 1);
  const Tensor b = device.random({301, 45}, 2);
  for (const Path& path : paths()) {
    const Tensor first = device.empty({70, 45});
    path.gemm(ctx(), false, false, a, b, first, GradMode::overwrite);
    for (int repeat = 0; repeat < 5; ++repeat) {
      const Tensor again = device.empty({70, 45});
      path.gemm(ctx(), false, false, a, b, again, GradMode::overwrite);
      expect_same_bits(device.values(again), device.values(first), path.name);
    }
  }
}

TEST_F(DeviceTest, GemmOfNothingIsZero) {
  const Tensor a = device.empty({3, 0});
  const Tensor b = device.empty({0, 2});
  const GuardedTensor c = device.guarded(Shape{3, 2}, std::vector<float>(6, 7.0F));
  gemm(ctx(), false, false, a, b, c, GradMode::accumulate);
  expect_same_bits(device.values(c), std::vector<float>(6, 7.0F));
  gemm(ctx(), false, false, a, b, c, GradMode::overwrite);
  expect_same_bits(device.values(c), std::vector<float>(6, 0.0F));
}

TEST_F(DeviceTest, GemmRefusesWhatDoesNotFit) {
  const Tensor a = device.empty({3, 4});
  const Tensor b = device.empty({5, 2});
  const Tensor c = device.empty({3, 2});
  expect_error<ShapeError>([&] { gemm(ctx(), false, false, a, b, c); }, "gemm: b has shape (5, 2) but a (3, 4) needs b of shape (4, N)");
  expect_error<ShapeError>([&] { gemm(ctx(), true, true, a, b, c); }, "gemm: b has shape (5, 2) but transposed a (3, 4) needs b of shape (N, 3)");
  expect_error<ShapeError>([&] { gemm(ctx(), false, false, a, a.reshape({4, 3}), c); }, "gemm: c has shape (3, 2), expected (3, 3)");
  expect_error<ShapeError>([&] { gemm(ctx(), false, false, a, a.reshape({2, 2, 3}), c); }, "gemm: b has shape (2, 2, 3) of rank 3");
  const Tensor square = device.empty({4, 4});
  expect_error<ShapeError>([&] { gemm(ctx(), false, false, square, square, square); }, "gemm: c (4, 4) and a (4, 4) share memory");
  const Tensor integers = device.empty({4, 4}, DType::i32);
  expect_error<DtypeError>([&] { gemm(ctx(), false, false, integers, square, square); }, "gemm: a is i32, expected f32");
  std::vector<float> host(16);
  const View host_view{host.data(), {4, 4}, DType::f32, DeviceId::host()};
  expect_error<DeviceError>([&] { gemm(ctx(), false, false, host_view, square, square); }, "gemm: a is on host, expected " + ctx().device().str());
}

}  // namespace
}  // namespace vitrine::test
