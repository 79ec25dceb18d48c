// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include <vitrine/runtime/memory/category.h>
#include <vitrine/runtime/memory/history.h>
#include <vitrine/runtime/memory/offset_allocator.h>
#include <vitrine/runtime/memory/pool_placement.h>
#include <vitrine/runtime/memory/slab.h>
#include <vitrine/runtime/stream.h>

namespace vitrine {

class BlockAllocator;
class MemoryRecorder;
class PlacementCursor;
struct PoolPlacement;
struct PoolRecord;

/// Statistics of a pool, in bytes. The peak is the largest extent of the slab so far. Categories, phase and layer
/// belong to the moment with the largest sum of blocks; fragmentation is the difference between the two.
struct PoolStatistics {
  int64_t capacity_bytes = 0;
  int64_t reserved_bytes = 0;   // size of the slab
  int64_t allocated_bytes = 0;  // in blocks now
  int64_t adopted_bytes = 0;    // of adopted tensors (ExecContext::adopt) now; not part of any other value
  int64_t peak_bytes = 0;
  int64_t unplaced_blocks = 0;  // allocated in a section of the placement that the pool follows, but not as it says
  BytesByCategory allocated_by_category{};
  BytesByCategory peak_by_category{};  // includes fragmentation; sums to peak_bytes
  Phase peak_phase = Phase::setup;
  std::string peak_layer;
};

/// All memory of one device: blocks with a category and a name, at deterministic offsets in a slab. Wraps
/// BlockAllocator, which places the blocks, with statistics, history and errors. With history off, an allocation reads
/// no clock and builds no string for a name seen before. One thread at a time issues to a pool. A block belongs to the
/// stream it was allocated for. If a freed range goes to another stream, that stream waits for the first one's work so
/// far (an inserted wait, never a poll).
class Pool {
 public:
  /// device_name  for messages   capacity_bytes  limit
  Pool(std::string device_name, std::unique_ptr<Slab> slab, int64_t capacity_bytes);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  struct Block {
    int64_t offset = 0;
    int64_t bytes = 0;  // as requested; offsets advance by OffsetAllocator::aligned(bytes)
    Category category = Category::activations;
    void* address = nullptr;
    Stream* stream = nullptr;  // whose work uses the block
    int64_t number = -1;       // in the pool's record
  };

  /// throws OutOfMemory with requested bytes, tensor, layer, phase, capacity, allocated, reserved, free, and the
  /// categories by size; after reserve() UnsupportedError with tensor, layer and phase, because the plan has no room
  /// for an unplanned allocation. Without reserve() the slab grows in chunks up to the capacity. On CUDA, where
  /// addresses would change when it grows, it takes the whole capacity at the first allocation: set a capacity if you
  /// allocate without a plan.
  Block allocate(int64_t bytes, Category category, Stream& stream, std::string_view tensor_name);
  void free(const Block& block) noexcept;
  /// Counts memory that a tensor has adopted (bytes > 0) or released (bytes < 0).
  void note_adopted(int64_t bytes) noexcept { adopted_bytes_ += bytes; }

  /// Sets the limit to `bytes` (a plan's peak) and takes that much from the system; afterwards the slab never grows.
  /// Resets the peak. throws OutOfMemory if that exceeds the capacity, ConfigError if the pool is in use.
  void reserve(int64_t bytes);

  /// Starts a record of all allocations, releases and sections. requires an empty pool
  void start_record();
  /// Ends the record and returns it.
  PoolRecord take_record();
  /// Gives the blocks of each section that begins from now on the offsets of the placement, as long as they are
  /// allocated as it was recorded. A block that differs, or whose range is in use, lies where it would without a
  /// placement. Ends with the next reserve().
  void follow(std::shared_ptr<const PoolPlacement> placement);
  /// Begins a part of the program that is recorded and placed as a whole.
  void begin_section(const SectionKey& key);
  /// Begins the latest section again: what it has allocated was released.
  void restart_section();
  /// Makes the limit apply to the sum of blocks in place of the extent, so that it is exceeded by the block for which
  /// there is no room in any placement. For meta devices.
  void limit_sum();

  /// Sets the current phase and layer, for statistics and messages.
  void set_position(Phase phase, const char* layer);

  PoolStatistics statistics() const;
  void reset_peak();
  /// Hash of the ranges in use. Equal values mean equal ranges, whatever the order in which they were allocated.
  uint64_t in_use_hash() const { return in_use_hash_; }
  /// Hash of the ranges that were allocated and released since the latest begin_section(), in their order.
  uint64_t section_hash() const { return section_hash_; }
  bool records_history() const;

  int64_t capacity_bytes() const;
  const std::string& device_name() const { return device_name_; }

  /// on: starts a new history of every allocation and release, with the blocks that are allocated now. off: ends it;
  /// history() keeps its content.
  void record_history(bool on);
  const MemoryHistory& history() const;
  /// Marks the beginning of a step in the history; changes before the next position belong to Phase::step.
  void mark_step(int64_t step);

  /// Its streams are about to end: their order checker hears no more of blocks, which may outlive it.
  void forget_checker() { checker_ = nullptr; }

 private:
  [[noreturn]] void throw_out_of_memory(int64_t bytes, std::string_view tensor_name) const;
  void note_peak();
  void note_range(int64_t offset, int64_t bytes, bool allocated) noexcept;

  std::string device_name_;
  OrderChecker* checker_ = nullptr;  // of the streams for which it has allocated
  std::unique_ptr<BlockAllocator> blocks_;
  std::unique_ptr<MemoryRecorder> recorder_;
  std::unique_ptr<PoolRecord> record_;       // null: none is kept
  std::unique_ptr<PlacementCursor> cursor_;  // null: no placement is followed
  int64_t adopted_bytes_ = 0;
  BytesByCategory by_category_{};
  PoolStatistics peak_;               // its categories without fragmentation
  int64_t most_allocated_bytes_ = 0;  // with those categories
  uint64_t in_use_hash_ = 0, section_hash_ = 0;
};

}  // namespace vitrine
