// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory/pool.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "runtime/error.h"
#include "runtime/hash.h"
#include "runtime/memory/offset_allocator.h"
#include "runtime/memory/pool_placement.h"
#include "runtime/memory/recorder.h"
#include "runtime/memory/slab.h"
#include "runtime/order_checker.h"
#include "runtime/stream.h"
#include "runtime/units.h"

namespace vitrine {

/// Places blocks in a slab and orders the streams that use the same range in turn. Pool wraps it and adds names,
/// statistics, history and errors.
class BlockAllocator {
 public:
  BlockAllocator(std::unique_ptr<Slab> slab, int64_t capacity_bytes)
      : slab_(std::move(slab)), capacity_bytes_(capacity_bytes) {}

  /// Returns the offset of OffsetAllocator::aligned(bytes) bytes, or nothing if the limit leaves no room. Makes
  /// `stream` wait for the streams that used the range before. Grows the slab if necessary; throws what Slab::grow()
  /// throws.
  std::optional<int64_t> allocate(int64_t bytes, Stream& stream);
  /// The same at a given offset. Returns false if a part of that range is in use or beyond the limit.
  bool allocate_at(int64_t offset, int64_t bytes, Stream& stream);
  /// requires  offset and bytes as allocated      stream  the last one to use the block
  void free(int64_t offset, int64_t bytes, Stream& stream) noexcept;

  /// Grows the slab to `bytes` and makes that the limit. requires  no block is allocated
  void reserve(int64_t bytes);
  bool is_reserved() const { return reserved_bytes_.has_value(); }
  /// The reserved size, or the current size of a slab that still grows.
  int64_t reserved_bytes() const { return reserved_bytes_.value_or(slab_->size_bytes()); }
  int64_t capacity_bytes() const { return capacity_bytes_; }
  /// From now on the limit applies to the sum of the blocks, not to their extent. For meta devices, whose slabs have no
  /// end.
  void limit_sum() { limits_sum_ = true; }
  int64_t limit_bytes() const { return reserved_bytes_.value_or(capacity_bytes_); }
  /// Size of the largest block that still fits.
  int64_t largest_free_bytes() const {
    return limits_sum_ ? limit_bytes() - allocated_bytes()
                       : std::max(offsets_.largest_hole(), limit_bytes() - offsets_.extent());
  }
  int64_t allocated_bytes() const { return offsets_.allocated_bytes(); }
  int64_t extent() const { return offsets_.extent(); }
  void* address(int64_t offset) const { return static_cast<char*>(slab_->base()) + offset; }

 private:
  static constexpr int64_t kGrowthBytes = int64_t{32} << 20;
  /// A free range and the stream that used it last.
  struct Range {
    int64_t end;
    Stream* stream;
  };
  void grow_to(int64_t end);
  void order_after_last_use(int64_t offset, int64_t bytes, Stream& stream);

  std::unique_ptr<Slab> slab_;
  int64_t capacity_bytes_;
  std::optional<int64_t> reserved_bytes_;
  bool limits_sum_ = false;
  OffsetAllocator offsets_;
  std::map<int64_t, Range> last_use_;  // offset -> range; disjoint
};

std::optional<int64_t> BlockAllocator::allocate(int64_t bytes, Stream& stream) {
  const int64_t size = OffsetAllocator::aligned(bytes);
  const int64_t end = offsets_.peek(bytes) + size;
  if ((limits_sum_ ? allocated_bytes() + size : end) > limit_bytes()) return std::nullopt;
  grow_to(end);
  const int64_t offset = offsets_.allocate(bytes);
  order_after_last_use(offset, size, stream);
  return offset;
}

bool BlockAllocator::allocate_at(int64_t offset, int64_t bytes, Stream& stream) {
  const int64_t size = OffsetAllocator::aligned(bytes), end = offset + size;
  if (end > limit_bytes() || !offsets_.allocate_at(offset, bytes)) return false;
  try {
    grow_to(end);
  } catch (...) {
    offsets_.free(offset, bytes);
    throw;
  }
  order_after_last_use(offset, size, stream);
  return true;
}

void BlockAllocator::grow_to(int64_t end) {
  if (end <= slab_->size_bytes()) return;
  const int64_t chunks = (end + kGrowthBytes - 1) / kGrowthBytes * kGrowthBytes;
  slab_->grow(slab_->grows_again() ? std::min(capacity_bytes_, chunks) : capacity_bytes_);
}

void BlockAllocator::free(int64_t offset, int64_t bytes, Stream& stream) noexcept {
  offsets_.free(offset, bytes);
  int64_t begin = offset, end = offset + OffsetAllocator::aligned(bytes);
  if (begin == end) return;
  auto next = last_use_.lower_bound(begin);
  if (next != last_use_.end() && next->first == end && next->second.stream == &stream) {
    end = next->second.end;
    next = last_use_.erase(next);
  }
  if (next != last_use_.begin()) {
    const auto previous = std::prev(next);
    if (previous->second.end == begin && previous->second.stream == &stream) {
      begin = previous->first;
      last_use_.erase(previous);
    }
  }
  last_use_.emplace(begin, Range{end, &stream});
}

void BlockAllocator::order_after_last_use(int64_t offset, int64_t bytes, Stream& stream) {
  const int64_t end = offset + bytes;
  std::vector<Stream*> others;
  auto it = last_use_.upper_bound(offset);
  if (it != last_use_.begin()) --it;
  while (it != last_use_.end() && it->first < end) {
    const int64_t begin = it->first;
    const Range range = it->second;
    if (range.end <= offset) {
      ++it;
      continue;
    }
    if (range.stream != &stream && std::find(others.begin(), others.end(), range.stream) == others.end())
      others.push_back(range.stream);
    it = last_use_.erase(it);
    if (begin < offset) last_use_.emplace(begin, Range{offset, range.stream});
    if (range.end > end) it = last_use_.emplace(end, range).first;
  }
  for (Stream* other : others) {
    const auto event = other->make_event();
    other->record(*event);
    stream.wait(*event);
  }
}

void BlockAllocator::reserve(int64_t bytes) {
  slab_->grow(bytes);
  reserved_bytes_ = bytes;
}

namespace {

void note(OrderChecker* checker, ScheduleEvent::Kind kind, const Pool::Block& block, int64_t size,
          std::string_view tensor_name) {
  if (checker == nullptr || size == 0) return;
  const MemoryAccess memory{block.address, size};
  checker->note({.kind = kind,
                 .stream = block.stream->checker_index(),
                 .name = tensor_name,
                 .accesses = {&memory, 1},
                 .offset = block.offset});
}

}  // namespace

Pool::Pool(std::string device_name, std::unique_ptr<Slab> slab, int64_t capacity_bytes)
    : device_name_(std::move(device_name)),
      blocks_(std::make_unique<BlockAllocator>(std::move(slab), capacity_bytes)),
      recorder_(std::make_unique<MemoryRecorder>()) {}

Pool::~Pool() = default;

Pool::Block Pool::allocate(int64_t bytes, Category category, Stream& stream, std::string_view tensor_name) {
  VITRINE_ASSERT(bytes >= 0, "sizes are not negative");
  const int64_t size = OffsetAllocator::aligned(bytes);
  std::optional<int64_t> offset = size > 0 && cursor_ ? cursor_->take(size, stream.identity().role) : std::nullopt;
  if (!offset || !blocks_->allocate_at(*offset, bytes, stream)) {
    if (size > 0 && cursor_ && cursor_->in_section()) ++peak_.unplaced_blocks;
    offset = blocks_->allocate(bytes, stream);
  }
  if (!offset) throw_out_of_memory(bytes, tensor_name);
  by_category_[static_cast<size_t>(category)] += size;
  note_peak();
  if (size > 0) recorder_->on_allocate(*offset, size, category, tensor_name);
  note_range(*offset, size, true);
  Block block{*offset, bytes, category, blocks_->address(*offset), &stream, -1};
  if (record_ && size > 0) {
    block.number = record_->blocks++;
    record_->events.push_back({block.number, size, stream.identity().role});
  }
  checker_ = stream.checker();
  note(checker_, ScheduleEvent::Kind::allocate, block, size, tensor_name);
  return block;
}

void Pool::free(const Block& block) noexcept {
  const int64_t size = OffsetAllocator::aligned(block.bytes);
  note(checker_, ScheduleEvent::Kind::free, block, size, {});
  blocks_->free(block.offset, block.bytes, *block.stream);
  by_category_[static_cast<size_t>(block.category)] -= size;
  if (size > 0) recorder_->on_free(block.offset);
  note_range(block.offset, size, false);
  if (record_ && block.number >= 0) record_->events.push_back({block.number, 0, block.stream->identity().role});
}

void Pool::note_peak() {
  peak_.peak_bytes = std::max(peak_.peak_bytes, blocks_->extent());
  // Of equal sums the larger categories count: the result does not depend on the order in which a program runs its
  // parts.
  const int64_t allocated = blocks_->allocated_bytes();
  if (allocated < most_allocated_bytes_ ||
      (allocated == most_allocated_bytes_ && by_category_ <= peak_.peak_by_category))
    return;
  most_allocated_bytes_ = allocated;
  peak_.peak_by_category = by_category_;
  peak_.peak_phase = recorder_->phase();
  peak_.peak_layer = recorder_->layer();
}

void Pool::note_range(int64_t offset, int64_t bytes, bool allocated) noexcept {
  if (bytes == 0) return;
  const uint64_t range = hash_number(hash_number(0, static_cast<uint64_t>(offset)), static_cast<uint64_t>(bytes));
  in_use_hash_ ^= range;
  section_hash_ = hash_number(section_hash_, range + (allocated ? 1 : 2));
}

void Pool::reserve(int64_t bytes) {
  if (bytes > capacity_bytes()) {
    throw OutOfMemory(
        fmt::format("{}: the plan needs {} ({} bytes), but the device's capacity is {} ({} bytes)", device_name_,
                    format_bytes(bytes), bytes, format_bytes(capacity_bytes()), capacity_bytes()),
        {.device = device_name_, .user = "the plan", .needed_bytes = bytes, .capacity_bytes = capacity_bytes()});
  }
  if (blocks_->allocated_bytes() != 0) {
    throw ConfigError(
        fmt::format("{}: the pool still holds {}, expected an empty pool; free all tensors and engines of the device "
                    "before it is reserved",
                    device_name_, format_bytes(blocks_->allocated_bytes())));
  }
  blocks_->reserve(bytes);
  cursor_.reset();
  reset_peak();
}

void Pool::start_record() {
  VITRINE_ASSERT(blocks_->allocated_bytes() == 0, "a record begins with an empty pool");
  record_ = std::make_unique<PoolRecord>();
}

PoolRecord Pool::take_record() {
  VITRINE_ASSERT(record_ != nullptr, "a record was started");
  PoolRecord record = std::move(*record_);
  record_.reset();
  return record;
}

void Pool::follow(std::shared_ptr<const PoolPlacement> placement) {
  cursor_ = std::make_unique<PlacementCursor>(std::move(placement));
}

void Pool::begin_section(const SectionKey& key) {
  section_hash_ = 0;
  if (record_) record_->sections.push_back({key, record_->events.size()});
  if (cursor_) cursor_->begin_section(key);
}

void Pool::restart_section() {
  VITRINE_ASSERT(record_ == nullptr, "a record has each section once");
  section_hash_ = 0;
  if (cursor_) cursor_->restart_section();
}

void Pool::limit_sum() { blocks_->limit_sum(); }

void Pool::set_position(Phase phase, const char* layer) { recorder_->set_position(phase, layer); }

void Pool::record_history(bool on) { on ? recorder_->start() : recorder_->stop(); }

bool Pool::records_history() const { return recorder_->recording(); }

const MemoryHistory& Pool::history() const { return recorder_->history(); }

void Pool::mark_step(int64_t step) { recorder_->mark_step(step); }

int64_t Pool::capacity_bytes() const { return blocks_->capacity_bytes(); }

PoolStatistics Pool::statistics() const {
  PoolStatistics s = peak_;
  s.capacity_bytes = capacity_bytes();
  s.reserved_bytes = blocks_->reserved_bytes();
  s.allocated_bytes = blocks_->allocated_bytes();
  s.adopted_bytes = adopted_bytes_;
  s.allocated_by_category = by_category_;
  s.peak_by_category[static_cast<size_t>(Category::fragmentation)] = s.peak_bytes - most_allocated_bytes_;
  return s;
}

void Pool::reset_peak() {
  peak_ = PoolStatistics{};
  most_allocated_bytes_ = 0;
  note_peak();
}

void Pool::throw_out_of_memory(int64_t bytes, std::string_view tensor_name) const {
  const int64_t allocated = blocks_->allocated_bytes(), free = blocks_->limit_bytes() - allocated;
  const std::string& layer = recorder_->layer();
  const char* const phase = phase_name(recorder_->phase());
  if (blocks_->is_reserved()) {
    throw UnsupportedError(fmt::format(
        "{}: {}allocates {} ({} bytes) for {} in phase {}, which the plan does not contain: {} bytes are reserved, {} "
        "are in use. A layer on a "
        "planned device must allocate the same tensors as in its plan on a meta device: sizes may depend on shapes and "
        "the Pass only, "
        "not on the backend, the data or earlier calls",
        device_name_, layer.empty() ? "the program " : fmt::format("layer '{}' ", layer), format_bytes(bytes), bytes,
        tensor_name.empty() ? "a tensor" : tensor_name, phase, blocks_->reserved_bytes(), allocated));
  }
  const int64_t piece = blocks_->largest_free_bytes();
  std::string text = fmt::format(
      "{}: out of memory. Tried to allocate {} ({} bytes) for {}{}{} in phase {} ({} total capacity; {} already "
      "allocated; {} free{}; {} reserved).",
      device_name_, format_bytes(bytes), bytes, tensor_name.empty() ? "a tensor" : tensor_name,
      !layer.empty() ? " of layer " : "", layer, phase, format_bytes(capacity_bytes()), format_bytes(allocated),
      format_bytes(free), piece < free ? fmt::format(", {} of it in one piece", format_bytes(piece)) : "",
      format_bytes(blocks_->reserved_bytes()));
  if (allocated > 0) text += fmt::format(" It holds {}.", describe_by_size(by_category_));
  throw OutOfMemory(text, {.device = device_name_,
                           .user = std::string(tensor_name),
                           .layer = layer,
                           .phase = phase,
                           .needed_bytes = bytes,
                           .capacity_bytes = capacity_bytes(),
                           .allocated_bytes = allocated,
                           .reserved_bytes = blocks_->reserved_bytes(),
                           .free_bytes = free,
                           .by_category = by_category_});
}

}  // namespace vitrine
