// SPDX-License-Identifier: Apache-2.0
#include "nn/loss_scaler.h"

#include <fstream>
#include <limits>

#include <nlohmann/json.hpp>

#include "kernels/cross_entropy.h"
#include "kernels/optimizer.h"
#include "runtime/error.h"
#include "tests/support/device_fixture.h"
#include "tests/support/error_of.h"
#include "tests/support/paths.h"

namespace vitrine::test {
namespace {

using Json = nlohmann::json;

class LossScalerTest : public DeviceTest {
 protected:
  LossScalerTest() { ctx().reserve_workspace(kCheckGradientsWorkspaceBytes); }

  Tensor totals(float valid) {
    std::vector<float> values(LossTotals::kCount, 0.0F);
    values[LossTotals::kValid] = valid;
    return device.tensor({LossTotals::kCount}, values);
  }
  std::vector<float> state(const LossScaler& scaler) { return device.values(scaler.state()); }
};

float number(const Json& value) { return value.is_string() ? std::stof(value.get<std::string>()) : value.get<float>(); }

LossScaling scaling_of(const Json& variant) {
  LossScaling scaling;
  scaling.kind = LossScaling::Kind::dynamic;
  scaling.scale = variant.at("init_scale");
  scaling.constants = {variant.at("growth_factor"), variant.at("backoff_factor"), variant.at("growth_interval")};
  return scaling;
}

TEST_F(LossScalerTest, FollowsPyTorchsGradScaler) {
  std::ifstream file(test::source_path("tests/nn/data/grad_scaler.json"));
  ASSERT_TRUE(file) << "missing tests/nn/data/grad_scaler.json: record_grad_scaler.py writes it";
  const Json record = Json::parse(file);
  const auto start = record.at("start").get<std::vector<float>>();
  const auto count = static_cast<int64_t>(start.size());
  const SgdConfig sgd{record.at("lr"), record.at("momentum"), 0.0, false};
  ASSERT_EQ(record.at("variants").size(), 6U);
  for (const Json& variant : record.at("variants")) {
    const std::string name = variant.at("name");
    LossScaler scaler(ctx(), scaling_of(variant));
    const Tensor param = device.tensor({count}, start),
                 momentum = device.tensor({count}, std::vector<float>(start.size(), 0.0F));
    const Tensor step = device.tensor({1}, std::vector<int32_t>{0}), all_valid = totals(1.0F);
    const Tensor grad = device.empty({count});
    int64_t taken = 0;
    for (size_t t = 0; t < variant.at("steps").size(); ++t) {
      const Json& expected = variant.at("steps")[t];
      const std::string what = name + " step " + std::to_string(t);
      std::vector<float> gradient;
      for (const Json& value : expected.at("gradient")) gradient.push_back(number(value));
      const bool finite = std::all_of(gradient.begin(), gradient.end(), [](float g) { return g - g == 0.0F; });
      if (finite) ++taken;
      device.write(grad, gradient);
      scaler.decide_step(ctx(), 1.0, grad, all_valid, NonFinite::skip);
      if (!variant.at("clip_norm").is_null()) scaler.clip_gradients(ctx(), variant.at("clip_norm"));
      sgd_update(ctx(), sgd, param, grad, momentum, step, scaler.step());
      const std::vector<float> now = state(scaler);
      ASSERT_EQ(now[LossScaleState::kScale], expected.at("scale").get<float>()) << what;
      ASSERT_EQ(now[LossScaleState::kGrowthTracker], expected.at("growth_tracker").get<float>()) << what;
      ASSERT_EQ(device.values(scaler.control())[StepControl::kSkipped], finite ? 0.0F : 1.0F) << what;
      if (expected.contains("parameter"))
        expect_close(device.values(param), expected.at("parameter").get<std::vector<double>>(), 1e-5, 1e-6, what);
    }
    EXPECT_EQ(device.values<int32_t>(ConstView(step))[0], taken) << name << ": skipped steps do not count";
  }
}

TEST_F(LossScalerTest, AWrongOrderOfCallsIsAnError) {
  LossScaling scaling;
  scaling.kind = LossScaling::Kind::dynamic;
  LossScaler scaler(ctx(), scaling);
  const Tensor grad = device.tensor({4}, std::vector<float>(4, 1.0F)), all_valid = totals(1.0F);
  const auto decide = [&] { scaler.decide_step(ctx(), 1.0, grad, all_valid, NonFinite::accept); };
  EXPECT_THROW(scaler.clip_gradients(ctx(), 1.0), OrderError);
  EXPECT_THROW(scaler.step(), OrderError);
  decide();
  EXPECT_THROW(decide(), OrderError);
  scaler.clip_gradients(ctx(), 1.0);
  EXPECT_THROW(scaler.clip_gradients(ctx(), 1.0), OrderError);
  scaler.step();
  EXPECT_THROW(scaler.step(), OrderError);
  EXPECT_THROW(scaler.clip_gradients(ctx(), 1.0), OrderError);
  decide();
  scaler.reset();
  decide();
}

TEST_F(LossScalerTest, AStepWithoutAValidTargetChangesNothing) {
  LossScaling scaling;
  scaling.kind = LossScaling::Kind::dynamic;
  scaling.constants.growth_interval = 1;
  LossScaler scaler(ctx(), scaling);
  const Tensor grad = device.tensor({4}, std::vector<float>(4, 1.0F));
  for (const float valid : {0.0F, std::numeric_limits<float>::quiet_NaN()}) {
    scaler.decide_step(ctx(), 1.0, grad, totals(valid), NonFinite::skip);
    const std::vector<float> control = device.values(scaler.step());
    EXPECT_EQ(control[StepControl::kActive], 0.0F);
    EXPECT_EQ(control[StepControl::kSkipped], 0.0F) << "no overflow";
    EXPECT_EQ(state(scaler), (std::vector<float>{65536.0F, 0.0F}));
  }
}

TEST_F(LossScalerTest, AFixedScaleIsConstantAndSkipsSteps) {
  LossScaling scaling;
  scaling.kind = LossScaling::Kind::fixed;
  scaling.scale = 128.0;
  LossScaler scaler(ctx(), scaling);
  for (const float value : {1.0F, std::numeric_limits<float>::infinity()}) {
    scaler.decide_step(ctx(), 1.0, device.tensor({2}, std::vector<float>{1.0F, value}), totals(1.0F),
                       NonFinite::accept);
    EXPECT_EQ(device.values(scaler.step())[StepControl::kActive], value == 1.0F ? 1.0F : 0.0F);
    EXPECT_EQ(device.values(scaler.scale())[0], 128.0F);
  }
}

TEST_F(LossScalerTest, WithoutScalingNothingIsCheckedUnlessRequested) {
  LossScaler scaler(ctx(), {});
  EXPECT_FALSE(scaler.scale());
  const Tensor grad = device.tensor({2}, std::vector<float>{1.0F, std::numeric_limits<float>::quiet_NaN()});
  scaler.decide_step(ctx(), 3.0, grad, totals(2.0F), NonFinite::accept);
  EXPECT_THROW(scaler.clip_gradients(ctx(), 1.0), OrderError) << "no norm was measured";
  const std::vector<float> control = device.values(scaler.step());
  EXPECT_EQ(control[StepControl::kActive], 1.0F) << "as in PyTorch, NaN reaches the parameters";
  EXPECT_EQ(control[StepControl::kFactor], 1.5F);
  EXPECT_TRUE(std::isnan(control[StepControl::kNorm]));
  EXPECT_THROW(scaler.set_state(ctx(), 1.0F, 0), OrderError);
}

TEST_F(LossScalerTest, StoppedTrainingDoesNotContinueUntilItIsResumed) {
  LossScaler scaler(ctx(), {});
  const Tensor good = device.tensor({2}, std::vector<float>{1.0F, 2.0F});
  const Tensor bad = device.tensor({2}, std::vector<float>{1.0F, std::numeric_limits<float>::infinity()});
  const auto active = [&](const Tensor& grad) {
    scaler.decide_step(ctx(), 1.0, grad, totals(1.0F), NonFinite::stop);
    const float value = device.values(scaler.step())[StepControl::kActive];
    return value;
  };
  EXPECT_EQ(active(good), 1.0F);
  EXPECT_EQ(active(bad), 0.0F);
  EXPECT_EQ(active(good), 0.0F) << "a step after the one that stopped training";
  scaler.resume(ctx());
  EXPECT_EQ(active(good), 1.0F);
}

TEST_F(LossScalerTest, RefusesInvalidScales) {
  for (const double scale : {0.0, -1.0, 1e39, 1e-46, std::numeric_limits<double>::quiet_NaN()}) {
    LossScaling scaling;
    scaling.kind = LossScaling::Kind::fixed;
    scaling.scale = scale;
    EXPECT_THROW(LossScaler(ctx(), scaling), ConfigError) << scale;
  }
}

TEST_F(LossScalerTest, RefusesFactorsThatChangeTheScaleInTheWrongDirection) {
  const auto refusal = [&](const LossScaleConfig& constants) {
    LossScaling scaling;
    scaling.constants = constants;
    scaling.kind = LossScaling::Kind::fixed;
    EXPECT_NO_THROW(LossScaler(ctx(), scaling)) << "a fixed scale does not use them";
    scaling.kind = LossScaling::Kind::dynamic;
    return error_of<ConfigError>([&] { LossScaler(ctx(), scaling); });
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double growth : {1.0, 0.5, -2.0, nan})
    EXPECT_NE(refusal({growth, 0.5, 2000}).find("growth_factor is"), std::string::npos) << growth;
  for (const double backoff : {1.0, 2.0, 0.0, -0.5, nan})
    EXPECT_NE(refusal({2.0, backoff, 2000}).find("backoff_factor is"), std::string::npos) << backoff;
  for (const int32_t interval : {0, -1})
    EXPECT_NE(refusal({2.0, 0.5, interval}).find("growth_interval is"), std::string::npos) << interval;
  EXPECT_EQ(refusal({1.5, 0.75, 1}), "");
}

}  // namespace
}  // namespace vitrine::test
