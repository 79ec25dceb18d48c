// SPDX-License-Identifier: Apache-2.0
#include "kernels/optimizer.h"

#include <array>
#include <bit>
#include <fstream>
#include <limits>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "kernels/cast.h"
#include "kernels/cross_entropy.h"
#include "kernels/step_control.h"
#include "runtime/error.h"
#include "tests/support/device_fixture.h"
#include "tests/support/paths.h"
#include "tests/support/reference_light.h"
#include "tests/support/shifted.h"
#include "tests/support/stored.h"

namespace vitrine::test {
namespace {

using Json = nlohmann::json;

/// Parameters and the state of their optimizer on a device.
struct Flat {
  Flat(TestDevice& on, const std::vector<float>& start)
      : device(on),
        count(static_cast<int64_t>(start.size())),
        param(device.guarded({count}, start)),
        first(device.guarded({count}, std::vector<float>(start.size(), 0.0F))),
        second(device.guarded({count}, std::vector<float>(start.size(), 0.0F))),
        step(device.guarded({1}, std::vector<int32_t>{0})) {}

  Tensor control(float factor = 1.0F, float active = 1.0F) {
    std::vector<float> values(StepControl::kCount, 0.0F);
    values[StepControl::kFactor] = factor;
    values[StepControl::kActive] = active;
    return device.tensor({StepControl::kCount}, values);
  }
  void sgd(const SgdConfig& config, const std::vector<float>& grad, float factor = 1.0F, float active = 1.0F) {
    const View buffer = config.momentum == 0.0 ? View{} : first.view;
    sgd_update(device.ctx(), config, param, device.tensor({count}, grad), buffer, step, control(factor, active));
  }
  void adam(const AdamConfig& config, const std::vector<float>& grad, float factor = 1.0F, float active = 1.0F) {
    adam_update(device.ctx(), config, param, device.tensor({count}, grad), first, second, step,
                control(factor, active));
  }

  TestDevice& device;
  int64_t count;
  GuardedTensor param, first, second, step;
};

SgdConfig sgd_config(const Json& options) {
  return {options.at("lr"), options.value("momentum", 0.0), options.value("weight_decay", 0.0),
          options.value("nesterov", false)};
}

AdamConfig adam_config(const Json& options, bool decoupled) {
  const std::array<double, 2> betas = options.value("betas", std::array<double, 2>{0.9, 0.999});
  return {options.at("lr"), betas[0], betas[1], options.value("eps", 1e-8), options.value("weight_decay", 0.0),
          decoupled};
}

class OptimizerTest : public DeviceTest {
 protected:
  OptimizerTest() { ctx().reserve_workspace(kCheckGradientsWorkspaceBytes); }
};

TEST_F(OptimizerTest, FollowsPyTorchsTrajectories) {
  std::ifstream file(test::source_path("tests/kernels/data/optimizers.json"));
  ASSERT_TRUE(file) << "missing tests/kernels/data/optimizers.json: record_optimizers.py writes it";
  const Json record = Json::parse(file);
  ASSERT_EQ(record.at("variants").size(), 8U);
  for (const Json& variant : record.at("variants")) {
    const std::string name = variant.at("name");
    Flat flat(device, record.at("start").get<std::vector<float>>());
    for (size_t t = 0; t < record.at("grads").size(); ++t) {
      const auto grad = record.at("grads")[t].get<std::vector<float>>();
      const Json& options = variant.at("options");
      if (name.starts_with("sgd")) {
        flat.sgd(sgd_config(options), grad);
      } else {
        flat.adam(adam_config(options, name.starts_with("adamw")), grad);
      }
      expect_close(device.values(flat.param), variant.at("parameters")[t].get<std::vector<double>>(), 1e-6, 1e-7,
                   name + " step " + std::to_string(t));
    }
    EXPECT_EQ(device.values<int32_t>(flat.step), std::vector<int32_t>{10});
  }
}

TEST_F(OptimizerTest, OddLengthsFollowTheReferenceWithTheGradientMultipliedByTheFactor) {
  uint64_t seed = 0;
  for (const int64_t count : {1, 13, 16384 + 7, 40009}) {
    const std::vector<float> start = random_floats(count, ++seed);
    const SgdConfig sgd{0.1, 0.9, 1e-3, seed % 2 == 0};
    const AdamConfig adam{1e-2, 0.9, 0.999, 1e-8, 0.02, seed % 2 == 0};
    Flat by_sgd(device, start);
    Flat by_adam(device, start);
    std::vector<reference::Optimizer> sgd_reference(start.size()), adam_reference(start.size());
    for (size_t i = 0; i < start.size(); ++i) sgd_reference[i].p = adam_reference[i].p = static_cast<double>(start[i]);
    for (int t = 0; t < 4; ++t) {
      const std::vector<float> grad = random_floats(count, ++seed);
      by_sgd.sgd(sgd, grad, 1.25F);
      by_adam.adam(adam, grad, 1.25F);
      for (size_t i = 0; i < start.size(); ++i) {
        sgd_reference[i].sgd(sgd, static_cast<double>(grad[i]) * 1.25);
        adam_reference[i].adam(adam, static_cast<double>(grad[i]) * 1.25);
      }
    }
    std::vector<double> sgd_expected, adam_expected;
    for (size_t i = 0; i < start.size(); ++i) {
      sgd_expected.push_back(sgd_reference[i].p);
      adam_expected.push_back(adam_reference[i].p);
    }
    expect_close(device.values(by_sgd.param), sgd_expected, 2e-6, 1e-6, "sgd");
    expect_close(device.values(by_adam.param), adam_expected, 2e-6, 1e-6, "adam");
    device.values(by_sgd.first);
    device.values(by_adam.first);
    device.values(by_adam.second);
  }
}

/// Each range must follow a separate PyTorch optimizer, as torch's parameter groups do, and the step is counted once.
TEST_F(OptimizerTest, RangesAreUpdatedWithTheirOwnConstants) {
  const auto ranges = std::make_shared<const std::vector<UpdateRange>>(std::vector<UpdateRange>{
      {0, 64, 1.0, 0.0}, {64, 64, 3.0, 0.5}, {64, 20000, 0.25, 0.1}, {20000, 20005, 2.0, 0.01}});
  const std::vector<float> start = random_floats(20005, 1);
  for (const int kind : {0, 1, 2, 3}) {
    const SgdConfig sgd{0.1, kind == 0 ? 0.0 : 0.9, 7.0, kind == 1};
    const AdamConfig adam{1e-2, 0.9, 0.999, 1e-8, 7.0, kind == 3};
    Flat flat(device, start);
    std::vector<reference::Optimizer> expected(start.size());
    for (size_t i = 0; i < start.size(); ++i) expected[i].p = static_cast<double>(start[i]);
    for (uint64_t t = 0; t < 3; ++t) {
      const std::vector<float> grad = random_floats(flat.count, 10 + t);
      const Tensor gradient = device.tensor({flat.count}, grad), control = flat.control();
      if (kind < 2) {
        sgd_update(ctx(), sgd, flat.param, gradient, kind == 0 ? View{} : flat.first.view, flat.step, control, ranges);
      } else {
        adam_update(ctx(), adam, flat.param, gradient, flat.first, flat.second, flat.step, control, ranges);
      }
      for (const UpdateRange& range : *ranges) {
        SgdConfig sgd_of = sgd;
        AdamConfig adam_of = adam;
        sgd_of.lr *= range.lr_factor, adam_of.lr *= range.lr_factor;
        sgd_of.weight_decay = adam_of.weight_decay = range.weight_decay;
        for (auto i = static_cast<size_t>(range.begin); i < static_cast<size_t>(range.end); ++i) {
          kind < 2 ? expected[i].sgd(sgd_of, static_cast<double>(grad[i]))
                   : expected[i].adam(adam_of, static_cast<double>(grad[i]));
        }
      }
    }
    std::vector<double> values;
    for (const reference::Optimizer& optimizer : expected) values.push_back(optimizer.p);
    expect_close(device.values(flat.param), values, 2e-6, 1e-6, std::to_string(kind));
    EXPECT_EQ(device.values<int32_t>(flat.step), std::vector<int32_t>{3});
  }
}

TEST_F(OptimizerTest, RefusesRangesThatDoNotCoverTheParameters) {
  Flat flat(device, std::vector<float>(8, 1.0F));
  const Tensor grad = device.random({8}, 2), control = flat.control();
  for (const std::vector<UpdateRange>& ranges : std::vector<std::vector<UpdateRange>>{
           {}, {{0, 7}}, {{0, 9}}, {{1, 8}}, {{0, 4}, {5, 8}}, {{0, 5}, {4, 8}}, {{0, 8}, {8, 7}}}) {
    const auto shared = std::make_shared<const std::vector<UpdateRange>>(ranges);
    EXPECT_THROW(sgd_update(ctx(), {}, flat.param, grad, View{}, flat.step, control, shared), ShapeError);
    EXPECT_THROW(adam_update(ctx(), {}, flat.param, grad, flat.first, flat.second, flat.step, control, shared),
                 ShapeError);
  }
}

/// Each case overflows in a different place: the update, the momentum, the square of the gradient, the learning rate
/// itself.
TEST_F(OptimizerTest, ElementsKeepTheirValuesIfANonFiniteUpdateIsRefused) {
  constexpr float kHuge = 3e38F;
  const std::vector<float> start(1030, 0.5F);
  for (const size_t position : {size_t{0}, size_t{513}, size_t{1029}}) {
    std::vector<float> grad(start.size(), 0.0F);
    grad[position] = kHuge;
    const auto update = [&](const char* name, float keeps, const auto& run) {
      Flat flat(device, start);
      std::vector<float> verdict(StepControl::kCount, 0.0F);
      verdict[StepControl::kFactor] = verdict[StepControl::kActive] = 1.0F;
      verdict[StepControl::kKeepsFinite] = keeps;
      const Tensor control = device.tensor({StepControl::kCount}, verdict);
      run(flat, control);
      const std::vector<float> param = device.values(flat.param), first = device.values(flat.first),
                               second = device.values(flat.second);
      const bool finite = std::all_of(param.begin(), param.end(), [](float x) { return std::isfinite(x); }) &&
                          std::all_of(first.begin(), first.end(), [](float x) { return std::isfinite(x); }) &&
                          std::all_of(second.begin(), second.end(), [](float x) { return std::isfinite(x); });
      EXPECT_EQ(finite, keeps == 1.0F) << name;
      EXPECT_EQ(device.values(control)[StepControl::kStopped], keeps == 1.0F ? StepControl::kByUpdate : 0.0F) << name;
      if (keeps == 1.0F) {
        EXPECT_EQ(param[position], 0.5F) << name;
      }
    };
    for (const float keeps : {1.0F, 0.0F}) {
      const Tensor g = device.tensor({static_cast<int64_t>(grad.size())}, grad);
      update("sgd", keeps, [&](Flat& f, const Tensor& control) {
        sgd_update(ctx(), {.lr = 10.0}, f.param, g, View{}, f.step, control);
      });
      update("momentum", keeps, [&](Flat& f, const Tensor& control) {
        sgd_update(ctx(), {.lr = 10.0, .momentum = 0.9}, f.param, g, f.first, f.step, control);
      });
      update("adam", keeps, [&](Flat& f, const Tensor& control) {
        adam_update(ctx(), {.lr = 1.0}, f.param, g, f.first, f.second, f.step, control);
      });
      update("lr", keeps, [&](Flat& f, const Tensor& control) {
        adam_update(ctx(), {.lr = 1e39, .weight_decay = 0.01, .decoupled = true}, f.param, g, f.first, f.second, f.step,
                    control);
      });
    }
  }
}

/// Buffers with equal and with different alignments.
TEST_F(OptimizerTest, AnyAlignmentGivesTheSameUpdate) {
  constexpr int64_t kCount = 2055;
  const std::vector<float> start = random_floats(kCount, 31);
  const std::vector<float> grad = random_floats(kCount, 32);
  const std::vector<float> zeros(kCount, 0.0F);
  const SgdConfig sgd{0.1, 0.9, 1e-3, true};
  const SgdConfig plain{0.1, 0.0, 1e-3, false};
  const AdamConfig adam{1e-2, 0.9, 0.999, 1e-8, 0.02, true};
  Flat by_sgd(device, start), by_plain(device, start), by_adam(device, start);
  by_sgd.sgd(sgd, grad);
  by_plain.sgd(plain, grad);
  by_adam.adam(adam, grad);
  const Tensor control = by_sgd.control();
  for (const auto& [a, b] : std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {3, 3}, {0, 1}, {2, 0}}) {
    const Shifted<> g(device, {kCount}, b, grad);
    const Shifted<> p(device, {kCount}, a, start), m(device, {kCount}, b, zeros), v(device, {kCount}, a, zeros);
    Tensor step = device.tensor({1}, std::vector<int32_t>{0});
    adam_update(ctx(), adam, p, g, m, v, step, control);
    expect_same_bits(p.values(), device.values(by_adam.param), "adam");
    expect_same_bits(m.values(), device.values(by_adam.first), "adam");
    expect_same_bits(v.values(), device.values(by_adam.second), "adam");
    EXPECT_EQ(device.values<int32_t>(step), std::vector<int32_t>{1});

    const Shifted<> q(device, {kCount}, a, start), buffer(device, {kCount}, b, zeros), r(device, {kCount}, a, start);
    step = device.tensor({1}, std::vector<int32_t>{0});
    sgd_update(ctx(), sgd, q, g, buffer, step, control);
    expect_same_bits(q.values(), device.values(by_sgd.param), "sgd");
    expect_same_bits(buffer.values(), device.values(by_sgd.first), "sgd");
    sgd_update(ctx(), plain, r, g, View{}, step, control);
    expect_same_bits(r.values(), device.values(by_plain.param), "sgd without momentum");
    EXPECT_EQ(device.values<int32_t>(step), std::vector<int32_t>{2});
  }
}

constexpr const char* kUpdates[] = {"sgd", "momentum", "adam", "adamw"};

/// The update `kind` of kUpdates.
void update(ExecContext& ctx, int kind, const View& param, const View& grad, const View& first, const View& second,
            const View& step, const View& control, const UpdateRanges& ranges, const View& half_param) {
  if (kind < 2) {
    const SgdConfig sgd{0.1, kind == 0 ? 0.0 : 0.9, 1e-3, kind == 1};
    return sgd_update(ctx, sgd, param, grad, kind == 0 ? View{} : first, step, control, ranges, half_param);
  }
  adam_update(ctx, {1e-2, 0.9, 0.999, 1e-8, 0.02, kind == 3}, param, grad, first, second, step, control, ranges,
              half_param);
}

class OptimizerValues : public DeviceTest {};

TEST_F(OptimizerValues, OnCudaReplaceLearningRateAndMomentum) {
  const std::vector<float> start = device.values(device.random({50}, 1)),
                           gradient = device.values(device.random({50}, 2));
  const UpdateRanges ranges = std::make_shared<const std::vector<UpdateRange>>(
      std::vector<UpdateRange>{{0, 20, 0.3, 0.01}, {20, 50, 1.0, 0.0}});
  const auto words = std::bit_cast<std::array<int32_t, StepValues::kCount>>(StepValues{.lr = 0.037, .momentum = 0.83});
  const Tensor step_values = device.tensor({StepValues::kCount}, std::vector<int32_t>(words.begin(), words.end()));
  for (int kind = 0; kind < 4; ++kind) {
    Flat by_config(device, start), by_values(device, start);
    for (const bool reads_values : {false, true}) {
      // A momentum of 0 has no buffer, so another one stands for it.
      const bool ignores_config = reads_values && ctx().backend() == Backend::cuda;
      const double lr = ignores_config ? 0.5 : 0.037, momentum = ignores_config ? 0.1 : 0.83;
      Flat& flat = reads_values ? by_values : by_config;
      const ConstView from = reads_values ? ConstView(step_values) : ConstView();
      for (int i = 0; i < 3; ++i) {
        const Tensor g = device.tensor({50}, gradient), control = flat.control(0.5F);
        if (kind < 2) {
          const SgdConfig sgd{lr, kind == 0 ? 0.0 : momentum, 1e-3, kind == 1};
          sgd_update(ctx(), sgd, flat.param, g, kind == 0 ? View{} : flat.first.view, flat.step, control, ranges, {},
                     from);
        } else {
          adam_update(ctx(), {lr, momentum, 0.999, 1e-8, 0.02, kind == 3}, flat.param, g, flat.first, flat.second,
                      flat.step, control, ranges, {}, from);
        }
      }
    }
    EXPECT_EQ(device.values(by_values.param), device.values(by_config.param)) << kUpdates[kind];
    EXPECT_EQ(device.values(by_values.first), device.values(by_config.first)) << kUpdates[kind];
    EXPECT_EQ(device.values(by_values.second), device.values(by_config.second)) << kUpdates[kind];
  }
}

class HalfCopy : public DtypeTest {
 protected:
  std::vector<uint16_t> cast_of(const View& param) {
    const Tensor half = device.empty(param.shape, dtype());
    cast(ctx(), param, half);
    return device.values<uint16_t>(ConstView(half));
  }
};
INSTANTIATE_TEST_SUITE_P(Dtypes, HalfCopy, ::testing::ValuesIn(kHalfTypes), dtype_test_name);

/// The parameters have some values that become denormal, infinite or NaN in 16 bits. Whole packs, elements before and
/// after them, and buffers whose alignments do not allow packs.
TEST_P(HalfCopy, HasTheBitsOfASeparateCastAndChangesNothingElse) {
  uint64_t seed = 0;
  for (const int64_t count : {1, 13, 2048 + 5, 40009}) {
    std::vector<float> start = random_floats(count, ++seed);
    for (size_t i = 0; i < start.size(); i += 7) start[i] *= 1e-6F;
    for (size_t i = 3; i < start.size(); i += 101)
      start[i] = i % 2 == 0 ? 7e4F : std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> grad = random_floats(count, ++seed);
    const auto ranges = std::make_shared<const std::vector<UpdateRange>>(std::vector<UpdateRange>{
        {0, count / 3, 1.0, 0.0}, {count / 3, count / 3, 3.0, 0.5}, {count / 3, count, 0.25, 0.1}});
    for (int kind = 0; kind < 4; ++kind) {
      for (const auto& [offset, half_offset] :
           std::vector<std::pair<int64_t, int64_t>>{{0, 0}, {1, 1}, {3, 3}, {0, 1}, {2, 0}}) {
        const std::string what =
            fmt::format("{}, {} elements, offsets {} and {}", kUpdates[kind], count, offset, half_offset);
        Flat expected(device, start);
        const Shifted<> param(device, {count}, offset, start), g(device, {count}, offset, grad);
        const Shifted<> first(device, {count}, offset, std::vector<float>(start.size(), 0.0F));
        const Shifted<> second(device, {count}, offset, std::vector<float>(start.size(), 0.0F));
        const ShiftedStored half(device, dtype(), {count}, half_offset);
        const Tensor step = device.tensor({1}, std::vector<int32_t>{0}), control = expected.control(1.25F);
        const UpdateRanges of_kind = offset == 1 ? ranges : nullptr;
        for (int t = 0; t < 2; ++t) {
          update(ctx(), kind, expected.param, g, expected.first, expected.second, expected.step, control, of_kind, {});
          update(ctx(), kind, param, g, first, second, step, control, of_kind, half);
        }
        expect_same_bits(device.values(ConstView(View(param))), device.values(ConstView(expected.param.view)), what);
        EXPECT_EQ(device.values<uint16_t>(ConstView(View(half))), cast_of(param)) << what;
        half.bits();  // nothing before or after it is written
      }
    }
  }
}

TEST_P(HalfCopy, OfAStepThatIsNotTakenStaysAsItWas) {
  const std::vector<float> start = random_floats(100, 1);
  const std::vector<uint16_t> other(start.size(), 0x1234);
  for (int kind = 0; kind < 4; ++kind) {
    Flat flat(device, start);
    const Tensor grad = device.random({flat.count}, 2), half = device.tensor({flat.count}, other, dtype());
    update(ctx(), kind, flat.param, grad, flat.first, flat.second, flat.step, flat.control(8.0F, 0.0F), nullptr, half);
    EXPECT_EQ(device.values<uint16_t>(ConstView(half)), other) << kUpdates[kind];
    update(ctx(), kind, flat.param, grad, flat.first, flat.second, flat.step, flat.control(8.0F, 1.0F), nullptr, half);
    EXPECT_EQ(device.values<uint16_t>(ConstView(half)), cast_of(flat.param)) << kUpdates[kind];
  }
}

TEST_P(HalfCopy, HasTheOldValuesOfElementsWhoseUpdateIsRefused) {
  std::vector<float> grad(1030, 1.0F), verdict(StepControl::kCount, 0.0F);
  grad[0] = grad[513] = 3e38F;
  verdict[StepControl::kFactor] = verdict[StepControl::kActive] = verdict[StepControl::kKeepsFinite] = 1.0F;
  Flat flat(device, std::vector<float>(grad.size(), 0.5F));
  const Tensor half = device.empty({flat.count}, dtype()), control = device.tensor({StepControl::kCount}, verdict);
  adam_update(ctx(), {.lr = 1.0}, flat.param, device.tensor({flat.count}, grad), flat.first, flat.second, flat.step,
              control, nullptr, half);
  const std::vector<uint16_t> bits = device.values<uint16_t>(ConstView(half));
  EXPECT_EQ(bits, cast_of(flat.param));
  EXPECT_EQ(bits[513], to_bits(dtype(), 0.5));
  EXPECT_NE(bits[514], to_bits(dtype(), 0.5));
}

TEST_F(OptimizerTest, RefusesACopyOfAnotherTypeOrLengthOrPlace) {
  Flat flat(device, std::vector<float>(8, 1.0F));
  const Tensor grad = device.random({8}, 2), control = flat.control();
  const View f32 = device.empty({8}), short_one = device.empty({7}, DType::f16);
  const View over_grad{grad.view().data, {8}, DType::f16, grad.view().device};
  for (int kind = 0; kind < 4; ++kind) {
    const auto update_with = [&](const View& half) {
      update(ctx(), kind, flat.param, grad, flat.first, flat.second, flat.step, control, nullptr, half);
    };
    EXPECT_THROW(update_with(f32), DtypeError);
    EXPECT_THROW(update_with(short_one), ShapeError);
    EXPECT_THROW(update_with(over_grad), ShapeError);
  }
}

TEST_F(OptimizerTest, AnUpdateWithoutParametersIsCounted) {
  Flat flat(device, {});
  flat.adam({}, {});
  flat.sgd({0.1, 0.9, 0.0, false}, {});
  EXPECT_EQ(device.values<int32_t>(flat.step), std::vector<int32_t>{2});
}

/// A step is taken, one skipped, two taken.
TEST_F(OptimizerTest, AnUpdateThatTheDecisionHasCountedHasTheSameBits) {
  std::vector<float> totals_content(LossTotals::kCount, 0.0F);
  totals_content[LossTotals::kValid] = 3.0F;
  const Tensor totals = device.tensor({LossTotals::kCount}, totals_content);
  const std::vector<float> start = random_floats(3001, 1);
  for (const NonFinite policy : {NonFinite::skip, NonFinite::accept}) {
    for (int kind = 0; kind < 4; ++kind) {
      const std::string what = fmt::format("{}{}", kUpdates[kind], policy == NonFinite::skip ? ", checked" : "");
      Flat counted(device, start), alone(device, start);
      const Tensor of_counted = counted.control(), of_alone = alone.control();
      for (uint64_t step = 0; step < 4; ++step) {
        std::vector<float> content = random_floats(3001, 2 + step);
        if (step == 1 && policy == NonFinite::skip) content[7] = std::numeric_limits<float>::infinity();
        const Tensor grad = device.tensor({counted.count}, content);
        const auto decide = [&](const View& control, const UpdateCount& count) {
          if (policy == NonFinite::accept) return decide_step(ctx(), 4.0, policy, totals, {}, control, count);
          check_and_decide_step(ctx(), 4.0, policy, grad, totals, {}, control, count);
        };
        decide(of_counted, {counted.step, 1e-2, 0.9, 0.999});
        decide(of_alone, {});
        update(ctx(), kind, counted.param, grad, counted.first, counted.second, {}, of_counted, nullptr, {});
        update(ctx(), kind, alone.param, grad, alone.first, alone.second, alone.step, of_alone, nullptr, {});
      }
      expect_same_bits(device.values(ConstView(counted.param.view)), device.values(ConstView(alone.param.view)), what);
      expect_same_bits(device.values(ConstView(counted.second.view)), device.values(ConstView(alone.second.view)),
                       what);
      EXPECT_NE(device.values(ConstView(counted.param.view)), start) << what;
      EXPECT_EQ(device.values<int32_t>(counted.step), std::vector<int32_t>{policy == NonFinite::skip ? 3 : 4}) << what;
      EXPECT_EQ(device.values<int32_t>(alone.step), device.values<int32_t>(counted.step)) << what;
    }
  }
}

TEST_F(OptimizerTest, ASkippedStepChangesNothing) {
  const std::vector<float> start = random_floats(100, 1);
  const std::vector<float> grad(100, std::numeric_limits<float>::quiet_NaN());
  Flat flat(device, start);
  for (const float active : {0.0F, std::numeric_limits<float>::quiet_NaN()}) {
    flat.sgd({0.1, 0.9, 0.1, true}, grad, 8.0F, active);
    flat.sgd({0.1, 0.0, 0.1, false}, grad, 8.0F, active);
    flat.adam({}, grad, 8.0F, active);
  }
  expect_same_bits(device.values(flat.param), start);
  expect_same_bits(device.values(flat.first), std::vector<float>(100, 0.0F));
  expect_same_bits(device.values(flat.second), std::vector<float>(100, 0.0F));
  EXPECT_EQ(device.values<int32_t>(flat.step), std::vector<int32_t>{0});
}

TEST_F(OptimizerTest, FirstMomentumUpdateDoesNotReadTheBuffer) {
  const std::vector<float> grad = random_floats(21, 2);
  Flat flat(device, random_floats(21, 3));
  device.write(flat.first, std::vector<float>(21, std::numeric_limits<float>::quiet_NaN()));
  flat.sgd({0.5, 0.9, 0.0, false}, grad);
  expect_same_bits(device.values(flat.first), grad);
}

TEST_F(OptimizerTest, NonFiniteGradientsAffectOnlyTheirElement) {
  std::vector<float> grad(33, 1.0F);
  grad[20] = std::numeric_limits<float>::quiet_NaN();
  Flat flat(device, std::vector<float>(33, 0.5F));
  flat.adam({}, grad);
  const std::vector<float> param = device.values(flat.param);
  for (size_t i = 0; i < param.size(); ++i) EXPECT_EQ(std::isnan(param[i]), i == 20) << i;
}

TEST_F(OptimizerTest, RefusesWrongArguments) {
  const Tensor p = device.random({8}, 1);
  const Tensor g = device.random({8}, 2);
  const Tensor m = device.random({8}, 3);
  const Tensor v = device.random({8}, 4);
  const Tensor step = device.empty({1}, DType::i32);
  const Tensor control = device.empty({StepControl::kCount});
  EXPECT_THROW(sgd_update(ctx(), {0.1, 0.9, 0.0, false}, p, g, View{}, step, control), Error);
  EXPECT_THROW(sgd_update(ctx(), {0.1, 0.0, 0.0, true}, p, g, View{}, step, control), ConfigError);
  EXPECT_THROW(sgd_update(ctx(), {}, p, p, View{}, step, control), ShapeError);
  EXPECT_THROW(adam_update(ctx(), {}, p, g, m, device.empty({9}), step, control), ShapeError);
  EXPECT_THROW(adam_update(ctx(), {}, p, g, m, m, step, control), ShapeError);
  EXPECT_THROW(adam_update(ctx(), {}, p, g, m, v, device.empty({1}), control), DtypeError);
  EXPECT_THROW(adam_update(ctx(), {}, p, g, m, v, step, device.empty({8})), ShapeError);
}

}  // namespace
}  // namespace vitrine::test
