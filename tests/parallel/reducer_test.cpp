// SPDX-License-Identifier: Apache-2.0
// Custom reducers instead of a scheme's own.
#include "nn/parallel/reduce/reducer.h"

#include <gtest/gtest.h>

#include "docs/examples/sparse_reducer.h"
#include "runtime/error.h"
#include "tests/parallel/random_model.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test::reducer_test {
namespace {

constexpr int64_t kBatch = 8;

struct Result : TrainingOutcome {
  int64_t reduced_bytes = 0;  // by device 0, in all steps
};

Result run(const Model& model, int devices, const EngineConfig& config) {
  Result result;
  const auto count_bytes = [&result](Engine& engine) {
    engine.devices().synchronize();
    for (const SpanRecord& span : engine.devices()[0].communication().stream().take_spans()) {
      if (span.info.phase == Phase::reduce) result.reduced_bytes += span.bytes;
    }
  };
  static_cast<TrainingOutcome&>(result) =
      train(model, devices, config, {.batches = std::vector(8, kBatch), .look = count_bytes});
  return result;
}

EngineConfig sgd_config(const Model& model) {
  EngineConfig config = small_config(model, kBatch);
  config.optimizer = make_optimizer_config("sgd", 0.05, {}, false, {});
  return config;
}

ReducerFactory sparse(int64_t slices) {
  return [slices](const ReducerContext& replica) { return std::make_unique<SparseReducer>(replica, slices); };
}

TEST(CustomReducer, TheBuiltInReducerFromTheFactoryGivesTheSameBits) {
  const Model model = random_model(9);
  EngineConfig config = sgd_config(model);
  const Result expected = run(model, 3, config);
  config.reducer = make_reducer;
  EXPECT_EQ(run(model, 3, config).weights, expected.weights);
}

TEST(CustomReducer, OneSliceSendsTheWholeGradient) {
  const Model model = random_model(9);
  EngineConfig config = sgd_config(model);
  for (const int devices : {1, 3}) {
    config.reducer = nullptr;
    const Result expected = run(model, devices, config);
    config.reducer = sparse(1);
    EXPECT_LT(relative_difference(run(model, devices, config).weights, expected.weights), 1e-6)
        << devices << " devices";
  }
}

TEST(CustomReducer, CompressionSendsFewerBytesAndTrainsTheSameOnAnyNumberOfDevices) {
  const Model model = random_model(9);
  EngineConfig config = sgd_config(model);
  const Result full = run(model, 3, config);
  config.reducer = sparse(4);
  const Result compressed = run(model, 3, config);
  EXPECT_LT(compressed.reduced_bytes, full.reduced_bytes / 2) << "a quarter of the gradients, and the totals";
  EXPECT_NE(compressed.weights, full.weights);
  EXPECT_LT(relative_difference(compressed.weights, run(model, 1, config).weights), 1e-5)
      << "the residuals of all devices add up";
  EXPECT_EQ(run(model, 3, config).weights, compressed.weights) << "not the same bits";
}

TEST(CustomReducer, ContractViolationsAreNamed) {
  const Model model = random_model(9);
  DeviceGroup group(test_group(2));
  const auto message = [&](const EngineConfig& config) {
    return error_of<ConfigError>([&] { const Engine engine(model, group, config, {{kBatch}, {}}); });
  };
  EngineConfig config = sgd_config(model);
  config.reducer = [](const ReducerContext&) { return std::unique_ptr<Reducer>(); };
  expect_contains(message(config), "EngineConfig::reducer returned null");
  config.reducer = make_reducer;
  config.scheme.reduce = ReducerKind::gpu0;
  expect_contains(message(config), "set scheme.reduce to ReducerKind::allreduce");
}

TEST(CustomReducer, TheOrderCheckerFindsAMissingWait) {
  class Hasty : public SparseReducer {
   public:
    using SparseReducer::SparseReducer;
    void finish() override {}  // sends nothing and waits for nothing
    void add(int64_t) override {
      context_.communicator->all_reduce(context_.device.communication(), context_.gradients);
    }
    explicit Hasty(const ReducerContext& context) : SparseReducer(context, 1), context_(context) {}

   private:
    const ReducerContext& context_;
  };
  const Model model = random_model(9);
  EngineConfig config = sgd_config(model);
  config.reducer = [](const ReducerContext& replica) { return std::make_unique<Hasty>(replica); };
  EXPECT_THROW(run(model, 2, config), OrderError);
}

}  // namespace
}  // namespace vitrine::test::reducer_test
