// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <memory>

#include "tests/ptx/code.h"

/// What runs: a launch, its blocks and warps, and the shadows of memory in which races are found.
namespace vitrine::ptx {

/// Memory that a kernel may access.
struct Region {
  uintptr_t begin = 0, end = 0;
};
struct Launch {
  uint32_t grid[3], block[3];
  std::vector<std::byte> parameters;
  /// Finds what a kernel may access around an address. Returns what is wrong, null if nothing.
  std::function<const char*(uintptr_t, Region&)> find_region;
};
/// Runs the kernel block by block. Returns 0, or the cudaError_t that ends its device.
int run(Kernel& kernel, const Launch& launch);

/// Iterates over the lanes of a mask.
struct Lanes {
  uint32_t mask;
  Lanes begin() const { return *this; }
  Lanes end() const { return {0}; }
  int operator*() const { return std::countr_zero(mask); }
  void operator++() { mask &= mask - 1; }
  bool operator!=(const Lanes& other) const { return mask != other.mask; }
};

struct Warp {
  std::byte* registers = nullptr;
  uint32_t live = 0, at_barrier = 0, at_meeting = 0, waited = 0;  // lanes
  uint32_t shuffles = 0;                                          // of all lanes
  uint32_t index = 0;
  uint32_t positions[32] = {};  // in the code
};

/// The last access to a byte, or all since the last barrier.
struct Access {
  uint32_t block = 0, epoch = 0, shuffle = 0;  // block: plus 1, kAll for several; shuffle: of the warp before it
  uint16_t thread = 0, warp = 0;               // kSeveral for several
};
constexpr uint16_t kSeveral = 0xFFFF;
struct ShadowByte {
  Access write, read;
};
constexpr uint64_t kPage = 4096;
/// Of global memory. The shadow of 32 MiB takes 1 GiB; what a launch touches beyond is not checked.
struct Shadow {
  static constexpr size_t kMostPages = 8192;
  struct Page {
    uint64_t launch = 0;
    std::array<ShadowByte, kPage> bytes{};
  };
  uint64_t launch = 0;
  std::unordered_map<uint64_t, std::unique_ptr<Page>> pages;
  uint64_t last_number = 0;
  Page* last = nullptr;  // that was used
};

struct alignas(64) CacheLine {
  std::byte bytes[64];
};
/// What a host thread executes.
struct Context {
  Kernel* kernel = nullptr;
  const Launch* launch = nullptr;
  std::vector<CacheLine> registers;  // of all warps
  std::vector<Warp> warps;
  std::vector<Region> regions;  // that accesses have found
  std::vector<std::byte> shared;
  std::vector<ShadowByte> shared_shadow;
  Shadow global_shadow;
  Region region;  // that was used last
  Warp* warp = nullptr;
  uint32_t threads = 0;                          // of a block
  uint32_t ctaid[3] = {}, block = 0, epoch = 0;  // block: plus 1
  bool block_used_atomics = false;
  int error = 0;
  int64_t lane_instructions = 0;
};

template <class T>
T* at(Context& c, uint32_t offset) {
  return reinterpret_cast<T*>(c.warp->registers + offset);
}

/// Reports a race of an access with an earlier one, and a read of uninitialised shared memory.
///   same_value  a write that changes nothing
void check_order(Context& c, const Instruction& i, int lane, uint64_t p, uint32_t bytes, bool writes, bool same_value);

}  // namespace vitrine::ptx
