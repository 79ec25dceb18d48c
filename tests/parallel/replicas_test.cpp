// SPDX-License-Identifier: Apache-2.0
// Replicas whose parameters differ are found and named.
#include <gtest/gtest.h>

#include "runtime/copy.h"
#include "runtime/error.h"
#include "tests/parallel/planted_layer.h"
#include "tests/parallel/random_model.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test::replicas_test {
namespace {

/// The identity, with a parameter that it overwrites on one device when it is armed.
class Spoiling final : public Identity {
 public:
  struct Trigger {
    bool armed = false;
    int device = 0;
  };
  explicit Spoiling(const Trigger& trigger, bool stays_f32 = false) : trigger_(trigger), stays_f32_(stays_f32) {}

  std::vector<ParamSpec> parameters() const override {
    ParamSpec spec;
    spec.name = "weight";
    spec.shape = {3};
    spec.stays_f32 = stays_f32_;
    return {spec};
  }
  Saved forward(const ForwardCall& call) const override {
    if (trigger_.armed && call.ctx.backend() != Backend::meta && call.ctx.ordinal() == trigger_.device) {
      static constexpr float kValues[] = {1, 2, 3};
      copy(call.ctx, ConstView(kValues, {3}, DType::f32, DeviceId::host()), call.params[0]);
    }
    return Identity::forward(call);
  }
  void backward(const BackwardCall& call) const override {
    zero(call.ctx, call.grad_params[0]);
    Identity::backward(call);
  }

 private:
  const Trigger& trigger_;
  const bool stays_f32_;
};

TEST(VerifyReplicas, NamesTheDifferingReplicaAndParameter) {
  for (const char* mode : {"ddp", "criterion"}) {
    Spoiling::Trigger trigger;
    const Model model = planted_model(std::make_unique<Spoiling>(trigger));
    DeviceGroup group(test_group(3));
    EngineConfig config = small_config(model, 9);
    config.scheme = scheme_preset(mode);
    Engine engine(model, group, config, {{9}, {}});
    const OwnedBatch batch = random_batch(model, 9, 1, 0);
    engine.train_step(batch.view());
    EXPECT_NO_THROW(engine.parameters().verify()) << mode;
    if (config.scheme.reduce == ReducerKind::gpu0) continue;  // device 0's parameters go to all in every step
    trigger = {true, 1};
    engine.train_step(batch.view());
    expect_contains(error_of<CommError>([&] { engine.parameters().verify(); }),
                    "after 2 steps: the planted.weight of " + group[1].name() + " differs");
  }
}

// In 16 bits each replica copies what its layers see in f32 from the owners of the f32 parameters.
TEST(VerifyReplicas, ComparesTheF32CopiesOfShardedParameters) {
  for (const char* mode : {"zero1", "zero2"}) {
    Spoiling::Trigger trigger;
    const Model model = planted_model(std::make_unique<Spoiling>(trigger, true));
    DeviceGroup group(test_group(3));
    EngineConfig config = small_config(model, 9);
    config.scheme = scheme_preset(mode);
    config.precision.compute = DType::bf16;
    Engine engine(model, group, config, {{9}, {9}});
    const OwnedBatch batch = random_batch(model, 9, 1, 0);
    engine.train_step(batch.view());
    EXPECT_NO_THROW(engine.parameters().verify()) << mode;
    trigger = {true, 1};
    engine.evaluate(batch.view());
    expect_contains(error_of<CommError>([&] { engine.parameters().verify(); }),
                    "the planted.weight of " + group[1].name() + " differs");
  }
}

}  // namespace
}  // namespace vitrine::test::replicas_test
