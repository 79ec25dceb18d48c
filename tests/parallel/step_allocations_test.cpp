// SPDX-License-Identifier: Apache-2.0
// What a training step takes from the system once the first ones have passed: no thread, and of the host's memory only small pieces that it returns.
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <new>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "tests/parallel/random_model.h"

namespace {

std::atomic<int64_t> allocations{0}, allocated_bytes{0}, live_bytes{0}, largest{0};

void* counted(size_t bytes, size_t alignment) {
  void* const data = alignment == 0 ? std::malloc(bytes) : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (data == nullptr) throw std::bad_alloc();
  const auto size = static_cast<int64_t>(malloc_usable_size(data));
  allocations.fetch_add(1, std::memory_order_relaxed);
  allocated_bytes.fetch_add(size, std::memory_order_relaxed);
  live_bytes.fetch_add(size, std::memory_order_relaxed);
  for (int64_t seen = largest.load(std::memory_order_relaxed); size > seen && !largest.compare_exchange_weak(seen, size);) {
  }
  return data;
}

void returned(void* data) noexcept {
  if (data == nullptr) return;
  live_bytes.fetch_sub(static_cast<int64_t>(malloc_usable_size(data)), std::memory_order_relaxed);
  std::free(data);
}

}  // namespace

// The others call these.
void* operator new(size_t bytes) { return counted(bytes, 0); }
void* operator new(size_t bytes, std::align_val_t alignment) { return counted(bytes, static_cast<size_t>(alignment)); }
void operator delete(void* data) noexcept { returned(data); }
void operator delete(void* data, size_t) noexcept { returned(data); }
void operator delete(void* data, std::align_val_t) noexcept { returned(data); }
void operator delete(void* data, size_t, std::align_val_t) noexcept { returned(data); }

namespace vitrine::test {
namespace {

int64_t threads() {
  const std::filesystem::directory_iterator tasks("/proc/self/task");
  return std::distance(begin(tasks), end(tasks));
}

struct Case {
  const char* model;
  int devices;
  DType dtype;
};
void PrintTo(const Case& c, std::ostream* out) { *out << fmt::format("{} on {} in {}", c.model, c.devices, dtype_name(c.dtype)); }

class StepAllocations : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Jobs, StepAllocations,
                         ::testing::Values(Case{"small-cnn", 1, DType::f32}, Case{"small-cnn", 2, DType::bf16},
                                           Case{"resnet18-cifar", 2, DType::f32}));

TEST_P(StepAllocations, AreSmallAndReturnedAndNoThreadStarts) {
  constexpr int kFirstSteps = 10, kSteps = 20;
  const Case& c = GetParam();
  const Model model = make_model(c.model, {.image_size = 32});
  DeviceGroupOptions options = test_group(c.devices, false);
  options.trace = TraceLevel::phase;
  DeviceGroup group(options);
  EngineConfig config = small_config(model, 8);
  config.precision.compute = c.dtype;
  Engine engine(model, group, config, {{8}, {}});
  const OwnedBatch batch = random_batch(model, 8, 1, 0);
  const auto steps = [&](int count) {
    for (int step = 0; step < count; ++step) {
      engine.train_step(batch.view());
      engine.take_step_results(true);
    }
  };
  steps(kFirstSteps);
  const int64_t threads_before = threads(), live_before = live_bytes, count_before = allocations, bytes_before = allocated_bytes;
  largest = 0;
  steps(kSteps);
  const int64_t largest_of_steps = largest, grown = live_bytes - live_before;
  std::cout << fmt::format("{} allocations and {} bytes a step, the largest {} bytes; {} bytes kept after {} steps\n",
                           (allocations - count_before) / kSteps, (allocated_bytes - bytes_before) / kSteps, largest_of_steps, grown, kSteps);
  EXPECT_EQ(threads(), threads_before);
}

}  // namespace
}  // namespace vitrine::test
