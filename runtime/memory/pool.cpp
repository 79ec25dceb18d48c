// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory/pool.h"

#include <optional>

#include <fmt/format.h>

#include "runtime/error.h"
#include "runtime/memory/block_allocator.h"
#include "runtime/memory/recorder.h"
#include "runtime/units.h"

namespace vitrine {

Pool::Pool(std::string device_name, std::unique_ptr<Slab> slab, int64_t capacity_bytes)
    : device_name_(std::move(device_name)),
      blocks_(std::make_unique<BlockAllocator>(std::move(slab), capacity_bytes)),
      recorder_(std::make_unique<MemoryRecorder>()) {}

Pool::~Pool() = default;

Pool::Block Pool::allocate(int64_t bytes, Category category, Stream& stream, std::string_view tensor_name) {
  VITRINE_ASSERT(bytes >= 0, "sizes are not negative");
  const std::optional<int64_t> offset = blocks_->allocate(bytes, stream);
  if (!offset) throw_out_of_memory(bytes, tensor_name);
  const int64_t size = OffsetAllocator::aligned(bytes);
  by_category_[static_cast<size_t>(category)] += size;
  note_peak();
  if (size > 0) recorder_->on_allocate(*offset, size, category, tensor_name);
  return {*offset, bytes, category, blocks_->address(*offset), &stream};
}

void Pool::free(const Block& block) noexcept {
  const int64_t size = OffsetAllocator::aligned(block.bytes);
  blocks_->free(block.offset, block.bytes, *block.stream);
  by_category_[static_cast<size_t>(block.category)] -= size;
  if (size > 0) recorder_->on_free(block.offset);
}

void Pool::note_peak() {
  if (blocks_->extent() <= peak_.peak_bytes) return;
  peak_.peak_bytes = blocks_->extent();
  peak_.peak_by_category = by_category_;
  peak_.peak_by_category[static_cast<size_t>(Category::fragmentation)] = blocks_->extent() - blocks_->allocated_bytes();
  peak_.peak_phase = recorder_->phase();
  peak_.peak_layer = recorder_->layer();
}

void Pool::reserve(int64_t bytes) {
  if (bytes > capacity_bytes()) {
    throw OutOfMemory(fmt::format("{}: the plan needs {} ({} bytes), but the device's capacity is {} ({} bytes)", device_name_, format_bytes(bytes),
                                  bytes, format_bytes(capacity_bytes()), capacity_bytes()),
                      {.device = device_name_, .user = "the plan", .needed_bytes = bytes, .capacity_bytes = capacity_bytes()});
  }
  if (blocks_->allocated_bytes() != 0) {
    throw ConfigError(fmt::format("{}: the pool still holds {}, expected an empty pool; free all tensors of the device before it is reserved",
                                  device_name_, format_bytes(blocks_->allocated_bytes())));
  }
  blocks_->reserve(bytes);
  reset_peak();
}

void Pool::set_position(Phase phase, const char* layer) { recorder_->set_position(phase, layer); }

void Pool::record_history(bool on) { on ? recorder_->start() : recorder_->stop(); }

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
  return s;
}

void Pool::reset_peak() {
  peak_ = PoolStatistics{};
  note_peak();
}

void Pool::throw_out_of_memory(int64_t bytes, std::string_view tensor_name) const {
  const int64_t allocated = blocks_->allocated_bytes(), free = blocks_->limit_bytes() - allocated;
  const std::string& layer = recorder_->layer();
  const char* const phase = phase_name(recorder_->phase());
  if (blocks_->is_reserved()) {
    throw UnsupportedError(fmt::format(
        "{}: {}allocates {} ({} bytes) for {} in phase {}, which the plan does not contain: {} bytes are reserved, {} are in use. A layer on a "
        "planned device must allocate the same tensors as in its plan on a meta device: sizes may depend on shapes and the Pass only, "
        "not on the backend, the data or earlier calls",
        device_name_, layer.empty() ? "the program " : fmt::format("layer '{}' ", layer), format_bytes(bytes), bytes,
        tensor_name.empty() ? "a tensor" : tensor_name, phase, blocks_->reserved_bytes(), allocated));
  }
  const int64_t piece = blocks_->largest_free_bytes();
  std::string text = fmt::format(
      "{}: out of memory. Tried to allocate {} ({} bytes) for {}{}{} in phase {} ({} total capacity; {} already allocated; {} free{}; {} reserved).",
      device_name_, format_bytes(bytes), bytes, tensor_name.empty() ? "a tensor" : tensor_name, !layer.empty() ? " of layer " : "", layer, phase,
      format_bytes(capacity_bytes()), format_bytes(allocated), format_bytes(free),
      piece < free ? fmt::format(", {} of it in one piece", format_bytes(piece)) : "", format_bytes(blocks_->reserved_bytes()));
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
