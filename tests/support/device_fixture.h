// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/copy.h"
#include "runtime/device.h"
#include "tests/support/test_devices.h"

/// Devices and tensors for tests. Everything here synchronizes, so that a test reads like a calculation.
namespace vitrine::test {

/// The dtype of host values of type T. uint16_t holds the bits of f16 or bf16 and is passed with a dtype.
template <class T>
constexpr DType dtype_of() {
  static_assert(std::is_same_v<T, float> || std::is_same_v<T, int32_t> || std::is_same_v<T, uint8_t>);
  if constexpr (std::is_same_v<T, float>) return DType::f32;
  if constexpr (std::is_same_v<T, int32_t>) return DType::i32;
  return DType::u8;
}

/// Uniform numbers in [low, high). A seed gives the same numbers on every machine.
inline std::vector<float> random_floats(int64_t count, uint64_t seed, float low = -1.0F, float high = 1.0F) {
  std::mt19937_64 engine(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& v : values) v = low + (high - low) * (static_cast<float>(engine() >> 40) * 0x1p-24F);
  return values;
}

/// Uniform integers in [low, high], both included.
template <class T>
std::vector<T> random_integers(int64_t count, uint64_t seed, int64_t low, int64_t high) {
  std::mt19937_64 engine(seed);
  std::vector<T> values(static_cast<size_t>(count));
  for (T& v : values) v = static_cast<T>(low + static_cast<int64_t>(engine() % static_cast<uint64_t>(high - low + 1)));
  return values;
}

/// A block of device memory with the tensor under test in its middle, filled with poison before use, so that there are
/// guards on both sides.
struct GuardedTensor {
  static constexpr int64_t kGuardBytes = 256;
  static constexpr uint8_t kPoison = 0xFF;  // f32: a NaN that no arithmetic returns; i32: -1; u8: 255

  Tensor block;  // u8
  View view;
  operator View() const { return view; }       // NOLINT: used as the View it guards
  operator ConstView() const { return view; }  // NOLINT
};

/// One device of the kind that is tested, with the order checker on.
class TestDevice {
 public:
  explicit TestDevice(int threads = 2, int64_t memory_bytes = int64_t{256} << 20, bool winograd = false) {
    DeviceGroupOptions options{.devices = test_devices(1), .memory_bytes = {memory_bytes}};
    if (!on_gpu()) options.threads_per_device = {threads};
    options.check_order = true;
    options.winograd = winograd;
    group_ = std::make_unique<DeviceGroup>(options);
  }

  DeviceGroup& group() { return *group_; }
  ExecContext& ctx() { return (*group_)[0].compute(); }
  void synchronize() { group_->synchronize(); }

  Tensor empty(const Shape& shape, DType dtype = DType::f32) {
    return ctx().allocate(shape, dtype, Category::activations, "test");
  }

  template <class T>
  void write(const View& view, const std::vector<T>& values) {
    ASSERT_EQ(view.numel(), static_cast<int64_t>(values.size()));
    if (values.empty()) return;
    copy(ctx(), ConstView(values.data(), view.shape, host_dtype<T>(view.dtype), DeviceId::host()), view);
    synchronize();
  }

  template <class T>
  Tensor tensor(const Shape& shape, const std::vector<T>& values, DType dtype) {
    Tensor t = empty(shape, dtype);
    write(t, values);
    return t;
  }
  template <class T>
  Tensor tensor(const Shape& shape, const std::vector<T>& values) {
    return tensor(shape, values, dtype_of<T>());
  }

  Tensor random(const Shape& shape, uint64_t seed, float low = -1.0F, float high = 1.0F) {
    return tensor(shape, random_floats(shape.numel(), seed, low, high));
  }

  /// An output tensor that detects elements that are not written and writes outside it.
  GuardedTensor guarded(const Shape& shape, DType dtype = DType::f32) {
    GuardedTensor g;
    const int64_t bytes = shape.numel() * size_of(dtype);
    g.block = empty({bytes + 2 * GuardedTensor::kGuardBytes}, DType::u8);
    g.view = View{g.block.view().as<uint8_t>() + GuardedTensor::kGuardBytes, shape, dtype, g.block.view().device};
    write(g.block, std::vector<uint8_t>(static_cast<size_t>(g.block.numel()), GuardedTensor::kPoison));
    return g;
  }

  /// A guarded tensor with initial values, for accumulation and in-place operations.
  template <class T>
  GuardedTensor guarded(const Shape& shape, const std::vector<T>& values, DType dtype) {
    GuardedTensor g = guarded(shape, dtype);
    write(g.view, values);
    return g;
  }
  template <class T>
  GuardedTensor guarded(const Shape& shape, const std::vector<T>& values) {
    return guarded(shape, values, dtype_of<T>());
  }

  /// The values after all work issued so far.
  template <class T = float>
  std::vector<T> values(const ConstView& view) {
    synchronize();
    std::vector<T> result(static_cast<size_t>(view.numel()));
    if (result.empty()) return result;
    copy(ctx(), view, View{result.data(), view.shape, host_dtype<T>(view.dtype), DeviceId::host()});
    synchronize();
    return result;
  }

  /// The values. Fails the test when a guard was overwritten or an element still holds the poison.
  template <class T = float>
  std::vector<T> values(const GuardedTensor& guarded) {
    const std::vector<uint8_t> block = values<uint8_t>(ConstView(guarded.block));
    const auto is_poison = [&](size_t i) { return block[i] == GuardedTensor::kPoison; };
    const auto front = static_cast<size_t>(GuardedTensor::kGuardBytes);
    const size_t end = front + static_cast<size_t>(guarded.view.bytes());
    for (size_t i = 0; i < block.size(); ++i) {
      if ((i >= front && i < end) || is_poison(i)) continue;
      ADD_FAILURE() << "written " << (i < front ? front - i : i - end + 1) << " bytes "
                    << (i < front ? "before" : "after") << " the tensor " << guarded.view.shape.str();
      break;
    }
    std::vector<T> result(static_cast<size_t>(guarded.view.numel()));
    if (!result.empty()) std::memcpy(result.data(), block.data() + front, end - front);
    for (size_t e = 0; e < result.size(); ++e) {
      bool written = false;
      for (size_t b = 0; b < sizeof(T); ++b) written = written || !is_poison(front + e * sizeof(T) + b);
      if (written) continue;
      ADD_FAILURE() << "element " << e << " of " << guarded.view.shape.str() << " was not written";
      break;
    }
    return result;
  }

 private:
  template <class T>
  static constexpr DType host_dtype(DType on_device) {
    if constexpr (std::is_same_v<T, uint16_t>) {
      return on_device;
    } else {
      return dtype_of<T>();
    }
  }

  std::unique_ptr<DeviceGroup> group_;
};

/// Fixture of tests that run with several numbers of threads, and once on a GPU.
class ThreadsTest : public ::testing::TestWithParam<int> {
 protected:
  void SetUp() override {
    if (on_gpu() && GetParam() > 1) GTEST_SKIP() << "a GPU has no team of threads";
  }
};

/// Fixture of tests that need one device; a CPU device has two threads.
class DeviceTest : public ::testing::Test {
 protected:
  TestDevice device;
  ExecContext& ctx() { return device.ctx(); }
};

/// Fails at the first element where |actual - expected| > absolute + relative * |expected|. NaN equals NaN; an infinity
/// equals itself.
template <class Actual, class Expected>
void expect_close(const std::vector<Actual>& actual, const std::vector<Expected>& expected, double relative,
                  double absolute, const std::string& what = "") {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    const auto a = static_cast<double>(actual[i]);
    const auto e = static_cast<double>(expected[i]);
    if (a == e || (a != a && e != e)) continue;
    const double difference = a > e ? a - e : e - a;
    const double limit = absolute + relative * (e < 0 ? -e : e);
    if (difference <= limit && limit - limit == 0) continue;
    FAIL() << what << " element " << i << " of " << actual.size() << ": got " << a << ", expected " << e
           << " (difference " << difference << ", allowed " << limit << ")";
  }
}

/// Equal to the last bit, NaN payloads included.
inline void expect_same_bits(const std::vector<float>& actual, const std::vector<float>& expected,
                             const std::string& what = "") {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(actual[i]), std::bit_cast<uint32_t>(expected[i]))
        << what << " element " << i << ": got " << actual[i] << ", expected " << expected[i];
  }
}

}  // namespace vitrine::test
