// SPDX-License-Identifier: Apache-2.0
// Learning rates under flags of vitrine train, against those that tests/nn/record_schedules.py recorded with PyTorch.
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "nn/lr_schedule.h"
#include "tests/support/paths.h"
#include "tools/program/flags/options.h"

namespace vitrine::tools {
namespace {

TEST(ScheduleFlags, FollowPyTorchStepByStep) {
  std::ifstream file(test::source_path("tests/nn/data/schedules.json"));
  ASSERT_TRUE(file) << "tests/nn/record_schedules.py writes schedules.json";
  const nlohmann::json record = nlohmann::json::parse(file);
  ASSERT_FALSE(record.at("flags").empty());
  for (const nlohmann::json& entry : record.at("flags")) {
    const std::string flags = entry.at("flags");
    SCOPED_TRACE(flags);
    std::istringstream text("train --epochs 6 " + flags);
    const CommandLine line = parse_command_line({std::istream_iterator<std::string>(text), {}});
    ASSERT_TRUE(line.options.has_value()) << line.error;
    const ScheduleOptions& options = line.options->schedule;
    const int64_t steps = entry.at("steps"), steps_per_epoch = entry.at("steps_per_epoch");
    LrSchedule schedule(resolve_schedule(options, steps, true), record.at("lr"), steps_per_epoch);
    ASSERT_EQ(entry.at("values").size(), static_cast<size_t>(steps));
    for (int64_t step = 0; step < steps; ++step) {
      const nlohmann::json& expected = entry.at("values")[static_cast<size_t>(step)];
      const ScheduledValues found = schedule.at(step);
      const double lr = expected[0];
      ASSERT_NEAR(found.lr, lr, 1e-12 + 1e-9 * lr) << "step " << step;
      if (found.momentum) {
        ASSERT_NEAR(*found.momentum, expected[1].get<double>(), 1e-9) << "step " << step;
      }
      EXPECT_EQ(found.momentum.has_value(), options.schedule == "one-cycle");
      const bool ends_epoch = (step + 1) % steps_per_epoch == 0;
      if (ends_epoch && entry.contains("metrics"))
        schedule.end_epoch(entry.at("metrics")[static_cast<size_t>(step / steps_per_epoch)]);
    }
  }
}

}  // namespace
}  // namespace vitrine::tools
