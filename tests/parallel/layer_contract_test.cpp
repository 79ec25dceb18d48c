// SPDX-License-Identifier: Apache-2.0
// A layer that breaks a rule of nn/layer.h is named in an error before it does harm.
#include <algorithm>

#include "runtime/error.h"
#include "tests/parallel/random_model.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test {
namespace {

/// The identity in f32, which breaks one rule.
class Careless final : public Layer {
 public:
  enum class Fault { none, computes_in_forward, computes_in_backward, allocates_unplanned };
  explicit Careless(Fault fault) : fault_(fault) {}

  std::string describe() const override { return "careless"; }
  Shape output_shape(const Shape& x) const override { return x; }
  Saved forward(const ForwardCall& call) const override {
    if (fault_ == Fault::computes_in_forward) call.y.view().as<float>()[0] = ConstView(call.x).as<float>()[0];
    if (fault_ == Fault::allocates_unplanned && call.ctx.backend() != Backend::meta) {
      call.ctx.allocate({1 << 22}, DType::u8, Category::activations, "secret");
    }
    pass_on(call.ctx, call.x, call.y);
    return {};
  }
  void backward(const BackwardCall& call) const override {
    if (fault_ == Fault::computes_in_backward) call.grad_x.view().as<float>()[0] = 0.0F;
    if (call.grad_x) pass_on(call.ctx, call.grad_y, call.grad_x);
  }

 private:
  static void pass_on(ExecContext& ctx, const ConstView& x, const View& y) {
    ctx.dispatch({"pass_on", {x}, {y}}, [x, y] {
      const float* const from = x.as<float>();
      std::copy(from, from + x.numel(), y.as<float>());
    });
  }

  Fault fault_;
};

/// The message of the error of one step with the layer; empty when there is none.
template <class ErrorClass>
std::string message_of_step(Careless::Fault fault, DType compute = DType::f32) {
  const Model model = planted_model(std::make_unique<Careless>(fault));
  DeviceGroup group(test_group(2));
  EngineConfig config = small_config(model, 8);
  config.precision.compute = compute;
  return error_of<ErrorClass>([&] {
    Engine engine(model, group, config, {{8}, {}});
    engine.train_step(random_batch(model, 8, 1, 0).view());
    engine.take_step_results(true);
  });
}

TEST(LayerContract, AConformingLayerTrains) { EXPECT_EQ(message_of_step<Error>(Careless::Fault::none), ""); }

TEST(LayerContract, ComputingOutsideDispatchNamesTheLayerDuringPlanning) {
  for (const Careless::Fault fault : {Careless::Fault::computes_in_forward, Careless::Fault::computes_in_backward}) {
    const std::string text = message_of_step<UnsupportedError>(fault);
    expect_contains(text, "layer 'planted' (careless)", "only functions passed to ExecContext::dispatch");
  }
}

TEST(LayerContract, ReadingAnotherDtypeNamesLayerAndOperation) {
  const std::string text = message_of_step<DtypeError>(Careless::Fault::none, DType::f16);
  expect_contains(text, "layer 'planted', operation 'pass_on'",
                  "the elements are f16, but the access is to floating-point numbers of 4 bytes");
}

TEST(LayerContract, AllocatingOutsideThePlanNamesLayerAndTensor) {
  const std::string text = message_of_step<UnsupportedError>(Careless::Fault::allocates_unplanned);
  expect_contains(
      text,
      "layer 'planted' allocates 4.0 MiB (4194304 bytes) for secret in phase forward, which the plan does not contain");
}

}  // namespace
}  // namespace vitrine::test
