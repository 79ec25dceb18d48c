// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory/pool.h"

#include <algorithm>
#include <map>

#include <fmt/format.h>

#include "runtime/error.h"
#include "runtime/units.h"

namespace vitrine {

/// Which stream's work a free range was last used by: disjoint ranges, offset -> (end, stream).
struct Pool::LastUse {
  struct Range {
    int64_t end;
    Stream* stream;
  };
  std::map<int64_t, Range> ranges;
};

Pool::Pool(std::string device_name, std::unique_ptr<Slab> slab, int64_t capacity_bytes)
    : device_name_(std::move(device_name)), slab_(std::move(slab)), capacity_bytes_(capacity_bytes), last_use_(std::make_unique<LastUse>()) {}

Pool::~Pool() = default;

Pool::Block Pool::allocate(int64_t bytes, Category category, Stream& stream, std::string_view tensor_name) {
  VITRINE_ASSERT(bytes >= 0, "sizes are not negative");
  const int64_t size = OffsetAllocator::aligned(bytes);
  const int64_t end = offsets_.peek(bytes) + size;
  if (end > limit_bytes()) throw_out_of_memory(bytes, tensor_name);
  if (end > slab_->size_bytes()) {
    const int64_t chunks = (end + kGrowthBytes - 1) / kGrowthBytes * kGrowthBytes;
    slab_->grow(slab_->grows_again() ? std::min(capacity_bytes_, chunks) : capacity_bytes_);
  }
  const int64_t offset = offsets_.allocate(bytes);
  order_after_last_use(offset, size, stream);
  by_category_[static_cast<size_t>(category)] += size;
  note_peak();
  if (size > 0) {
    const auto held = held_.insert_or_assign(offset, MemoryEvent{steady_now_ns(), offset, size, category, phase_, std::string(tensor_name), layer_});
    if (history_on_) history_.changes.push_back(held.first->second);
  }
  return {offset, bytes, category, static_cast<char*>(slab_->base()) + offset, &stream};
}

void Pool::free(const Block& block) noexcept {
  const int64_t size = OffsetAllocator::aligned(block.bytes);
  offsets_.free(block.offset, block.bytes);
  by_category_[static_cast<size_t>(block.category)] -= size;
  if (size == 0) return;
  const auto held = held_.find(block.offset);
  if (history_on_) history_.changes.push_back({steady_now_ns(), block.offset, -size, block.category, phase_, std::move(held->second.tensor), layer_});
  held_.erase(held);
  auto& ranges = last_use_->ranges;
  int64_t begin = block.offset, end = block.offset + size;
  auto next = ranges.lower_bound(begin);
  if (next != ranges.end() && next->first == end && next->second.stream == block.stream) {
    end = next->second.end;
    next = ranges.erase(next);
  }
  if (next != ranges.begin()) {
    const auto previous = std::prev(next);
    if (previous->second.end == begin && previous->second.stream == block.stream) {
      begin = previous->first;
      ranges.erase(previous);
    }
  }
  ranges.emplace(begin, LastUse::Range{end, block.stream});
}

void Pool::order_after_last_use(int64_t offset, int64_t bytes, Stream& stream) {
  auto& ranges = last_use_->ranges;
  const int64_t end = offset + bytes;
  std::vector<Stream*> others;
  auto it = ranges.upper_bound(offset);
  if (it != ranges.begin()) --it;
  while (it != ranges.end() && it->first < end) {
    const int64_t begin = it->first;
    const LastUse::Range range = it->second;
    if (range.end <= offset) {
      ++it;
      continue;
    }
    if (range.stream != &stream && std::find(others.begin(), others.end(), range.stream) == others.end()) others.push_back(range.stream);
    it = ranges.erase(it);
    if (begin < offset) ranges.emplace(begin, LastUse::Range{offset, range.stream});
    if (range.end > end) it = ranges.emplace(end, range).first;
  }
  for (Stream* other : others) {
    const auto event = other->make_event();
    other->record(*event);
    stream.wait(*event);
  }
}

void Pool::note_peak() {
  if (offsets_.extent() <= peak_.peak_bytes) return;
  peak_.peak_bytes = offsets_.extent();
  peak_.peak_by_category = by_category_;
  peak_.peak_by_category[static_cast<size_t>(Category::fragmentation)] = offsets_.extent() - offsets_.allocated_bytes();
  peak_.peak_phase = phase_;
  peak_.peak_layer = layer_;
}

void Pool::reserve(int64_t bytes) {
  if (bytes > capacity_bytes_) {
    throw OutOfMemory(fmt::format("{}: the plan needs {} ({} bytes), but the device's capacity is {} ({} bytes)", device_name_, format_bytes(bytes),
                                  bytes, format_bytes(capacity_bytes_), capacity_bytes_));
  }
  if (offsets_.allocated_bytes() != 0) {
    throw ConfigError(fmt::format("{}: the pool still holds {}; an engine needs the device's memory for itself", device_name_,
                                  format_bytes(offsets_.allocated_bytes())));
  }
  slab_->grow(bytes);
  reserved_limit_ = bytes;
  reset_peak();
}

void Pool::set_position(Phase phase, const char* layer) {
  phase_ = phase;
  if (layer_ != layer) layer_ = layer;
}

void Pool::record_history(bool on) {
  if (on) {
    history_ = MemoryHistory{};
    for (const auto& [offset, block] : held_) history_.at_start.push_back(block);
  }
  history_on_ = on;
}

void Pool::mark_step(int64_t step) {
  set_position(Phase::step, "");
  if (history_on_) history_.steps.push_back({step, steady_now_ns(), history_.changes.size()});
}

PoolStatistics Pool::statistics() const {
  PoolStatistics s = peak_;
  s.capacity_bytes = capacity_bytes_;
  s.reserved_bytes = reserved_limit_ >= 0 ? reserved_limit_ : slab_->size_bytes();
  s.allocated_bytes = offsets_.allocated_bytes();
  s.adopted_bytes = adopted_bytes_;
  s.allocated_by_category = by_category_;
  return s;
}

void Pool::reset_peak() {
  peak_ = PoolStatistics{};
  note_peak();
}

void Pool::throw_out_of_memory(int64_t bytes, std::string_view tensor_name) const {
  const int64_t allocated = offsets_.allocated_bytes(), free = limit_bytes() - allocated;
  if (reserved_limit_ >= 0) {
    throw UnsupportedError(fmt::format(
        "{}: {}allocates {} ({} bytes) for {} in phase {}, which the plan does not contain: {} bytes were reserved, {} are in use. What runs on a "
        "planned device has to allocate the same tensors when it is planned on a meta device: the sizes may depend on shapes and the Pass alone, "
        "not on the backend, the data or earlier calls",
        device_name_, layer_.empty() ? "the program " : fmt::format("layer '{}' ", layer_), format_bytes(bytes), bytes,
        tensor_name.empty() ? "a tensor" : tensor_name, phase_name(phase_), reserved_limit_, allocated));
  }
  const int64_t piece = std::max(offsets_.largest_hole(), limit_bytes() - offsets_.extent());
  std::string text = fmt::format(
      "{}: out of memory. Tried to allocate {} ({} bytes) for {}{}{} in phase {} ({} total capacity; {} already allocated; {} free{}; {} reserved).",
      device_name_, format_bytes(bytes), bytes, tensor_name.empty() ? "a tensor" : tensor_name, !layer_.empty() ? " of layer " : "", layer_,
      phase_name(phase_), format_bytes(capacity_bytes_), format_bytes(allocated), format_bytes(free),
      piece < free ? fmt::format(", {} of it in one piece", format_bytes(piece)) : "", format_bytes(slab_->size_bytes()));
  if (allocated > 0) text += fmt::format(" It holds {}.", describe_by_size(by_category_));
  throw OutOfMemory(text);
}

}  // namespace vitrine
