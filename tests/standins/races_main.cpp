// SPDX-License-Identifier: Apache-2.0
// For ThreadSanitizer builds: omits the synchronization between two accesses, named by the argument: "event" between
// two streams, "collective" between the ranks' streams and another one, "edge" between two streams that are captured in
// a graph, "graph" between a graph and another stream; or nothing. The tests expect ThreadSanitizer's report, or none.
#include <cstdio>
#include <string_view>

#include <nccl.h>

#include "tests/standins/device_interface.h"

namespace {

constexpr int kThreads = 64;

__global__ void rotate(int* values) {
  __shared__ int shared[kThreads];
  shared[threadIdx.x] = values[threadIdx.x];
  __syncthreads();
  values[threadIdx.x] = shared[(threadIdx.x + 1) % kThreads];
  __syncthreads();
}

__global__ void increment(int* values) { ++values[threadIdx.x]; }

void run(std::string_view left_out) {
  cudaStream_t compute = nullptr, copy = nullptr;
  cudaEvent_t event = nullptr;
  void* memory = nullptr;
  VITRINE_CUDA_CHECK(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking));
  VITRINE_CUDA_CHECK(cudaStreamCreateWithFlags(&copy, cudaStreamNonBlocking));
  VITRINE_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  VITRINE_CUDA_CHECK(cudaMalloc(&memory, kThreads * sizeof(int)));
  int* const values = static_cast<int*>(memory);
  ncclComm_t comm = nullptr;
  const int device = 0;
  if (ncclCommInitAll(&comm, 1, &device) != ncclSuccess) std::puts("no communicator");

  const auto order = [&](cudaStream_t first, cudaStream_t second, bool left) {
    VITRINE_CUDA_CHECK(cudaEventRecord(event, first));
    if (!left) VITRINE_CUDA_CHECK(cudaStreamWaitEvent(second, event, 0));
  };
  VITRINE_CUDA_CHECK(cudaMemsetAsync(values, 0, kThreads * sizeof(int), copy));
  order(copy, compute, left_out == "event");
  vitrine::cuda::launch(compute, increment, dim3(1), dim3(kThreads), values);
  vitrine::cuda::launch_cooperating(compute, rotate, dim3(1), dim3(kThreads), values);
  order(compute, copy, false);
  if (ncclAllReduce(values, values, kThreads, ncclInt32, ncclSum, comm, copy) != ncclSuccess)
    std::puts("no collective");
  order(copy, compute, left_out == "collective");
  vitrine::cuda::launch(compute, increment, dim3(1), dim3(kThreads), values);

  // A graph in which `copy` takes part from its beginning to its end, as the communication stream does in a step.
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  VITRINE_CUDA_CHECK(cudaStreamBeginCapture(compute, cudaStreamCaptureModeThreadLocal));
  order(compute, copy, false);
  vitrine::cuda::launch(compute, increment, dim3(1), dim3(kThreads), values);
  order(compute, copy, left_out == "edge");
  if (ncclAllReduce(values, values, kThreads, ncclInt32, ncclSum, comm, copy) != ncclSuccess)
    std::puts("no collective in a graph");
  order(copy, compute, false);
  VITRINE_CUDA_CHECK(cudaStreamEndCapture(compute, &graph));
  VITRINE_CUDA_CHECK(cudaGraphInstantiate(&executable, graph, 0));
  VITRINE_CUDA_CHECK(cudaGraphDestroy(graph));
  for (int i = 0; i < 2; ++i) VITRINE_CUDA_CHECK(cudaGraphLaunch(executable, compute));
  order(compute, copy, left_out == "graph");
  vitrine::cuda::launch(copy, increment, dim3(1), dim3(kThreads), values);

  VITRINE_CUDA_CHECK(cudaStreamSynchronize(copy));
  VITRINE_CUDA_CHECK(cudaStreamSynchronize(compute));
  VITRINE_CUDA_CHECK(cudaGraphExecDestroy(executable));
  ncclCommDestroy(comm);
  VITRINE_CUDA_CHECK(cudaFree(memory));
  VITRINE_CUDA_CHECK(cudaEventDestroy(event));
  VITRINE_CUDA_CHECK(cudaStreamDestroy(compute));
  VITRINE_CUDA_CHECK(cudaStreamDestroy(copy));
}

}  // namespace

int main(int argc, char** argv) {
  // Locks of the stand-ins order the two accesses by chance in some rounds.
  for (int round = 0; round < 10; ++round) run(argc > 1 ? argv[1] : "");
  return 0;
}
