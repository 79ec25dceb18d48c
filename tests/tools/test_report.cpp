// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tools/json_report.h"
#include "tools/report.h"

namespace vitrine::tools {
namespace {

PhaseTable example_table(int ordinal) {
  PhaseTable table;
  table.ordinal = ordinal;
  table.steps = 10;
  table.wall_seconds = 1.0;
  table.rows = {{Phase::forward, ordinal, 0.25, 0.25, 0, 10, 0.0},
                {Phase::reduce, ordinal, 0.5, 0.5, 4000, 20, 0.125},
                {Phase::wait, ordinal, 0.25, 0.25, 0, 5, 0.0}};
  table.waits = {{"the gradients of cpu:1", 0.25, 0.25}};
  return table;
}

TEST(PhaseReport, ShowsMillisecondsPerStepSharesHiddenAndCauses) {
  const std::string text = phase_report({"cpu:0", "cpu:1"}, {example_table(0), example_table(1)}, Style{});
  EXPECT_NE(text.find("10 steps after the first"), std::string::npos);
  for (const char* part : {"cpu:0", "cpu:1", "forward", "25.0", "25.0 %", "12.5", "400 B", "  for the gradients of cpu:1", "100", "100.0 %"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_EQ(text.find("backward"), std::string::npos);
}

TEST(PhaseReport, ManyDevicesGetTablesBeneathEachOther) {
  std::vector<std::string> names;
  std::vector<PhaseTable> tables;
  for (int d = 0; d < 7; ++d) {
    names.push_back("cpu:" + std::to_string(d));
    tables.push_back(example_table(d));
  }
  const std::string text = phase_report(names, tables, Style{});
  for (const std::string& name : names) EXPECT_NE(text.find(name), std::string::npos);
  size_t longest = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    longest = std::max(longest, end - begin);
    begin = end + 1;
  }
  EXPECT_LE(longest, 140U);
}

TEST(PhaseReport, IsEmptyWithoutSteps) { EXPECT_EQ(phase_report({"cpu:0"}, {PhaseTable{}}, Style{}), ""); }

TEST(PhaseTables, AddUp) {
  PhaseTable sum = example_table(0), more = example_table(0);
  more.steps = 30;
  more.wall_seconds = 3.0;
  more.rows = {{Phase::backward, 0, 1.0, 1.0 / 3, 7, 3, 0.0}, {Phase::reduce, 0, 1.5, 0.5, 1000, 2, 1.0}, {Phase::wait, 0, 0.5, 1.0 / 6, 0, 1, 0.0}};
  more.waits = {{"host", 0.5, 1.0 / 6}};
  add_phase_table(sum, more);
  EXPECT_EQ(sum.steps, 40);
  EXPECT_DOUBLE_EQ(sum.wall_seconds, 4.0);
  ASSERT_EQ(sum.rows.size(), 4U);
  EXPECT_EQ(sum.rows[1].phase, Phase::backward);
  EXPECT_EQ(sum.rows[2].bytes, 5000);
  EXPECT_EQ(sum.rows[2].calls, 22);
  EXPECT_DOUBLE_EQ(sum.rows[2].seconds, 2.0);
  EXPECT_DOUBLE_EQ(sum.rows[2].share, 0.5);
  EXPECT_DOUBLE_EQ(sum.rows[2].hidden_seconds, 1.125);
  ASSERT_EQ(sum.waits.size(), 2U);
  EXPECT_EQ(sum.waits[0].cause, "host");
  EXPECT_DOUBLE_EQ(sum.named_share, 1.0);
}

std::vector<DeviceFigures> example_devices() {
  DeviceFigures device;
  device.device = "cpu:0";
  device.samples_per_step = 32;
  device.plan.peak_bytes = device.pool.peak_bytes = 3 << 20;
  device.plan.peak_by_category[static_cast<size_t>(Category::parameters)] = 1 << 20;
  device.plan.peak_by_category[static_cast<size_t>(Category::activations)] = 2 << 20;
  device.pool.peak_by_category[static_cast<size_t>(Category::parameters)] = 1 << 20;
  device.pool.peak_by_category[static_cast<size_t>(Category::activations)] = 2 << 20;
  device.pool.peak_phase = Phase::backward;
  device.pool.peak_layer = "features.3";
  device.outside_bytes = 5 << 20;
  return {device};
}

TEST(MemoryReport, ShowsCategoriesPlanAndOutside) {
  const std::string text = memory_report(example_devices(), 4096, Style{});
  for (const char* part :
       {"parameters", "1.0 MiB", "activations", "2.0 MiB", "planned", "3.0 MiB", "to the byte", "backward features.3", "5.0 MiB", "4.0 KiB"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_EQ(text.find("staging"), std::string::npos);
}

TEST(MemoryReport, ShowsAPlanThatWasMissed) {
  std::vector<DeviceFigures> devices = example_devices();
  devices[0].plan.peak_bytes = 7 << 20;
  const std::string text = memory_report(devices, 0, Style{});
  EXPECT_NE(text.find("7.0 MiB"), std::string::npos);
  EXPECT_EQ(text.find("to the byte"), std::string::npos);
}

TEST(JsonReport, HasTheKeysOfTheInterface) {
  const Json device = devices_json(example_devices())[0];
  EXPECT_EQ(device["device"], "cpu:0");
  EXPECT_EQ(device["samples_per_step"], 32);
  EXPECT_EQ(device["peak_bytes"], 3 << 20);
  EXPECT_EQ(device["peak_bytes_by_category"]["activations"], 2 << 20);
  EXPECT_EQ(device["outside_bytes"], 5 << 20);
  const Json phase = phases_json({"cpu:0"}, {example_table(0)})[1];
  EXPECT_EQ(phase["phase"], "reduce");
  EXPECT_EQ(phase["device"], "cpu:0");
  EXPECT_EQ(phase["seconds"], 0.5);
  EXPECT_EQ(phase["share"], 0.5);
  EXPECT_EQ(phase["bytes"], 4000);
  EXPECT_EQ(phase["calls"], 20);
  EXPECT_EQ(waits_json({"cpu:0"}, {example_table(0)})[0]["cause"], "the gradients of cpu:1");
}

TEST(Measure, ResidentSetIsThere) { EXPECT_GT(resident_bytes(), 1 << 20); }

}  // namespace
}  // namespace vitrine::tools
