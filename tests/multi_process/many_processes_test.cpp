// SPDX-License-Identifier: Apache-2.0
// 256 processes on however few cores there are: they train as one device does, and a killed rank is named. Takes
// minutes and 12 GiB of memory.
#include <csignal>
#include <fstream>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "tests/multi_process/mpirun.h"
#include "tests/support/expect_contains.h"
#include "tests/tools/run_vitrine.h"

namespace vitrine::test::many_processes_test {
namespace {

using Json = nlohmann::json;

constexpr int kProcesses = 256;
constexpr int kMpirunSeconds = 900;

int64_t available_gib() {
  std::ifstream file("/proc/meminfo");
  for (std::string name, rest; file >> name;) {
    int64_t kib = 0;
    if (name == "MemAvailable:" && file >> kib) return kib >> 20;
    std::getline(file, rest);
  }
  return 0;
}

class ManyProcesses : public MpirunTest {
 protected:
  void SetUp() override {
    MpirunTest::SetUp();
    if (available_gib() < 12)
      GTEST_SKIP() << "256 processes need 12 GiB of memory; " << available_gib() << " GiB are available";
  }
  static Command training(const std::string& steps) {
    // A sample for each process and step.
    return vitrine_command(
        words("train --model mlp --data synthetic:512 --batch-size 256 --steps {} --no-eval --threads-per-device 1 "
              "--trace off --log-every 1 --timeout 300 --json",
              steps));
  }
  static Command in_processes(const std::string& steps) {
    return mpirun_command(kProcesses, training(steps), kMpirunSeconds);
  }
};

TEST_F(ManyProcesses, TrainLikeOneDevice) {
  const ChildResult many = ChildProcess(in_processes("20"), ChildProcess::Streams::pipes, mpirun_environment()).wait();
  ASSERT_EQ(many.exit_code, 0) << many.error;
  const ChildResult one = ChildProcess(training("20")).wait();
  ASSERT_EQ(one.exit_code, 0) << one.error;
  const Json of_many = Json::parse(many.output), of_one = Json::parse(one.output);
  EXPECT_EQ(of_many["processes"], kProcesses);
  ASSERT_EQ(of_one["step_losses"].size(), 20U);
  ASSERT_EQ(of_many["step_losses"].size(), 20U);
  for (size_t step = 0; step < 20; ++step) {
    const double loss = of_one["step_losses"][step];
    EXPECT_NEAR(of_many["step_losses"][step].get<double>(), loss, 1e-5 * loss) << "step " << step;
  }
}

TEST_F(ManyProcesses, NameTheKilledRank) {
  constexpr int kCulprit = 100;
  ChildProcess child(in_processes("1000000000"), ChildProcess::Streams::pipes, mpirun_environment());
  ASSERT_TRUE(child.wait_for("loss")) << "no progress";
  kill(process_of_rank(child.pid(), kCulprit), SIGKILL);
  const ChildResult result = child.wait();
  EXPECT_NE(result.exit_code, 0);
  expect_contains(result.error, fmt::format("rank {} (pid ", kCulprit), "died");
}

}  // namespace
}  // namespace vitrine::test::many_processes_test
