// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include "nn/checkpoint.h"
#include "tests/tools/checkpoint_runs.h"

namespace vitrine::test {

/// Runs that save after each step are killed with SIGKILL at random instants and started again, until they end.
class CheckpointKills : public CheckpointRuns {
 protected:
  /// After every kill the newest whole checkpoint is at least as new as before, and no newer one is broken; every run
  /// ends with the bits of the one that was never killed.
  void survive(int kills, uint32_t seed) {
    std::mt19937 random(seed);
    const std::vector<Arguments> variants = {
        words("--devices cpu:0-1 --mode dp --optimizer adamw --lr-schedule cosine"),
        words("--precision fp16 --loss-scale-growth-interval 4 --optimizer sgd --momentum 0.9 --lr-schedule plateau")};
    std::vector<std::chrono::microseconds> durations;
    for (size_t v = 0; v < variants.size(); ++v) {
      const auto begin = std::chrono::steady_clock::now();
      run(variants[v], "reference" + std::to_string(v), {}).wait_for_exit();
      durations.push_back(
          std::chrono::duration_cast<std::chrono::microseconds>(std::chrono::steady_clock::now() - begin));
    }
    int done = 0;
    for (size_t round = 0; done < kills && !HasFailure(); ++round) {
      const size_t v = round % variants.size();
      const std::string name = "run" + std::to_string(round);
      int64_t newest = -1;
      for (bool ended = false; !ended && !HasFailure();) {
        Child child = run(variants[v], name, words("--resume auto"));
        // Within the time of a whole run; once enough have been killed, runs end by themselves.
        const bool kill =
            done < kills &&
            child.survives(std::chrono::microseconds(random() % static_cast<uint32_t>(durations[v].count())));
        if (kill) {
          child.kill();
          ++done;
        } else {
          child.wait_for_exit();
          ended = true;
        }
        expect_nothing_lost(path(name), newest);
      }
      const std::string reference = path("reference" + std::to_string(v));
      expect_same_tensors(path(name) + "/step-00000030", reference + "/step-00000030");
      expect_same_file(path(name) + ".safetensors", reference + ".safetensors");
      std::filesystem::remove_all(path(name));
    }
    EXPECT_EQ(done, kills);
  }

 private:
  class Child {
   public:
    explicit Child(const Arguments& arguments) : process_(vitrine_command(arguments)) {}
    /// False if the process ended within that time.
    bool survives(std::chrono::microseconds time) {
      const auto end = std::chrono::steady_clock::now() + time;
      for (auto now = std::chrono::steady_clock::now(); now < end; now = std::chrono::steady_clock::now()) {
        siginfo_t status{};
        if (waitid(P_PID, static_cast<id_t>(process_.pid()), &status, WEXITED | WNOHANG | WNOWAIT) == 0 &&
            status.si_pid != 0)
          return false;
        std::this_thread::sleep_for(std::min<std::chrono::microseconds>(
            std::chrono::milliseconds(2), std::chrono::duration_cast<std::chrono::microseconds>(end - now)));
      }
      return true;
    }
    void kill() {
      process_.send_signal(SIGKILL);
      process_.wait();
    }
    void wait_for_exit() {
      const ChildResult result = process_.wait();
      EXPECT_EQ(result.exit_code, 0) << result.error;
    }

   private:
    ChildProcess process_;
  };

  Child run(const Arguments& variant, const std::string& name, const Arguments& more) const {
    return Child(short_run() + variant + into(name) +
                 words("--checkpoint-every 1 --keep-last 3 --keep-best --save {}", path(name) + ".safetensors") + more);
  }

  static void expect_nothing_lost(const std::string& folder, int64_t& newest) {
    const std::vector<NamedCheckpoint> found = list_checkpoints(folder);
    for (const NamedCheckpoint& checkpoint : found)
      EXPECT_NO_THROW(read_checkpoint(checkpoint.path)) << checkpoint.path;
    const int64_t now = found.empty() ? -1 : found.back().step;
    EXPECT_GE(now, newest);
    if (now >= 3) {
      EXPECT_GE(found.size(), 3U) << "--keep-last 3";
    }
    newest = now;
  }
};

}  // namespace vitrine::test
