// SPDX-License-Identifier: Apache-2.0
// View::as returns the elements with their type.
#include "runtime/view.h"

#include <array>

#include <gtest/gtest.h>

#include "runtime/error.h"
#include "runtime/half.h"

namespace vitrine {
namespace {

TEST(ViewAs, AcceptsTheTypeOfTheDtype) {
  std::array<float, 1> memory{1.5F};
  const auto of = [&](DType dtype) { return View{memory.data(), {1}, dtype, {Backend::cpu, 0}}; };
  EXPECT_EQ(of(DType::f32).as<float>(), memory.data());
  EXPECT_NO_THROW(of(DType::i32).as<int32_t>());
  EXPECT_NO_THROW(of(DType::u8).as<uint8_t>());
  EXPECT_NO_THROW(of(DType::f16).as<uint16_t>());
  EXPECT_NO_THROW(of(DType::bf16).as<cpu::BFloat16>());
  EXPECT_NO_THROW(of(DType::f32).as<char>());
  EXPECT_NO_THROW(ConstView(of(DType::f16)).as<std::byte>());

  EXPECT_THROW(of(DType::f16).as<float>(), DtypeError);
  EXPECT_THROW(ConstView(of(DType::bf16)).as<float>(), DtypeError);
  EXPECT_THROW(of(DType::i32).as<float>(), DtypeError);
  EXPECT_THROW(of(DType::f32).as<int32_t>(), DtypeError);
  EXPECT_THROW(of(DType::f32).as<uint8_t>(), DtypeError);
  EXPECT_THROW(of(DType::f32).as<double>(), DtypeError);
  EXPECT_THROW(of(DType::u8).as<cpu::Half>(), DtypeError);
}

TEST(ViewAs, IsRefusedOnMetaAndNullForAnEmptyView) {
  std::array<float, 1> memory{};
  EXPECT_THROW((View{memory.data(), {1}, DType::f32, {Backend::meta, 0}}.as<float>()), UnsupportedError);
  EXPECT_NO_THROW((View{memory.data(), {1}, DType::f32, {Backend::meta, 0}}.as<char>()));
  EXPECT_EQ(View().as<int32_t>(), nullptr);
}

}  // namespace
}  // namespace vitrine
