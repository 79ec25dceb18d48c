// SPDX-License-Identifier: Apache-2.0
#include "tools/program/flags/options.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "runtime/error.h"
#include "runtime/text.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"
#include "tests/support/text.h"
#include "tools/program/flags/program_flags.h"
#include "tools/program/run/warnings.h"

namespace vitrine::tools {
namespace {

Options parsed(const std::string& text) {
  const CommandLine line = parse_command_line(words(text));
  EXPECT_TRUE(line.options.has_value()) << line.error;
  return line.options.value_or(Options{});
}

/// The message of a command line that is refused with the exit status of usage errors.
std::string usage_error(const std::string& text) {
  const CommandLine line = parse_command_line(words(text));
  EXPECT_FALSE(line.options.has_value()) << text;
  EXPECT_EQ(line.exit_code, kExitUsage);
  EXPECT_TRUE(line.output.empty());
  return line.error;
}

std::vector<DeviceId> cpu_devices(int count) {
  std::vector<DeviceId> devices;
  for (int i = 0; i < count; ++i) devices.push_back({Backend::cpu, i});
  return devices;
}

TEST(Options, AutotuneMayHaveAFile) {
  EXPECT_EQ(parsed("train").autotune, std::nullopt);
  EXPECT_EQ(parsed("train --autotune").autotune, "");
  EXPECT_EQ(parsed("train --autotune --seed 3").autotune, "");
  EXPECT_EQ(parsed("train --autotune plans.json --seed 3").autotune, "plans.json");
  EXPECT_EQ(parsed("train --autotune=plans.json").autotune, "plans.json");
  expect_contains(usage_error("eval --weights w --autotune"), "--autotune");
}

TEST(Options, AutotuneHasNothingToTimeOnCpuDevices) {
  const Options o = parsed("train --autotune");
  EXPECT_NO_THROW(check_autotune(o, {{Backend::cuda, 0}}));
  EXPECT_NO_THROW(check_autotune(parsed("train"), cpu_devices(1)));
  expect_contains(error_of<ConfigError>([&] { check_autotune(o, cpu_devices(2)); }),
                  "--autotune has nothing to time on CPU devices");
}

TEST(Options, DefaultsMatchTheHelp) {
  const Options o = parsed("train");
  EXPECT_EQ(o.mode_name(), "ddp");
  EXPECT_EQ(o.batch_size, 64);
  EXPECT_EQ(o.accumulate, 1);
  EXPECT_EQ(o.recompute_segments, "1");
  EXPECT_EQ(o.loss_gradient, "in-place");
  EXPECT_EQ(o.batch_norm, "exact");
  EXPECT_EQ(o.optimizer, "adamw");
  EXPECT_EQ(o.seed, 0U);
  EXPECT_TRUE(o.shuffle && o.evaluate);
  EXPECT_FALSE(o.drop_last || o.json || o.host_preprocess());
  EXPECT_EQ(resolve_devices(o, 0), cpu_devices(1));
  EXPECT_EQ(resolve_devices(o, 2), (std::vector<DeviceId>{{Backend::cuda, 0}}));
}

TEST(Options, ARankThatSeesOneGpuUsesIt) {
  Options o = parsed("train");
  o.local_rank = 3;
  EXPECT_EQ(resolve_devices(o, 1), (std::vector<DeviceId>{{Backend::cuda, 0}})) << "srun --gpus-per-task=1";
  EXPECT_EQ(resolve_devices(o, 4), (std::vector<DeviceId>{{Backend::cuda, 3}}));
}

TEST(Options, CollectivesAcceptTheFlagsOfNcclTests) {
  const CollectiveOptions o =
      parsed("collectives all_reduce reduce -b 8 -e 128M -f 2 -n 7 -w 3 -c 0 -d half -o sum -r 1").collectives;
  EXPECT_EQ(o.names, (std::vector<std::string>{"all_reduce", "reduce"}));
  EXPECT_EQ(o.min_bytes, 8);
  EXPECT_EQ(o.max_bytes, int64_t{128} << 20);
  EXPECT_EQ(o.step_factor, 2.0);
  EXPECT_EQ(o.iterations, 7);
  EXPECT_EQ(o.warm_up, 3);
  EXPECT_FALSE(o.check);
  EXPECT_EQ(o.dtype, DType::f16);
  EXPECT_EQ(o.root, 1);
  EXPECT_EQ(parsed("collectives").collectives.names.size(), 11U);
  EXPECT_EQ(parsed("collectives -b 1K").collectives.max_bytes, 1024) << "one size";
  EXPECT_EQ(parsed("collectives -b 1k -e 4KiB -i 1K").collectives.step_bytes, 1024);
  expect_contains(usage_error("collectives broadcastt"), "broadcastt");
  expect_contains(usage_error("collectives -b 2M -e 1M"), "larger than -e");
  expect_contains(usage_error("collectives -b x"), "--minbytes: expected a size");
  expect_contains(usage_error("collectives alltoall sendrecv -o max"), "-o max: alltoall, sendrecv are no reduction");
  expect_contains(usage_error("collectives tree_all_reduce -d int32"), "tree_all_reduce: expected -o sum");
  EXPECT_EQ(parsed("collectives alltoall reduce -o max").collectives.op, ReduceOp::max);
  expect_contains(usage_error("collectives -b 2"), "one element");
  expect_contains(usage_error("collectives -f 2 -i 4"), "give one of them");
  expect_contains(usage_error("collectives -o prod"), "prod");
  EXPECT_EQ(parsed("collectives -o max -d int32").collectives.op, ReduceOp::max);
  EXPECT_EQ(parsed("collectives -d int32").collectives.dtype, DType::i32);
  EXPECT_EQ(parsed("collectives --counts 8,19,19,18").collectives.counts, (std::vector<int64_t>{8, 19, 19, 18}));
  EXPECT_EQ(parsed("collectives --counts 1,2").collectives.names, (std::vector<std::string>{"scatter", "gather"}));
  expect_contains(usage_error("collectives all_reduce --counts 1,2"), "the parts of all_reduce are equal");
  expect_contains(usage_error("collectives --counts 1,x"), "--counts: expected an integer from 0");
  expect_contains(usage_error("collectives --counts 1,2,"), "--counts: expected an integer from 0");
  expect_contains(usage_error("collectives --counts 0,0"), "all parts are empty");
  expect_contains(usage_error("collectives -f 1"), "stepfactor");
}

TEST(Options, SizesOfCollectivesAreLimitedAndEnd) {
  expect_contains(usage_error("collectives -b 8 -e 9223372036854775807"),
                  "--maxbytes: expected a size of at least 0 B and at most 1024.0 TiB");
  expect_contains(usage_error("collectives -b 1048577G"),
                  "at most 1024.0 TiB, such as 512MiB, 8G or 4096 (bytes), got '");
  expect_contains(usage_error("collectives -b 8 -e 64 -i 9223372036854775800"),
                  "--stepbytes: expected a size of at least 1 B and at most 1024.0 TiB");
  const auto sizes = [](const std::string& flags) {
    const CollectiveOptions o = parsed("collectives " + flags).collectives;
    std::vector<int64_t> all;
    for (int64_t bytes = o.min_bytes; bytes <= o.max_bytes && all.size() < 100; bytes = next_size(o, bytes))
      all.push_back(bytes);
    return all;
  };
  const int64_t most = int64_t{1} << 50;
  EXPECT_EQ(sizes("-b 8 -e 100 -f 3"), (std::vector<int64_t>{8, 24, 72}));
  EXPECT_EQ(sizes("-b 8 -e 12 -f 1.01"), (std::vector<int64_t>{8, 9, 10, 11, 12}));
  EXPECT_EQ(sizes("-b 8 -e 64 -i 28"), (std::vector<int64_t>{8, 36, 64}));
  EXPECT_EQ(sizes("-b 1048576G -f 1000000"), (std::vector<int64_t>{most}));
  EXPECT_EQ(sizes("-b 8 -e 1048576G -i 1048575G"), (std::vector<int64_t>{8, 8 + most - (int64_t{1} << 30)}));
}

TEST(Options, PrecisionDeterminesTheLossScale) {
  const auto precision = [](const std::string& text) { return resolve_precision(parsed("train " + text)); };
  EXPECT_EQ(precision("").compute, DType::f32);
  EXPECT_FALSE(precision("").checks());
  EXPECT_EQ(precision("--precision fp16").loss_scaling.kind, LossScaling::Kind::dynamic);
  EXPECT_EQ(precision("--precision fp16").loss_scaling.scale, 65536.0);
  EXPECT_EQ(precision("--precision fp16").loss_scaling.constants.growth_interval, 2000);
  EXPECT_EQ(precision("--precision fp16 --loss-scale none").loss_scaling.kind, LossScaling::Kind::none);
  EXPECT_EQ(precision("--precision bf16").loss_scaling.kind, LossScaling::Kind::none);
  EXPECT_EQ(precision("--loss-scale dynamic --loss-scale-growth-interval 5").loss_scaling.constants.growth_interval, 5);
  const LossScaling fixed = precision("--precision fp16 --loss-scale 128").loss_scaling;
  EXPECT_EQ(fixed.kind, LossScaling::Kind::fixed);
  EXPECT_EQ(fixed.scale, 128.0);
  EXPECT_EQ(precision("--clip-norm 0.5").clip_norm, 0.5);
  EXPECT_EQ(precision("--reduce-dtype f16").reduce_dtype, DType::f16);
}

TEST(Options, ComparesPrecisions) {
  const auto one = resolve_compare_precisions(parsed("compare --precision bf16"));
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(one[0].first, "");
  EXPECT_EQ(one[0].second.compute, DType::bf16);
  const auto three = resolve_compare_precisions(parsed("compare --precisions fp32,fp16:none,fp16 --clip-norm 1"));
  ASSERT_EQ(three.size(), 3U);
  EXPECT_EQ(three[1].first, "fp16:none");
  EXPECT_EQ(three[0].second.compute, DType::f32);
  EXPECT_FALSE(three[1].second.loss_scaling.active());
  EXPECT_EQ(three[2].second.loss_scaling.kind, LossScaling::Kind::dynamic);
  EXPECT_EQ(three[2].second.clip_norm, 1.0);
  expect_contains(usage_error("compare --precisions fp32,fp8"), "'fp8' is not fp32, fp16 or bf16");
  expect_contains(usage_error("compare --precisions fp32,fp32"), "twice");
  expect_contains(usage_error("compare --precisions fp16:x"), "--loss-scale x");
  expect_contains(usage_error("compare --precisions fp16 --precision fp16"), "leave out --precision");
  const auto growing = resolve_compare_precisions(
      parsed("compare --precisions fp32,fp16:none,fp16,bf16:dynamic --loss-scale-growth-interval 5"));
  ASSERT_EQ(growing.size(), 4U);
  EXPECT_FALSE(growing[1].second.loss_scaling.active());
  for (const size_t dynamic : {2, 3}) EXPECT_EQ(growing[dynamic].second.loss_scaling.constants.growth_interval, 5);
  expect_contains(usage_error("compare --precisions fp32,fp16:none,bf16 --loss-scale-growth-interval 5"),
                  "no loss scale of --precisions fp32,fp16:none,bf16 changes");
}

TEST(Options, RefusesInvalidPrecisions) {
  expect_contains(usage_error("train --precision fp8"), "fp8");
  for (const char* scale : {"0", "-2", "nan", "inf", "1e40", "1e-46", "1024x", "auto"}) {
    expect_contains(usage_error(std::string("train --loss-scale ") + scale), "must be none, dynamic or a number from");
  }
  expect_contains(usage_error("train --loss-scale-growth-interval 10"), "the loss scale does not change");
  for (const char* norm : {"0", "nan", "inf"})
    expect_contains(usage_error(std::string("train --clip-norm ") + norm), "--clip-norm: expected a number above 0");
  expect_contains(usage_error("train --reduce-dtype f64"), "f64");
}

LrScheduleConfig schedule_of(const std::string& flags, int64_t steps = 100, bool evaluates = true) {
  return resolve_schedule(parsed("train " + flags).schedule, steps, evaluates);
}

std::string schedule_error(const std::string& flags, bool evaluates = true) {
  return error_of<ConfigError>([&] { schedule_of(flags, 100, evaluates); });
}

TEST(Options, SchedulesSpanTheRun) {
  const LrScheduleConfig cosine = schedule_of("--lr-schedule cosine --warmup-steps 10 --lr-min 1e-5");
  EXPECT_EQ(cosine.total, 90);
  EXPECT_EQ(cosine.warmup_steps, 10);
  EXPECT_EQ(cosine.min_lr, 1e-5);
  const LrScheduleConfig cycle = schedule_of("--lr-schedule one-cycle --warmup-steps 10");
  EXPECT_EQ(cycle.total, 90);
  EXPECT_NO_THROW(LrSchedule(cycle, 0.1, 10));
  const LrScheduleConfig plateau = schedule_of("--lr-schedule plateau --lr-patience 2 --lr-metric accuracy");
  EXPECT_TRUE(plateau.plateau.maximize);
  EXPECT_EQ(plateau.plateau.patience, 2);
  EXPECT_EQ(plateau.plateau.factor, 0.1);
  EXPECT_EQ(plateau.plateau.eps, 1e-8);
  EXPECT_EQ(schedule_of("--lr-schedule plateau --lr-eps 0").plateau.eps, 0.0);
  EXPECT_EQ(schedule_of("--lr-schedule multi-step --lr-milestones 30,60").milestones, (std::vector<int64_t>{30, 60}));
  const LrScheduleConfig twice = schedule_of("--lr-schedule multi-step --lr-milestones 3,3");
  EXPECT_DOUBLE_EQ(LrSchedule(twice, 1.0, 1).at(3).lr, 0.01) << "as torch.optim.lr_scheduler.MultiStepLR";
}

TEST(Options, RangesAreCheckedUnderTheFlagsNames) {
  expect_contains(usage_error("train --lr-schedule plateau --lr-factor 1"),
                  "--lr-factor: expected a number above 0 and below 1, got '1'");
  expect_contains(usage_error("train --warmup-steps 2 --warmup-factor 0"),
                  "--warmup-factor: expected a number above 0 and at most 1, got '0'");
  expect_contains(usage_error("train --lr-schedule step --lr-gamma 0"),
                  "--lr-gamma: expected a number above 0 and at most 3.4e38, got '0'");
  expect_contains(usage_error("train --lr-schedule cosine --lr-min -1"),
                  "--lr-min: expected a number from 0 to 3.4e38, got '-1'");
  expect_contains(usage_error("train --lr-schedule plateau --lr-threshold nan"),
                  "--lr-threshold: expected a number from 0 to 3.4e38");
  expect_contains(usage_error("train --lr inf"), "--lr: expected a number from 0 to 3.4e38, got 'inf'");
  expect_contains(usage_error("train --momentum -0.5 --optimizer sgd"),
                  "--momentum: expected a number from 0 to 3.4e38");
  expect_contains(usage_error("train --weight-decay -1"), "--weight-decay: expected a number from 0 to 3.4e38");
  expect_contains(schedule_error("--lr-schedule multi-step --lr-milestones 60,30"),
                  "--lr-milestones 60,30: expected epochs in ascending order");
  EXPECT_EQ(schedule_of("--warmup-steps 2 --warmup-factor 1").warmup_start_factor, 1.0);
}

TEST(Options, SchedulesRefuseFlagsOfOtherSchedules) {
  expect_contains(schedule_error("--lr-gamma 0.5"), "--lr-gamma belongs to --lr-schedule step or multi-step");
  expect_contains(schedule_error("--lr-schedule multi-step"), "give them, for example --lr-milestones");
  expect_contains(schedule_error("--lr-schedule plateau", false), "watches the test set");
  expect_contains(schedule_error("--warmup-steps 100"), "fewer steps of warm-up");
  expect_contains(schedule_error("--warmup-factor 0.1"), "without warm-up");
  expect_contains(usage_error("train --lr-schedule linear"), "linear");
}

TEST(Options, ReadsEveryTrainingFlag) {
  const Options o = parsed(
      "train --model alexnet --data synthetic:100 --image-size 64 --preprocess host --devices cpu:0-2 --mode dp "
      "--split 2,3,3 --staging host "
      "--loss-at "
      "gathered --reduce gpu0 --output-device cpu:1 --batch-size 32 --accumulate 2 --epochs 3 --optimizer sgd --lr 0.1 "
      "--momentum 0.9 --nesterov "
      "--weight-decay 0.5 --seed 7 --no-shuffle --drop-last --dropout 0.25 --init-weights a --save b --device-memory "
      "1MiB,2MiB,4096 "
      "--threads-per-device 2 "
      "--json --trace c --no-eval");
  EXPECT_EQ(o.model, "alexnet");
  EXPECT_EQ(o.image_size, 64);
  EXPECT_TRUE(o.host_preprocess());
  EXPECT_EQ(*o.epochs, 3);
  EXPECT_FALSE(o.shuffle || o.evaluate);
  EXPECT_TRUE(o.drop_last && o.json && o.nesterov);
  EXPECT_EQ(*o.dropout, 0.25F);
  EXPECT_EQ(o.device_memory, (std::vector<int64_t>{1 << 20, 2 << 20, 4096}));
  EXPECT_EQ(o.threads_per_device, (std::vector<int>{2}));
  const Scheme scheme = resolve_scheme(o, resolve_devices(o, 0));
  EXPECT_EQ(scheme.split.str(), "2,3,3");
  EXPECT_EQ(scheme.staging, Staging::host);
  EXPECT_EQ(scheme.loss_at, LossAt::gathered);
  EXPECT_EQ(scheme.reduce, ReducerKind::gpu0);
  EXPECT_EQ(scheme.output_device, 1);
  EXPECT_EQ(resolve_optimizer(o).sgd.weight_decay, 0.5);
}

TEST(Options, SingleAxesOverrideTheMode) {
  const Scheme scheme = resolve_scheme(parsed("train --mode dp --reduce allreduce"), cpu_devices(2));
  EXPECT_EQ(scheme.staging, Staging::device0);
  EXPECT_EQ(scheme.loss_at, LossAt::gathered);
  EXPECT_EQ(scheme.reduce, ReducerKind::allreduce);
}

TEST(Options, AliasesHaveTheirMeaning) {
  const Options o = parsed("train --gpu0-bsz 4 --acc-grad 2");
  EXPECT_EQ(o.accumulate, 2);
  EXPECT_EQ(o.mode_name(), "balanced");
  const Scheme scheme = resolve_scheme(o, cpu_devices(3));
  EXPECT_EQ(scheme.split.str(), "gpu0=4");
  EXPECT_EQ(scheme.staging, Staging::device0);
  EXPECT_EQ(scheme.reduce, ReducerKind::gpu0);
  EXPECT_EQ(resolve_scheme(parsed("train --mode balanced --gpu0-bsz 0"), cpu_devices(3)).split.str(), "gpu0=0");
}

TEST(Options, UnknownFlagSuggestsTheNearest) {
  expect_contains(usage_error("train --epoch 3"), "did you mean --epochs?");
  expect_contains(usage_error("train --epoch 3"), "Try 'vitrine train --help'");
  expect_contains(usage_error("train --modle mlp"), "did you mean --model?");
  expect_contains(usage_error("train --batch 3"), "did you mean --batch-size or --batch-norm or --batch-norm-leaves?");
  expect_contains(usage_error("train --batch_size 3"), "did you mean --batch-size?");
  expect_contains(usage_error("train --gpus 2"), "there is no option --gpus");
  expect_contains(usage_error("train --beta1 0.9"), "; use --adam-betas B1,B2");
  expect_contains(usage_error("train -model mlp"), "did you mean --model?");
  expect_contains(usage_error("train --weigth-decay 1"), "did you mean --weight-decay?");
  for (const char* unknown : {"train --xyz 1", "train --cat", "train --gpus 2", "eval --weights w --accelerator gpu"}) {
    expect_lacks(usage_error(unknown), "did you mean");
  }
  expect_contains(usage_error("eval --weights w --epochs 3"),
                  "there is no option --epochs here; it is one of vitrine train, plan");
  expect_contains(usage_error("train --precision float16"), "did you mean fp16?");
  expect_contains(usage_error("compare --precision bfloat16"), "did you mean bf16?");
  expect_contains(usage_error("verify a b"), "options, such as --a and --b");
  expect_contains(usage_error("train --devices 4"), "for 4 devices write cpu:0-3 or cuda:0-3");
  expect_contains(usage_error("train --model small-cn"), "did you mean small-cnn?");
  expect_lacks(usage_error("plan --mode ezor1"), "did you mean");  // two exchanges in five letters are another word
  expect_contains(usage_error("train small-cnn"),
                  "unexpected argument 'small-cnn': a model is chosen by its flag: --model small-cnn");
  expect_contains(usage_error("train --fp16"), "; use --precision fp16");
  expect_contains(usage_error("trian"), "there is no command 'trian'; did you mean train?");
  expect_contains(usage_error("--model mlp"), "expected a command before --model");
  expect_contains(usage_error(""), "expected a command: train, plan");
  expect_contains(usage_error("train --learning-rate 1"), "; use --lr");
  expect_contains(usage_error("train --gradient_accumulation_steps 2"), "; use --accumulate");
  expect_contains(usage_error("train --max-grad-norm 1"), "; use --clip-norm");
  expect_contains(usage_error("train --gradient-checkpointing"), "; use --recompute auto");
  expect_contains(usage_error("train --per-device-train-batch-size 8"), "--batch-size (the samples of all devices");
  expect_contains(usage_error("train --nproc_per_node 2"), "; use --devices", "give it to torchrun");
  expect_contains(usage_error("train --zero-stage 3"), "; use --mode zero1, zero2 or zero3");
  expect_contains(usage_error("train --sharding-strategy FULL_SHARD"), "; use --mode zero2 or zero3");
  expect_contains(usage_error("train --dtype bf16"), "; use --precision");
  expect_contains(usage_error("train --output-dir x"), "; use --checkpoint-dir");
  expect_contains(usage_error("train --sync-bn"), "; use --batch-norm exact, the default");
  expect_contains(usage_error("train --devices gpu:0"), "--devices: ", "GPUs are called cuda");
}

TEST(Options, RefusesContradictions) {
  expect_contains(usage_error("train --epochs 1 --steps 2"), "--epochs and --steps");
  expect_contains(usage_error("train --gpu0-bsz 65"), "--gpu0-bsz 65: it is more than --batch-size 64");
  expect_contains(usage_error("train --gpu0-bsz 4 --mode dp"), "leave --mode out");
  expect_contains(usage_error("train --gpu0-bsz 4 --mode ddp"), "leave --mode out");
  expect_contains(usage_error("train --gpu0-bsz 4 --split gpu0=4"), "--gpu0-bsz and --split");
  expect_contains(usage_error("train --nesterov --optimizer sgd"), "nesterov needs a momentum");
  expect_contains(usage_error("train --momentum 0.9"), "adamw has no momentum; omit --momentum, or use");
  expect_contains(usage_error("train --batch-size 4 --accumulate 5"), "micro-batches");
  expect_contains(usage_error("train --trace a.json --trace-level off"), "--trace-level");
}

TEST(Options, RecomputeSegmentsAreANumberSqrtOrAuto) {
  EXPECT_EQ(parsed("train --recompute-segments 3").recompute_segments, "3");
  EXPECT_EQ(parsed("compare --recompute-segments sqrt").recompute_segments, "sqrt");
  EXPECT_TRUE(parsed("plan --recompute-segments auto").choices.recompute_segments);
  EXPECT_FALSE(parsed("plan --recompute-segments auto --recompute-segments 2").choices.recompute_segments);
  for (const char* value : {"0", "-1", "1.5", "x"})
    expect_contains(usage_error(std::string("train --recompute-segments ") + value), value);
  expect_contains(usage_error("compare --recompute-segments auto"), " or sqrt, got 'auto'");
}

TEST(Options, RecomputeNamesPartsOrIsAuto) {
  const Options parts = parsed("train --recompute conv1-layer1.0,fc");
  EXPECT_EQ(parse_recompute(parts.recompute), (std::vector<std::string>{"conv1-layer1.0", "fc"}));
  EXPECT_FALSE(parts.choices.any());
  EXPECT_TRUE(parse_recompute(parsed("train").recompute).empty());
  EXPECT_TRUE(parsed("plan --recompute auto").choices.recompute);
  EXPECT_TRUE(parsed("plan --frontier").frontier);
  expect_contains(usage_error("train --recompute conv1,,fc"), "a name is empty");
  expect_contains(usage_error("train --recompute conv1,"), "a name is empty");
  expect_contains(usage_error("train --recompute conv1 --recompute-segments 2"), "give one of them");
  expect_contains(usage_error("train --recompute auto --recompute-segments sqrt"), "give one of them");
  expect_contains(usage_error("train --recompute auto --batch-size max"), "--recompute auto with --batch-size max");
  expect_contains(usage_error("plan --recompute auto --split auto"), "--recompute auto with --split auto");
}

TEST(Options, WeightsAndRendezvousHaveSeparateFlags) {
  const Options o = parsed("train --init-weights w.safetensors --rendezvous tcp://a:1");
  EXPECT_EQ(o.init_weights, "w.safetensors");
  EXPECT_EQ(o.rendezvous, "tcp://a:1");
  EXPECT_EQ(parsed("eval --weights w --rendezvous file:p").rendezvous, "file:p");
  EXPECT_EQ(parsed("collectives --rendezvous file:p").rendezvous, "file:p");
}

TEST(Options, RefusesValuesOutOfRange) {
  for (const char* arguments : {"--batch-size 0",
                                "--batch-size x",
                                "--accumulate 0",
                                "--epochs 0",
                                "--steps 0",
                                "--dropout 1",
                                "--dropout -0.5",
                                "--model vgg",
                                "--loss-gradient beside",
                                "--batch-norm global",
                                "--mode zero4",
                                "--split a",
                                "--device-memory 12Q",
                                "--device-memory 0",
                                "--threads-per-device 0",
                                "--threads-per-device 1,x",
                                "--preprocess gpu",
                                "--seed -1",
                                "--lr -1",
                                "--optimizer lion",
                                "--workers 0"}) {
    EXPECT_FALSE(usage_error(std::string("train ") + arguments).empty()) << arguments;
  }
  expect_contains(usage_error("eval"), "--weights");
}

TEST(Options, ValuesOutOfRangeAreReportedWithTheExpectedRange) {
  expect_contains(usage_error("train --steps -1"), "--steps: expected an integer from 1 to 1099511627776, got '-1'");
  expect_contains(usage_error("train --epochs 1.5"), "got '1.5'");
  expect_contains(usage_error("train --lr abc"), "--lr: expected a number from 0 to 3.4e38, got 'abc'");
  expect_contains(usage_error("train --seed -3"),
                  "--seed: expected an integer from 0 to 9223372036854775807, got '-3'");
  expect_contains(usage_error("train --image-size 4000000000"), "from 1 to 65536");
  expect_contains(usage_error("train --bucket-mb 0"), "--bucket-mb: expected a number from 1e-06 to 1000000, got '0'");
}

TEST(Options, AcceptEveryTextOrRefuseItInAShortMessage) {
  const std::string longest(5000, 'x');
  std::vector<std::string> texts = split_text(
      "-0|+1|007|1e-50|-1e999|0x10| 1|1.|9223372036854775808|99999999999999999999|nan|inf||,|1,,2|1,-0|--|\x1b[31m",
      '|');
  for (const std::string& text : {longest, longest + ",x", "x:" + longest, longest + " " + longest})
    texts.push_back(text);
  for (const SettingRow& row : setting_table()) {
    const auto command = std::ranges::find_if(
        command_table(), [&](const CommandRow& c) { return (row.commands & only(c.command)) != 0; });
    if (command == command_table().end()) continue;  // a value without a flag
    const std::string name = row.flag.substr(0, row.flag.find(','));
    for (const std::string& text : texts) {
      const std::string shown = fmt::format("{} {} '{:.40}'", command->name, name, text);
      std::vector<std::string> arguments = {command->name, text};
      if (name.starts_with('-')) arguments.insert(arguments.begin() + 1, name);
      CommandLine line;
      ASSERT_NO_THROW(line = parse_command_line(arguments)) << shown;
      EXPECT_LT(line.error.size(), 1000U) << shown << ": " << line.error.substr(0, 2000);
      expect_lacks(line.error, "00000000000", "\x1b");
    }
  }
  EXPECT_EQ(parsed("train --seed -0").seed, 0U);
  EXPECT_FALSE(std::signbit(parsed("train --lr -0").lr.value()));
}

TEST(Options, StepsToRecordCountFromOne) {
  EXPECT_EQ(parse_step_range("2-4").first_step, 1);
  EXPECT_EQ(parse_step_range("2-4").last_step, 3);
  EXPECT_EQ(parse_step_range("7").first_step, 6);
  EXPECT_EQ(parse_step_range("7").last_step, 6);
  for (const char* wrong : {"", "0", "4-2", "2-", "-3", "a", "2-4x", "2-x", "1,2", "2--4", "2-3-4"})
    EXPECT_THROW(parse_step_range(wrong), ConfigError) << wrong;
  EXPECT_EQ(parse_command_line({"train", "--record-steps", "2-4"}).exit_code, kExitUsage);
  EXPECT_EQ(parse_command_line({"train", "--record-steps", "0", "--report", "r.html"}).exit_code, kExitUsage);
  EXPECT_EQ(parse_command_line({"train", "--report", "r.html", "--trace-level", "off"}).exit_code, kExitUsage);
  EXPECT_TRUE(
      parse_command_line({"train", "--record-steps", "5-6", "--memory-history", "m.json", "--trace-level", "off"})
          .options.has_value());
}

TEST(Options, SchemeMustFitTheDevices) {
  const auto refuses = [](const char* arguments, int devices) {
    EXPECT_THROW(resolve_scheme(parsed(arguments), cpu_devices(devices)), ConfigError) << arguments;
  };
  refuses("train --split 2,3", 3);
  refuses("train --mode balanced", 2);
  refuses("train --mode dp --output-device cpu:2", 2);
  refuses("train --mode dp --output-device nonsense", 2);
  refuses("train --mode ddp --output-device cpu:1", 2);
}

TEST(Options, CompareGivesBalancedHalfAnEqualShareWithANote) {
  std::vector<std::string> notes;
  const auto schemes = resolve_compare_schemes(parsed("compare --batch-size 60"), cpu_devices(3), notes);
  ASSERT_EQ(schemes.size(), 4U);
  EXPECT_EQ(schemes[1].first, "balanced");
  EXPECT_EQ(schemes[1].second.split.str(), "gpu0=10");
  ASSERT_EQ(notes.size(), 1U);
  expect_contains(notes[0], "10 of 60");
}

TEST(Options, ModeAutoChoosesAlone) {
  EXPECT_TRUE(parsed("train --mode auto").choices.mode);
  expect_contains(usage_error("train --mode auto --batch-size max"), "give the other settings values");
  expect_contains(usage_error("plan --mode auto --shard optimizer"), "--mode auto: it chooses what");
}

TEST(Options, FsdpMeansZero3) {
  std::vector<std::string> notes;
  EXPECT_EQ(parsed("train --mode fsdp").mode_name(), "zero3");
  EXPECT_EQ(resolve_compare_schemes(parsed("compare --modes ddp,fsdp"), cpu_devices(2), notes)[1].first, "zero3");
  EXPECT_THROW(resolve_compare_schemes(parsed("compare --modes zero3,fsdp"), cpu_devices(2), notes), ConfigError);
}

TEST(Options, CompareAcceptsAShareAndWeights) {
  std::vector<std::string> notes;
  auto schemes = resolve_compare_schemes(parsed("compare --modes balanced,dp --split gpu0=3"), cpu_devices(2), notes);
  EXPECT_EQ(schemes[0].second.split.str(), "gpu0=3");
  EXPECT_EQ(schemes[1].second.split.str(), "equal");
  EXPECT_TRUE(notes.empty());
  schemes = resolve_compare_schemes(parsed("compare --modes ddp --split 1,3"), cpu_devices(2), notes);
  EXPECT_EQ(schemes[0].second.split.str(), "1,3");
  EXPECT_THROW(resolve_compare_schemes(parsed("compare --modes dp,dp"), cpu_devices(2), notes), ConfigError);
  expect_contains(usage_error("compare --modes dp,x"),
                  "--modes: expected dp, balanced, criterion, ddp, zero1, zero2, zero3, got 'x'");
}

TEST(Options, NumbersHaveNoPlusSign) {
  for (const char* line :
       {"train --batch-size", "eval --batch-size", "train --epochs", "train --lr", "train --ema", "compare --steps"}) {
    expect_contains(usage_error(std::string(line) + " +1"), "+1");
  }
  EXPECT_EQ(parsed("train --lr 1e+1").lr, 10.0);
}

TEST(Options, ListsRefuseEmptyItems) {
  expect_contains(usage_error("compare --modes ddp,"),
                  "--modes: expected dp, balanced, criterion, ddp, zero1, zero2, zero3, got ''");
  expect_contains(usage_error("train --threads-per-device 2,"), "--threads-per-device: expected an integer");
  EXPECT_EQ(parsed("train --threads-per-device 1024").threads_per_device, (std::vector<int>{1024}));
  expect_contains(usage_error("train --threads-per-device 2,100000"), "from 1 to 1024, got '100000'");
  expect_contains(usage_error("train --device-memory 1GiB,,1GiB"), "--device-memory: expected a size");
  expect_contains(usage_error("train --lr-milestones 3,,5"), "--lr-milestones: expected an integer");
  expect_contains(usage_error("compare --precisions fp32,"), "'' is not fp32, fp16 or bf16");
}

TEST(Options, SizesHaveTheSameUnitsEverywhere) {
  for (const auto& [text, bytes] : {std::pair{"8G", int64_t{8} << 30},
                                    {"8GiB", int64_t{8} << 30},
                                    {"8GB", int64_t{8'000'000'000}},
                                    {"512MiB", int64_t{512} << 20},
                                    {"64k", int64_t{64} << 10},
                                    {"4096", int64_t{4096}}}) {
    EXPECT_EQ(parsed(std::string("train --device-memory ") + text).device_memory, std::vector<int64_t>{bytes}) << text;
    EXPECT_EQ(parsed(std::string("plan --workspace ") + text).workspace, bytes) << text;
    EXPECT_EQ(parsed(std::string("collectives -b ") + text).collectives.min_bytes, bytes) << text;
  }
}

TEST(Warnings, ReportFileNamesWithAWrongEnding) {
  const auto warnings = [](const std::string& text) { return file_warnings(parsed("train " + text)); };
  ASSERT_EQ(warnings("--save x.pt").size(), 1U);
  expect_contains(warnings("--save x.pt")[0], "--save x.pt");
  expect_contains(warnings("--save x.pt")[0], "name it x.safetensors");
  EXPECT_EQ(warnings("--save a.b/x --report r.html --trace t.json --memory-history m.json").size(), 0U);
  EXPECT_EQ(warnings("--report r.pdf --trace t.txt --memory-history m.pickle").size(), 3U);
  EXPECT_EQ(file_warnings(parsed("eval --weights w --save-logits l.csv")).size(), 1U);
}

TEST(Options, HelpIsNotAnError) {
  for (const char* arguments : {"--help", "train --help", "eval --help", "compare --help", "lab --help", "info --help",
                                "--version", "help", "help train", "version", "man", "completion bash"}) {
    const CommandLine line = parse_command_line(words(arguments));
    EXPECT_FALSE(line.options.has_value());
    EXPECT_EQ(line.exit_code, kExitOk);
    EXPECT_FALSE(line.output.empty());
    EXPECT_TRUE(line.error.empty());
  }
  const std::string train = parse_command_line({"train", "--help"}).output;
  expect_contains(train, "--gpu0-bsz");
  EXPECT_EQ(parse_command_line({"help", "train"}).output, train);
  EXPECT_EQ(parse_command_line({"version"}).output, parse_command_line({"--version"}).output);
  expect_contains(parse_command_line({"help", "trian"}).error, "did you mean train?");
  expect_contains(parse_command_line({"completion", "tcsh"}).error, "completion: expected bash");
}

TEST(Options, HelpShowsTheExamplesOfItsCommandAndFitsTheTerminal) {
  const auto help = [](const char* columns) {
    setenv("COLUMNS", columns, 1);
    const std::string text = parse_command_line({"plan", "--help"}).output;
    unsetenv("COLUMNS");
    return text;
  };
  expect_contains(help("80"), "\n  vitrine plan ");
  expect_lacks(help("80"), "\n  vitrine train ");
  EXPECT_LE(longest_line(help("80")), 80U);
  EXPECT_LE(longest_line(help("100")), 100U);
  expect_contains(help(""), "  --optimizer sgd|adam|adamw");
}

}  // namespace
}  // namespace vitrine::tools
