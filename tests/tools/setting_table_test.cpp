// SPDX-License-Identifier: Apache-2.0
// Flags, JSON, comparisons, agreement and documentation are made from the table of settings.
#include <algorithm>
#include <set>

#include <gtest/gtest.h>

#include "runtime/error.h"
#include "runtime/text.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"
#include "tests/support/text.h"
#include "tests/tools/settings_reference.h"
#include "tools/program/checkpoint/run_settings.h"
#include "tools/program/flags/program_flags.h"
#include "tools/program/flags/setting.h"
#include "tools/program/run/run.h"

namespace vitrine::tools {
namespace {

class TableOfSettings : public testing::Test {
 protected:
  /// What a command line sets, as far as it is a part of Options.
  Options parsed(std::vector<std::string> arguments) {
    for (const char* word : {"--model", "mlp", "--image-size", "8", "--data", "synthetic:60"})
      arguments.emplace_back(word);
    const CommandLine line = parse_command_line(arguments, table);
    EXPECT_TRUE(line.options) << line.error;
    return line.options.value_or(Options{});
  }

  SettingTable table = setting_table();
  const std::vector<DeviceId> devices = {{Backend::cpu, 0}};
};

TEST_F(TableOfSettings, ARowAloneIsFoundEverywhere) {
  double depth = 0.5;
  table.push_back({.flag = "--stochastic-depth",
                   .group = "Training",
                   .commands = kTrain | kPlan,
                   .field = field_of([&](auto&) -> double& { return depth; }),
                   .help = "Probability of leaving out a block",
                   .values = fraction(true, false)});
  // The flag, its range and its help.
  const Options options = parsed(words("train --stochastic-depth 0.25"));
  EXPECT_EQ(depth, 0.25);
  expect_contains(parse_command_line(words("train --stochastic-depth 1"), table).error,
                  "--stochastic-depth: expected a number of at least 0 and below 1, got '1'");
  expect_contains(parse_command_line(words("compare --stochastic-depth 1"), table).error,
                  "there is no option --stochastic-depth here; it is one of vitrine train, plan");
  expect_contains(flag_reference(table),
                  "| `--stochastic-depth X` | Probability of leaving out a block [0.25] | train, plan |");
  // The JSON configuration and its page.
  const Job job = open_job(options);
  const SettingContext context{options, job, devices};
  EXPECT_EQ(config_json(context, table).at("stochastic_depth"), 0.25);
  expect_contains(configuration_reference(table), "first_bucket_mb,stochastic_depth}` | train plan | the flag |");
  // Checkpoints.
  const auto settings = [&] { return run_settings(context, table); };
  std::vector<std::pair<std::string, std::string>> before;
  for (const RunSetting& setting : settings()) before.emplace_back(setting.name, setting.value);
  EXPECT_TRUE(compare_settings(before, settings(), {}).empty());
  depth = 0.75;
  expect_contains(error_of<ConfigError>([&] { compare_settings(before, settings(), {}); }),
                  "--stochastic-depth is 0.75, in the checkpoint 0.25. This changes results");
  // Ranks.
  const auto fields = agreed_settings(context, table);
  EXPECT_NE(std::ranges::find(fields, std::pair<std::string, std::string>("--stochastic-depth", "0.75")), fields.end());
}

TEST_F(TableOfSettings, RanksAgreeOnTheScheduleAndOnWhichOutputsThereAre) {
  const auto agreed = [&](const std::vector<std::string>& arguments) {
    const Options options = parsed(arguments);
    const Job job = open_job(options);
    return agreed_settings({options, job, devices}, table);
  };
  const auto plain = agreed({"train"});
  for (const std::vector<std::string>& flags :
       {words("--lr-schedule cosine"), words("--warmup-steps 2"), words("--save w"), words("--no-eval"),
        words("--label-smoothing 0.1"), words("--checkpoint-dir d"), words("--autotune"),
        words("--verify-replicas 3")}) {
    std::vector<std::string> arguments = {"train"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    EXPECT_NE(agreed(arguments), plain) << flags.front();
  }
  // Rank 0 alone uses the path, and devices, memory and progress are those of a process.
  EXPECT_EQ(agreed(words("train --save a")), agreed(words("train --save b")));
  EXPECT_EQ(agreed(words("train --workers 3 --log l.csv --json --device-memory 1GiB")), plain);
}

TEST_F(TableOfSettings, AFlagOfACommandHasOneRow) {
  for (unsigned command = 0; command < 9; ++command) {
    std::set<std::string> names;
    for (const SettingRow& row : table) {
      if ((row.commands & (1U << command)) == 0) continue;
      EXPECT_TRUE(names.insert(row.name()).second) << row.flag;
      EXPECT_FALSE(row.help.empty()) << row.flag;
    }
  }
}

TEST_F(TableOfSettings, CompletionAndManualHaveEveryFlag) {
  const std::string completion = bash_completion(table), manual = man_page(table);
  for (const CommandRow& command : command_table()) {
    const size_t begin = completion.find(std::string("      ") + command.name + ") words=\"");
    ASSERT_NE(begin, std::string::npos) << command.name;
    const std::string words = completion.substr(begin, completion.find("\" ;;", begin) - begin) + " ";
    for (const SettingRow& row : table) {
      if ((row.commands & only(command.command)) == 0 || !row.flag.starts_with('-')) continue;
      for (std::string flag : split_text(row.flag, ',')) {
        if (flag.starts_with('!')) flag.erase(0, 1);
        EXPECT_NE(words.find(" " + flag + " "), std::string::npos) << command.name << " " << flag;
        std::string escaped;
        for (const char c : flag) escaped += c == '-' ? "\\-" : std::string(1, c);
        EXPECT_NE(manual.find(escaped), std::string::npos) << flag;
      }
    }
  }
}

TEST_F(TableOfSettings, AnOwnerIsASetting) {
  for (const SettingRow& row : table) {
    if (row.owner.name.empty()) continue;
    EXPECT_TRUE(std::ranges::any_of(table, [&](const SettingRow& r) { return r.name() == row.owner.name; }))
        << row.flag;
  }
}

TEST_F(TableOfSettings, TheJsonHasTheFlagsOfScheduleDevicesAndPrecision) {
  const auto config_of = [&](const std::string& flags) {
    const Options options = parsed(words("train " + flags));
    const Job job = open_job(options);
    return config_json({options, job, devices}, table);
  };
  const Json config = config_of(
      "--lr-schedule multi-step --lr-milestones 3,5 --lr-gamma 0.5 --warmup-steps 4 --warmup-factor "
      "0.1 --workspace 1MiB --tf32 --nccl-defaults");
  EXPECT_EQ(config["lr_milestones"], (Json{3, 5}));
  EXPECT_EQ(config["lr_gamma"], 0.5);
  EXPECT_EQ(config["warmup_factor"], 0.1);
  EXPECT_EQ(config["workspace"], 1 << 20);
  EXPECT_EQ(config["tf32"], true);
  EXPECT_EQ(config["nccl_defaults"], true);
  EXPECT_EQ(config["cuda_graph"], true);
  EXPECT_EQ(config_of("--no-cuda-graph")["cuda_graph"], false);
  const Json plain = config_of("");
  for (const char* name : {"lr_gamma", "lr_step_size", "lr_patience", "workspace", "loss_scale_growth_interval"}) {
    EXPECT_TRUE(plain.contains(name) && plain[name].is_null()) << name;
  }
  const Json growing = config_of("--precision fp16 --loss-scale-growth-interval 7");
  EXPECT_EQ(growing["loss_scale_growth_interval"], 7);
}

}  // namespace
}  // namespace vitrine::tools
