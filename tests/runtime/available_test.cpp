// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory/available.h"

#include <filesystem>
#include <fstream>
#include <limits>

#include <gtest/gtest.h>
#include <unistd.h>

#include "runtime/cpu/slab.h"
#include "runtime/device.h"
#include "runtime/error.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

/// A folder with its own /proc and /sys/fs/cgroup.
class FakeSystem : public ::testing::Test {
 public:
  ~FakeSystem() override { std::filesystem::remove_all(root_); }

 protected:
  FakeSystem() {
    const auto* const test = ::testing::UnitTest::GetInstance()->current_test_info();
    root_ = ::testing::TempDir() + "vitrine_available_" + std::to_string(getpid()) + "_" + test->name();
    write("/proc/meminfo", "MemTotal:       16777216 kB\nMemFree:          524288 kB\nMemAvailable:    8388608 kB\n");
  }

  void write(const std::string& path, const std::string& content) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << content;
  }
  int64_t available_mib() const { return available_memory(root_).bytes / kMiB; }
  std::string source() const { return available_memory(root_).source.substr(root_.size()); }

  std::string root_;
};

TEST_F(FakeSystem, WithoutControlGroupsMemAvailableIsUsed) {
  EXPECT_EQ(available_mib(), 8192);
  EXPECT_EQ(source(), "/proc/meminfo");
  write("/proc/self/cgroup", "0::/\n");
  EXPECT_EQ(available_mib(), 8192);
}

TEST_F(FakeSystem, TheLimitOfTheAddressSpaceLessWhatIsInUseAndAddressesWithoutMemory) {
  write("/proc/self/status", "Name:\tvitrine\nVmPeak:\t 2097152 kB\nVmSize:\t 1048576 kB\n");
  write("/proc/self/limits", "Limit  Soft Limit  Hard Limit  Units\nMax address space  unlimited  unlimited  bytes\n");
  EXPECT_EQ(available_mib(), 8192);
  write("/proc/self/limits", "Limit  Soft Limit  Hard Limit  Units\nMax address space  3221225472  unlimited  bytes\n");
  EXPECT_EQ(available_mib(), 1024) << "half of what is left";
  EXPECT_EQ(available_memory(root_).source, "RLIMIT_AS (ulimit -v)");
  write("/proc/self/limits", "Limit  Soft Limit  Hard Limit  Units\nMax address space  8589934592  unlimited  bytes\n");
  EXPECT_EQ(available_mib(), 5120);
}

TEST_F(FakeSystem, AControlGroupOfVersion2AndItsParentsLimitMemory) {
  write("/proc/self/cgroup", "0::/jobs/mine\n");
  write("/sys/fs/cgroup/jobs/mine/memory.max", "max\n");
  write("/sys/fs/cgroup/jobs/mine/memory.current", "1000\n");
  EXPECT_EQ(available_mib(), 8192);
  write("/sys/fs/cgroup/jobs/memory.max", std::to_string(1000 * kMiB));
  write("/sys/fs/cgroup/jobs/memory.current", std::to_string(700 * kMiB));
  EXPECT_EQ(available_mib(), 300);
  EXPECT_EQ(source(), "/sys/fs/cgroup/jobs/memory.max");
  write("/sys/fs/cgroup/jobs/memory.stat", "anon 1\nactive_file 7\ninactive_file " + std::to_string(200 * kMiB) + "\n");
  EXPECT_EQ(available_mib(), 500) << "file cache gives way";
}

TEST_F(FakeSystem, InAContainerTheMountIsTheControlGroup) {
  write("/proc/self/cgroup", "0::/docker/0123abcd\n");  // a path of the host
  write("/sys/fs/cgroup/memory.max", std::to_string(512 * kMiB));
  write("/sys/fs/cgroup/memory.current", std::to_string(12 * kMiB));
  EXPECT_EQ(available_mib(), 500);
}

TEST_F(FakeSystem, AControlGroupOfVersion1LimitsMemory) {
  write("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/jobs/mine\n1:name=systemd:/y\n");
  write("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("/sys/fs/cgroup/memory/memory.usage_in_bytes", "4096\n");
  EXPECT_EQ(available_mib(), 8192);
  write("/sys/fs/cgroup/memory/jobs/mine/memory.limit_in_bytes", std::to_string(2000 * kMiB));
  write("/sys/fs/cgroup/memory/jobs/mine/memory.usage_in_bytes", std::to_string(1500 * kMiB));
  write("/sys/fs/cgroup/memory/jobs/mine/memory.stat",
        "inactive_file 1\ntotal_inactive_file " + std::to_string(100 * kMiB) + "\n");
  EXPECT_EQ(available_mib(), 600);
}

TEST_F(FakeSystem, AControlGroupAboveItsLimitLeavesNoMemory) {
  write("/proc/self/cgroup", "0::/\n");
  write("/sys/fs/cgroup/memory.max", "1000\n");
  write("/sys/fs/cgroup/memory.current", "2000\n");
  EXPECT_EQ(available_memory(root_).bytes, 0);
}

TEST_F(FakeSystem, UnreadableValuesAreIgnored) {
  write("/proc/meminfo", "MemTotal: nonsense\n");
  write("/proc/self/cgroup", "nonsense\n0:\n:::\n0::relative\n");
  EXPECT_GT(available_memory(root_).bytes, 0) << "the machine's memory";
}

TEST(AvailableMemory, PoolsLeaveAReserve) {
  EXPECT_EQ(less_reserve(100'000 * kMiB), 95'000 * kMiB);
  EXPECT_EQ(less_reserve(1000 * kMiB), 744 * kMiB);
  EXPECT_EQ(less_reserve(100 * kMiB), 50 * kMiB);
  EXPECT_EQ(less_reserve(16'000 * kMiB, kGpuReserve), (16'000 - 1536) * kMiB);
  EXPECT_EQ(less_reserve(80'000 * kMiB, kGpuReserve), 76'000 * kMiB);
  EXPECT_EQ(less_reserve(2000 * kMiB, kGpuReserve), 1000 * kMiB);
}

TEST(AvailableMemory, PoolsLeaveRoomForWhatTheProcessHolds) {
  DeviceGroupOptions options;
  options.devices = {{Backend::cpu, 0}};
  const int64_t all = (*DeviceGroup::planned(options))[0].pool().capacity_bytes();
  options.host_bytes = all / 2;  // other processes take and return less than a quarter meanwhile
  const int64_t rest = (*DeviceGroup::planned(options))[0].pool().capacity_bytes();
  EXPECT_LT(rest, all - all / 4);
  EXPECT_GT(rest, all / 4);
  options.host_bytes = std::numeric_limits<int64_t>::max() / 2;
  EXPECT_EQ((*DeviceGroup::planned(options))[0].pool().capacity_bytes(), 1);
}

TEST(AvailableMemory, IsSharedEquallyByTheDevicesOfThisProcess) {
  DeviceGroupOptions options;
  options.devices = {{Backend::cpu, 0}, {Backend::cpu, 1}, {Backend::cpu, 2}};
  const int64_t before = available_memory().bytes;
  DeviceGroup group(options);
  int64_t all = 0;
  for (int d = 0; d < group.size(); ++d) {
    all += group[d].pool().capacity_bytes();
    EXPECT_EQ(group[d].pool().capacity_bytes(), group[0].pool().capacity_bytes());
  }
  // Other programs allocate and free memory meanwhile.
  EXPECT_LT(all, before + before / 4);
  EXPECT_GT(all, 0);
}

TEST(CpuSlab, LargerThanTheMachinesMemoryIsRefused) {
  int64_t left = 100 * kMiB;
  CpuSlab slab(2, int64_t{1} << 40, [&] { return AvailableMemory{left, "/sys/fs/cgroup/memory.max"}; });
  slab.grow(40 * kMiB);
  left = 60 * kMiB;
  const std::string text = error_of<OutOfMemory>([&] { slab.grow(101 * kMiB); });
  expect_contains(
      text, "cpu:2: its pool needs 61.0 MiB more, but the machine has 60.0 MiB available (/sys/fs/cgroup/memory.max)");
  EXPECT_EQ(slab.size_bytes(), 40 * kMiB);
  slab.grow(99 * kMiB);
}

}  // namespace
}  // namespace vitrine
