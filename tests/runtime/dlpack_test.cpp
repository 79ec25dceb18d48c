// SPDX-License-Identifier: Apache-2.0
// Foreign memory: adopted as tensors, and imported and exported as DLPack tensors.
#include "runtime/dlpack.h"

#include <chrono>
#include <cstddef>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/device.h"
#include "runtime/error.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"
#if __has_include(<dlpack/dlpack.h>)
#include <dlpack/dlpack.h>
#else
#include "runtime/dlpack_abi.h"
#endif

// With the package's header, if installed, and with ours: the layout that runtime/dlpack.cpp relies on.
static_assert(sizeof(DLDevice) == 8 && sizeof(DLDataType) == 4 && sizeof(DLTensor) == 48 &&
              sizeof(DLManagedTensor) == 64);
static_assert(offsetof(DLTensor, data) == 0 && offsetof(DLTensor, device) == 8 && offsetof(DLTensor, ndim) == 16 &&
              offsetof(DLTensor, dtype) == 20);
static_assert(offsetof(DLTensor, shape) == 24 && offsetof(DLTensor, strides) == 32 &&
              offsetof(DLTensor, byte_offset) == 40);
static_assert(offsetof(DLManagedTensor, dl_tensor) == 0 && offsetof(DLManagedTensor, manager_ctx) == 48 &&
              offsetof(DLManagedTensor, deleter) == 56);
static_assert(kDLCPU == 1 && kDLCUDA == 2 && kDLInt == 0 && kDLUInt == 1 && kDLFloat == 2 && kDLBfloat == 4);

namespace vitrine {
namespace {

class Adopted : public ::testing::Test {
 protected:
  static DeviceGroupOptions options(Backend backend) {
    return {.devices = {{backend, 0}}, .memory_bytes = {1 << 20}, .check_order = true};
  }
  ExecContext& ctx() { return group_[0].compute(); }
  PoolStatistics pool() { return group_[0].pool().statistics(); }
  Tensor adopt() {
    return ctx().adopt(values_.data(), {2, 3}, DType::f32, [this] { ++released_; });
  }

  std::vector<float> values_{1, 2, 3, 4, 5, 6};
  int released_ = 0;
  DeviceGroup group_{options(Backend::cpu)};
};

TEST_F(Adopted, IsReleasedOnceAfterTheLastCopyAndItsWork) {
  {
    const Tensor x = adopt();
    const Tensor row = x.rows(1, 2);
    EXPECT_EQ(x.view().data, values_.data());
    ctx().dispatch({"slow", {}, {x}}, [v = x.view()] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      v.as<float>()[5] = 60;
    });
    EXPECT_EQ(released_, 0);
  }
  EXPECT_EQ(released_, 1);
  EXPECT_EQ(values_[5], 60) << "released before the device was done with it";
}

TEST_F(Adopted, IsCountedOutsideThePoolAndDoesNotChangePlans) {
  group_[0].pool().reserve(0);
  {
    const Tensor x = adopt();
    const Tensor same = x;  // NOLINT(performance-unnecessary-copy-initialization): a copy of a tensor is counted once
    EXPECT_EQ(pool().adopted_bytes, 24);
    EXPECT_EQ(pool().allocated_bytes, 0);
    EXPECT_EQ(pool().peak_bytes, 0);
  }
  EXPECT_EQ(pool().adopted_bytes, 0);
}

TEST_F(Adopted, RefusesForeignMemoryAndMetaDevices) {
  const auto release = [this] { ++released_; };
  expect_contains(error_of<ConfigError>([&] { ctx().adopt(nullptr, {1}, DType::f32, release); }), "data is null");
  char* const odd = reinterpret_cast<char*>(values_.data()) + 1;  // NOLINT
  expect_contains(error_of<ConfigError>([&] { ctx().adopt(odd, {1}, DType::f32, release); }),
                  "not aligned to the 4 bytes");
  DeviceGroup meta(options(Backend::meta));
  expect_contains(
      error_of<UnsupportedError>([&] { meta[0].compute().adopt(values_.data(), {1}, DType::f32, release); }),
      "meta:0 has no memory");
  EXPECT_EQ(released_, 0);
}

TEST_F(Adopted, SurvivesARoundTripThroughDlpack) {
  {
    DLManagedTensor* const out = to_dlpack(adopt());
    const DLTensor& t = out->dl_tensor;
    EXPECT_EQ(t.data, values_.data());
    EXPECT_EQ(t.device.device_type, kDLCPU);
    EXPECT_EQ(std::vector<int64_t>(t.shape, t.shape + t.ndim), (std::vector<int64_t>{2, 3}));
    EXPECT_EQ(std::vector<int64_t>(t.strides, t.strides + t.ndim), (std::vector<int64_t>{3, 1}));
    EXPECT_EQ(released_, 0);
    const Tensor back = from_dlpack(ctx(), out);
    EXPECT_EQ(back.view().data, values_.data());
    EXPECT_EQ(back.shape(), (Shape{2, 3}));
    EXPECT_EQ(back.dtype(), DType::f32);
  }
  EXPECT_EQ(released_, 1);
}

TEST_F(Adopted, EveryDtypeHasADlpackType) {
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::i32, DType::u8}) {
    const Tensor back = from_dlpack(ctx(), to_dlpack(ctx().allocate({3}, dtype, Category::staging, "x")));
    EXPECT_EQ(back.dtype(), dtype);
  }
  EXPECT_EQ(pool().allocated_bytes, 0);
}

TEST_F(Adopted, RefusesUnsupportedDlpackTensorsAndLeavesThemToTheCaller) {
  int64_t shape[] = {2, 3, 1, 1, 1, 1}, transposed[] = {1, 2};
  DLManagedTensor managed{};
  managed.manager_ctx = &released_;
  managed.deleter = [](DLManagedTensor* self) { ++*static_cast<int*>(self->manager_ctx); };
  const auto reset = [&] {
    DLTensor& t = managed.dl_tensor;
    t.data = values_.data();
    t.device.device_type = kDLCPU;
    t.ndim = 2;
    t.dtype = {kDLFloat, 32, 1};
    t.shape = shape;
    t.strides = nullptr;
    t.byte_offset = 0;
  };
  const auto take = [&] { from_dlpack(ctx(), &managed); };
  DLTensor& t = managed.dl_tensor;
  reset(), t.strides = transposed;
  expect_contains(error_of<ShapeError>(take),
                  "dimension 1 of shape (2, 3) has stride 2, expected 1 (contiguous row-major)");
  reset(), t.ndim = 6;
  expect_contains(error_of<ShapeError>(take), "6 dimensions, expected at most 5");
  reset(), t.dtype = {kDLFloat, 64, 1};
  expect_contains(error_of<DtypeError>(take), "64 bits");
  reset(), t.device.device_type = kDLCUDA;
  expect_contains(error_of<DeviceError>(take), "but the context is on cpu:0");
  reset(), t.data = nullptr;
  expect_contains(error_of<ConfigError>(take), "data is null");
  EXPECT_THROW(from_dlpack(ctx(), nullptr), ConfigError);
  EXPECT_THROW(to_dlpack(Tensor()), ConfigError);
  EXPECT_EQ(released_, 0);
  reset(), t.byte_offset = 12, shape[0] = 1;
  EXPECT_EQ(from_dlpack(ctx(), &managed).view().data, &values_[3]);
  EXPECT_EQ(released_, 1);
}

}  // namespace
}  // namespace vitrine
