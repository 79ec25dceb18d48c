// SPDX-License-Identifier: Apache-2.0
#include <regex>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/expect_contains.h"
#include "tests/support/text.h"
#include "tools/program/record/device_sets.h"
#include "tools/program/render/report_tables.h"
#include "tools/program/render/reports.h"
#include "tools/program/run/measure.h"

namespace vitrine::tools {
namespace {

PhaseTable example_table(int ordinal) {
  return {.ordinal = ordinal,
          .steps = 10,
          .wall_seconds = 1.0,
          .rows = {{Phase::forward, ordinal, 0.25, 0.25, 0, 10, 0.0},
                   {Phase::reduce, ordinal, 0.5, 0.5, 4000, 20, 0.125},
                   {Phase::wait, ordinal, 0.25, 0.25, 0, 5, 0.0}},
          .waits = {{"the gradients of cpu:1", 0.25, 0.25}}};
}

std::string phase_report(const std::vector<std::string>& names, const std::vector<PhaseTable>& tables,
                         const Style& style) {
  std::vector<DeviceRecord> devices(names.size());
  for (size_t d = 0; d < names.size(); ++d) {
    devices[d].device = names[d];
    devices[d].phases = tables[d];
  }
  std::string text;
  for (const Table& table : time_tables(devices)) text += table.str(style);
  return text;
}

/// The report of the memory of those devices.
std::string memory_text(const std::vector<DeviceRecord>& devices) { return memory_report(devices, 1, Style{}); }

TEST(PhaseReport, ShowsMillisecondsPerStepSharesHiddenAndCauses) {
  const std::string text = phase_report({"cpu:0", "cpu:1"}, {example_table(0), example_table(1)}, Style{});
  expect_contains(text, "10 steps after the first", "cpu:0", "cpu:1", "forward", "25.0", "25.0 %", "12.5", "400 B",
                  "  for the gradients of cpu:1", "100", "100.0 %");
  expect_lacks(text, "backward");
}

std::vector<std::string> device_names(int count) {
  std::vector<std::string> names;
  for (int d = 0; d < count; ++d) names.push_back("cpu:" + std::to_string(d));
  return names;
}

TEST(PhaseReport, ManyDevicesAreSummarizedAsASpread) {
  std::vector<PhaseTable> tables;
  for (int d = 0; d < 64; ++d) {
    tables.push_back(example_table(d));
    tables.back().rows[0].seconds = 0.1 + 0.01 * d;  // forward: 10 to 73 ms per step
  }
  tables[0].rows.insert(tables[0].rows.begin() + 1,
                        {Phase::gather, 0, 0.1, 0.1, 800, 10, 0.0});  // device 0 alone gathers
  const std::string text = phase_report(device_names(64), tables, Style{});
  expect_contains(text, "cpu:1 to cpu:63", "min", "median", "max", "cpu:63", "11.0", "42.0", "73.0");
  expect_lacks(text, "cpu:30");
  for (const int width : {40, 60, 80, 120}) {
    Style style;
    style.width = width;
    EXPECT_LE(longest_line(phase_report(device_names(64), tables, style)), static_cast<size_t>(width));
  }
}

TEST(PhaseReport, ShowsTheLongestOfManyWaits) {
  std::vector<PhaseTable> tables;
  for (int d = 0; d < 16; ++d) {
    tables.push_back(example_table(d));
    tables.back().waits = {{"cpu:" + std::to_string((d + 1) % 16) + " in all_reduce", 0.25 - 0.01 * d, 0.25}};
  }
  const std::string text = phase_report(device_names(16), tables, Style{});
  expect_contains(text, "  for cpu:1 in all_reduce");
  expect_lacks(text, "  for cpu:15 in all_reduce");
}

TEST(PhaseReport, IsEmptyWithoutSteps) { EXPECT_EQ(phase_report({"cpu:0"}, {PhaseTable{}}, Style{}), ""); }

TEST(PhaseTables, AddUp) {
  PhaseTable sum = example_table(0), more = example_table(0);
  more.steps = 30;
  more.wall_seconds = 3.0;
  more.rows = {{Phase::backward, 0, 1.0, 1.0 / 3, 7, 3, 0.0},
               {Phase::reduce, 0, 1.5, 0.5, 1000, 2, 1.0},
               {Phase::wait, 0, 0.5, 1.0 / 6, 0, 1, 0.0}};
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

TEST(Record, HasFiguresOfSeveralDevices) {
  std::vector<DeviceRecord> devices(4);
  for (size_t d = 0; d < devices.size(); ++d) devices[d].pool.peak_bytes = d == 1 || d == 2 ? 9 : 5;
  EXPECT_EQ(fullest(devices), 1U) << "the first of those that hold most";
  EXPECT_EQ(emptiest(devices), 0U) << "the first of those that hold least";
  EXPECT_TRUE(all_fit(devices)) << "no capacity is known";
  EXPECT_EQ(devices[1].share_of_capacity(9), 0.0);
  devices[1].pool.capacity_bytes = 18;
  EXPECT_EQ(devices[1].share_of_capacity(9), 0.5);
  devices[1].plan.peak_bytes = 19;
  EXPECT_FALSE(all_fit(devices));
  EXPECT_EQ(measured_steps({}), 0);
  devices[0].phases.steps = 4;
  devices[3].phases.named_share = 0.75;
  EXPECT_EQ(measured_steps(devices), 4);
  EXPECT_EQ(named_share(devices), 0.75);
  EXPECT_EQ(per_step(int64_t{11}, devices[0].phases), 2) << "whole bytes";
  EXPECT_EQ(per_step(11.0, devices[0].phases), 2.75);
  EXPECT_EQ(per_step(11.0, CommunicationTable{}), 0.0);
  EXPECT_EQ(CommunicationRow{}.hidden_share(), 0.0);
}

std::vector<DeviceRecord> example_devices() {
  DeviceRecord device;
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
  const std::string text = memory_text(example_devices());
  expect_contains(text, "parameters", "1.0 MiB", "activations", "2.0 MiB", "planned", "3.0 MiB", "to the byte",
                  "backward features.3", "5.0 MiB");
  expect_lacks(text, "staging");
}

TEST(MemoryReport, ShowsADifferenceFromThePlan) {
  std::vector<DeviceRecord> devices = example_devices();
  devices[0].plan.peak_bytes = 7 << 20;
  const std::string text = memory_text(devices);
  expect_contains(text, "7.0 MiB");
  expect_lacks(text, "to the byte");
}

TEST(MemoryReport, ShowsTheLowerBoundWhereThePeakExceedsIt) {
  std::vector<DeviceRecord> devices = example_devices();
  expect_lacks(memory_text(devices), "lower bound");
  expect_lacks(plan_table(devices).str(Style{}), "lower bound");
  expect_contains(plan_table(devices).str(Style{}), "Exact. CUDA context and libraries are not included.\n");
  devices[0].plan.peak_by_category[static_cast<size_t>(Category::fragmentation)] = 1 << 20;
  expect_contains(memory_text(devices), "lower bound");
  expect_contains(plan_table(devices).str(Style{}), "Lower bound: the largest sum of blocks");
}

TEST(MemoryReport, EqualDevicesShareAColumn) {
  std::vector<DeviceRecord> devices(16, example_devices()[0]);
  for (int d = 0; d < 16; ++d) devices[static_cast<size_t>(d)].device = "cuda:" + std::to_string(d);
  devices[0].pool.peak_bytes = 9 << 20;
  devices[3].outside_bytes = 7 << 20;
  const std::string text = memory_text(devices);
  expect_contains(text, "cuda:0  ", "cuda:1 to cuda:15", "9.0 MiB", "5.0 MiB to 7.0 MiB", "to the byte");
}

TEST(MemoryReport, NamesTheOwnersOfGpuMemoryOutsideThePools) {
  std::vector<DeviceRecord> devices(2, example_devices()[0]);
  for (size_t d = 0; d < 2; ++d) {
    devices[d].device = "cuda:" + std::to_string(d);
    devices[d].outside_by_owner = {{"context", 3 << 20}, {"nccl", 512 << 10}, {"other", 1536 << 10}};
  }
  const std::string text = describe_outside(devices, 1);
  expect_contains(text,
                  "10.0 MiB of GPU memory lie outside the pools: CUDA's context and other processes 6.0 MiB, NCCL "
                  "1.0 MiB, kernels and what "
                  "libraries take later 3.0 MiB. They");
  EXPECT_EQ(devices_json(devices)[1]["outside_bytes_by_owner"]["nccl"], 512 << 10);
  EXPECT_EQ(parse_devices("a result", devices_text(devices))[1].outside_by_owner, devices[1].outside_by_owner);
}

TEST(MemoryReport, ManyDifferentDevicesAreSummarizedAsASpread) {
  std::vector<DeviceRecord> devices(16, example_devices()[0]);
  for (int d = 0; d < 16; ++d) {
    devices[static_cast<size_t>(d)].device = "cuda:" + std::to_string(d);
    devices[static_cast<size_t>(d)].pool.peak_bytes = (d + 1) << 20;
  }
  const std::string text = memory_text(devices);
  expect_contains(text, "cuda:0 to cuda:15", "min", "median", "max at", "1.0 MiB", "8.5 MiB", "16.0 MiB", "cuda:15",
                  "1 of 16 devices");
}

/// The rows of a page's table, that of the titles first.
std::vector<std::vector<std::string>> cells_of(const std::string& html) {
  std::vector<std::vector<std::string>> rows;
  const std::regex cell("<tr|<t[hd] [^>]*>([^<]*)<|<td>([^<]*)<");
  for (std::sregex_iterator match(html.begin(), html.end(), cell), end; match != end; ++match) {
    if (match->str() == "<tr") {
      rows.emplace_back();
    } else {
      rows.back().push_back((*match)[1].matched ? (*match)[1] : (*match)[2]);
    }
  }
  return rows;
}

TEST(TerminalReport, ShowsTheTablesOfThePage) {
  std::vector<DeviceRecord> devices = example_devices();
  devices[0].phases = example_table(0);
  const std::string html = time_tables(devices).at(0).html();
  expect_contains(html, "<th scope=\"col\" class=\"left\">ms per step</th>",
                  "<tr><th scope=\"row\" class=\"left\">forward</th>", "<tr class=\"rule total\">");
  EXPECT_EQ(cells_of(html)[1], (std::vector<std::string>{"forward", "25.0", "25.0\u00a0%", "", ""}));
  EXPECT_EQ(cells_of(html).back()[0], "step");
}

TEST(ComparisonReport, EveryRowOfTimesAddsUpToItsStep) {
  std::vector<RunRecord> runs;
  for (const char* name : {"dp", "ddp"}) {
    RunRecord& run = runs.emplace_back();
    run.name = name;
    for (int d = 0; d < 2; ++d) {
      DeviceRecord& device = run.devices.emplace_back();
      device.device = "cpu:" + std::to_string(d);
      PhaseTable& phases = device.phases;
      phases.ordinal = d;
      phases.steps = 10;
      for (int p = 0; p < kPhaseCount; ++p) {
        const auto phase = static_cast<Phase>(p);
        if (phase == Phase::evaluate || phase == Phase::checkpoint || phase == Phase::setup || phase == Phase::step)
          continue;
        const double seconds = 0.01 * (1 + p + d);  // whole milliseconds in each step
        phases.rows.push_back({phase, d, seconds, 0.0, 0, 10, 0.0});
        phases.wall_seconds += seconds;
      }
    }
  }
  const auto rows = cells_of(scheme_times_table(runs).html());
  ASSERT_EQ(rows.size(), 1U + 4U);
  const size_t step = rows[0].size() - 2;
  ASSERT_EQ(rows[0][step], "step");
  for (size_t r = 1; r < rows.size(); ++r) {
    double sum = 0.0;
    for (size_t c = 2; c < step; ++c) {
      ASSERT_FALSE(rows[r][c].empty()) << rows[0][c];
      sum += std::stod(rows[r][c]);
    }
    EXPECT_DOUBLE_EQ(sum, std::stod(rows[r][step]));
  }
}

TEST(LearningTables, HaveARowForEachEpoch) {
  RunRecord run;
  EXPECT_FALSE(epochs_table(run));
  for (int64_t epoch = 2; epoch <= 3; ++epoch) {
    EpochRecord& record = run.epochs.emplace_back();
    record.epoch = epoch, record.last_step = 5 * epoch;
  }
  run.epochs[1].test_accuracy = 0.5;
  const std::vector<std::string> last = cells_of(epochs_table(run)->html()).back();
  ASSERT_EQ(last.size(), 6U);
  EXPECT_EQ(last[0], "epoch 3");
  EXPECT_EQ(last[1], "15");
  EXPECT_EQ(last[3], "–");
  EXPECT_EQ(last[4], "0.5000");
}

TEST(DeviceSets, AreNamedAsRanges) {
  const std::vector<std::string> names = device_names(20);
  EXPECT_EQ(all_devices(1).name(names), "cpu:0");
  EXPECT_EQ(all_devices(2).name(names), "cpu:0, cpu:1");
  EXPECT_EQ(all_devices(20).name(names), "cpu:0 to cpu:19");
  const auto odd = group_devices(20, [](size_t a, size_t b) { return a % 2 == b % 2; });
  ASSERT_EQ(odd.size(), 2U);
  EXPECT_EQ(odd[1].name(names), "cpu:1, cpu:3, cpu:5 and 7 more");
  const Spread spread = spread_of(all_devices(4), [](size_t d) { return static_cast<double>(d * d); });
  EXPECT_EQ(spread.least, 0);
  EXPECT_EQ(spread.median, 2.5);
  EXPECT_EQ(spread.most, 9);
}

DeviceRecord planned_device(int index, int64_t peak) {
  DeviceRecord device;
  device.device = "cuda:" + std::to_string(index);
  device.samples_per_step = 4;
  device.plan.peak_bytes = peak;
  device.plan.peak_by_category[static_cast<size_t>(Category::activations)] = peak;
  device.plan.held_activations = {{"features.0", peak / 2}, {"features.2", peak / 4}};
  return device;
}

std::string plan_text(const std::vector<DeviceRecord>& devices, const Style& style) {
  PlanRecord record;
  record.run.devices = devices;
  return plan_report(record, style);
}

TEST(PlanReport, EqualDevicesShareAColumnAndManyDifferentOnesAreASpread) {
  std::vector<DeviceRecord> equal, differing;
  for (int d = 0; d < 64; ++d) {
    equal.push_back(planned_device(d, d == 0 ? 9 << 20 : 4 << 20));
    differing.push_back(planned_device(d, (d + 1) << 20));
  }
  expect_contains(plan_text(equal, Style{}), "cuda:1 to cuda:63");
  const std::string spread = plan_text(differing, Style{});
  expect_contains(spread, "min (cuda:0)", "median (cuda:32)", "max (cuda:63)", "64.0 MiB");
  for (const int width : {40, 80, 120}) {
    Style style;
    style.width = width;
    EXPECT_LE(longest_line(plan_text(equal, style)), static_cast<size_t>(width)) << plan_text(equal, style);
    EXPECT_LE(longest_line(plan_text(differing, style)), static_cast<size_t>(width)) << plan_text(differing, style);
  }
}

TEST(JsonReport, HasTheMeasuredValues) {
  const Json device = devices_json(example_devices())[0];
  EXPECT_EQ(device["device"], "cpu:0");
  EXPECT_EQ(device["samples_per_step"], 32);
  EXPECT_EQ(device["peak_bytes"], 3 << 20);
  EXPECT_EQ(device["peak_bytes_by_category"]["activations"], 2 << 20);
  EXPECT_EQ(device["outside_bytes"], 5 << 20);
  std::vector<DeviceRecord> devices = example_devices();
  devices[0].phases = example_table(0);
  const Json phase = phases_json(devices)[1];
  EXPECT_EQ(phase["phase"], "reduce");
  EXPECT_EQ(phase["device"], "cpu:0");
  EXPECT_EQ(phase["seconds"], 0.5);
  EXPECT_EQ(phase["share"], 0.5);
  EXPECT_EQ(phase["bytes"], 4000);
  EXPECT_EQ(phase["calls"], 20);
  EXPECT_EQ(waits_json(devices)[0]["cause"], "the gradients of cpu:1");
}

}  // namespace
}  // namespace vitrine::tools
