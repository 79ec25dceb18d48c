// SPDX-License-Identifier: Apache-2.0

#include <algorithm>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/expect_contains.h"
#include "tools/program/render/report_tables.h"
#include "tools/program/render/reports.h"

namespace vitrine::tools {
namespace {

/// Two buckets over 10 steps.
CommunicationTable example_table(int ordinal, double late) {
  CommunicationTable table;
  table.ordinal = ordinal;
  table.steps = 10;
  CommunicationRow row;
  row.layer = "bucket 0";
  row.calls = 10;
  row.moved_bytes = row.buffer_bytes = 20 << 20;
  row.hidden_seconds = 0.03;
  row.exposed_seconds = 0.01;
  row.late_exposed_seconds = late;
  row.bus_factor = 1.5;
  table.rows.push_back(row);
  row.layer = "bucket 1";
  row.hidden_seconds = 0.0;
  table.rows.push_back(row);
  return table;
}

std::vector<DeviceRecord> devices(const std::vector<CommunicationTable>& tables) {
  std::vector<DeviceRecord> all(tables.size());
  for (size_t d = 0; d < tables.size(); ++d) {
    all[d].device = "cpu:" + std::to_string(d);
    all[d].communication = tables[d];
  }
  return all;
}

TEST(CommunicationReport, HasARowForEachBucketAndATotal) {
  const std::string text = communication_table(devices({example_table(0, 0.05)})).value().str(Style{});
  expect_contains(text, "Communication (the slowest device, cpu:0)", "exposed wait", "bucket 0", "bucket 1", "all",
                  "2.0 MiB", "4.0 MiB", "75.0 %", "60.0 %", "4.00", "5.00", "10.0", "0.52", "0.79", "2.10", "3.15",
                  "0.84", "1.26");
}

TEST(CommunicationReport, ShowsTheDeviceThatTheOthersWaitFor) {
  const std::string text =
      communication_table(devices({example_table(0, 0.05), example_table(1, 0.01), example_table(2, 0.02)}))
          .value()
          .str(Style{});
  expect_contains(text, "cpu:1");
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 8);
}

TEST(CommunicationReport, NamesTimeInWhichThreadsWaitForACore) {
  const auto text = [](double reduce_seconds, double of_another = 0.0) {
    std::vector<DeviceRecord> all =
        devices({example_table(0, 0.05), example_table(1, 0.05)});  // whose collectives take 5 ms a step
    for (size_t d = 0; d < 2; ++d) {
      all[d].phases.steps = 10;
      all[d].phases.rows = {
          {Phase::reduce, static_cast<int>(d), d == 0 ? reduce_seconds : of_another, d == 0 ? 0.1 : 0.0, 0, 10, 0}};
    }
    std::string hint = communication_table(all).value().str(Style{});
    std::ranges::replace(hint, '\n', ' ');
    return hint;
  };
  expect_contains(text(0.12), "Other work on the machine shows in reduce: 12 ms a step, of which the collectives take");
  expect_contains(text(0.09, 0.3), "Other work on the machine shows in reduce: 30 ms a step");
  expect_lacks(text(0.09), "Other work on the machine");
}

TEST(CommunicationReport, OneRankHasNoBusBandwidthAndZeroRanksNoTable) {
  CommunicationTable alone = example_table(0, 0);
  for (CommunicationRow& row : alone.rows) row.bus_factor = 0;
  expect_contains(communication_table(devices({alone})).value().str(Style{}), "   -\n");
  EXPECT_FALSE(communication_table(devices({CommunicationTable{}})).has_value());
}

TEST(CommunicationReport, JsonHasAllDevices) {
  const Json json = communication_json(devices({example_table(0, 0.05), example_table(1, 0.01)}));
  ASSERT_EQ(json.size(), 4U);
  EXPECT_EQ(json[3]["name"], "bucket 1");
  EXPECT_EQ(json[3]["device"], "cpu:1");
  EXPECT_EQ(json[3]["phase"], "reduce");
  EXPECT_EQ(json[3]["bytes_per_step"], 2 << 20);
  EXPECT_EQ(json[3]["calls"], 10);
  EXPECT_EQ(json[0]["seconds"], 0.04);
  EXPECT_EQ(json[0]["hidden_seconds"], 0.03);
  EXPECT_EQ(json[0]["late_exposed_seconds"], 0.05);
  EXPECT_NEAR(json[0]["busbw"].get<double>(), 1.5 * json[0]["algbw"].get<double>(), 1e-12);
}

}  // namespace
}  // namespace vitrine::tools
