// SPDX-License-Identifier: Apache-2.0
#include "tools/program/record/findings.h"

#include <algorithm>
#include <limits>

#include <gtest/gtest.h>

#include "tests/support/expect_contains.h"

namespace vitrine::tools {
namespace {

constexpr int64_t kMiB = 1 << 20;

int64_t& held(DeviceRecord& device, Category category) {
  return device.pool.peak_by_category[static_cast<size_t>(category)];
}

/// Two devices that do the same in 10 steps of 100 ms, without a finding.
RunRecord calm() {
  RunRecord in;
  in.scheme = scheme_preset("ddp");
  in.batch_size = 64;
  in.bucket_bytes = 25 * kMiB;
  in.first_bucket_bytes = kMiB;
  in.steps.steps = 11;
  for (int d = 0; d < 2; ++d) {
    DeviceRecord device;
    device.device = d == 0 ? "cpu:0" : "cpu:1";
    device.samples_per_step = 32;
    held(device, Category::activations) = 60 * kMiB;
    held(device, Category::parameters) = 40 * kMiB;
    device.pool.peak_bytes = 100 * kMiB;
    device.pool.capacity_bytes = 1000 * kMiB;
    PhaseTable table{.ordinal = d,
                     .steps = 10,
                     .wall_seconds = 1,
                     .rows = {{Phase::forward, d, 0.35, 0.35, 0, 10, 0},
                              {Phase::backward, d, 0.6, 0.6, 0, 10, 0},
                              {Phase::wait, d, 0.05, 0.05, 0, 10, 0}},
                     .waits = {{"reduce", 0.05, 0.05}}};
    device.phases = table;
    CommunicationTable communication;
    communication.ordinal = d;
    communication.steps = 10;
    for (int b = 0; b < 2; ++b) {
      CommunicationRow row;
      row.layer = "bucket " + std::to_string(b);
      row.buffer_bytes = 10 * 8 * kMiB;
      row.hidden_seconds = 0.04;
      row.exposed_seconds = 0.01;
      communication.rows.push_back(row);
    }
    device.communication = communication;
    in.devices.push_back(device);
  }
  return in;
}

void grow(RunRecord& in, size_t device, Category category, int64_t bytes) {
  held(in.devices[device], category) += bytes;
  in.devices[device].pool.peak_bytes += bytes;
}

/// Gives all devices half as much capacity again as the fuller one needs.
RunRecord tight(RunRecord in) {
  const int64_t peak = std::max(in.devices[0].pool.peak_bytes, in.devices[1].pool.peak_bytes);
  for (DeviceRecord& device : in.devices) device.pool.capacity_bytes = peak * 3 / 2;
  return in;
}

/// A finding with its remedy.
std::string text_of(const std::optional<Finding>& finding) {
  return finding ? finding->text + " " + finding->remedy : "nothing";
}

#define EXPECT_TELLS(finding, part) EXPECT_NE(text_of(finding).find(part), std::string::npos) << text_of(finding)

TEST(PlaceName, CallsAGatherOfShardsByItsName) {
  EXPECT_EQ(place_name(Phase::broadcast, "parameters of bucket 0"), "all-gather of bucket 0");
  EXPECT_EQ(place_name(Phase::broadcast, "buffers"), "broadcast buffers");
}

TEST(Findings, AreEmptyForAnUnremarkableRun) {
  for (const Finding& finding : find_findings(calm())) ADD_FAILURE() << finding.text;
}

TEST(Findings, ReportOutputsGatheredForTheLoss) {
  RunRecord in = calm();
  in.scheme = scheme_preset("dp");
  grow(in, 0, Category::activations, 2300 * kMiB);
  EXPECT_TELLS(apply_rule("uneven_memory", in),
               "cpu:0 holds 2.2 GiB more than the others, mostly activations (2.2 GiB): outputs gathered for the loss");
  EXPECT_TELLS(apply_rule("uneven_memory", in), "`--mode criterion`");
  // If the blocks are known, gathered outputs are the reason only where they are most of the excess.
  in.devices[0].memory.emplace();
  in.devices[0].memory->moments.resize(1);
  in.devices[0].memory->blocks = {{0, 2300 * kMiB, Category::activations, Phase::forward, "fc.output", "fc", 0, 1}};
  expect_lacks(text_of(apply_rule("uneven_memory", in)), "--mode criterion");
  in.devices[0].memory->blocks[0].tensor = "gathered outputs";
  EXPECT_TELLS(apply_rule("uneven_memory", in), "`--mode criterion`");
  in.devices[0].memory->blocks[0].bytes = kMiB;
  in.devices[0].samples_per_step = 48;
  EXPECT_TELLS(apply_rule("uneven_memory", tight(in)),
               "it has 48 of 64 samples. `--split equal` would distribute them.");
}

TEST(Findings, ReportOtherReasonsWhyADeviceHoldsMore) {
  RunRecord staged = calm();
  staged.scheme = scheme_preset("criterion");
  grow(staged, 0, Category::staging, 50 * kMiB);
  EXPECT_TELLS(apply_rule("uneven_memory", tight(staged)), "`--staging host`");
  RunRecord updates = calm();
  updates.scheme = scheme_preset("dp");
  grow(updates, 0, Category::optimizer, 80 * kMiB);
  EXPECT_TELLS(apply_rule("uneven_memory", tight(updates)),
               "`--mode zero1` divides it among all devices; `--split gpu0=16` would leave it there and give the "
               "device fewer samples, about 30 MiB less to hold, and the others more.");
  RunRecord larger = calm();
  larger.devices[1].samples_per_step = 40;
  grow(larger, 1, Category::activations, 30 * kMiB);
  EXPECT_TELLS(apply_rule("uneven_memory", larger), "cpu:1 holds 30 MiB more");
  EXPECT_TELLS(apply_rule("uneven_memory", tight(larger)), "`--split equal`");
  grow(larger, 1, Category::optimizer, -10 * kMiB);
  EXPECT_TELLS(apply_rule("uneven_memory", larger),
               "cpu:1 holds 20 MiB more than the others, mostly activations (30 MiB, and less of "
               "others): it has 40 of 64 samples");
  RunRecord little = calm();
  grow(little, 1, Category::activations, 2 * kMiB);
  EXPECT_FALSE(apply_rule("uneven_memory", little).has_value());
}

TEST(Findings, ReportLittleHeadroomAndLargeWorkspaces) {
  RunRecord in = calm();
  in.devices[1].pool.capacity_bytes = 102 * kMiB;
  EXPECT_TELLS(apply_rule("little_headroom", in), "cpu:1 uses 98 % of its 102 MiB");
  EXPECT_TELLS(apply_rule("little_headroom", in), "`--accumulate 2`");
  in.devices[1].pool.capacity_bytes = 99 * kMiB;
  EXPECT_FALSE(apply_rule("little_headroom", in)) << "it does not fit at all, which a plan says with its remedies";
  EXPECT_FALSE(apply_rule("large_workspace", in).has_value());
  grow(in, 0, Category::workspace, 256 * kMiB);
  EXPECT_TELLS(apply_rule("large_workspace", in), "72 % of cpu:0's memory");
  EXPECT_TELLS(apply_rule("large_workspace", tight(in)), "`--workspace 64MiB`");
}

TEST(Findings, BytesOfAStepDoNotDependOnWhatRanAhead) {
  PhaseTable table;
  table.steps = 9;
  EXPECT_EQ(moved_per_step({.phase = Phase::stage, .bytes = 7 * 96, .calls = 7}, table), 96);
  EXPECT_EQ(moved_per_step({.phase = Phase::reduce, .bytes = 27 * 10, .calls = 27}, table), 30);
}

TEST(Findings, ALargeShareOfAnEmptyDeviceIsHarmlessNotSmall) {
  RunRecord in = calm();
  in.scheme = scheme_preset("dp");
  grow(in, 0, Category::optimizer, 270 * kMiB);
  const Finding finding = apply_rule("uneven_memory", in).value();
  EXPECT_EQ(describe_cost(finding), "harmless, 27 % of its capacity");
  expect_contains(describe_severities(), "Large: at least 25 %", "harmless: less than 50 % of the capacity is used");
  for (DeviceRecord& device : in.devices) device.pool.capacity_bytes = int64_t{10} << 40;
  EXPECT_EQ(apply_rule("uneven_memory", in)->remedy,
            "Nothing needs to change: the capacity is 10 TiB, nearly all of it free.");
}

TEST(Findings, MemoryIsAShareOfTheCapacityAndNeedsARemedyOnlyIfItBinds) {
  RunRecord in = calm();
  in.scheme = scheme_preset("dp");
  grow(in, 0, Category::optimizer, 80 * kMiB);
  const Finding spare = apply_rule("uneven_memory", in).value(),
                binding = apply_rule("uneven_memory", tight(in)).value();
  EXPECT_EQ(spare.remedy, "Nothing needs to change: 820 MiB of 1000 MiB are free.");
  EXPECT_EQ(describe_cost(spare), "harmless, 8.0 % of its capacity");
  for (DeviceRecord& device : in.devices) device.pool.capacity_bytes = 400 * kMiB;
  EXPECT_EQ(describe_cost(apply_rule("uneven_memory", in).value()), "harmless, 20 % of its capacity")
      << "nothing needs to change";
  for (DeviceRecord& device : in.devices) device.pool.capacity_bytes = 1000 * 1024 * kMiB;
  EXPECT_EQ(describe_cost(apply_rule("uneven_memory", in).value()), "harmless") << "not 0.0 %";
  EXPECT_TELLS(std::optional(binding), "`--split gpu0=16`");
  EXPECT_EQ(describe_cost(binding), "large, 30 % of its capacity");
  for (DeviceRecord& device : in.devices) device.pool.capacity_bytes = 0;
  EXPECT_EQ(describe_cost(apply_rule("uneven_memory", in).value()), "large, 44 % of its memory");
}

/// The second of two devices computes a third of the time of the first.
RunRecord idling() {
  RunRecord in = calm();
  in.devices[1].phases.rows = {{Phase::forward, 1, 0.1, 0.1, 0, 10, 0},
                               {Phase::backward, 1, 0.2167, 0.2167, 0, 10, 0},
                               {Phase::wait, 1, 0.68, 0.68, 0, 10, 0}};
  for (DeviceRecord& device : in.devices) device.communication.rows[1].exposed_seconds = 0.3;
  return in;
}

TEST(Findings, NoiseIsNoReasonForAdvice) {
  RunRecord in = idling();
  EXPECT_TRUE(apply_rule("idle_device", in) && apply_rule("exposed_communication", in));
  in.rates.rounds = {100, 101, 99, 100};
  EXPECT_TRUE(apply_rule("idle_device", in) && apply_rule("exposed_communication", in));
  in.rates.rounds = {100, 170, 60, 100};
  EXPECT_FALSE(apply_rule("idle_device", in) || apply_rule("exposed_communication", in))
      << "rounds differ by more than the device idles";
  in.rates.rounds = {100, 101, 99};
  EXPECT_FALSE(apply_rule("idle_device", in) || apply_rule("exposed_communication", in))
      << "three rounds do not show the noise";
  RunRecord equal = idling();
  equal.equal_cpus = true;
  EXPECT_FALSE(apply_rule("idle_device", equal)) << "no split helps equal devices";
  equal.devices[1].samples_per_step = 16;
  EXPECT_TRUE(apply_rule("idle_device", equal)) << "their work differs";
}

TEST(Findings, AComparisonProposesNoSplitThatItContainsOrRefused) {
  RunRecord dp = calm(), balanced = idling();
  dp.name = "dp";
  balanced.name = "balanced";
  balanced.equal_cpus = true;
  balanced.devices[1].samples_per_step = 16;
  balanced.scheme.split = Split{Split::Kind::gpu0, {}, 48};
  const auto remedies = [](const std::vector<Finding>& findings) {
    std::string text;
    for (const Finding& finding : findings) text += finding.remedy;
    return text;
  };
  expect_contains(remedies(comparison_findings({balanced})), "--split equal");
  expect_lacks(remedies(comparison_findings({balanced}, {dp})), "--split equal");
}

TEST(Findings, MoreThreadsThanCoresExplainAllTimes) {
  RunRecord in = idling();
  in.crowded = "2 CPU devices with 4 threads share 2 cores and slow each other down; use fewer devices";
  const std::vector<Finding> all = find_findings(in);
  ASSERT_EQ(all.size(), 1U) << all.back().text;
  EXPECT_TELLS(std::optional(all[0]), "share 2 cores and slow each other down. The times and waits of single devices");
  EXPECT_EQ(all[0].remedy, "To measure: use fewer devices.");
  const std::vector<Finding> compared = comparison_findings({in, in});
  ASSERT_EQ(compared.size(), 2U) << "that speeds cannot be told apart, and why";
  EXPECT_EQ(compared[1].text, all[0].text);
}

TEST(Findings, OneSplitIsSuggestedUnlessEqualSharesIdleUnderDp) {
  RunRecord in = idling();
  in.devices[0].samples_per_step = 40;
  in.devices[1].samples_per_step = 24;
  grow(in, 0, Category::activations, 30 * kMiB);
  const auto splits = [](const RunRecord& run) {
    std::string text;
    for (const Finding& finding : find_findings(run)) {
      if (finding.remedy.find("--split") != std::string::npos) text += finding.remedy;
    }
    return text;
  };
  EXPECT_EQ(splits(tight(in)), "`--split 23,41` would distribute them by speed.");
  in.scheme = scheme_preset("dp");
  EXPECT_EQ(splits(tight(in)), "`--split 23,41` would distribute them by speed.") << "its shares make it idle";
  in.equal_cpus = true;
  EXPECT_EQ(splits(tight(in)), "`--split equal` would give equal devices equal work.");
  in.equal_cpus = false;
  in.devices[0].samples_per_step = in.devices[1].samples_per_step = 32;
  EXPECT_TELLS(apply_rule("idle_device", in), "`--mode ddp`");
  EXPECT_EQ(splits(tight(in)), "") << "it does not finish its samples earlier, it waits for device 0";
}

TEST(Findings, ReportWaitsForDataAndForTheHost) {
  RunRecord in = calm();
  in.devices[1].phases.rows.insert(in.devices[1].phases.rows.begin(), {Phase::data, 1, 0.46, 0.46, 0, 10, 0});
  in.workers = 2;
  EXPECT_TELLS(apply_rule("waits_for_data", in), "46 % of the step waits for data");
  EXPECT_TELLS(apply_rule("waits_for_data", in), "raise `--workers` from 2, for example to 4");
  expect_lacks(text_of(apply_rule("waits_for_data", in)), "--preprocess");
  in.host_preprocess = true;
  EXPECT_TELLS(apply_rule("waits_for_data", in), "`--preprocess device`");
  EXPECT_FALSE(apply_rule("waits_for_host", in).has_value());
  in.devices[0].phases.waits = {{"host", 0.2, 0.2}};
  EXPECT_TELLS(apply_rule("waits_for_host", in), "20 % of the step cpu:0 has nothing to do");
  EXPECT_TELLS(apply_rule("waits_for_host", in), "`--batch-size 128`");
}

TEST(Findings, SuggestMoreSamplesForAnIdleDevice) {
  RunRecord in = idling();
  EXPECT_TELLS(apply_rule("idle_device", in),
               "cpu:1 idles 68 % of the step: its 32 samples take it 31.7 ms, those of cpu:0 take 95 ms");
  EXPECT_TELLS(apply_rule("idle_device", in), "`--split 16,48`");
  in.devices[1].samples_per_step = 0;
  EXPECT_FALSE(apply_rule("idle_device", in).has_value());
}

TEST(Findings, ReportBucketsThatHideNothing) {
  RunRecord one = calm();
  for (DeviceRecord& device : one.devices) {
    device.communication.rows.resize(1);
    device.communication.rows[0].exposed_seconds = 0.04;
  }
  EXPECT_TELLS(apply_rule("single_bucket", one), "All gradients (8 MiB) are in one bucket");
  EXPECT_TELLS(apply_rule("single_bucket", one), "50 % of its time is exposed");
  EXPECT_TELLS(apply_rule("single_bucket", one), "`--bucket-mb 2 --first-bucket-mb 2`");
  one.scheme = scheme_preset("dp");
  EXPECT_FALSE(apply_rule("single_bucket", one).has_value());

  RunRecord late = calm();
  late.first_bucket_begins = 0.83;
  EXPECT_TELLS(apply_rule("late_first_bucket", late), "The first bucket (8 MiB) starts when 83 % of backward is over");
  EXPECT_TELLS(apply_rule("late_first_bucket", late), "`--first-bucket-mb 0.25`");
  // Parameters that are gathered, and batch statistics, come before the gradients.
  CommunicationRow gathered = late.devices[0].communication.rows[0], statistics = gathered;
  gathered.phase = Phase::broadcast;
  statistics.layer = kBatchStatistics;
  gathered.buffer_bytes *= 4;
  statistics.buffer_bytes *= 2;
  std::vector<CommunicationRow>& rows = late.devices[0].communication.rows;
  rows.insert(rows.begin(), {gathered, statistics});
  EXPECT_TELLS(apply_rule("late_first_bucket", late), "The first bucket (8 MiB) starts");
  late.first_bucket_begins = 0.2;
  EXPECT_FALSE(apply_rule("late_first_bucket", late).has_value());
}

TEST(Findings, ReportExposedCommunication) {
  RunRecord in = calm();
  for (DeviceRecord& device : in.devices) device.communication.rows[1].exposed_seconds = 0.3;
  EXPECT_TELLS(apply_rule("exposed_communication", in), "Communication holds up 31 % of the step");
  EXPECT_TELLS(apply_rule("exposed_communication", in), "`--batch-size 128 --accumulate 2`");
  in.scheme = scheme_preset("dp");
  EXPECT_TELLS(apply_rule("exposed_communication", in), "`--mode ddp`");
}

TEST(Findings, ExplainALongWaitThatNoOtherFindingExplains) {
  RunRecord in = calm();
  EXPECT_FALSE(apply_rule("other_waits", in).has_value() || longest_waiting(in) != nullptr);
  in.scheme = scheme_preset("dp");
  in.devices[1].phases.rows[2].share = 0.2;
  in.devices[1].phases.waits = {{"broadcast", 0.15, 0.15}, {"host", 0.05, 0.05}};
  EXPECT_EQ(longest_waiting(in), &in.devices[1]);
  EXPECT_TELLS(apply_rule("other_waits", in), "cpu:1 waits 20 % of the step: 15 % for broadcast, 5.0 % for host.");
  EXPECT_TELLS(apply_rule("other_waits", in), "`--mode ddp`");
  in.equal_cpus = true;
  in.devices[0].phases.rows[0].seconds += 0.15;
  EXPECT_TELLS(apply_rule("other_waits", in), "Forward and backward take cpu:0 110 ms, cpu:1 95 ms.");
  in.devices[1].phases.waits[1].share = 0.12;
  EXPECT_TRUE(apply_rule("waits_for_host", in) && !apply_rule("other_waits", in)) << "one finding for one wait";
}

TEST(Findings, ListDivergenceFirst) {
  RunRecord in = calm();
  EXPECT_FALSE(apply_rule("divergence", in).has_value());
  in.steps.non_finite = 3;
  in.steps.first_non_finite = 7;
  EXPECT_TELLS(apply_rule("divergence", in), "The loss was not finite in 3 of 11 steps, from step 8 on");
  in.diverged = "training has diverged: the loss of step 8 is not finite";
  grow(in, 0, Category::workspace, 256 * kMiB);
  expect_contains(find_findings(in).at(0).text, "the loss of step 8 is not finite.");
  expect_contains(find_findings(in).at(0).remedy, "`--lr`");
}

TEST(Findings, ReportAnEvaluationThatIsNotFinite) {
  RunRecord in = calm();
  EpochRecord epoch;
  epoch.test_loss = 2.3;
  in.epochs = {epoch, epoch};
  in.epochs[1].epoch = 2;
  EXPECT_FALSE(apply_rule("divergence", in).has_value());
  in.epochs[1].test_loss = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TELLS(apply_rule("divergence", in), "The test loss of epoch 2 is not finite");
  EXPECT_TELLS(apply_rule("divergence", in), "`--lr`");
}

TEST(Findings, ReportSkippedSteps) {
  RunRecord in = calm();
  in.steps.steps = 100;
  in.steps.overflows.resize(4);
  EXPECT_FALSE(apply_rule("skipped_steps", in).has_value());
  in.steps.overflows.resize(12);
  in.steps.scales = {{0, 65536}, {50, 2048}};
  EXPECT_TELLS(apply_rule("skipped_steps", in), "12 of 100 steps were skipped");
  EXPECT_TELLS(apply_rule("skipped_steps", in), "`--loss-scale 2048`");
}

TEST(Findings, WhatCostsMostComesFirst) {
  RunRecord in = calm();
  grow(in, 0, Category::activations, 10 * kMiB);  // a ninth more
  in.steps.steps = 100;
  in.steps.overflows.resize(40);
  const std::vector<Finding> all = find_findings(in);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[0].cost, 0.4);
  expect_contains(all[0].text, "were skipped");
  EXPECT_STREQ(all[0].cost_of, "the steps");
  EXPECT_STREQ(all[1].cost_of, "its capacity");
  EXPECT_NEAR(all[1].cost.value(), 10.0 / 1000, 1e-12);
}

/// What stages save and cost in a comparison, or in a run or plan beside the stage below.
template <class Kind>
std::vector<Finding> stages_of(const RunRecord& stage, const RunRecord& below) {
  Kind record;
  if constexpr (std::is_same_v<Kind, ComparisonRecord>) {
    record.runs = {below, stage};
  } else {
    record.run = stage;
    record.stage_below = below;
  }
  conclude(record);
  for (const Finding& finding : record.stages) {
    const auto same = [&](const Finding& other) { return other.text == finding.text; };
    EXPECT_EQ(std::ranges::count_if(record.findings, same), 1) << "pages show it, too";
  }
  return record.stages;
}

TEST(Findings, ReportWhatAStageSavesAndCostsBesideTheOneBelow) {
  RunRecord stage = calm(), below = calm();
  stage.scheme = scheme_preset("zero2");
  below.scheme = scheme_preset("zero1");
  stage.planned_moved_bytes = below.planned_moved_bytes = 16 * kMiB;
  EXPECT_TELLS(std::optional(compare_stages(stage, below)),
               "`--shard gradients` saves nothing over `--shard optimizer`: cpu:0 holds 100 MiB. Its collectives move "
               "16 MiB a step, no more.");
  grow(stage, 1, Category::gradients, 20 * kMiB);
  EXPECT_TELLS(std::optional(compare_stages(stage, below)),
               "With `--shard gradients` cpu:1 holds 20 MiB more than with `--shard optimizer`, mostly gradients (20 "
               "MiB): buckets are whole");
  EXPECT_TELLS(std::optional(compare_stages(tight(stage), below)), "A smaller `--bucket-mb`");
  for (const std::vector<Finding>& all : {stages_of<TrainingRecord>(stage, below), stages_of<PlanRecord>(stage, below),
                                          stages_of<ComparisonRecord>(stage, below)}) {
    ASSERT_EQ(all.size(), 1U);
    EXPECT_TRUE(all[0].text.starts_with("With `--shard gradients`")) << all[0].text;
  }
  for (DeviceRecord& device : below.devices) {
    held(device, Category::optimizer) = 30 * kMiB;
    device.pool.peak_bytes += 30 * kMiB;
  }
  stage.planned_moved_bytes = 24 * kMiB;
  const Finding saves = compare_stages(stage, below);
  EXPECT_EQ(saves.text,
            "`--shard gradients` saves 10 MiB over `--shard optimizer`: cpu:1 holds 120 MiB in place of 130 MiB, "
            "mostly optimizer (30 MiB less). Its collectives move 24 MiB a step, 8 MiB more.");
  EXPECT_FALSE(saves.cost) << "a result";
  below.rates.rounds = {100, 100, 100, 100};
  stage.rates.rounds = {80, 80, 80, 80};
  EXPECT_TELLS(std::optional(compare_stages(stage, below)), "8 MiB more; its speed is 0.80 times as high.");
  stage.rates.rounds = {80, 100, 120, 100};
  EXPECT_TELLS(std::optional(compare_stages(stage, below)), "8 MiB more; their speeds are within noise.");
}

TEST(Findings, CompareOnlyStagesThatFollowEachOther) {
  RunRecord stage = calm(), below = calm();
  below.scheme = scheme_preset("dp");
  stage.scheme = scheme_preset("zero1");
  EXPECT_TRUE(stages_of<ComparisonRecord>(stage, below).empty()) << "dp is no stage below zero1";
  below.scheme = scheme_preset("ddp");
  EXPECT_EQ(stages_of<ComparisonRecord>(stage, below).size(), 1U);
  stage.devices.resize(1);
  TrainingRecord alone;
  alone.run = stage;
  conclude(alone);
  ASSERT_EQ(alone.stages.size(), 1U);
  EXPECT_EQ(alone.stages[0].text, "`--shard optimizer` saves nothing on one device, which holds all.");
  alone.processes = 2;
  conclude(alone);
  EXPECT_TRUE(alone.stages.empty());
}

TEST(Findings, APlanHasThoseOfMemory) {
  RunRecord plan = calm();
  grow(plan, 0, Category::activations, 100 * kMiB);
  plan.devices[0].pool.capacity_bytes = 210 * kMiB;
  plan.steps.overflows.resize(11);
  const std::vector<Finding> all = plan_findings(plan);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_TELLS(std::optional(all[0]), "cpu:0 holds 100 MiB more");
  EXPECT_TELLS(std::optional(all[1]), " of its ");
  EXPECT_TRUE(plan_findings(calm()).empty());
  PlanRecord record;
  record.run = calm();
  expect_contains(no_findings(record), "no device is nearly full");
  record.run.devices[0].plan.peak_bytes = 2000 * kMiB;
  expect_lacks(no_findings(record), "no device is nearly full");
}

TEST(Findings, AllOfThemAreReported) {
  RunRecord in = calm();
  in.steps.steps = 5;
  in.steps.overflows.resize(5);
  grow(in, 0, Category::workspace, 256 * kMiB);
  EXPECT_EQ(find_findings(in).size(), 3U);  // uneven, workspace, skipped
}

TEST(Findings, ReportPeersThatAreLateInTurn) {
  RunRecord in = calm();
  EXPECT_FALSE(apply_rule("waits_for_peers", in).has_value());
  for (DeviceRecord& device : in.devices) {
    PhaseTable& table = device.phases;
    const char* const peer = table.ordinal == 0 ? "cpu:1 in all_reduce" : "cpu:0 in all_reduce";
    table.rows = {{Phase::forward, 0, 0.3, 0.3, 0, 10, 0},
                  {Phase::backward, 0, 0.46, 0.46, 0, 10, 0},
                  {Phase::wait, 0, 0.24, 0.24, 0, 10, 0}};
    table.waits = {{peer, 0.2, 0.2}, {"cpu:1 in reduce", 0.04, 0.04}};
  }
  EXPECT_TELLS(apply_rule("waits_for_peers", in),
               "cpu:0 waits 24 % of the step for peers that reach a collective later, a different one each time");
  EXPECT_EQ(find_findings(in).size(), 1U) << "so the page does not claim that no device waits";
  // A device with more work is the reason.
  in.devices[0].phases.rows[1].seconds = 0.2;
  EXPECT_TRUE(apply_rule("idle_device", in).has_value());
  EXPECT_FALSE(apply_rule("waits_for_peers", in).has_value());
  in.devices[0].phases.steps = in.devices[1].phases.steps = 2;
  EXPECT_FALSE(apply_rule("idle_device", in).has_value()) << "two steps are too few";
}

TEST(Findings, FirstBucketBeginsAfterItsGradients) {
  StepView view;
  view.step = 3;
  const auto span = [](Phase phase, const char* cause, int64_t begin, int64_t end, int depth, int64_t step) {
    return SpanRecord{{phase, "", "", cause, step}, begin, end, 0, depth};
  };
  view.compute = {span(Phase::forward, "", 100, 200, 0, 3), span(Phase::backward, "", 200, 400, 0, 3)};
  EXPECT_FALSE(first_bucket_begin(view).has_value());
  // The previous step's bucket, then the span that was issued early and waits for its gradients.
  view.communication = {span(Phase::reduce, "", 100, 120, 0, 2), span(Phase::reduce, "", 150, 320, 0, 3),
                        span(Phase::wait, "backward", 150, 250, 1, 3), span(Phase::reduce, "", 320, 420, 0, 3)};
  EXPECT_DOUBLE_EQ(first_bucket_begin(view).value(), 0.25);
}

RunRecord scheme(const char* name, std::vector<double> rounds) {
  RunRecord run = calm();
  run.name = name;
  run.rates.rounds = std::move(rounds);
  return run;
}

TEST(CompareFindings, NameTheFastestAndTheSmallest) {
  RunRecord dp = scheme("dp", {100, 98, 103, 100, 101}), ddp = scheme("ddp", {150, 160, 149, 150, 152});
  grow(dp, 0, Category::activations, 100 * kMiB);
  const std::vector<Finding> findings = compare_findings({dp, ddp});
  ASSERT_EQ(findings.size(), 2U);
  const char* const fastest = "ddp is fastest: 150 samples/s (median of 5 rounds, 149 to 160), 1.50 times dp.";
  EXPECT_EQ(findings[0].text, fastest);
  EXPECT_EQ(compare_findings({scheme("balanced", {50, 51, 50, 49, 50}), dp, ddp})[0].text, fastest)
      << "the next one counts, not the slowest";
  EXPECT_EQ(findings[1].text,
            "ddp leaves the most room: its fullest device holds 100 MiB, 100 MiB less than that of dp.");
  EXPECT_TRUE(compare_findings({dp}).empty());
  ASSERT_EQ(compare_findings({ddp, ddp}).size(), 1U);
  EXPECT_EQ(compare_findings({ddp, ddp})[0].text,
            "The schemes' speeds are within noise: medians from 150 to 150 samples/s, single rounds from 149 to 160.");
}

TEST(CompareFindings, ResultsComeFirstThenWhatCostsMost) {
  RunRecord dp = scheme("dp", {100, 98, 103, 100, 101}), ddp = scheme("ddp", {150, 160, 149, 150, 152});
  grow(dp, 0, Category::activations, 80 * kMiB);
  ASSERT_EQ(comparison_findings({dp, ddp}).size(), 2U) << "what is small is left out";
  dp = tight(dp);
  const std::vector<Finding> findings = comparison_findings({dp, ddp});
  ASSERT_EQ(findings.size(), 3U);
  EXPECT_FALSE(findings[0].cost || findings[1].cost);
  EXPECT_EQ(findings[2].text, "dp: " + apply_rule("uneven_memory", dp)->text);
  EXPECT_STREQ(findings[2].cost_of, "its capacity");
}

TEST(CompareFindings, ProposeAModeThatWasNotMeasured) {
  RunRecord dp = scheme("dp", {100, 100, 100, 100, 100});
  dp.scheme = scheme_preset("dp");
  grow(dp, 0, Category::optimizer, 80 * kMiB);
  dp = tight(dp);
  EXPECT_TELLS(comparison_findings({dp, scheme("ddp", {100, 100, 100, 100, 100})}).back(), "`--mode zero1`");
  EXPECT_EQ(comparison_findings({dp, scheme("zero1", {100, 100, 100, 100, 100})}).back().remedy, "");
}

TEST(Conclude, FillsWhatTheKindOfRecordReports) {
  RunRecord uneven = scheme("dp", {100, 98, 103, 100, 101});
  grow(uneven, 0, Category::activations, 100 * kMiB);
  uneven = tight(uneven);
  TrainingRecord run;
  run.run = uneven;
  conclude(run);
  ASSERT_EQ(run.findings.size(), 1U);
  EXPECT_EQ(run.findings[0].text, apply_rule("uneven_memory", uneven)->text);
  ComparisonRecord comparison;
  conclude(comparison);
  EXPECT_TRUE(comparison.findings.empty()) << "an interrupted comparison has no runs";
  comparison.runs = {uneven, scheme("ddp", {150, 160, 149, 150, 152})};
  conclude(comparison);
  EXPECT_EQ(comparison.findings.size(), 3U);
  EXPECT_EQ(comparison.speed.value().text, comparison.findings[0].text);
}

TEST(CompareFindings, DoNotReportNoise) {
  const RunRecord balanced = scheme("balanced", {160, 99, 170, 160}), dp = scheme("dp", {100, 98, 165, 100});
  EXPECT_EQ(text_of(compare_speed({balanced, dp})),
            "The schemes' speeds are within noise: medians from 100 to 160 samples/s, single rounds from 98 to 170. "
            "`--rounds 8` or more `--steps` resolve "
            "smaller differences.");
  const RunRecord slow = scheme("slow", {160, 158, 161, 160}), ddp = scheme("ddp", {201, 199, 200, 200}),
                  near = scheme("near", {199, 198, 203, 200});
  EXPECT_EQ(
      text_of(compare_speed({slow, ddp, near})),
      "ddp, near are fastest, within noise of each other: up to 200 samples/s (median of 4 rounds, 199 to 201), 1.25 "
      "times slow. ");
  const RunRecord once = scheme("dp", {100}), twice_as_fast = scheme("ddp", {200});
  EXPECT_TELLS(compare_speed({once, twice_as_fast}), "One round cannot distinguish differences in speed from noise");
  const RunRecord few = scheme("dp", {100, 101, 99}), few_faster = scheme("ddp", {200, 201, 199});
  EXPECT_EQ(text_of(compare_speed({few, few_faster})),
            "3 rounds cannot distinguish differences in speed from noise. `--rounds 5` may.");
  // Every round is faster, but the rounds of one scheme differ more than the schemes do.
  EXPECT_TELLS(compare_speed({scheme("dp", {100, 101, 99, 100}), scheme("ddp", {120, 110, 150, 120})}),
               "are within noise");
  EXPECT_EQ(ddp.rates.str(), "200 ±0 %");
  EXPECT_EQ(balanced.rates.str(), "160 ±22 %");
  EXPECT_EQ(once.rates.str(), "100");
}

}  // namespace
}  // namespace vitrine::tools
