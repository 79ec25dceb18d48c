// SPDX-License-Identifier: Apache-2.0
// Custom reducers instead of a scheme's own.
#include "nn/parallel/reduce/reducer.h"

#include <gtest/gtest.h>

#include "docs/examples/sparse_reducer.h"
#include "runtime/error.h"
#include "tests/parallel/random_model.h"

namespace vitrine::test::reducer_test {
namespace {

constexpr int64_t kBatch = 8, kSteps = 8;

struct Result {
  std::vector<float> weights;
  int64_t reduced_bytes = 0;  // by device 0, in all steps
};

Result train(const Model& model, int devices, const EngineConfig& config) {
  DeviceGroup group(test_group(devices));
  Engine engine(model, group, config, {{kBatch}, {}});
  group[0].communication().stream().take_spans();
  for (uint32_t step = 0; step < kSteps; ++step) engine.train_step(random_batch(model, kBatch, step, 0).view());
  engine.take_step_results(true);
  engine.parameters().verify();
  engine.finish();  // asserts that the plan was met to the byte
  Result result;
  result.weights = engine.parameters().values();
  for (const SpanRecord& span : group[0].communication().stream().take_spans()) {
    if (span.info.phase == Phase::reduce) result.reduced_bytes += span.bytes;
  }
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
  const Result expected = train(model, 3, config);
  config.reducer = make_reducer;
  EXPECT_EQ(train(model, 3, config).weights, expected.weights);
}

TEST(CustomReducer, OneSliceSendsTheWholeGradient) {
  const Model model = random_model(9);
  EngineConfig config = sgd_config(model);
  for (const int devices : {1, 3}) {
    config.reducer = nullptr;
    const Result expected = train(model, devices, config);
    config.reducer = sparse(1);
    EXPECT_LT(relative_difference(train(model, devices, config).weights, expected.weights), 1e-6)
        << devices << " devices";
  }
}

TEST(CustomReducer, CompressionSendsFewerBytesAndTrainsTheSameOnAnyNumberOfDevices) {
  const Model model = random_model(9);
  EngineConfig config = sgd_config(model);
  const Result full = train(model, 3, config);
  config.reducer = sparse(4);
  const Result compressed = train(model, 3, config);
  EXPECT_LT(compressed.reduced_bytes, full.reduced_bytes / 2) << "a quarter of the gradients, and the totals";
  EXPECT_NE(compressed.weights, full.weights);
  EXPECT_LT(relative_difference(compressed.weights, train(model, 1, config).weights), 1e-5)
      << "the residuals of all devices add up";
  EXPECT_EQ(train(model, 3, config).weights, compressed.weights) << "not the same bits";
}

TEST(CustomReducer, ContractViolationsAreNamed) {
  const Model model = random_model(9);
  DeviceGroup group(test_group(2));
  const auto message = [&](const EngineConfig& config) {
    try {
      const Engine engine(model, group, config, {{kBatch}, {}});
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string("nothing was thrown");
  };
  EngineConfig config = sgd_config(model);
  config.reducer = [](const ReducerContext&) { return std::unique_ptr<Reducer>(); };
  EXPECT_NE(message(config).find("EngineConfig::reducer returned null"), std::string::npos) << message(config);
  config.reducer = make_reducer;
  config.scheme.reduce = Reduce::gpu0;
  EXPECT_NE(message(config).find("set scheme.reduce to Reduce::allreduce"), std::string::npos) << message(config);
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
  EXPECT_THROW(train(model, 2, config), OrderError);
}

}  // namespace
}  // namespace vitrine::test::reducer_test
