// SPDX-License-Identifier: Apache-2.0
#include "runtime/shape.h"

#include <array>
#include <cstdint>

#include <gtest/gtest.h>

#include "runtime/error.h"
#include "runtime/host_buffer.h"

namespace vitrine {
namespace {

TEST(Shape, CountsElements) {
  EXPECT_EQ(Shape().numel(), 1);
  EXPECT_EQ((Shape{2, 3, 4}.numel()), 24);
  EXPECT_EQ((Shape{2, 0, 4}.numel()), 0);
  EXPECT_EQ((Shape{INT64_MAX, INT64_MAX, 0}.numel()), 0);
}

TEST(Shape, Prints) {
  EXPECT_EQ(Shape().str(), "()");
  EXPECT_EQ((Shape{64, 784}.str()), "(64, 784)");
}

TEST(Shape, Compares) {
  EXPECT_EQ((Shape{2, 3}), (Shape{2, 3}));
  EXPECT_FALSE((Shape{2, 3} == Shape{2, 3, 1}));
  EXPECT_FALSE((Shape{2, 3} == Shape{3, 2}));
  EXPECT_EQ((Shape{5, 3}.with_dim0(2)), (Shape{2, 3}));
}

TEST(Shape, RejectsInvalidShapes) {
  EXPECT_THROW((Shape{2, -1}), ShapeError);
  EXPECT_THROW((Shape{1, 1, 1, 1, 1, 1}), ShapeError);
  EXPECT_THROW((Shape{int64_t{1} << 32, int64_t{1} << 32}), ShapeError);
  EXPECT_THROW((Shape{2, 3}.with_dim0(-1)), ShapeError);
  EXPECT_DEATH((void)(Shape{2, 3}[2]), "out of range");
}

TEST(View, RowsReferToASliceOfTheMemory) {
  std::array<float, 12> data{};
  const View view{data.data(), Shape{4, 3}, DType::f32, DeviceId::host()};
  EXPECT_EQ(view.bytes(), 48);
  const View part = view.rows(1, 3);
  EXPECT_EQ(part.shape, (Shape{2, 3}));
  EXPECT_EQ(part.as<float>(), data.data() + 3);
  EXPECT_EQ(ConstView(view).rows(4, 4).numel(), 0);
  EXPECT_EQ(View{}.reshape(Shape{1}).data, nullptr);
  EXPECT_THROW(view.rows(-1, 2), ShapeError);
  EXPECT_THROW(view.rows(3, 2), ShapeError);
  EXPECT_THROW(view.rows(0, 5), ShapeError);
  EXPECT_THROW((View{data.data(), Shape{}, DType::f32, DeviceId::host()}.rows(0, 0)), ShapeError);
}

TEST(View, ReshapeRequiresTheSameCount) {
  std::array<int32_t, 12> data{};
  const ConstView view(data.data(), Shape{4, 3}, DType::i32, DeviceId::host());
  EXPECT_EQ(view.reshape(Shape{2, 6}).shape, (Shape{2, 6}));
  EXPECT_EQ(view.reshape(Shape{12}).data, data.data());
  EXPECT_THROW(view.reshape(Shape{5}), ShapeError);
}

TEST(DType, SizesAndNames) {
  EXPECT_EQ(size_of(DType::f32), 4);
  EXPECT_EQ(size_of(DType::f16), 2);
  EXPECT_EQ(size_of(DType::bf16), 2);
  EXPECT_EQ(size_of(DType::i32), 4);
  EXPECT_EQ(size_of(DType::u8), 1);
  EXPECT_STREQ(dtype_name(DType::bf16), "bf16");
}

TEST(HostBuffer, IsAlignedZeroedAndBounded) {
  for (const int64_t bytes : {0, 1, 4095, 4096, 10'000}) {
    HostBuffer buffer(bytes);
    EXPECT_EQ(buffer.bytes(), bytes);
    const View view = buffer.view(Shape{bytes}, DType::u8);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(view.data) % 4096, 0U);
    EXPECT_TRUE(view.device.is_host());
    for (int64_t i = 0; i < bytes; ++i) ASSERT_EQ(view.as<uint8_t>()[i], 0);
    EXPECT_THROW(buffer.view(Shape{bytes + 1}, DType::u8), ShapeError);
    EXPECT_THROW(buffer.view(Shape{bytes / 4 + 1}, DType::f32), ShapeError);
  }
}

TEST(HostBuffer, MovingEmptiesTheSource) {
  HostBuffer a(100);
  HostBuffer b = std::move(a);
  EXPECT_EQ(b.bytes(), 100);
  EXPECT_EQ(a.bytes(), 0);  // NOLINT: a moved-from buffer is empty
}

}  // namespace
}  // namespace vitrine
