// SPDX-License-Identifier: Apache-2.0
// The parts of a reproduction: its settings, the room for its checkpoints, and what is made of its runs.
#include "tools/program/record/reproduction.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/tools/reproduce_runs.h"
#include "tools/program/checkpoint/checkpoints.h"
#include "tools/program/commands/reproduction_files.h"
#include "tools/program/flags/configuration.h"
#include "tools/program/record/findings.h"
#include "tools/program/render/json_report.h"

namespace vitrine::test {
namespace {

TEST(Reproduction, SpreadsAndDurations) {
  using namespace tools;
  const SeedSpread spread = spread_over({0.8, 0.9, 0.7});
  EXPECT_DOUBLE_EQ(spread.mean, 0.8);
  EXPECT_DOUBLE_EQ(spread.least, 0.7);
  EXPECT_DOUBLE_EQ(spread.most, 0.9);
  EXPECT_NEAR(spread.deviation.value(), 0.1, 1e-12);
  EXPECT_FALSE(spread_over({0.8}).deviation.has_value());
  EXPECT_EQ(spread_over({}).count, 0U);
  EXPECT_EQ(format_duration(0.84), "0.8 s");
  EXPECT_EQ(format_duration(9.96), "10 s");
  EXPECT_EQ(format_duration(59.6), "1 min 0 s");
  EXPECT_EQ(format_duration(1290), "21 min 30 s");
  EXPECT_EQ(format_duration(3.0 * 3600 + 20 * 60 + 29), "3 h 20 min");
  EXPECT_EQ(format_duration(7199.9), "2 h 0 min");
}

TEST(Reproduction, TheDiskNeedsTheCheckpointsThatStayAndOneThatIsBeingWritten) {
  using tools::missing_checkpoints;
  EXPECT_EQ(missing_checkpoints(20, std::nullopt, {0, 0, 5}), 55);
  EXPECT_EQ(missing_checkpoints(20, 2, {0, 0, 1}), 6) << "2 + 2 + 1, and one more while the oldest is still there";
  EXPECT_EQ(missing_checkpoints(20, 20, {0}), 20) << "none is removed";
  EXPECT_EQ(missing_checkpoints(20, 2, {}), 0);
}

TEST_F(Reproduce, TheBytesOfACheckpointAreThoseOfItsFiles) {
  using namespace tools;
  for (const bool ema : {false, true}) {
    const std::string name = ema ? "ema" : "plain";
    Arguments arguments = {"train",        "--model", "mlp", "--image-size", "8", "--data",
                           "synthetic:60", "--steps", "1",   "--no-eval"};
    if (ema) arguments = arguments + Arguments{"--ema", "0.9"};
    arguments = arguments + Arguments{"--checkpoint-dir", path(name)};
    ASSERT_EQ(run_vitrine(arguments).exit_code, 0);
    int64_t bytes = 0;
    for (const auto& entry : fs::directory_iterator(path(name) + "/step-00000001"))
      bytes += static_cast<int64_t>(entry.file_size());
    const CommandLine line = parse_command_line(arguments);
    ASSERT_TRUE(line.options) << line.error;
    const Job job = open_job(*line.options);
    const EngineConfig config =
        engine_config(*line.options, job, scheme_preset("ddp"), resolve_precision(*line.options));
    const int64_t expected =
        checkpoint_bytes(FlatLayout(job.model.net->parameters(), 0), BufferLayout(*job.model.net), config);
    EXPECT_LT(expected, bytes + 4096) << name << ": padding";
    EXPECT_GT(expected, bytes - 16384) << name << ": headers and state.json";
  }
}

TEST(Configuration, HasTheFlagsOfScheduleDevicesAndPrecision) {
  using namespace tools;
  const auto config_of = [](const Arguments& more) {
    const CommandLine line =
        parse_command_line(Arguments{"train", "--model", "mlp", "--image-size", "8", "--data", "synthetic:60"} + more);
    EXPECT_TRUE(line.options) << line.error;
    const Options options = line.options.value_or(Options{});
    const Job job = open_job(options);
    const std::vector<DeviceId> devices = {{Backend::cpu, 0}};
    return Json(config_json({options, job, devices}));
  };
  const Json config =
      config_of({"--lr-schedule", "multi-step", "--lr-milestones", "3,5", "--lr-gamma", "0.5", "--warmup-steps", "4",
                 "--warmup-factor", "0.1", "--workspace", "1MiB", "--tf32", "--nccl-defaults"});
  EXPECT_EQ(config["lr_milestones"], (Json{3, 5}));
  EXPECT_EQ(config["lr_gamma"], 0.5);
  EXPECT_EQ(config["warmup_factor"], 0.1);
  EXPECT_EQ(config["workspace"], 1 << 20);
  EXPECT_EQ(config["tf32"], true);
  EXPECT_EQ(config["nccl_defaults"], true);
  EXPECT_EQ(config["cuda_graph"], true);
  EXPECT_EQ(config_of({"--no-cuda-graph"})["cuda_graph"], false);
  const Json plain = config_of({});
  for (const char* name : {"lr_gamma", "lr_step_size", "lr_patience", "workspace", "loss_scale_growth_interval"}) {
    EXPECT_TRUE(plain.contains(name) && plain[name].is_null()) << name;
  }
  const Json growing = config_of({"--precision", "fp16", "--loss-scale-growth-interval", "7"});
  EXPECT_EQ(growing["loss_scale_growth_interval"], 7);
}

TEST(Reproduction, SpeedUpIsAgainstTheSingleDeviceInTheSamePrecision) {
  using namespace tools;
  Record record;
  const auto add = [&](const char* mode, const char* precision, const char* state, double seconds) {
    RunRecord& run = record.runs.emplace_back();
    run.name = std::string(mode) + " " + precision;
    run.reproduced.emplace();
    run.reproduced->mode = mode, run.reproduced->precision = precision, run.reproduced->state = state;
    EpochRecord& epoch = run.epochs.emplace_back();
    // The first step takes three times as long as the others.
    epoch.samples = 1000, epoch.steps = 10, epoch.seconds = seconds * 1.2;
    PhaseTable& phases = run.devices.emplace_back().phases;
    phases.steps = 9, phases.wall_seconds = seconds * 0.9;
  };
  add("single", "fp32", "complete", 10.0);
  add("single", "fp16:none", "diverged", 1.0);
  add("ddp", "fp32", "complete", 4.0);
  add("ddp", "fp16:none", "complete", 2.0);
  const std::vector<ConfigurationSummary> all = summarize(record.runs);
  ASSERT_EQ(all.size(), 4U);
  EXPECT_DOUBLE_EQ(all[0].samples_per_second, 100.0) << "without the first step";
  EXPECT_DOUBLE_EQ(all[0].seconds.mean, 12.0) << "with the first step";
  EXPECT_DOUBLE_EQ(all[0].speed_up.value(), 1.0);
  EXPECT_FALSE(all[1].speed_up.has_value());
  EXPECT_DOUBLE_EQ(all[2].speed_up.value(), 2.5);
  EXPECT_FALSE(all[3].speed_up.has_value()) << "the single device has no whole run in fp16:none";
  EXPECT_EQ(published_figures().size(), 9U);
  EXPECT_FALSE(published_table(record).has_value());
}

TEST(Reproduction, ASummaryCoversAllSeedsOfItsConfiguration) {
  using namespace tools;
  Record record;
  record.kind = Record::Kind::reproduction;
  record.seeds = 3;
  const auto add = [&](const char* state, std::vector<SavedEpoch> saved, int64_t skipped, bool measured) {
    RunRecord& run = record.runs.emplace_back();
    run.reproduced.emplace();
    run.reproduced->mode = "ddp", run.reproduced->precision = "fp32", run.reproduced->state = state;
    run.reproduced->saved = std::move(saved);
    run.reproduced->skipped_steps = skipped;
    run.reproduced->measured_steps = measured ? 5 : 0;
    run.devices.emplace_back().device = "cpu:0";
  };
  add("failed", {{1, "step-1", 0.0, 0.9, {}}}, 1, false);
  add("complete", {{1, "step-1", 0.0, 0.6, {}}, {2, "step-2", 0.0, 0.5, {}}}, 2, true);
  add("failed", {}, 4, true);
  conclude(record);
  ASSERT_EQ(record.summaries.size(), 1U);
  const ConfigurationSummary& summary = record.summaries[0];
  EXPECT_EQ(summary.runs, 3U);
  EXPECT_EQ(summary.complete, 1);
  EXPECT_EQ(summary.unfinished, std::vector<std::string>{"failed"});
  EXPECT_EQ(summary.best.value().test_accuracy, 0.9) << "of any saved epoch";
  EXPECT_DOUBLE_EQ(summary.accuracy.mean, 0.5) << "of the complete run's last epoch";
  EXPECT_EQ(summary.skipped_steps, 7);
  EXPECT_EQ(summary.shown, 1U) << "the first run that was measured";
  const Json row = reproduction_table(record).json()["rows"][0]["cells"];
  EXPECT_EQ(row[2], "0.5000, failed");
  EXPECT_EQ(row[3], "0.9000 (1)");
  EXPECT_TRUE(measured_runs(record).summaries.empty());
}

}  // namespace
}  // namespace vitrine::test
