// SPDX-License-Identifier: Apache-2.0
// Every call of CUDA that a steady step makes fails once: training ends with its name, or goes on with the same bits.
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "runtime/error.h"
#include "tests/parallel/graph_training.h"
#include "tests/standins/controls.h"

namespace vitrine::test {
namespace {

/// How steps are issued: part by part, as CUDA graphs, or as graphs that take their images from those that the GPU
/// holds.
enum class HowIssued { issued, replayed, resident };
class CudaCallFailure : public ::testing::TestWithParam<HowIssued> {
 protected:
  ~CudaCallFailure() override {
    EXPECT_EQ(standins::live_objects(), 0);
    standins::reset();
  }
};

struct Outcome {
  std::string failed;  // the call
  std::string error;
  std::vector<float> parameters;
  std::vector<double> losses;
};

/// Trains until steps are steady (with graphs, until even and odd steps are captured), then trains two more steps. The
/// n-th call of CUDA in these two fails.
Outcome train(const Model& model, const EngineConfig& config, int64_t n) {
  DeviceGroupOptions options = test_group(1, false);
  options.trace = TraceLevel::phase;
  DeviceGroup devices(options);
  Engine engine(model, devices, config, {{config.batch_size}, {}});
  const auto step = [&](int number) { engine.train_step(batch_of(model, config, config.batch_size, number)); };
  const int first_steps = config.cuda_graph ? 5 : 2;
  for (int number = 0; number < first_steps; ++number) step(number);
  engine.take_step_results(true);
  Outcome outcome;
  standins::fail_call(n);
  try {
    for (const int number : {first_steps, first_steps + 1}) step(number);
    for (const StepResult& result : engine.take_step_results(true)) outcome.losses.push_back(result.loss_sum);
    devices[0].compute().stream().poll_spans();
  } catch (const Error& error) {
    outcome.error = std::string(error_kind_name(error.kind())) + ": " + error.what();
  }
  outcome.failed = standins::failed_call();
  standins::fail_call(0);
  if (outcome.error.empty()) outcome.parameters = engine.parameters().values();
  return outcome;
}

TEST_P(CudaCallFailure, EndsTrainingWithItsNameOrChangesNothing) {
  const Model model = random_model(1);
  EngineConfig config = small_config(model, 2);
  config.cuda_graph = GetParam() != HowIssued::issued;
  if (GetParam() == HowIssued::resident) config.resident_images = random_images(model, 20);
  config.optimizer = make_optimizer_config("adamw", 0.05, {}, false, {});
  config.precision.compute = DType::f16;
  config.precision.loss_scaling.kind = LossScaling::Kind::dynamic;
  const Outcome expected = train(model, config, 0);
  ASSERT_EQ(expected.error, "");
  std::map<std::string, int> ended, went_on;
  int64_t n = 1;
  for (;; ++n) {
    SCOPED_TRACE("call " + std::to_string(n));
    const Outcome outcome = train(model, config, n);
    if (outcome.failed.empty()) break;
    if (outcome.error.empty()) {
      ++went_on[outcome.failed];
      ASSERT_EQ(outcome.parameters, expected.parameters) << outcome.failed;
      ASSERT_EQ(outcome.losses, expected.losses) << outcome.failed;
    } else {
      ++ended[outcome.failed];
      // The stand-ins implement some functions by others; those of libraries are members of an object.
      const std::map<std::string, std::string> shown = {{"queue_kernel", "kernel"},
                                                        {"cudaEventRecordWithFlags", "cudaEventRecord"},
                                                        {"cublasLtMatmul", "cublaslt().Matmul"}};
      const auto found = shown.find(outcome.failed);
      const std::string name = found == shown.end() ? outcome.failed : found->second;
      ASSERT_NE(outcome.error.find(name), std::string::npos) << outcome.failed << " failed: " << outcome.error;
      ASSERT_EQ(outcome.error.rfind("CudaError: ", 0), 0U) << outcome.error;
    }
  }
  for (const auto& [name, count] : ended) std::cout << fmt::format("{} x {}: ends training\n", count, name);
  for (const auto& [name, count] : went_on) std::cout << fmt::format("{} x {}: goes on\n", count, name);
  EXPECT_GT(n, GetParam() == HowIssued::issued ? 50 : GetParam() == HowIssued::replayed ? 20 : 6);
  // What moves or computes data never fails unnoticed.
  for (const char* name : {"cudaMemcpyAsync", "cudaMemsetAsync", "queue_kernel", "cublasLtMatmul",
                           "cudaStreamWaitEvent", "cudaStreamSynchronize"})
    EXPECT_EQ(went_on.count(name), 0U) << name;
}

INSTANTIATE_TEST_SUITE_P(Of, CudaCallFailure,
                         ::testing::Values(HowIssued::issued, HowIssued::replayed, HowIssued::resident),
                         [](const auto& param) {
                           return std::string(param.param == HowIssued::issued     ? "issued"
                                              : param.param == HowIssued::replayed ? "replayed"
                                                                                   : "resident");
                         });

}  // namespace
}  // namespace vitrine::test
