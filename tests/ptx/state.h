// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <memory>
#include <unordered_map>

#include "tests/ptx/code.h"

/// What runs: a launch, its blocks and warps, and the shadows of memory in which races are found.
namespace vitrine::ptx {

struct Allocation {
  uintptr_t begin;
  size_t bytes;
  int device;  // -1: pinned host memory; -2: of a GPU without peer access; -3: no parameter of the kernel points there
  bool freed;
};
struct Launch {
  uint32_t grid[3], block[3];
  uint64_t dynamic_shared;
  const void* params;
  size_t param_bytes;
  const Allocation* allocations;  // sorted by address
  size_t allocation_count;
  int device;
};
/// Runs the kernel block by block. Returns 0, or the cudaError_t that ends its device.
int run(Kernel& kernel, const Launch& launch);

struct SharedByte {  // shadow of a byte of shared memory
  uint32_t write_epoch = 0, read_epoch = 0;
  uint16_t writer = 0, reader = 0;
  bool written = false, several_readers = false;
};

struct Warp {
  std::byte* regs = nullptr;
  uint32_t live = 0, at_barrier = 0, at_warp = 0, waited = 0;
  uint32_t shuffles = 0;  // of all lanes
  uint32_t index = 0;
  uint32_t pcs[32];
};

struct Block {
  std::vector<std::byte> shared;
  std::vector<SharedByte> shadow;
  uint32_t epoch = 1;
};

// Shadow of a page of global memory during one launch.
struct GlobalByte {
  uint32_t write_block = 0, read_block = 0;  // plus 1; kAll: several
  uint32_t write_epoch = 0, read_epoch = 0;
  uint32_t write_shuffle = 0, read_shuffle = 0;  // the number of shuffles of the warp before
  uint16_t writer = 0, reader = 0;               // threads; reader kSeveral: several threads of read_warp
  uint16_t read_warp = 0;                        // kSeveral: several
};
constexpr uint16_t kSeveral = 0xFFFF;
constexpr uint64_t kPage = 4096;
struct GlobalPage {
  uint64_t launch = 0;
  std::array<GlobalByte, kPage> bytes{};
};
constexpr size_t kMostPages = 8192;  // the shadow of 32 MiB takes 1 GiB; what a launch touches beyond is not checked
struct GlobalShadow {
  uint64_t launch = 0;
  std::unordered_map<uint64_t, std::unique_ptr<GlobalPage>> pages;
  uint64_t last_number = 0;
  GlobalPage* last = nullptr;
};

struct Ctx {
  GlobalShadow* global = nullptr;
  uint32_t block_number = 0;  // plus 1
  bool block_used_atomics = false;
  std::byte* regs = nullptr;
  const Kernel* kernel = nullptr;
  const Launch* launch = nullptr;
  Block* block = nullptr;
  Warp* warp = nullptr;
  uint32_t ctaid[3] = {};
  uintptr_t low = 1, high = 0;  // the allocation that was used last
  int error = 0;
};

template <class T>
T* at(Ctx& c, uint32_t offset) {
  return reinterpret_cast<T*>(c.regs + offset);
}

}  // namespace vitrine::ptx
