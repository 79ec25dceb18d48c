// SPDX-License-Identifier: Apache-2.0
// An operation of a CPU device chooses its algorithm by its shapes: in every workspace that has what it asks for, up to
// the most that it was asked about, it gives the same bits. Below its least it is refused, before it runs too.
#include "kernels/workspace.h"

#include <functional>

#include <fmt/format.h>

#include "kernels/conv2d.h"
#include "kernels/gemm.h"
#include "kernels/linear.h"
#include "runtime/error.h"
#include "tests/support/error_of.h"
#include "tests/support/seeds.h"
#include "tests/support/stored.h"

namespace vitrine::test {
namespace {

constexpr int64_t kAllowed = int64_t{32} << 20;

/// out = f(a, b); a and b have the tested dtype.
struct Operation {
  std::string name;
  Shape a, b, out;
  bool wide;  // out is f32
  std::function<void(ExecContext&, ConstView, ConstView, View)> issue;
};

Operation drawn_convolution(uint64_t seed) {
  const auto r = random_integers<int64_t>(9, seed, 0, 1000);
  const int64_t window = 1 + r[0] % 5, channels = r[1] % 3 == 0 ? 16 * (1 + r[2] % 6) : 1 + r[2] % 40,
                outputs = r[3] % 3 == 0 ? 16 * (1 + r[4] % 6) : 1 + r[4] % 40;
  const Conv2dConfig config{1 + r[5] % 2, r[6] % 3, seed % 2 == 0};
  const Shape x{1 + r[7] % 9, window + r[8] % 24, window + r[0] % 24, channels}, w{outputs, window, window, channels},
      y = conv2d_output_shape(config, x, w);
  const std::string sizes = fmt::format(" x {} w {} stride {} pad {}", x.str(), w.str(), config.stride, config.pad);
  switch (seed / 2 % 3) {
    case 0:
      return {"forward" + sizes, x, w, y, false, [=](ExecContext& ctx, ConstView a, ConstView b, View out) {
                conv2d_forward(ctx, config, a, b, {}, out);
              }};
    case 1:
      return {"backward_data" + sizes, y, w, x, false, [=](ExecContext& ctx, ConstView a, ConstView b, View out) {
                conv2d_backward_data(ctx, config, a, b, out);
              }};
    default:
      return {"backward_weight" + sizes, x, y, w, true, [=](ExecContext& ctx, ConstView a, ConstView b, View out) {
                conv2d_backward_weight(ctx, config, a, b, out, {}, GradMode::overwrite);
              }};
  }
}

Operation drawn_product(uint64_t seed) {
  const auto r = random_integers<int64_t>(3, seed, 1, seed % 5 == 0 ? 2500 : 400);
  const int64_t m = r[0] % 97 + 1, n = r[1], k = r[2];
  const std::string sizes = fmt::format(" {} by {} by {}", m, k, n);
  if (seed / 2 % 3 == 0)
    return {"linear" + sizes, {m, k}, {n, k}, {m, n}, false, [](ExecContext& ctx, ConstView a, ConstView b, View out) {
              linear_forward(ctx, a, b, {}, true, out);
            }};
  const bool transpose_a = seed / 2 % 3 == 1;
  return {"gemm" + sizes,
          transpose_a ? Shape{k, m} : Shape{m, k},
          {k, n},
          {m, n},
          transpose_a,
          [=](ExecContext& ctx, ConstView a, ConstView b, View out) { gemm(ctx, transpose_a, false, a, b, out); }};
}

class WorkspaceTest : public DtypeTest {
 protected:
  void SetUp() override {
    if (on_gpu()) GTEST_SKIP() << "plans ask the libraries of CPU devices";
  }

  void check(const Operation& operation, int threads, uint64_t seed) {
    SCOPED_TRACE(fmt::format("{}, {} threads, seed {}", operation.name, threads, seed));
    const DType out_dtype = operation.wide ? DType::f32 : dtype();
    const std::unique_ptr<DeviceGroup> meta = DeviceGroup::planned({.devices = {DeviceId{Backend::cpu, 0}}});
    ExecContext& recorded = (*meta)[0].compute();
    const auto allocate = [&](const Shape& shape, DType of) {
      return recorded.allocate(shape, of, Category::activations, "test");
    };
    operation.issue(recorded, allocate(operation.a, dtype()), allocate(operation.b, dtype()),
                    allocate(operation.out, out_dtype));
    const WorkspaceTarget target{DeviceId{Backend::cpu, 0}, threads};
    const WorkspaceNeed need = workspace_need(recorded, target, kAllowed);
    ASSERT_LE(need.best_bytes, kAllowed);
    ASSERT_LE(need.least_bytes, need.best_bytes);

    TestDevice on(threads);
    const Tensor a = stored_tensor(on, dtype(), operation.a, random_stored(dtype(), operation.a.numel(), seed + 1)),
                 b = stored_tensor(on, dtype(), operation.b, random_stored(dtype(), operation.b.numel(), seed + 2));
    const auto run = [&](int64_t bytes) {
      const GuardedTensor out = on.guarded(operation.out, out_dtype);
      on.ctx().release_workspace();
      if (bytes > 0) on.ctx().reserve_workspace(bytes);
      operation.issue(on.ctx(), a, b, out);
      return operation.wide ? on.values(out) : stored_values(on, out);
    };
    const auto more = random_integers<int64_t>(2, seed, need.best_bytes, kAllowed);
    const std::vector<float> expected = run(kAllowed);
    for (const int64_t bytes : {need.best_bytes, more[0], more[1], kAllowed})
      ASSERT_EQ(run(bytes), expected) << bytes << " bytes, where " << need.best_bytes << " are asked for";
    run(need.least_bytes);
    const auto refused = [&](int64_t bytes) {
      recorded.release_workspace();
      if (bytes > 0) recorded.reserve_workspace(bytes);
      return error_of([&] { require_workspace(recorded, target); });
    };
    EXPECT_EQ(refused(need.least_bytes), "");
    if (need.least_bytes == 0) return;
    // A plan refuses what the operation refuses, and nothing else; a library may have an implementation for less.
    const std::string refusal = refused(need.least_bytes - 1);
    if (refusal.empty()) {
      EXPECT_NO_THROW(run(need.least_bytes - 1));
      return;
    }
    const std::string error = error_of<OutOfMemory>([&] { run(need.least_bytes - 1); });
    EXPECT_NE(error.find(refusal.substr(0, refusal.find("; "))), std::string::npos)
        << refusal << " is not in " << error;
  }
};
INSTANTIATE_TEST_SUITE_P(Dtypes, WorkspaceTest, ::testing::ValuesIn(kStorageTypes), dtype_test_name);

TEST_P(WorkspaceTest, DecidesNoAlgorithmBeyondWhatItAsksFor) {
  for (uint64_t seed = 0; seed < 60; seed += kSeedStep)
    check(seed % 2 == 0 ? drawn_convolution(seed) : drawn_product(seed), seed % 3 == 0 ? 2 : 1, seed);
}

}  // namespace
}  // namespace vitrine::test
