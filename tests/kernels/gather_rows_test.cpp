// SPDX-License-Identifier: Apache-2.0
#include "kernels/gather_rows.h"

#include <algorithm>

#include "runtime/error.h"
#include "tests/support/device_fixture.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test {
namespace {

std::vector<uint8_t> gathered_on_host(const std::vector<uint8_t>& x, int64_t row_bytes,
                                      const std::vector<int32_t>& rows) {
  std::vector<uint8_t> y;
  for (const int32_t row : rows) y.insert(y.end(), x.begin() + row * row_bytes, x.begin() + (row + 1) * row_bytes);
  return y;
}

/// Rows of 1, 12, 16, 45 and 3072 bytes, which are copied by accesses of different sizes, at aligned and unaligned
/// addresses.
TEST_F(DeviceTest, GatherRowsCopiesWholeRows) {
  uint64_t seed = 0;
  for (const Shape& shape :
       {Shape{300}, Shape{6, 3, 4, 1}, Shape{9, 4, 4, 1}, Shape{7, 3, 5, 3}, Shape{21, 32, 32, 3}}) {
    const int64_t row_bytes = shape.numel() / shape[0];
    for (const int64_t count : {0, 1, 5, 64, 1000}) {
      for (const int64_t offset : {0, 1, 4}) {
        const std::vector<uint8_t> x =
            random_integers<uint8_t>(shape.numel(), ++seed, 0, 254);  // 255 is the guards' poison
        const std::vector<int32_t> rows = random_integers<int32_t>(count, ++seed, 0, shape[0] - 1);
        const Tensor block = device.empty({shape.numel() + offset}, DType::u8);
        const View source{block.view().as<uint8_t>() + offset, shape, DType::u8, block.view().device};
        device.write(source, x);
        const GuardedTensor y = device.guarded(shape.with_dim0(count), DType::u8);
        gather_rows(ctx(), source, device.tensor({count}, rows), y);
        EXPECT_EQ(device.values<uint8_t>(y), gathered_on_host(x, row_bytes, rows))
            << shape.str() << " " << count << " offset " << offset;
      }
    }
  }
}

TEST_F(DeviceTest, GatherRowsTakesEveryDtype) {
  const std::vector<int32_t> rows{4, 0, 4, 2};
  const std::vector<float> x = random_floats(15, 3);
  const GuardedTensor y = device.guarded({4, 3});
  gather_rows(ctx(), device.tensor({5, 3}, x), device.tensor({4}, rows), y);
  std::vector<float> expected;
  for (const int32_t row : rows) expected.insert(expected.end(), x.begin() + row * 3, x.begin() + row * 3 + 3);
  EXPECT_EQ(device.values(y), expected);
  const GuardedTensor labels = device.guarded({4}, DType::i32);
  gather_rows(ctx(), device.tensor({5}, std::vector<int32_t>{10, 11, 12, 13, 14}), device.tensor({4}, rows), labels);
  EXPECT_EQ(device.values<int32_t>(labels), (std::vector<int32_t>{14, 10, 14, 12}));
}

TEST_F(DeviceTest, GatherRowsReportsARowOutOfRangeAndWritesZeros) {
  for (const int32_t wrong : {-1, 7, INT32_MAX, INT32_MIN}) {
    for (const int64_t width : {3, 16}) {
      const Tensor x = device.tensor({7, width}, std::vector<uint8_t>(static_cast<size_t>(7 * width), 9));
      const Tensor y = device.tensor({3, width}, std::vector<uint8_t>(static_cast<size_t>(3 * width), 5));
      gather_rows(ctx(), x, device.tensor({3}, std::vector<int32_t>{1, wrong, 6}), y);
      expect_contains(error_of<DataError>([&] { device.synchronize(); }),
                      "row " + std::to_string(wrong) + " at place 1 is out of range, expected 0 <= row < 7");
      std::vector<uint8_t> expected(static_cast<size_t>(3 * width), 9);
      std::fill(expected.begin() + width, expected.begin() + 2 * width, uint8_t{0});
      EXPECT_EQ(device.values<uint8_t>(ConstView(y)), expected);
    }
  }
}

TEST_F(DeviceTest, GatherRowsRefusesWrongArguments) {
  const Tensor x = device.empty({4, 2}), rows = device.empty({3}, DType::i32), y = device.empty({3, 2});
  EXPECT_THROW(gather_rows(ctx(), x, rows, device.empty({2, 2})), ShapeError);
  EXPECT_THROW(gather_rows(ctx(), x, rows, device.empty({3, 3})), ShapeError);
  EXPECT_THROW(gather_rows(ctx(), x, device.empty({3, 1}, DType::i32), y), ShapeError);
  EXPECT_THROW(gather_rows(ctx(), x, device.empty({3}), y), DtypeError);
  EXPECT_THROW(gather_rows(ctx(), x, rows, device.empty({3, 2}, DType::f16)), DtypeError);
  EXPECT_THROW(gather_rows(ctx(), x, rows, x.rows(0, 3)), ShapeError);
  const std::vector<float> host(8);
  EXPECT_THROW(gather_rows(ctx(), ConstView(host.data(), {4, 2}, DType::f32, DeviceId::host()), rows, y), DeviceError);
}

}  // namespace
}  // namespace vitrine::test
