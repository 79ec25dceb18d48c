// SPDX-License-Identifier: Apache-2.0
// The trace of an engine's steps, on every backend.
#include <sstream>

#include <gtest/gtest.h>

#include "runtime/memory/history.h"
#include "runtime/trace/chrome_trace.h"
#include "runtime/trace/step_recorder.h"
#include "tests/parallel/random_model.h"
#include "tests/support/trace_nesting.h"

namespace vitrine::test::trace_test {
namespace {

constexpr int kDevices = 2;
constexpr int64_t kBatch = 6, kSteps = 4;

class EngineTrace : public ::testing::TestWithParam<const char*> {};

TEST_P(EngineTrace, SlicesNestAndMemoryReachesThePlannedPeak) {
  const Model model = random_model(3);
  DeviceGroupOptions options = test_group(kDevices);
  options.trace = TraceLevel::operation;
  DeviceGroup group(options);
  EngineConfig config = small_config(model, kBatch);
  config.scheme = scheme_preset(GetParam());
  Engine engine(model, group, config, Workload{{kBatch}, {}});
  for (uint32_t step = 0; step < kSteps; ++step) {
    if (step == 1) {
      for (int d = 0; d < kDevices; ++d) group[d].pool().record_history(true);
    }
    engine.train_step(random_batch(model, kBatch, step, 0.0).view());
  }
  engine.finish();

  std::vector<TraceProcess> processes;
  for (int d = 0; d < kDevices; ++d) {
    Device& device = group[d];
    const DeviceSpans spans{d,
                            device.compute().stream().take_spans(),
                            device.copy().stream().take_spans(),
                            device.communication().stream().take_spans(),
                            {}};
    const std::optional<StepView> view = view_step(spans, 2);
    ASSERT_TRUE(view.has_value());
    EXPECT_GT(view->compute.size(), 10U);
    EXPECT_FALSE(view_step(spans, kSteps - 1).has_value());  // no later mark ends it

    const MemoryHistory& history = device.pool().history();
    const MemoryTimeline timeline = make_memory_timeline(cut_history(history, find_mark(history, 2).value()));
    const DevicePlan& plan = engine.facts().plans[static_cast<size_t>(d)];
    EXPECT_EQ(timeline.peak_bytes, plan.peak_bytes);
    BytesByCategory at_peak = timeline.moments[timeline.peak].by_category;
    at_peak[static_cast<size_t>(Category::fragmentation)] = plan.peak_bytes - allocated_bytes(at_peak);
    EXPECT_EQ(at_peak, plan.peak_by_category);
    for (const HeldBlock& block : timeline.blocks) EXPECT_FALSE(block.tensor.empty());
    processes.push_back({device.name(),
                         {{"compute", spans.compute}, {"copy", spans.copy}, {"communication", spans.communication}},
                         history});
  }
  std::ostringstream out;
  write_chrome_trace(out, processes);
  EXPECT_EQ(first_overlap(nlohmann::json::parse(out.str()).at("traceEvents")), "");
}

INSTANTIATE_TEST_SUITE_P(Schemes, EngineTrace, ::testing::Values("dp", "ddp"),
                         [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace vitrine::test::trace_test
