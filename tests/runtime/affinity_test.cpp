// SPDX-License-Identifier: Apache-2.0
#include "runtime/cpu/affinity.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include "runtime/error.h"
#include "tests/support/expect_contains.h"

namespace vitrine {
namespace {

std::vector<int> cores_from(int first, int count) {
  std::vector<int> cores(static_cast<size_t>(count));
  std::iota(cores.begin(), cores.end(), first);
  return cores;
}

/// Sets or clears the variable that identifies Open MPI, and restores it.
class MpiEnvironment {
 public:
  explicit MpiEnvironment(bool on) {
    if (const char* value = std::getenv(kName)) saved_ = value;
    on ? setenv(kName, "4", 1) : unsetenv(kName);
  }
  ~MpiEnvironment() { saved_.empty() ? unsetenv(kName) : setenv(kName, saved_.c_str(), 1); }
  MpiEnvironment(const MpiEnvironment&) = delete;
  MpiEnvironment& operator=(const MpiEnvironment&) = delete;

 private:
  static constexpr const char* kName = "OMPI_COMM_WORLD_SIZE";
  std::string saved_;
};

TEST(Affinity, AvailableCoresFollowTheMask) {
  cpu_set_t set;
  ASSERT_EQ(sched_getaffinity(0, sizeof set, &set), 0);
  const std::vector<int> cores = available_cores();
  EXPECT_EQ(static_cast<int>(cores.size()), CPU_COUNT(&set));
  for (const int core : cores) EXPECT_TRUE(CPU_ISSET(static_cast<size_t>(core), &set));
}

TEST(Affinity, SharesAreContiguousDisjointAndNearlyEqual) {
  for (int cores = 1; cores <= 20; ++cores) {
    for (int devices = 1; devices <= cores; ++devices) {
      std::vector<std::string> warnings;
      const std::vector<int> available = cores_from(3, cores);
      const auto shares = divide_cores(available, devices, {}, warnings);
      ASSERT_EQ(static_cast<int>(shares.size()), devices);
      std::vector<int> joined;
      for (const CoreShare& share : shares) {
        EXPECT_EQ(share.threads, static_cast<int>(share.cores.size()));
        EXPECT_EQ(share.helper_cores, share.cores);
        EXPECT_LE(shares.front().threads - share.threads, 1);
        joined.insert(joined.end(), share.cores.begin(), share.cores.end());
      }
      EXPECT_EQ(joined, available);
      EXPECT_TRUE(warnings.empty());
    }
  }
}

TEST(Affinity, ExplicitThreadsUseThatManyCores) {
  std::vector<std::string> warnings;
  const std::vector<int> available = cores_from(0, 8);
  const auto shares = divide_cores(available, 3, std::vector<int>{1, 4, 2}, warnings);
  EXPECT_EQ(shares[0].cores, (std::vector<int>{0}));
  EXPECT_EQ(shares[1].cores, (std::vector<int>{1, 2, 3, 4}));
  EXPECT_EQ(shares[2].cores, (std::vector<int>{5, 6}));
  EXPECT_EQ(shares[1].threads, 4);
  EXPECT_EQ(shares[0].helper_cores, (std::vector<int>{0, 7}));
  EXPECT_EQ(shares[2].helper_cores, (std::vector<int>{5, 6, 7}));
  const auto same = divide_cores(available, 3, std::vector<int>{2}, warnings);
  for (const CoreShare& share : same) EXPECT_EQ(share.threads, 2);
  EXPECT_TRUE(warnings.empty());
}

TEST(Affinity, MoreDevicesThanCoresShareCoresWithAWarning) {
  const MpiEnvironment alone(false);
  std::vector<std::string> warnings;
  const auto shares = divide_cores(cores_from(2, 2), 5, {}, warnings);
  ASSERT_EQ(shares.size(), 5u);
  for (size_t i = 0; i < shares.size(); ++i) EXPECT_EQ(shares[i].cores, std::vector<int>{2 + static_cast<int>(i % 2)});
  ASSERT_EQ(warnings.size(), 1u);
  expect_contains(warnings[0], "5 CPU devices with 5 threads share 2 cores");
  expect_lacks(warnings[0], "mpirun");
}

TEST(Affinity, WarningNamesTheRemedyUnderMpi) {
  const MpiEnvironment mpi(true);
  std::vector<std::string> warnings;
  divide_cores(cores_from(0, 1), 2, {}, warnings);
  ASSERT_EQ(warnings.size(), 1u);
  expect_contains(warnings[0], "mpirun --bind-to none");
}

TEST(Affinity, MoreThreadsThanCoresKeepTheirCountAndWarn) {
  std::vector<std::string> warnings;
  const auto shares = divide_cores(cores_from(0, 2), 1, std::vector<int>{4}, warnings);
  EXPECT_EQ(shares[0].threads, 4);
  EXPECT_EQ(shares[0].cores, cores_from(0, 2));
  EXPECT_EQ(warnings.size(), 1u);
}

TEST(Affinity, RefusesInvalidLists) {
  std::vector<std::string> warnings;
  const std::vector<int> available = cores_from(0, 4);
  EXPECT_THROW(divide_cores(available, 3, std::vector<int>{1, 1}, warnings), ConfigError);
  EXPECT_THROW(divide_cores(available, 2, std::vector<int>{1, 0}, warnings), ConfigError);
  EXPECT_THROW(divide_cores({}, 2, {}, warnings), DeviceError);
}

/// A folder with its own /proc and /sys/fs/cgroup.
class CpuQuota : public ::testing::Test {
 public:
  ~CpuQuota() override { std::filesystem::remove_all(root_); }

 protected:
  CpuQuota() : root_(::testing::TempDir() + "vitrine_quota_" + std::to_string(getpid())) {}
  void write(const std::string& path, const std::string& content) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << content;
  }
  std::string root_;
};

TEST_F(CpuQuota, OfVersion2IsTheMinimumOfTheGroupAndItsParents) {
  EXPECT_FALSE(cpu_quota(root_)) << "no control groups";
  write("/proc/self/cgroup", "0::/jobs/mine\n");
  write("/sys/fs/cgroup/jobs/mine/cpu.max", "max 100000\n");
  EXPECT_FALSE(cpu_quota(root_));
  write("/sys/fs/cgroup/jobs/cpu.max", "350000 100000\n");
  EXPECT_EQ(cpu_quota(root_), 3.5);
  write("/sys/fs/cgroup/jobs/mine/cpu.max", "50000 100000\n");
  EXPECT_EQ(cpu_quota(root_), 0.5);
}

TEST_F(CpuQuota, OfVersion1IsReadFromItsFiles) {
  write("/proc/self/cgroup", "3:cpu,cpuacct:/mine\n2:memory:/mine\n");
  write("/sys/fs/cgroup/cpu/mine/cpu.cfs_quota_us", "-1\n");
  write("/sys/fs/cgroup/cpu/mine/cpu.cfs_period_us", "100000\n");
  EXPECT_FALSE(cpu_quota(root_));
  write("/sys/fs/cgroup/cpu/mine/cpu.cfs_quota_us", "200000\n");
  EXPECT_EQ(cpu_quota(root_), 2.0);
}

TEST(Affinity, DevicesGetNoMoreThreadsThanTheQuota) {
  std::vector<std::string> warnings;
  const auto shares = divide_cores(cores_from(0, 16), 2, {}, warnings, false, 3.5);
  ASSERT_EQ(shares.size(), 2U);
  EXPECT_EQ(shares[0].threads, 2);
  EXPECT_EQ(shares[1].threads, 2);
  EXPECT_EQ(shares[0].cores, cores_from(0, 8)) << "they may run on any core";
  EXPECT_EQ(shares[1].cores, cores_from(8, 8));
  EXPECT_TRUE(warnings.empty());
  const auto narrow = divide_cores(cores_from(0, 16), 4, {}, warnings, false, 0.5);
  for (const CoreShare& share : narrow) EXPECT_EQ(share.threads, 1);
  ASSERT_EQ(warnings.size(), 1U);
  expect_contains(warnings[0], "4 threads share 1 core ", "CPU quota");
  warnings.clear();
  EXPECT_EQ(divide_cores(cores_from(0, 4), 2, {}, warnings, false, 64.0)[0].threads, 2)
      << "a quota above the cores changes nothing";
  EXPECT_TRUE(warnings.empty());
}

}  // namespace
}  // namespace vitrine
