// SPDX-License-Identifier: Apache-2.0
// vitrine train --resume: other directories, other settings, other data than the checkpoint's.
#include <algorithm>
#include <chrono>
#include <csignal>
#include <iterator>
#include <sstream>
#include <thread>

#include <nlohmann/json.hpp>
#include <sys/resource.h>

#include "tests/support/expect_contains.h"
#include "tests/tools/checkpoint_program.h"

namespace vitrine::test {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

TEST_F(Checkpoints, ADirectoryOfAnotherRunIsRefused) {
  for (const std::string name : {"a", "b"}) ASSERT_FALSE(json(short_run() + into(name)).is_null());
  take("a", 20, "start");
  const auto continued = [&](const std::string& name) {
    return run(short_run() + into(name) + words("--resume {} --keep-last 1", path("start")));
  };
  const ChildResult newer = continued("b");
  EXPECT_EQ(newer.exit_code, 1);
  expect_contains(newer.error, "--checkpoint-dir " + path("b") + ": step-00000030 belongs to run ");
  EXPECT_EQ(names(path("b")), (std::vector<std::string>{"step-00000010", "step-00000020", "step-00000030"}));
  // Older ones belong to the other run, too.
  take("b", 10, "older");
  const ChildResult older = continued("older");
  EXPECT_EQ(older.exit_code, 1);
  expect_contains(older.error, "--checkpoint-dir " + path("older") + ": step-00000010 belongs to run ");
  // The next --resume auto would choose a newer one of the same run.
  take("a", 30, "ahead");
  const ChildResult ahead = continued("ahead");
  EXPECT_EQ(ahead.exit_code, 1);
  expect_contains(ahead.error,
                  path("ahead") + " has a newer checkpoint, step-00000030; continue from that one with --resume auto");
  take("a", 10, "own");
  const ChildResult own = continued("own");
  EXPECT_EQ(own.exit_code, 0) << own.error;
  EXPECT_EQ(names(path("own")), std::vector<std::string>{"step-00000030"});
}

TEST_F(Checkpoints, SettingsOfAnotherVersionAreReported) {
  ASSERT_FALSE(json(short_run() + into("run")).is_null());
  take("run", 20, "newer");
  change_state(path("newer") + step(20), [](auto& state) {
    state["version"] = "99.0.0";
    state["settings"]["stochastic-depth"] = "0.3";
  });
  const Arguments resume = words("--resume {}", path("newer") + step(20));
  const ChildResult refused = run(short_run() + resume);
  EXPECT_EQ(refused.exit_code, 2) << refused.error;
  expect_contains(refused.error, "--stochastic-depth is not set, in the checkpoint 0.3");
  // A state that this version cannot read.
  change_state(path("newer") + step(20), [](auto& state) { state.erase("epoch_so_far"); });
  const ChildResult unreadable = run(short_run() + resume);
  EXPECT_EQ(unreadable.exit_code, 1) << unreadable.error;
  expect_contains(unreadable.error, "version 99.0.0 wrote the checkpoint, which this version (");
}

TEST_F(Checkpoints, OfExactRunsKeepTheirInstructionSet) {
  const Arguments job =
      words("train --model mlp --image-size 8 --data synthetic:60 --batch-size 20 --devices cpu:0 --steps 2");
  for (const bool exact : {true, false}) {
    const Arguments run_of = job + words(exact ? "--exact" : "--threads-per-device 1");
    const std::string folder = exact ? "exact" : "rounded";
    ASSERT_FALSE(json(run_of + into(folder)).is_null());
    ChildProcess child(words("env ONEDNN_MAX_CPU_ISA=SSE41 {}", program_path("vitrine")) + run_of +
                       words("--resume {} --steps 3", path(folder)));
    const ChildResult result = child.wait();
    EXPECT_EQ(result.exit_code, exact ? 2 : 0) << result.error;
    expect_contains(result.error, "cpu_arithmetic is oneDNN ", "(SSE41; f32)",
                    exact ? "This changes results" : "results differ by rounding");
  }
}

TEST_F(Checkpoints, OfVersion060ContinueWithoutAWord) {
  const Arguments job = words(
      "train --model mlp --image-size 8 --data synthetic:60 --batch-size 20 --devices cpu:0-1 --threads-per-device 1 "
      "--mode dp");
  ASSERT_FALSE(json(job + into("run") + words("--steps 2")).is_null());
  change_state(path("run") + step(2), [](auto& state) {
    state["settings"].erase("cpu_arithmetic");
    state["settings"]["mode"] = "staging device0, loss gathered, reduce gpu0";
  });
  const ChildResult result = run(job + words("--steps 2 --resume {}", path("run")));
  EXPECT_EQ(result.exit_code, 0) << result.error;
  expect_lacks(result.error, "rounding");
}

/// In exact mode the workspace decides algorithms, so it belongs to the run; its planned size does not.
TEST_F(Checkpoints, OfExactRunsKeepTheirWorkspace) {
  const Arguments job =
      words("train --model mlp --image-size 8 --data synthetic:60 --batch-size 20 --exact --devices cpu:0 --steps 2");
  ASSERT_FALSE(json(job + into("run")).is_null());
  const Arguments resume = words("--resume {}", path("run") + step(2));
  const Arguments longer =
      words("train --model mlp --image-size 8 --data synthetic:60 --batch-size 20 --exact --devices cpu:0-1 --steps 3");
  EXPECT_EQ(run(longer + resume).exit_code, 0);
  for (const std::string more : {"--workspace 2MiB", "--preprocess host"}) {
    const ChildResult refused = run(longer + resume + words(more));
    EXPECT_EQ(refused.exit_code, 2) << refused.error;
    expect_contains(refused.error, more.substr(0, more.find(' ')) + " is ",
                    "This changes results; use the checkpoint's settings, or start a new run from its weights");
  }
}

// Checkpoints continue as long as names and values stay the same.
TEST_F(Checkpoints, RecordedSettingsKeepTheirNamesAndValues) {
  const auto recorded = [&](const std::string& name, const std::string& flags) {
    std::istringstream words(
        "train --model mlp --image-size 8 --data synthetic:60 --batch-size 20 --threads-per-device 1 " + flags);
    const Arguments arguments{std::istream_iterator<std::string>(words), {}};
    EXPECT_FALSE(json(arguments + into(name)).is_null());
    const auto checkpoint = nlohmann::ordered_json::parse(content(path(name) + step(1) + "/state.json"));
    std::string settings;
    for (const auto& [key, value] : checkpoint["state"]["settings"].items()) {
      if (key != "data" && key != "workspace" && key != "cpu_arithmetic")
        settings += key + "=" + value.get<std::string>() + "; ";  // these depend on the build
    }
    return settings;
  };
  EXPECT_EQ(recorded("defaults", "--devices cpu:0 --steps 1"),
            "model=mlp, 10 classes; image-size=8; sequence-length=0; val-split=; preprocess=device; normalize=; "
            "devices=1 cpu; "
            "threads-per-device=1; tf32=off; winograd=; nccl-defaults=off; "
            "mode=staging host, loss parallel, reduce allreduce; split=equal; update-in-backward=off; bucket-mb=25; "
            "first-bucket-mb=1; batch-size=20; accumulate=1; cuda-graph=on; recompute-segments=1; "
            "recompute=; batch-norm=; exact=off; leaves=; leaf-threads=; batch-norm-leaves=; "
            "optimizer=adamw; "
            "lr=0.001; momentum=; nesterov=; adam-betas=; "
            "adam-eps=; weight-decay=0.01; "
            "augment=; label-smoothing=0; no-decay=; param-group=; ema=; dropout=; seed=0; shuffle=on; "
            "drop-last=off; freeze=; epochs=; steps=1; autotune=off; precision=fp32; loss-scale=none; "
            "loss-scale-growth-interval=; clip-norm=; allow-non-finite=off; reduce-dtype=f32; "
            "processes=1; lr-schedule=constant; lr-step-size=; lr-milestones=; lr-gamma=; lr-min=; "
            "lr-patience=; lr-factor=; lr-threshold=; lr-cooldown=; lr-eps=; lr-metric=; warmup-steps=0; "
            "warmup-factor=; ");
  EXPECT_EQ(
      recorded(
          "changed",
          "--devices cpu:0-1 --mode dp --accumulate 2 --recompute-segments 2 --drop-last --no-shuffle "
          "--seed 9007199254740993 --optimizer sgd --lr 0.05 --momentum 0.9 --nesterov --weight-decay 1e-4 "
          "--no-decay biases --ema 0.9 --lr-schedule step --lr-gamma 0.5 --warmup-steps 2 --precision fp16 "
          "--loss-scale-growth-interval 7 --clip-norm 1.5 --allow-non-finite --reduce-dtype f16 --checkpoint-every 1"),
      "model=mlp, 10 classes; image-size=8; sequence-length=0; val-split=; preprocess=device; normalize=; devices=2 "
      "cpu; "
      "threads-per-device=1; tf32=off; winograd=; nccl-defaults=off; "
      "mode=staging device0, loss gathered, reduce device0; split=equal; update-in-backward=off; bucket-mb=25; "
      "first-bucket-mb=1; batch-size=20; accumulate=2; cuda-graph=on; recompute-segments=2; "
      "recompute=; batch-norm=; exact=off; leaves=; leaf-threads=; batch-norm-leaves=; "
      "optimizer=sgd; lr=0.05; "
      "momentum=0.9; nesterov=on; adam-betas=; adam-eps=; "
      "weight-decay=0.0001; augment=; label-smoothing=0; no-decay=biases; param-group=; ema=0.9; "
      "dropout=; seed=9007199254740993; shuffle=off; drop-last=on; freeze=; epochs=1; steps=; autotune=off; "
      "precision=fp16; loss-scale=dynamic; loss-scale-growth-interval=7; clip-norm=1.5; "
      "allow-non-finite=on; reduce-dtype=f16; processes=1; lr-schedule=step; "
      "lr-step-size=30; lr-milestones=; lr-gamma=0.5; lr-min=; lr-patience=; lr-factor=; "
      "lr-threshold=; lr-cooldown=; lr-eps=; lr-metric=; warmup-steps=2; warmup-factor=0.3333333333333333; ");
}

TEST_F(Checkpoints, EqualSettingsWithOtherTextContinue) {
  const Arguments base = short_run() + words("--lr-schedule step");
  const Arguments first =
      base + words("--augment flip,crop:2 --no-decay norms,biases --param-group classifier.*:lr=0.01");
  ASSERT_FALSE(json(first + into("run") + words("--checkpoint-every 20")).is_null());
  const Arguments resume = words("--resume {}", path("run") + step(20));
  const ChildResult same = run(base + resume +
                               words("--augment crop:2,flip --no-decay biases,norms,biases --param-group "
                                     "classifier.*:lr=1e-2 --lr-step-size 30 --lr-gamma 0.10"));
  EXPECT_EQ(same.exit_code, 0) << same.error;
  expect_lacks(same.error, ", in the checkpoint ");
  const ChildResult other = run(first + resume + words("--lr-gamma 0.2"));
  EXPECT_EQ(other.exit_code, 0) << other.error;
  expect_contains(other.error, "--lr-gamma is 0.2, in the checkpoint 0.1: in force from here on");
  // The parts of the schedule come and go with it.
  Arguments constant = first;
  *(std::find(constant.begin(), constant.end(), "--lr-schedule") + 1) = "constant";
  const ChildResult changed = run(constant + resume);
  EXPECT_EQ(changed.exit_code, 0) << changed.error;
}

TEST_F(Checkpoints, FiguresAreWholeWhenStepsBecomeEpochsAndBack) {
  Arguments base = short_run();
  base.resize(base.size() - 2);  // without --epochs
  const Json epochs = json(base + into("epochs") + words("--epochs 3 --checkpoint-every 14"));
  const Json steps = json(base + words("--steps 30"));
  const auto expect_equal = [](const Json& a, const Json& b) {
    for (const char* figure : {"epoch", "train_loss", "samples", "steps", "interrupted"})
      EXPECT_EQ(a[figure], b[figure]) << figure;
  };
  ASSERT_FALSE(json(base + into("steps") + words("--steps 14")).is_null());
  const Json to_epochs = json(base + into("steps") + words("--epochs 3 --resume auto"));
  ASSERT_EQ(to_epochs["epochs"].size(), 2U);
  for (const size_t e : {0, 1}) expect_equal(to_epochs["epochs"][e], epochs["epochs"][e + 1]);
  const Json to_steps = json(base + words("--steps 30 --resume {}", path("epochs") + step(14)));
  ASSERT_EQ(to_steps["epochs"].size(), 1U);
  expect_equal(to_steps["epochs"][0], steps["epochs"][0]);
}

TEST_F(Checkpoints, TheLinkToTheBestOneNeverDangles) {
  // The first epoch stays the best one where no parameter changes.
  const Arguments base = short_run() + into("run") + words("--lr 0 --keep-last 1 --checkpoint-every 5");
  ASSERT_FALSE(json(base + words("--keep-best")).is_null());
  EXPECT_EQ(names(path("run")), (std::vector<std::string>{"best", "step-00000010", "step-00000030"}));
  // The run goes on without --keep-best.
  Arguments longer = base + words("--resume auto");
  *(std::find(longer.begin(), longer.end(), "--epochs") + 1) = "4";
  ASSERT_FALSE(json(longer).is_null());
  EXPECT_EQ(names(path("run")), (std::vector<std::string>{"best", "step-00000010", "step-00000040"}));
  EXPECT_NO_THROW(read_checkpoint(path("run/best")));
}

TEST_F(Checkpoints, AnEpochWhoseSaveFailsIsNotTheBestOne) {
  // As on a full disk, until the test makes room; all epochs have the same accuracy.
  Arguments command = {"bash", "-c", "trap '' XFSZ; ulimit -S -f 400; exec \"$@\"", "bash"};
  Arguments endless = short_run() + into("run") + words("--lr 0 --keep-best --checkpoint-every 1000000000");
  *(std::find(endless.begin(), endless.end(), "--epochs") + 1) = "1000000";
  ChildProcess child(command + vitrine_command(endless));
  ASSERT_TRUE(child.wait_for("step-00000010 is not saved"));
  rlimit limit{};
  ASSERT_EQ(prlimit(child.pid(), RLIMIT_FSIZE, nullptr, &limit), 0);
  limit.rlim_cur = limit.rlim_max;
  ASSERT_EQ(prlimit(child.pid(), RLIMIT_FSIZE, &limit, nullptr), 0);
  for (int i = 0; i < 1000 && !fs::exists(path("run/best")); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_NO_THROW(read_checkpoint(path("run/best")));
  child.send_signal(SIGTERM);
  EXPECT_EQ(child.wait().exit_code, 1);  // some could not be saved
}

}  // namespace
}  // namespace vitrine::test
