// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <vitrine/runtime/stream.h>

namespace vitrine {

/// Identifies a part of a program whose allocations are placed together. The caller chooses the numbers. A key may
/// occur several times: each occurrence has its own placement, and those beyond the record use the last one.
using SectionKey = std::array<int64_t, 3>;

/// What a pool did, without offsets: its allocations and releases, and the sections in which they happened.
struct PoolRecord {
  struct Event {
    int64_t block = 0;                        // allocations are numbered from 0
    int64_t bytes = 0;                        // aligned; 0: a release
    StreamRole stream = StreamRole::compute;  // of the block
    bool operator==(const Event&) const = default;
  };
  struct Section {
    SectionKey key{};
    size_t begin = 0;  // index of its first event
    bool operator==(const Section&) const = default;
  };
  std::vector<Event> events;
  std::vector<Section> sections;  // in order; each ends where the next one begins
  int64_t blocks = 0;
  bool operator==(const PoolRecord&) const = default;
};

/// Offsets for a recorded pool. What is allocated before the first section lies as OffsetAllocator places it: at the
/// bottom, without gaps. The blocks of a section lie above and between what is in use at its beginning
/// (place_blocks()). Blocks of different streams share no address in a section, so no stream waits for another one to
/// reuse memory.
struct PoolPlacement {
  struct Block {
    int64_t bytes = 0;  // aligned
    StreamRole stream = StreamRole::compute;
    int64_t offset = 0;
    bool operator==(const Block&) const = default;
  };
  /// The allocations of a section, in their order.
  using Blocks = std::vector<Block>;

  int64_t height = 0;               // end of the highest block
  std::vector<int64_t> offsets;     // of every recorded block
  std::vector<Blocks> block_lists;  // distinct ones
  /// For each key, the block list of the first section with that key, of the second, ...; later ones are as the last.
  std::map<SectionKey, std::vector<size_t>> sections;
};

/// determinism  yes, on every machine
PoolPlacement place_pool(const PoolRecord& record);

/// The placement of a pool while the recorded program runs.
class PlacementCursor {
 public:
  explicit PlacementCursor(std::shared_ptr<const PoolPlacement> placement) : placement_(std::move(placement)) {}

  void begin_section(const SectionKey& key);
  void restart_section() { next_ = 0; }
  /// Returns the offset of the section's next block if it has these bytes (aligned) and this stream, and moves on.
  /// Otherwise the section differs from its record here: returns nothing, and stays.
  std::optional<int64_t> take(int64_t bytes, StreamRole stream);
  /// True from the beginning of a recorded section on.
  bool in_section() const { return blocks_ != nullptr; }

 private:
  std::shared_ptr<const PoolPlacement> placement_;
  std::map<SectionKey, size_t> begun_;  // how often
  const PoolPlacement::Blocks* blocks_ = nullptr;
  size_t next_ = 0;
};

}  // namespace vitrine
