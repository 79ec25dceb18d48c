// SPDX-License-Identifier: Apache-2.0
// Planted mistakes, of which the interpreter must find each: run.py's self-test. Argument: the mistake.
#include <cstdio>
#include <cstring>

#include <cuda_runtime.h>

#include "runtime/device.h"

namespace {

__global__ void fine(float* p, int n) {
  cudaGridDependencySynchronize();
  __shared__ float s[256];
  s[threadIdx.x] = p[threadIdx.x];
  __syncthreads();
  float sum = s[(threadIdx.x + 1) % 256];
  for (int o = 16; o > 0; o /= 2) sum += __shfl_xor_sync(~0U, sum, o);
  if (threadIdx.x % 3 == 0) sum += __expf(sum * 1e-3F);
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < n) p[threadIdx.x] = sum;
}
__global__ void beyond(float* p, int n) {
  cudaGridDependencySynchronize();
  p[0] = p[n];
}
__global__ void misaligned(float* p, int n) {
  cudaGridDependencySynchronize();
  *reinterpret_cast<float4*>(p + n) = make_float4(1, 2, 3, 4);
}
__global__ void no_barrier(float* p, int) {
  cudaGridDependencySynchronize();
  __shared__ float s[256];
  s[threadIdx.x] = p[threadIdx.x];
  p[threadIdx.x] = s[255 - threadIdx.x];
}
__global__ void uninitialised(float* p, int n) {
  cudaGridDependencySynchronize();
  __shared__ float s[256];
  if (static_cast<int>(threadIdx.x) < n) s[threadIdx.x] = p[threadIdx.x];
  __syncthreads();
  p[threadIdx.x] = s[threadIdx.x ^ 1U];
}
__global__ void beyond_shared(float* p, int n) {
  cudaGridDependencySynchronize();
  __shared__ float s[64];
  s[threadIdx.x % 64] = p[threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) p[0] = s[n];
}
__global__ void divergent_barrier(float* p, int n) {
  cudaGridDependencySynchronize();
  if (static_cast<int>(threadIdx.x) < n) {
    p[threadIdx.x] = 1;
    __syncthreads();
    p[threadIdx.x] += p[(threadIdx.x + 1) % n];
  } else {
    p[threadIdx.x] = 2;
    __syncthreads();
    p[threadIdx.x] *= 3;
  }
}
__global__ void lost_lanes(float* p, int n) {
  cudaGridDependencySynchronize();
  float x = p[threadIdx.x];
  if (static_cast<int>(threadIdx.x) % 32 < n) {
    x += __shfl_xor_sync(~0U, x, 1);
  } else {
    __syncthreads();
  }
  p[threadIdx.x] = x;
}
__global__ void no_wait(float* p, int n) { p[threadIdx.x] = static_cast<float>(n); }
__global__ void blocks_race(float* p, int n) {
  cudaGridDependencySynchronize();
  p[threadIdx.x] = static_cast<float>(blockIdx.x) + static_cast<float>(n);
}

struct Mistake {
  const char* name;
  void (*kernel)(float*, int);
  int n;
  unsigned blocks = 1;
};
const Mistake kMistakes[] = {{"fine", fine, 256},
                             {"no_barrier", no_barrier, 256},
                             {"uninitialised", uninitialised, 255},
                             {"divergent_barrier", divergent_barrier, 32},
                             {"no_wait", no_wait, 1},
                             {"blocks_race", blocks_race, 1, 2},
                             {"beyond", beyond, 256},
                             {"misaligned", misaligned, 1},
                             {"beyond_shared", beyond_shared, 64},
                             {"lost_lanes", lost_lanes, 16}};

void launch(cudaStream_t stream, const Mistake& mistake, float* p) {
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(mistake.blocks);
  config.blockDim = dim3(256);
  config.stream = stream;
  cudaLaunchKernelEx(&config, mistake.kernel, p, mistake.n);
  std::fprintf(stderr, "the device ends with %d\n", static_cast<int>(cudaStreamSynchronize(stream)));
}

/// A tensor of a pool to which no parameter of the kernel points.
void read_another_tensor(cudaStream_t stream) {
  using namespace vitrine;
  DeviceGroupOptions options;
  options.devices = {{Backend::cuda, 0}};
  options.memory_bytes = {1 << 20};
  DeviceGroup devices(options);
  ExecContext& ctx = devices[0].compute();
  const Tensor mine = ctx.allocate({1024}, DType::f32, Category::activations, "mine"),
               other = ctx.allocate({1024}, DType::f32, Category::activations, "other");
  const auto distance = static_cast<int>(other.view().as<float>() - mine.view().as<float>());
  launch(stream, {"other_block", beyond, distance}, mine.view().as<float>());
}

}  // namespace

int main(int count, char** arguments) {
  const char* const name = count == 2 ? arguments[1] : "";
  cudaStream_t stream = nullptr;
  float* p = nullptr;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (std::strcmp(name, "other_block") == 0) read_another_tensor(stream);
  cudaMalloc(&p, 1024);
  cudaMemsetAsync(p, 0, 1024, stream);
  for (const Mistake& mistake : kMistakes) {
    if (std::strcmp(name, mistake.name) == 0) launch(stream, mistake, p);
  }
}
