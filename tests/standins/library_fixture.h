// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <random>
#include <vector>

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "tests/standins/controls.h"

namespace vitrine::standins {

/// Fixture of tests on device 0: a stream, and memory that is freed at the end.
class LibraryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    reset();
    ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
  }
  /// Called last: everything else must have been destroyed.
  void TearDown() override {
    for (void* p : memory_) cudaFree(p);
    cudaStreamDestroy(stream_);
    cudaGetLastError();
    EXPECT_EQ(live_objects(), 0);
    reset();
  }
  template <class T>
  T* device_memory(size_t count) {
    void* p = nullptr;
    EXPECT_EQ(cudaMalloc(&p, count * sizeof(T)), cudaSuccess);
    memory_.push_back(p);
    return static_cast<T*>(p);
  }
  /// Any stream may use the copy at once.
  template <class T>
  T* upload(const std::vector<T>& values) {
    T* const p = device_memory<T>(values.size());
    EXPECT_EQ(cudaMemcpyAsync(p, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice, stream_),
              cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    return p;
  }
  template <class T>
  std::vector<T> download(const T* p, size_t count) {
    std::vector<T> values(count);
    EXPECT_EQ(cudaMemcpyAsync(values.data(), p, count * sizeof(T), cudaMemcpyDeviceToHost, stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
    return values;
  }
  /// Uniform in [-1, 1).
  static std::vector<float> random(int64_t count, uint32_t seed) {
    std::mt19937 engine(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = uniform(engine);
    return values;
  }

  cudaStream_t stream_ = nullptr;
  std::vector<void*> memory_;
};

}  // namespace vitrine::standins
