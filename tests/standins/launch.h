// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include <cuda_runtime_api.h>

/// How device code runs on the host. Only the device interface and the stand-ins include this.
namespace vitrine::standins {

enum class Threads {
  independent,  // one after the other
  cooperating,  // those of a block at once, each on a fiber of its own: they may meet
};

/// What a launch does: checks as CUDA does, then queues the kernel.
///   pointers     the kernel's pointer parameters, null in the other places
///   thread_body  what one thread does; threadIdx and blockIdx are set
cudaError_t queue_kernel(cudaStream_t stream, dim3 grid, dim3 block, Threads threads, std::span<const void* const> pointers,
                         std::function<void()> thread_body);

/// Runs the kernel on the calling thread: blocks one after the other.
void run_grid(dim3 grid, dim3 block, Threads threads, const std::function<void()>& thread_body);

/// Where the device thread that runs on this host thread is.
extern constinit thread_local uint3 thread_index, block_index;
extern constinit thread_local dim3 block_dimensions, grid_dimensions;

/// Called by device code. They end the process with a message where a GPU would hang or go on with garbage: threads that are not launched as
/// cooperating, that wait for each other in different places, or lanes that disagree.
void barrier(const char* name);
enum class WarpOperation : uint8_t { barrier, shuffle, ballot };
/// All live lanes in `mask` meet. Shuffle: gives the value of `source_lane`. Ballot: the lanes whose value is not 0.
uint64_t meet_in_warp(WarpOperation operation, uint32_t mask, uint64_t value, uint32_t source_lane);
uint32_t lane();

}  // namespace vitrine::standins
