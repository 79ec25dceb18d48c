// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include <cuda_runtime_api.h>

/// Execution of device code on the host. Included only by the device interface and the stand-ins.
namespace vitrine::standins {

enum class Threads {
  independent,  // one after the other
  cooperating,  // those of a block concurrently, each on its own fiber, so they may synchronize
};

/// Whether a GPU takes such a grid.
bool fits(dim3 grid, dim3 block);

/// Launches a kernel: checks as CUDA does, then queues it.
///   function     identifies the kernel
///   pointers     the kernel's pointer parameters, null in the other positions
///   thread_body  the work of one thread; threadIdx and blockIdx are set
cudaError_t queue_kernel(cudaStream_t stream, dim3 grid, dim3 block, Threads threads, const void* function,
                         std::span<const void* const> pointers, std::function<void()> thread_body);

/// Runs the kernel on the calling thread, block by block.
void run_grid(dim3 grid, dim3 block, Threads threads, const std::function<void()>& thread_body);

/// Position of the device thread that runs on this host thread.
extern constinit thread_local uint3 thread_index, block_index;
extern constinit thread_local dim3 block_dimensions, grid_dimensions;

/// Called by device code. They end the process with a message where a GPU would hang or continue with garbage: for
/// threads that were not launched as cooperating, that wait for each other in different places, and lanes that
/// disagree.
void barrier(const char* name);
enum class WarpOperation : uint8_t { barrier, shuffle, ballot };
/// Synchronizes all live lanes in `mask`. Shuffle: returns the value of `source_lane`. Ballot: the lanes whose value is
/// not 0.
uint64_t meet_in_warp(WarpOperation operation, uint32_t mask, uint64_t value, uint32_t source_lane);
uint32_t lane();

}  // namespace vitrine::standins
