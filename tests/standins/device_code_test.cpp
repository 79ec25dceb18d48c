// SPDX-License-Identifier: Apache-2.0
// Device code on the host: threads, barriers, shuffles, launches.
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "runtime/cuda/dtype.cuh"
#include "runtime/error.h"
#include "tests/standins/device_interface.h"
#include "tests/standins/library_fixture.h"

namespace vitrine::standins {
namespace {

class DeviceCode : public LibraryTest {};

__global__ void write_coordinates(uint3* out) {
  const unsigned block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const unsigned thread = (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
  out[block * blockDim.x * blockDim.y * blockDim.z + thread] =
      make_uint3(threadIdx.x + 100 * blockIdx.x, threadIdx.y + 100 * blockIdx.y, threadIdx.z + 100 * blockIdx.z);
}

TEST_F(DeviceCode, EveryThreadOfEveryBlockRunsOnce) {
  const dim3 grid(2, 3, 2), block(4, 2, 3);
  const size_t count = 12 * 24;
  uint3* const out = device_memory<uint3>(count);
  for (bool cooperating : {false, true}) {
    ASSERT_EQ(cudaMemsetAsync(out, 0xEE, count * sizeof(uint3), stream_), cudaSuccess);
    cooperating ? cuda::launch_cooperating(stream_, write_coordinates, grid, block, out)
                : cuda::launch(stream_, write_coordinates, grid, block, out);
    const auto result = download(out, count);
    size_t i = 0;
    for (unsigned bz = 0; bz < 2; ++bz)
      for (unsigned by = 0; by < 3; ++by)
        for (unsigned bx = 0; bx < 2; ++bx)
          for (unsigned z = 0; z < 3; ++z)
            for (unsigned y = 0; y < 2; ++y)
              for (unsigned x = 0; x < 4; ++x, ++i) {
                ASSERT_EQ(result[i].x, x + 100 * bx) << i;
                ASSERT_EQ(result[i].y, y + 100 * by) << i;
                ASSERT_EQ(result[i].z, z + 100 * bz) << i;
              }
  }
}

template <int kThreads>
__global__ void reduce_in_shared_memory(const int64_t* in, int64_t* sums) {
  __shared__ int64_t partial[kThreads];
  partial[threadIdx.x] = in[blockIdx.x * kThreads + threadIdx.x];
  __syncthreads();
  for (unsigned half = kThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) partial[threadIdx.x] += partial[threadIdx.x + half];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = partial[0];
}

template <int kThreads>
void expect_sums(cudaStream_t stream, const int64_t* in, int64_t* sums) {
  cuda::launch_cooperating(stream, reduce_in_shared_memory<kThreads>, dim3(7), dim3(kThreads), in, sums);
}

TEST_F(DeviceCode, BlocksReduceInSharedMemory) {
  std::vector<int64_t> values(7 * 1024);
  std::iota(values.begin(), values.end(), 5);
  int64_t* const in = upload(values);
  int64_t* const sums = device_memory<int64_t>(7);
  for (size_t threads : {1024U, 256U, 2U}) {
    threads == 1024  ? expect_sums<1024>(stream_, in, sums)
    : threads == 256 ? expect_sums<256>(stream_, in, sums)
                     : expect_sums<2>(stream_, in, sums);
    const auto result = download(sums, 7);
    for (size_t b = 0; b < 7; ++b) {
      EXPECT_EQ(result[b], std::accumulate(values.begin() + static_cast<int64_t>(b * threads),
                                           values.begin() + static_cast<int64_t>((b + 1) * threads), int64_t{0}));
    }
  }
}

__global__ void shuffle_all(const double* in, double* out) {
  const unsigned t = threadIdx.x;
  double* const mine = out + size_t{t} * 6;
  mine[0] = __shfl_xor_sync(0xFFFFFFFFU, in[t], 5);
  mine[1] = __shfl_down_sync(0xFFFFFFFFU, in[t], 3);
  mine[2] = __shfl_up_sync(0xFFFFFFFFU, in[t], 3);
  mine[3] = __shfl_sync(0xFFFFFFFFU, in[t], 9);
  mine[4] = __shfl_sync(0xFFFFFFFFU, in[t], 2, 8);
  mine[5] = __shfl_xor_sync(0xFFFFFFFFU, static_cast<float>(in[t]), 16, 16);
}

TEST_F(DeviceCode, ShufflesMoveValuesWithinAWarp) {
  std::vector<double> values(96);
  std::iota(values.begin(), values.end(), 0.5);
  double* const out = device_memory<double>(96 * 6);
  cuda::launch_cooperating(stream_, shuffle_all, dim3(1), dim3(96), upload(values), out);
  const auto result = download(out, 96 * 6);
  for (size_t t = 0; t < 96; ++t) {
    const size_t warp = t / 32 * 32, lane = t % 32;
    EXPECT_EQ(result[t * 6], values[warp + (lane ^ 5)]);
    EXPECT_EQ(result[t * 6 + 1], values[lane + 3 < 32 ? t + 3 : t]);
    EXPECT_EQ(result[t * 6 + 2], values[lane >= 3 ? t - 3 : t]);
    EXPECT_EQ(result[t * 6 + 3], values[warp + 9]);
    EXPECT_EQ(result[t * 6 + 4], values[t / 8 * 8 + 2]);
    EXPECT_EQ(result[t * 6 + 5], values[t]);
  }
}

__global__ void vote(unsigned* out) {
  const unsigned t = threadIdx.x;
  if (t >= 40) return;  // the second warp has 8 lanes, of 64
  out[t * 3] = __ballot_sync(0xFFFFFFFFU, t % 3 == 0);
  out[t * 3 + 1] = static_cast<unsigned>(__any_sync(0xFFFFFFFFU, t == 35)) |
                   static_cast<unsigned>(__all_sync(0xFFFFFFFFU, t < 32)) << 1U;
  __syncthreads();
  // The halves of a warp synchronize separately.
  const unsigned half = t % 32 < 16 ? 0x0000FFFFU : 0xFFFF0000U;
  out[t * 3 + 2] = t % 32 < 16 ? __ballot_sync(half, 1) : __ballot_sync(half, t % 2 == 0);
}

TEST_F(DeviceCode, ThreadsThatEndEarlyAreNotWaitedFor) {
  unsigned* const out = device_memory<unsigned>(40 * 3);
  cuda::launch_cooperating(stream_, vote, dim3(3), dim3(64), out);
  const auto result = download(out, 40 * 3);
  unsigned thirds = 0;
  for (unsigned t = 0; t < 32; t += 3) thirds |= 1U << t;
  for (unsigned t = 0; t < 40; ++t) {
    EXPECT_EQ(result[t * 3], t < 32 ? thirds : 0x92U) << t;  // 33, 36, 39
    EXPECT_EQ(result[t * 3 + 1], t < 32 ? 2U : 1U) << t;
    EXPECT_EQ(result[t * 3 + 2], t >= 32 ? 0x000000FFU : t < 16 ? 0x0000FFFFU : 0x55550000U) << t;
  }
}

/// f16: unchanged, and through f32 and back. bf16 likewise.
template <class T>
__global__ void through_f32(const uint16_t* in, float* values, uint16_t* out) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  values[i] = cuda::to_float(reinterpret_cast<const T*>(in)[i]);
  reinterpret_cast<T*>(out)[i] = cuda::from_float<T>(values[i]);
}

template <class T>
__global__ void round_to(const float* in, uint16_t* out) {
  reinterpret_cast<T*>(out)[threadIdx.x] = cuda::from_float<T>(in[threadIdx.x]);
}

/// Value of a half with these fields.
float value_of(unsigned bits, unsigned exponent_bits) {
  const unsigned mantissa_bits = 15 - exponent_bits, most = (1U << exponent_bits) - 1;
  const unsigned exponent = bits >> mantissa_bits & most, mantissa = bits & ((1U << mantissa_bits) - 1);
  const int bias = static_cast<int>(most / 2), shift = static_cast<int>(mantissa_bits);
  float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), 1 - bias - shift)
                              : std::ldexp(static_cast<float>(mantissa | 1U << mantissa_bits),
                                           static_cast<int>(exponent) - bias - shift);
  if (exponent == most) value = mantissa == 0 ? INFINITY : NAN;
  return (bits & 0x8000U) != 0 ? -value : value;
}

TEST_F(DeviceCode, HalvesConvertAsInIeee754) {
  std::vector<uint16_t> all(65536);
  std::iota(all.begin(), all.end(), uint16_t{0});
  uint16_t* const in = upload(all);
  float* const values = device_memory<float>(65536);
  uint16_t* const out = device_memory<uint16_t>(65536);
  for (const unsigned exponent_bits : {5U, 8U}) {
    cuda::launch(stream_, exponent_bits == 5 ? through_f32<__half> : through_f32<__nv_bfloat16>, dim3(256), dim3(256),
                 in, values, out);
    const auto wide = download(values, 65536);
    const auto back = download(out, 65536);
    for (unsigned bits = 0; bits < 65536; ++bits) {
      const float expected = value_of(bits, exponent_bits);
      if (std::isnan(expected)) {
        ASSERT_TRUE(std::isnan(wide[bits]) && std::isnan(value_of(back[bits], exponent_bits))) << bits;
        continue;
      }
      ASSERT_EQ(wide[bits], expected) << bits;
      ASSERT_EQ(back[bits], bits);
    }
  }
}

TEST_F(DeviceCode, HalvesAreRoundedToNearestWithTiesToEven) {
  // The largest f16 is 65504 and the step below it 32; the least is 2^-24. bf16 keeps 8 bits and f32's exponents.
  const std::vector<float> in{2049.0F, 2051.0F, 65519.0F,    65520.0F,    0x1p-25F,  0x1.8p-25F,
                              257.0F,  259.0F,  0x1.fep127F, 0x1.ffp127F, 0x1p-134F, -0x1.8p-134F};
  const std::vector<float> f16{2048, 2052, 65504, INFINITY, 0, 0x1p-24F, 257, 259, INFINITY, INFINITY, 0, -0.0F};
  const std::vector<float> bf16{2048, 2048, 65536,       65536,    0x1p-25F, 0x1.8p-25F,
                                256,  260,  0x1.fep127F, INFINITY, 0,        -0x1p-133F};
  const float* const from = upload(in);
  uint16_t* const out = device_memory<uint16_t>(in.size());
  for (const unsigned exponent_bits : {5U, 8U}) {
    cuda::launch(stream_, exponent_bits == 5 ? round_to<__half> : round_to<__nv_bfloat16>, dim3(1),
                 dim3(static_cast<unsigned>(in.size())), from, out);
    const auto result = download(out, in.size());
    for (size_t i = 0; i < in.size(); ++i)
      EXPECT_EQ(value_of(result[i], exponent_bits), (exponent_bits == 5 ? f16 : bf16)[i]) << in[i];
  }
}

__global__ void meet_once() { __syncthreads(); }
__global__ void meet_in_part() {
  if (threadIdx.x == 0) {
    __syncthreads();
  } else {
    __syncwarp();
  }
}

TEST_F(DeviceCode, ABarrierThatThreadsCannotReachEndsTheProcess) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(run_grid(dim3(1), dim3(4), Threads::independent, meet_once),
               "__syncthreads; only threads launched by launch_cooperating");
  EXPECT_DEATH(run_grid(dim3(1), dim3(4), Threads::cooperating, meet_in_part), "waits for ever");
}

__global__ void nothing(const float*) {}

TEST_F(DeviceCode, InvalidLaunchesAreRefused) {
  const float* const none = nullptr;
  for (const auto& [grid, block] :
       {std::pair{dim3(0), dim3(32)}, std::pair{dim3(1), dim3(1025)}, std::pair{dim3(1), dim3(32, 33)},
        std::pair{dim3(1, 65536), dim3(1)}, std::pair{dim3(1), dim3(1, 1, 65)}}) {
    EXPECT_THROW(cuda::launch(stream_, nothing, grid, block, none), CudaError) << grid.x << " " << block.x;
  }
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  EXPECT_THROW(cuda::launch(stream_, nothing, dim3(1), dim3(1), none), CudaError) << "another GPU is current";
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  cuda::launch(stream_, nothing, dim3(1), dim3(1), none);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
}

TEST_F(DeviceCode, KernelsAccessOnlyTheMemoryOfTheirGpu) {
  float on_host = 0;
  cuda::launch(stream_, nothing, dim3(1), dim3(1), static_cast<const float*>(&on_host));
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaErrorIllegalAddress) << "ordinary host memory";
  EXPECT_EQ(cudaStreamQuery(stream_), cudaErrorIllegalAddress) << "the error stays";
}

TEST_F(DeviceCode, KernelsAccessPeersAfterEnablingAccess) {
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  const float* const other = device_memory<float>(4);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  ASSERT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaSuccess);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessAlreadyEnabled);
  cuda::launch(stream_, nothing, dim3(1), dim3(1), other);
  EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
}

}  // namespace
}  // namespace vitrine::standins
