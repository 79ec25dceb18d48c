// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <vitrine/runtime/memory/category.h>
#include <vitrine/runtime/memory/history.h>
#include <vitrine/runtime/memory/offset_allocator.h>
#include <vitrine/runtime/memory/slab.h>
#include <vitrine/runtime/stream.h>

namespace vitrine {

class BlockAllocator;
class MemoryRecorder;

/// What a pool held, in bytes. The peak is the largest extent of the slab so far; its categories, phase and layer are those of that moment.
struct PoolStatistics {
  int64_t capacity_bytes = 0;
  int64_t reserved_bytes = 0;   // size of the slab
  int64_t allocated_bytes = 0;  // in blocks now
  int64_t adopted_bytes = 0;    // of tensors over memory from elsewhere (ExecContext::adopt) now; in no other figure
  int64_t peak_bytes = 0;
  BytesByCategory allocated_by_category{};
  BytesByCategory peak_by_category{};  // sums to peak_bytes, with fragmentation
  Phase peak_phase = Phase::setup;
  std::string peak_layer;
};

/// All memory of one device: blocks with a category and a name, at deterministic offsets in a slab.
///
/// One thread at a time issues a pool. A block belongs to the stream it was allocated for; when a freed range goes to another stream, that
/// stream is made to wait for the first one's work so far (an inserted wait, never a poll).
class Pool {
 public:
  /// device_name  for messages   capacity_bytes  more than this is refused
  Pool(std::string device_name, std::unique_ptr<Slab> slab, int64_t capacity_bytes);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  struct Block {
    int64_t offset = 0;
    int64_t bytes = 0;  // as asked for; the offsets step by OffsetAllocator::aligned(bytes)
    Category category = Category::activations;
    void* address = nullptr;
    Stream* stream = nullptr;  // whose work the block belongs to
  };

  /// throws OutOfMemory with bytes asked, tensor, layer, phase, capacity, allocated, reserved, free, and the categories in order of size;
  /// after reserve() UnsupportedError that names tensor, layer and phase: the plan has no room for what it does not contain.
  /// On a pool that grows (no reserve() yet) the slab grows in chunks of kGrowthBytes up to the capacity; on CUDA, where addresses cannot stay while
  /// it grows, it takes the whole capacity at the first allocation: name a capacity when you allocate without a plan.
  Block allocate(int64_t bytes, Category category, Stream& stream, std::string_view tensor_name);
  void free(const Block& block) noexcept;
  /// Books memory from elsewhere, which a tensor has adopted (bytes > 0) or let go of (bytes < 0).
  void note_adopted(int64_t bytes) noexcept { adopted_bytes_ += bytes; }

  /// Sets the limit to `bytes` (a plan's peak) and takes that much from the system: from then on the slab never grows. Starts the peak anew.
  /// throws OutOfMemory when that exceeds the capacity, ConfigError when the pool is in use.
  void reserve(int64_t bytes);

  /// Where the program is, for statistics and messages.
  void set_position(Phase phase, const char* layer);

  PoolStatistics statistics() const;
  void reset_peak();
  int64_t capacity_bytes() const;
  const std::string& device_name() const { return device_name_; }

  /// on: begins a new record of every allocate and free, with the blocks that are there now. off: ends it; history() keeps what it has.
  void record_history(bool on);
  const MemoryHistory& history() const;
  /// A step begins here, for the record; until the next position is set, changes lie before its first phase.
  void mark_step(int64_t step);

 private:
  [[noreturn]] void throw_out_of_memory(int64_t bytes, std::string_view tensor_name) const;
  void note_peak();

  std::string device_name_;
  std::unique_ptr<BlockAllocator> blocks_;
  std::unique_ptr<MemoryRecorder> recorder_;
  int64_t adopted_bytes_ = 0;
  BytesByCategory by_category_{};
  PoolStatistics peak_;
};

}  // namespace vitrine
