// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <thread>

#include "runtime/error.h"
#include "runtime/host_buffer.h"
#include "tests/support/device_fixture.h"

namespace vitrine::test {
namespace {

/// Words of host memory that the device's kernels can access.
class Words {
 public:
  Words(TestDevice& device, int64_t count) : memory_(count * size_of(DType::i32), device.group().host_memory()) {}
  int32_t& operator[](int64_t i) const { return all().as<int32_t>()[i]; }
  View all() const { return memory_.view({memory_.bytes() / size_of(DType::i32)}, DType::i32); }

 private:
  HostBuffer memory_;
};

TEST_F(DeviceTest, CopyBlocksBringsBlocksInAndOut) {
  for (const int64_t count : {1, 31, 256, 70000}) {
    const Words in(device, count), out(device, count);
    for (int64_t i = 0; i < count; ++i) in[i] = static_cast<int32_t>(i * 7 + 1);
    const GuardedTensor first = device.guarded({count}, DType::i32), floats = device.guarded({3});
    const Tensor three = device.tensor({3}, std::vector<float>{1, 2, 3});
    const std::vector<CopiedBlock> blocks{
        {in.all(), first}, {}, {three, floats}, {in.all().rows(0, 0), first.view.rows(0, 0)}};
    copy_blocks(ctx(), blocks);
    copy_blocks(ctx(), {{CopiedBlock{first, out.all()}}});
    device.synchronize();
    for (int64_t i = 0; i < count; ++i) ASSERT_EQ(out[i], in[i]) << i << " of " << count;
    EXPECT_EQ(device.values<int32_t>(first), std::vector<int32_t>(&in[0], &in[0] + count));
    EXPECT_EQ(device.values(floats), (std::vector<float>{1, 2, 3}));
  }
}

/// The host polls, and does not synchronize.
TEST_F(DeviceTest, CopyBlocksWritesTheLastOneAfterTheOthers) {
  constexpr int64_t kCount = 40;
  const Words out(device, kCount), number(device, 1);
  const Tensor source = device.empty({kCount}, DType::i32), step = device.empty({1}, DType::i32);
  for (int32_t round = 1; round <= 20; ++round) {
    device.write(source.view(), std::vector<int32_t>(kCount, round));
    device.write(step.view(), std::vector<int32_t>{round});
    copy_blocks(ctx(), {{CopiedBlock{source, out.all()}}}, {step, number.all()});
    while (std::atomic_ref(number[0]).load(std::memory_order_acquire) != round) std::this_thread::yield();
    EXPECT_EQ(std::vector<int32_t>(&out[0], &out[0] + kCount), std::vector<int32_t>(kCount, round));
    device.synchronize();
  }
}

TEST_F(DeviceTest, CopyBlocksRefusesWrongArguments) {
  const Tensor two = device.empty({2}), three = device.empty({3}), bytes = device.empty({2}, DType::u8);
  EXPECT_THROW(copy_blocks(ctx(), {{CopiedBlock{two, three}}}), ShapeError);
  EXPECT_THROW(copy_blocks(ctx(), {{CopiedBlock{two, device.empty({2}, DType::i32)}}}), DtypeError);
  EXPECT_THROW(copy_blocks(ctx(), {{CopiedBlock{bytes, device.empty({2}, DType::u8)}}}), DtypeError);
  EXPECT_THROW(copy_blocks(ctx(), {}, {two, device.empty({2})}), ShapeError);
}

}  // namespace
}  // namespace vitrine::test
