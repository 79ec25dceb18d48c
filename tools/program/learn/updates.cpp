// SPDX-License-Identifier: Apache-2.0
// Bugs between the reduction and the weights: clipping, loss scaling and weight decay.
#include <array>
#include <cmath>
#include <memory>
#include <vector>

#include "kernels/cast.h"
#include "kernels/cross_entropy.h"
#include "kernels/optimizer.h"
#include "nn/loss_scaler.h"
#include "runtime/comm/communicator.h"
#include "runtime/copy.h"
#include "runtime/philox.h"
#include "tools/program/learn/experiment.h"
#include "tools/program/learn/one_all_reduce.h"
#include "tools/program/learn/problem.h"

namespace vitrine::tools::lab {

namespace {

constexpr uint64_t kSeed = 5;
constexpr int64_t kSamples = 16;
constexpr double kMaxNorm = 1.0;  // above the norm of the gradient, which is not to be clipped

/// Multiplies the gradients by max_norm / norm if their norm is larger: torch.nn.utils.clip_grad_norm_ on what backward
/// computed.
void clip_in_place(ExecContext& ctx, const View& gradients, double max_norm) {
  ctx.dispatch({"clip_in_place", {gradients}, {gradients}}, [gradients, max_norm] {
    float* const values = gradients.as<float>();
    double squares = 0.0;
    for (int64_t i = 0; i < gradients.numel(); ++i)
      squares += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    const double factor = max_norm / (std::sqrt(squares) + 1e-6);
    for (int64_t i = 0; factor < 1.0 && i < gradients.numel(); ++i)
      values[i] = static_cast<float>(static_cast<double>(values[i]) * factor);
  });
}

/// Clips the sum, which still has the loss scale.
class ClippingReducer final : public OneAllReduce {
 public:
  ClippingReducer(const ReducerContext& replica, double max_norm)
      : OneAllReduce(replica, ReduceOp::sum), max_norm_(max_norm) {}
  void finish() override {
    OneAllReduce::finish();
    clip_in_place(replica().device.compute(), parameter_gradients(), max_norm_);
  }

 private:
  const double max_norm_;
};

/// What a rank of the experiment holds.
struct Rank {
  Tensor parameters, gradients, half_gradients, totals, step;
  std::unique_ptr<LossScaler> scaler;
};

constexpr int64_t kParameters = 64;
constexpr double kLossScale = 65536;
using Values = std::array<float, kParameters>;

ConstView view_of(const Values& values) { return {values.data(), {kParameters}, DType::f32, DeviceId::host()}; }

/// A rank with scaled gradients that have been rounded to f16, as backward leaves them in mixed precision.
Rank make_rank(ExecContext& ctx, const Values& parameters, const Values& scaled_gradients) {
  const auto allocate = [&](int64_t elements, DType dtype, Category category, const char* name) {
    return ctx.allocate({elements}, dtype, category, name);
  };
  Rank rank{allocate(kParameters, DType::f32, Category::parameters, "parameters"),
            allocate(kParameters, DType::f32, Category::gradients, "gradients"),
            allocate(kParameters, DType::f16, Category::gradients, "f16 gradients"),
            allocate(LossTotals::kCount, DType::f32, Category::staging, "totals"),
            allocate(1, DType::i32, Category::optimizer, "step"),
            {}};
  LossScaling scaling;
  scaling.kind = LossScaling::Kind::fixed;
  scaling.scale = kLossScale;
  rank.scaler = std::make_unique<LossScaler>(ctx, scaling);
  copy(ctx, view_of(parameters), rank.parameters);
  copy(ctx, view_of(scaled_gradients), rank.gradients);
  cast(ctx, rank.gradients, rank.half_gradients);  // overflows to infinity above 65504
  cast(ctx, rank.half_gradients, rank.gradients);
  zero(ctx, rank.step);
  std::array<float, LossTotals::kCount> totals{};
  LossTotals::add_to_count(totals.data(), LossTotals::kValid, 1);
  copy(ctx, ConstView(totals.data(), {LossTotals::kCount}, DType::f32, DeviceId::host()), rank.totals);
  ctx.stream().synchronize();  // the values on the host end with this call
  return rank;
}

}  // namespace

double measure_clip_before_unscale(size_t setting, bool planted) {
  constexpr std::array<double, 3> kScales = {1, 4, 65536};
  const Model model = make_perceptron({8}, 16, 4);
  const HostBatch batch = batch_of(model, draw_samples(model, kSamples, kSeed));
  EngineConfig config = small_config(kSamples);
  config.precision.clip_norm = kMaxNorm;
  const Trained expected = train(model, 1, config, batch);
  config.precision.loss_scaling.kind = LossScaling::Kind::fixed;
  config.precision.loss_scaling.scale = kScales[setting];
  if (planted) {
    config.precision.clip_norm = 0.0;
    config.reducer = [](const ReducerContext& replica) { return std::make_unique<ClippingReducer>(replica, kMaxNorm); };
  }
  return relative_distance(train(model, 2, config, batch).end, expected.end, expected.start);
}

/// Rank 1 has a sample whose gradient overflows. All ranks must skip the step, and so leave the parameters as they are.
double measure_skip_on_one_rank(size_t setting, bool planted) {
  const int count = 2 + static_cast<int>(setting);
  PhiloxSequence random(kSeed, random_stream(RandomPurpose::synthetic_data, 2));
  Values start{};
  for (float& value : start) value = random.next_normal();
  DeviceGroup devices(cpu_devices(count));
  const std::vector<std::unique_ptr<Communicator>> communicators = make_communicators(devices);
  std::vector<Rank> ranks;
  for (int r = 0; r < count; ++r) {
    Values gradients{};
    for (float& value : gradients) value = static_cast<float>(kLossScale) * 0.01F * random.next_normal();
    if (r == 1) gradients[7] = static_cast<float>(kLossScale) * 2.0F;
    ranks.push_back(make_rank(devices[r].compute(), start, gradients));
  }
  const auto decide = [&] {
    for (int r = 0; r < count; ++r) {
      Rank& rank = ranks[static_cast<size_t>(r)];
      rank.scaler->decide_step(devices[r].compute(), 1.0, rank.gradients, rank.totals, NonFinite::skip);
    }
  };
  if (planted) decide();  // by the rank's own gradients
  for (int r = 0; r < count; ++r)
    communicators[static_cast<size_t>(r)]->all_reduce(devices[r].compute(), ranks[static_cast<size_t>(r)].gradients);
  if (!planted) decide();  // by the sum, which is the same on all ranks
  int wrong = 0;
  std::vector<Values> ends(ranks.size());
  for (int r = 0; r < count; ++r) {
    Rank& rank = ranks[static_cast<size_t>(r)];
    ExecContext& ctx = devices[r].compute();
    sgd_update(ctx, SgdConfig{.lr = 0.1}, rank.parameters, rank.gradients, View(), rank.step, rank.scaler->step());
    copy(ctx, rank.parameters, View{ends[static_cast<size_t>(r)].data(), {kParameters}, DType::f32, DeviceId::host()});
  }
  devices.synchronize();
  for (const Values& end : ends) wrong += end != start ? 1 : 0;
  return static_cast<double>(wrong) / static_cast<double>(count);
}

double measure_l2_under_adam(size_t setting, bool planted) {
  constexpr std::array<double, 3> kDecays = {0.001, 0.01, 0.1};
  constexpr double kLearningRate = 0.01;
  constexpr int kSteps = 25;
  const double decay = kDecays[setting];
  const Model model = make_perceptron({8}, 16, 4);
  const HostBatch batch = batch_of(model, draw_samples(model, kSamples, kSeed));
  EngineConfig config = small_config(kSamples);
  config.optimizer = make_optimizer_config("adamw", kLearningRate, {}, false, decay);
  const Trained expected = train(model, 1, config, batch, kSteps);
  if (planted) config.optimizer = make_optimizer_config("adam", kLearningRate, {}, false, decay);
  return relative_distance(train(model, 2, config, batch, kSteps).end, expected.end, expected.start);
}

}  // namespace vitrine::tools::lab
