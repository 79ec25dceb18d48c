// SPDX-License-Identifier: Apache-2.0
// What a training step takes from the system once the first ones have passed: no thread, and of the host's heap only
// small pieces that it returns. Tensors come from the devices' pools, which have all their memory before the first
// step.
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <new>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include "tests/parallel/random_model.h"

namespace {

std::atomic<int64_t> allocation_count{0}, allocated{0}, live{0}, largest{0};

void* counted(size_t bytes, size_t alignment) {
  void* const data = alignment == 0 ? std::malloc(bytes)
                                    : std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  if (data == nullptr) throw std::bad_alloc();
  const auto size = static_cast<int64_t>(malloc_usable_size(data));
  allocation_count.fetch_add(1, std::memory_order_relaxed);
  allocated.fetch_add(size, std::memory_order_relaxed);
  live.fetch_add(size, std::memory_order_relaxed);
  for (int64_t seen = largest.load(std::memory_order_relaxed);
       size > seen && !largest.compare_exchange_weak(seen, size);) {
  }
  return data;
}

void returned(void* data) noexcept {
  if (data == nullptr) return;
  live.fetch_sub(static_cast<int64_t>(malloc_usable_size(data)), std::memory_order_relaxed);
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
  int64_t allocations;  // of a step, counted; they must not grow
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << fmt::format("{} on {} in {}", c.model, c.devices, dtype_name(c.dtype));
}

class StepAllocations : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Jobs, StepAllocations,
                         ::testing::Values(Case{"small-cnn", 1, DType::f32, 300},
                                           Case{"small-cnn", 2, DType::bf16, 600},
                                           Case{"resnet", 2, DType::f32, 3000}));

TEST_P(StepAllocations, AreSmallAndReturnedAndStartNoThread) {
  constexpr int kFirstSteps = 10, kSteps = 20;
  const Case& c = GetParam();
  const Model model = std::string(c.model) == "resnet" ? tiny_resnet() : make_model(c.model, {.image_size = 32});
  DeviceGroupOptions options = test_group(c.devices, false);
  options.trace = TraceLevel::off;
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
  const int64_t threads_before = threads(), live_before = live, count_before = allocation_count,
                bytes_before = allocated;
  largest = 0;
  steps(kSteps);
  const int64_t largest_of_steps = largest, kept = live - live_before,
                count = (allocation_count - count_before) / kSteps;
  std::cout << fmt::format("{} allocations and {} bytes a step, the largest {} bytes; {} bytes kept after {} steps\n",
                           count, (allocated - bytes_before) / kSteps, largest_of_steps, kept, kSteps);
  EXPECT_EQ(threads(), threads_before);
  EXPECT_LE(kept, 4096);
  EXPECT_LE(largest_of_steps, 40 << 10);  // a block of a stream's tasks; an activation is larger
  EXPECT_LE(count, c.allocations);
}

}  // namespace
}  // namespace vitrine::test
