// SPDX-License-Identifier: Apache-2.0
// What is made of the runs of a reproduction, and the configuration that names them.
#include "tools/program/record/reproduction.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tools/reproduce_runs.h"
#include "tools/program/flags/configuration.h"
#include "tools/program/record/findings.h"
#include "tools/program/render/report_tables.h"
#include "tools/program/run/run.h"

namespace vitrine::test {
namespace {

TEST(Reproduction, SpreadsAndDurations) {
  using namespace tools;
  const Spread spread = spread_of({0.8, 0.9, 0.7});
  EXPECT_DOUBLE_EQ(spread.mean, 0.8);
  EXPECT_DOUBLE_EQ(spread.least, 0.7);
  EXPECT_DOUBLE_EQ(spread.most, 0.9);
  EXPECT_NEAR(spread.deviation.value(), 0.1, 1e-12);
  EXPECT_FALSE(spread_of({0.8}).deviation.has_value());
  EXPECT_EQ(spread_of({}).count, 0U);
  EXPECT_EQ(format_duration(0.84), "0.8 s");
  EXPECT_EQ(format_duration(9.96), "10 s");
  EXPECT_EQ(format_duration(59.6), "1 min 0 s");
  EXPECT_EQ(format_duration(1290), "21 min 30 s");
  EXPECT_EQ(format_duration(3.0 * 3600 + 20 * 60 + 29), "3 h 20 min");
  EXPECT_EQ(format_duration(7199.9), "2 h 0 min");
}

TEST(Configuration, HasTheFlagsOfScheduleDevicesAndPrecision) {
  using namespace tools;
  const auto config_of = [](const Arguments& more) {
    const CommandLine line = parse_command_line(words("train --model mlp --image-size 8 --data synthetic:60") + more);
    EXPECT_TRUE(line.options) << line.error;
    const Options options = line.options.value_or(Options{});
    const Job job = open_job(options);
    const std::vector<DeviceId> devices = {{Backend::cpu, 0}};
    return Json(config_json({options, job, devices}));
  };
  const Json config =
      config_of(words("--lr-schedule multi-step --lr-milestones 3,5 --lr-gamma 0.5 --warmup-steps 4 --warmup-factor "
                      "0.1 --workspace 1MiB --tf32 --nccl-defaults"));
  EXPECT_EQ(config["lr_milestones"], (Json{3, 5}));
  EXPECT_EQ(config["lr_gamma"], 0.5);
  EXPECT_EQ(config["warmup_factor"], 0.1);
  EXPECT_EQ(config["workspace"], 1 << 20);
  EXPECT_EQ(config["tf32"], true);
  EXPECT_EQ(config["nccl_defaults"], true);
  EXPECT_EQ(config["cuda_graph"], true);
  EXPECT_EQ(config_of(words("--no-cuda-graph"))["cuda_graph"], false);
  const Json plain = config_of({});
  for (const char* name : {"lr_gamma", "lr_step_size", "lr_patience", "workspace", "loss_scale_growth_interval"}) {
    EXPECT_TRUE(plain.contains(name) && plain[name].is_null()) << name;
  }
  const Json growing = config_of(words("--precision fp16 --loss-scale-growth-interval 7"));
  EXPECT_EQ(growing["loss_scale_growth_interval"], 7);
}

TEST(Reproduction, ASummaryCoversAllSeedsOfItsConfiguration) {
  using namespace tools;
  Record record;
  record.kind = Record::Kind::reproduction;
  record.seeds = 3;
  const auto add = [&](const char* state, const std::vector<double>& accuracies, int64_t skipped, int64_t measured) {
    RunRecord& run = record.runs.emplace_back();
    run.reproduced.emplace();
    run.reproduced->mode = "ddp", run.reproduced->precision = "fp32", run.reproduced->state = state;
    run.reproduced->skipped_steps = skipped;
    for (const double accuracy : accuracies) {
      EpochRecord& epoch = run.epochs.emplace_back();
      epoch.epoch = static_cast<int64_t>(run.epochs.size());
      epoch.test_accuracy = accuracy;
      epoch.seconds = 1.5;
      run.rates.rounds.push_back(accuracy * 1000);
    }
    DeviceRecord& device = run.devices.emplace_back();
    device.device = "cpu:0";
    device.phases.steps = measured;
  };
  add("failed", {0.9}, 1, 0);
  add("complete", {0.6, 0.5}, 2, 5);
  add("failed", {}, 4, 5);
  conclude(record);
  ASSERT_EQ(record.summaries.size(), 1U);
  const ConfigurationSummary& summary = record.summaries[0];
  EXPECT_EQ(summary.runs, 3U);
  EXPECT_EQ(summary.unfinished, std::vector<std::string>{"failed"});
  EXPECT_EQ(summary.best.value().test_accuracy, 0.9) << "of any run";
  EXPECT_EQ(summary.accuracy.count, 1U);
  EXPECT_DOUBLE_EQ(summary.accuracy.mean, 0.5) << "of the complete run's last epoch";
  EXPECT_DOUBLE_EQ(summary.seconds.mean, 3.0);
  EXPECT_EQ(summary.rates.rounds, (std::vector<double>{600, 500}));
  EXPECT_EQ(summary.skipped_steps, 7);
  EXPECT_EQ(summary.shown, 1U) << "the first run that was measured";
  const Json row = reproduction_table(record).json()["rows"][0]["cells"];
  EXPECT_EQ(row[2], "0.5000, failed");
  EXPECT_EQ(row[3], "0.9000 (1)");
  EXPECT_EQ(row[4], "550 ±9 %") << "the spread between epochs";
  EXPECT_TRUE(measured_runs(record).summaries.empty());
  EXPECT_EQ(published_figures().size(), 9U);
  EXPECT_FALSE(published_table(record).has_value());
}

}  // namespace
}  // namespace vitrine::test
