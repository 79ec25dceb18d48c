// SPDX-License-Identifier: Apache-2.0
// Operations that are compiled for several instruction sets give the same bits in all of them. A processor with only
// the baseline has nothing to compare.
#include "runtime/cpu/instruction_set.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>

#include <gtest/gtest.h>

#include "kernels/attention.h"
#include "kernels/batch_norm.h"
#include "kernels/cast.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/layer_norm.h"
#include "kernels/pool2d.h"
#include "tests/support/stored.h"

namespace vitrine::test {
namespace {

using cpu::InstructionSet;

class InstructionSetTest : public DtypeTest {
 protected:
  void SetUp() override {
    if (on_gpu()) GTEST_SKIP() << "about operations on the CPU";
    if (cpu::instruction_sets().size() < 2) GTEST_SKIP() << "this processor has only " << cpu_instruction_set();
    in_use_ = cpu::instruction_set();
    ctx().reserve_workspace(int64_t{1} << 20);
  }
  void TearDown() override {
    if (in_use_) cpu::use_instruction_set(*in_use_);
  }

  /// Random numbers, among them denormals, infinities, NaN, both zeros and numbers that 16 bits round to infinity.
  std::vector<float> inputs(int64_t count, uint64_t seed) {
    std::vector<float> values = random(count, seed);
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const std::vector<float> specials = {0.0F,   -0.0F,  kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(),
                                         1e-40F, -3e-8F, 65520.0F,  3.39e38F};
    for (size_t i = 0; i < specials.size(); ++i) {
      for (size_t at = 3 * i + 1; at < values.size(); at += 61 + i) values[at] = specials[i];
    }
    return values;
  }
  Tensor special_tensor(const Shape& shape, uint64_t seed) { return tensor(shape, inputs(shape.numel(), seed)); }
  Tensor finite_tensor(const Shape& shape, uint64_t seed) { return tensor(shape, random(shape.numel(), seed)); }

  std::vector<uint8_t> bytes_of(const Tensor& t) {
    const View view = t.view();
    return device.values<uint8_t>(ConstView(view.data, {view.bytes()}, DType::u8, view.device));
  }

  /// Runs `compute`, which fills `results`, with every instruction set.
  void expect_equal_bits(const std::string& what, const std::vector<Tensor>& results,
                         const std::function<void()>& compute) {
    std::vector<std::vector<uint8_t>> expected;
    for (const InstructionSet set : cpu::instruction_sets()) {
      cpu::use_instruction_set(set);
      compute();
      device.synchronize();
      for (size_t i = 0; i < results.size(); ++i) {
        const std::vector<uint8_t> bytes = bytes_of(results[i]);
        if (set == InstructionSet::baseline) expected.push_back(bytes);
        EXPECT_TRUE(bytes == expected[i]) << what << ", result " << i << " with " << cpu::instruction_set_name(set);
      }
    }
  }

 private:
  std::optional<InstructionSet> in_use_;
};
INSTANTIATE_TEST_SUITE_P(Dtypes, InstructionSetTest, ::testing::ValuesIn(kStorageTypes), dtype_test_name);

constexpr int64_t kCounts[] = {1, 7, 8, 15, 16, 17, 31, 33, 1000, 40007};

TEST_P(InstructionSetTest, ElementwiseOperationsHaveTheSameBits) {
  for (const int64_t count : kCounts) {
    const Tensor a = special_tensor({count}, 1), b = special_tensor({count}, 2), y = empty({count});
    const std::string what = std::to_string(count) + " elements";
    expect_equal_bits("relu_forward, " + what, {y}, [&] { relu_forward(ctx(), a, y); });
    expect_equal_bits("relu_backward, " + what, {y}, [&] { relu_backward(ctx(), a, b, y); });
    expect_equal_bits("add, " + what, {y}, [&] { add(ctx(), a, b, y); });
    for (const DType to : kStorageTypes) {
      const Tensor cast_to = device.empty({count}, to);
      expect_equal_bits("cast, " + what, {cast_to}, [&] { cast(ctx(), a, cast_to); });
    }
    expect_equal_bits("dropout, " + what, {y},
                      [&] { dropout(ctx(), {.p = 0.3F, .seed = 5, .step = 2, .layer = 1}, a, y); });
  }
}

TEST_P(InstructionSetTest, OperationsOfTransformersHaveTheSameBits) {
  for (const auto& [length, heads, size] : {std::tuple<int64_t, int64_t, int64_t>{3, 1, 4}, {70, 2, 33}, {9, 1, 128}}) {
    const int64_t width = heads * size;
    const Shape shape{2, length, width}, rows{2, heads, length}, statistics{2 * length, 2};
    const Tensor x = finite_tensor({2, length, 3 * width}, 1), y = empty(shape), log_sums = device.empty(rows),
                 dots = device.empty(rows), grad_y = finite_tensor(shape, 2), grad_x = empty(x.shape());
    const std::string what = x.shape().str();
    expect_equal_bits("attention_forward, " + what, {y, log_sums},
                      [&, h = heads] { attention_forward(ctx(), h, x, y, log_sums); });
    expect_equal_bits("attention_backward, " + what, {grad_x},
                      [&, h = heads] { attention_backward(ctx(), h, x, y, log_sums, grad_y, dots, grad_x); });
    const Tensor from = special_tensor(shape, 3), to = empty(shape);
    expect_equal_bits("gelu_forward, " + what, {to}, [&] { gelu_forward(ctx(), from, to, GeluForm::tanh); });
    expect_equal_bits("gelu_backward, " + what, {to},
                      [&] { gelu_backward(ctx(), grad_y, grad_y, to, GeluForm::tanh); });
    const Tensor weight = device.tensor({width}, random_stored(DType::f32, width, 4)),
                 normal = device.empty(statistics), grad_weight = device.empty({width}),
                 grad_bias = device.empty({width});
    expect_equal_bits("layer_norm_forward, " + what, {to, normal},
                      [&] { layer_norm_forward(ctx(), 1e-5F, grad_y, weight, weight, to, normal); });
    expect_equal_bits("layer_norm_backward, " + what, {to, grad_weight, grad_bias}, [&] {
      layer_norm_backward_data(ctx(), grad_y, y, normal, weight, to);
      layer_norm_backward_weight(ctx(), grad_y, y, normal, grad_weight, grad_bias, GradMode::overwrite);
    });
    const Tensor table = device.empty({length, width});
    expect_equal_bits("add_positions, " + what, {to, table}, [&] {
      add_positions(ctx(), from, finite_tensor({length, width}, 5), to);
      add_positions_backward(ctx(), grad_y, table, GradMode::overwrite);
    });
  }
}

TEST_P(InstructionSetTest, PoolsHaveTheSameBits) {
  for (const int64_t channels : {1, 8, 16, 24, 33, 64, 72, 192}) {
    const Shape shape{2, 9, 11, channels};
    for (const Pool2dConfig config : {Pool2dConfig{3, 2, 0}, Pool2dConfig{2, 2, 0}, Pool2dConfig{3, 1, 1}}) {
      const Shape small = pool2d_output_shape(config, shape), adaptive{2, 2, 3, channels};
      const Tensor x = special_tensor(shape, 3), grad_y = finite_tensor(small, 4),
                   grad_adaptive = finite_tensor(adaptive, 5);
      const Tensor finite = finite_tensor(shape, 10);  // the bits of a sum of several NaN depend on which comes first
      const Tensor y = empty(small), indices = device.empty(small, DType::u8), grad_x = empty(shape),
                   mean = empty(adaptive);
      const std::string what = shape.str() + ", window " + std::to_string(config.window);
      for (const bool relu : {false, true}) {
        expect_equal_bits("max_pool2d_forward, " + what, {y, indices},
                          [&] { max_pool2d_forward(ctx(), config, x, y, indices, relu); });
      }
      expect_equal_bits("max_pool2d_backward, " + what, {grad_x},
                        [&] { max_pool2d_backward(ctx(), config, grad_y, indices, grad_x); });
      expect_equal_bits("avg_pool2d_forward, " + what, {y}, [&] { avg_pool2d_forward(ctx(), config, finite, y); });
      expect_equal_bits("avg_pool2d_backward, " + what, {grad_x},
                        [&] { avg_pool2d_backward(ctx(), config, grad_y, grad_x); });
      expect_equal_bits("adaptive_avg_pool2d_forward, " + what, {mean},
                        [&] { adaptive_avg_pool2d_forward(ctx(), finite, mean); });
      expect_equal_bits("adaptive_avg_pool2d_backward, " + what, {grad_x},
                        [&] { adaptive_avg_pool2d_backward(ctx(), grad_adaptive, grad_x); });
    }
  }
}

TEST_P(InstructionSetTest, BatchNormHasTheSameBits) {
  for (const int64_t channels : {1, 8, 17, 64, 100}) {
    const Shape shape{37, 2, 3, channels};
    const int64_t rows = shape.numel() / channels;
    const Tensor x = finite_tensor(shape, 6), grad_y = finite_tensor(shape, 7), y = empty(shape), grad_x = empty(shape);
    const auto floats = [&](const Shape& of, uint64_t seed) {
      return device.tensor(of, random_stored(DType::f32, of.numel(), seed));
    };
    const Tensor moments = device.empty({2, channels}), statistics = device.empty({2, channels}),
                 sums = device.empty({2, channels});
    const Tensor weight = floats({channels}, 8), bias = floats({channels}, 9);
    const Tensor grad_weight = device.empty({channels}), grad_bias = device.empty({channels});
    const BatchNormConfig config{.eps = 1e-3F, .momentum = 0.2F, .relu = true};
    const std::string what = shape.str();
    expect_equal_bits("batch_norm, forward, " + what, {moments, statistics, y}, [&] {
      batch_norm_moments(ctx(), x, moments);
      batch_norm_statistics(ctx(), config, rows, moments, statistics, View{}, View{});
      batch_norm_forward(ctx(), config, x, statistics, weight, bias, y);
    });
    expect_equal_bits("batch_norm, backward, " + what, {sums, grad_weight, grad_bias, grad_x}, [&] {
      batch_norm_backward_sums(ctx(), x, grad_y, statistics, sums, grad_weight, grad_bias, GradMode::overwrite);
      batch_norm_backward_data(ctx(), x, grad_y, statistics, weight, sums, rows, grad_x);
    });
  }
}

}  // namespace
}  // namespace vitrine::test
