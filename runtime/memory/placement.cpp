// SPDX-License-Identifier: Apache-2.0
#include "runtime/memory/placement.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <random>

#include "runtime/error.h"

namespace vitrine {
namespace {

constexpr int64_t kStepsOfARound = 1000;  // of the search: as long as a round takes beside the comparisons
constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

/// Calls `visit(block, change)` for each change of the sum of bytes, in order of the events. A block that ends at an
/// event is gone at that event.
template <class Visit>
void visit_changes(std::span<const BlockLifetime> blocks, const Visit& visit) {
  struct Change {
    int32_t event;
    int64_t bytes;
    size_t block;
  };
  std::vector<Change> changes;
  changes.reserve(2 * blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    changes.push_back({blocks[i].first, blocks[i].bytes, i});
    changes.push_back({blocks[i].end, -blocks[i].bytes, i});
  }
  std::ranges::sort(changes, [](const Change& a, const Change& b) {
    return a.event != b.event ? a.event < b.event : a.bytes < b.bytes;
  });
  for (const Change& change : changes) visit(change.block, change.bytes);
}

using Order = std::vector<size_t>;

enum class Fit { lowest, best };

/// One problem, with the steps that are left for it.
class Placer {
 public:
  Placer(std::span<const BlockLifetime> blocks, int64_t enough) : blocks_(blocks), enough_(enough) {
    for (size_t i = 0; i < blocks.size(); ++i) {
      (blocks[i].offset == BlockLifetime::kAnywhere ? movable_ : fixed_).push_back(i);
    }
    best_.offsets.assign(blocks.size(), 0);
    for (const size_t i : fixed_) {
      insert(fixed_places_, i, blocks[i].offset);
      base_ = std::max(base_, blocks[i].offset + blocks[i].bytes);
    }
    best_.height = kNoLimit;
  }

  Placement solve() {
    if (movable_.empty()) {
      for (const size_t i : fixed_) best_.offsets[i] = blocks_[i].offset;
      best_.height = base_;
      return best_;
    }
    for (const Order& order : orders()) {
      for (const Fit fit : {Fit::lowest, Fit::best}) {
        if (done()) return best_;
        if (std::optional<Placement> found = place(order, fit, best_.height)) {
          best_ = std::move(*found);
          best_order_ = order;
          best_fit_ = fit;
        }
      }
    }
    improve();
    return best_;
  }

 private:
  /// A block that has its offset.
  struct Place {
    int64_t offset, end;
    size_t block;
  };

  bool done() const { return best_.height < kNoLimit && (best_.height <= enough_ || steps_ <= 0); }

  bool collide(size_t a, size_t b) const {
    const BlockLifetime &x = blocks_[a], &y = blocks_[b];
    return x.group != y.group || (x.first < y.end && y.first < x.end);
  }

  void insert(std::vector<Place>& places, size_t block, int64_t offset) const {
    const Place place{offset, offset + blocks_[block].bytes, block};
    places.insert(std::upper_bound(places.begin(), places.end(), offset,
                                   [](int64_t at, const Place& other) { return at < other.offset; }),
                  place);
  }

  /// Gives each block, in `order`, an offset beside those before it. Returns nothing once a block would end at `limit`
  /// or above.
  std::optional<Placement> place(const Order& order, Fit fit, int64_t limit) {
    std::vector<Place> places = fixed_places_;
    places.reserve(blocks_.size());
    Placement result{std::vector<int64_t>(blocks_.size(), 0), base_};
    for (const size_t i : fixed_) result.offsets[i] = blocks_[i].offset;
    if (base_ >= limit) return std::nullopt;
    for (const size_t i : order) {
      const int64_t offset = find(places, i, fit);
      if (offset + blocks_[i].bytes >= limit) return std::nullopt;
      result.offsets[i] = offset;
      result.height = std::max(result.height, offset + blocks_[i].bytes);
      insert(places, i, offset);
    }
    return result;
  }

  int64_t find(const std::vector<Place>& places, size_t block, Fit fit) {
    const int64_t bytes = blocks_[block].bytes;
    int64_t top = 0, gap = -1, gap_bytes = kNoLimit;
    for (const Place& other : places) {
      --steps_;
      if (!collide(block, other.block)) continue;
      if (const int64_t room = other.offset - top; room >= bytes && room < gap_bytes) {
        if (fit == Fit::lowest) return top;
        gap = top;
        gap_bytes = room;
      }
      top = std::max(top, other.end);
    }
    return gap >= 0 ? gap : top;
  }

  /// Orders to try: the largest first, the longest-lived first, the largest area, those in use at the peak first, and
  /// the order of use from both ends.
  std::vector<Order> orders() const {
    const int32_t last =
        std::ranges::max_element(blocks_, [](const auto& a, const auto& b) { return a.end < b.end; })->end;
    const std::vector<bool> at_peak = in_use_at_peak();
    std::vector<Order> orders;
    const auto add = [&](const auto& key) {
      Order order = movable_;
      // Blocks in use until the end conflict with all later ones, so they are placed first, at low offsets.
      std::ranges::stable_sort(order, [&](size_t a, size_t b) {
        const bool a_stays = blocks_[a].end == last, b_stays = blocks_[b].end == last;
        return a_stays != b_stays ? a_stays : key(a) > key(b);
      });
      orders.push_back(std::move(order));
    };
    const auto life = [this](size_t i) { return int64_t{blocks_[i].end} - blocks_[i].first; };
    add([&](size_t i) { return std::pair(blocks_[i].bytes, life(i)); });
    add([&](size_t i) { return std::pair(life(i), blocks_[i].bytes); });
    add([&](size_t i) {
      return std::pair(static_cast<double>(blocks_[i].bytes) * static_cast<double>(life(i)), blocks_[i].bytes);
    });
    add([&](size_t i) { return std::pair(at_peak[i] ? 1 : 0, blocks_[i].bytes); });
    add([&](size_t i) { return std::pair(at_peak[i] ? 1 : 0, life(i)); });
    add([&](size_t i) { return -int64_t{blocks_[i].first}; });
    add([&](size_t i) { return int64_t{blocks_[i].end}; });
    return orders;
  }

  std::vector<bool> in_use_at_peak() const {
    std::vector<bool> now(blocks_.size()), most = now;
    int64_t sum = 0, largest = 0;
    visit_changes(blocks_, [&](size_t block, int64_t bytes) {
      now[block] = bytes > 0;
      sum += bytes;
      if (sum <= largest) return;
      largest = sum;
      most = now;
    });
    return most;
  }

  /// Hill climbing: picks the highest block or one of those below that carry it, and swaps it with a block that it
  /// conflicts with or moves it before that one. Keeps the result unless it is higher.
  void improve() {
    std::mt19937 random(1);
    const auto below = [&random](size_t count) { return static_cast<size_t>(random() % count); };
    Order order = best_order_;
    Placement current = best_;
    std::vector<size_t> rank(blocks_.size(), 0);
    while (!done()) {
      for (size_t r = 0; r < order.size(); ++r) rank[order[r]] = r;
      const std::vector<size_t> chain = carriers(current, below(order.size()));
      steps_ -= kStepsOfARound + static_cast<int64_t>(order.size() * (chain.size() + 1));
      if (chain.empty()) return;  // only fixed blocks reach the height
      const size_t moved = chain[below(chain.size())];
      std::vector<size_t> in_the_way;
      for (const size_t other : order) {
        if (other != moved && collide(moved, other)) in_the_way.push_back(other);
      }
      if (in_the_way.empty()) return;  // the highest block lies on fixed ones
      const size_t other = in_the_way[below(in_the_way.size())];
      Order next = order;
      const size_t from = rank[moved], to = rank[other];
      if (to > from || random() % 2 == 0) {
        std::swap(next[from], next[to]);
      } else {
        std::rotate(next.begin() + static_cast<std::ptrdiff_t>(to), next.begin() + static_cast<std::ptrdiff_t>(from),
                    next.begin() + static_cast<std::ptrdiff_t>(from) + 1);
      }
      std::optional<Placement> placed = place(next, best_fit_, current.height + 1);
      if (!placed) continue;
      order = std::move(next);
      current = std::move(*placed);
      if (current.height < best_.height) best_ = current;
    }
  }

  /// Movable blocks from one of the highest down to the bottom, each lying on the next. `pick` chooses among the
  /// highest.
  std::vector<size_t> carriers(const Placement& placement, size_t pick) const {
    std::vector<size_t> highest;
    for (const size_t i : movable_) {
      if (placement.offsets[i] + blocks_[i].bytes == placement.height) highest.push_back(i);
    }
    std::vector<size_t> chain;
    if (highest.empty()) return chain;
    chain.push_back(highest[pick % highest.size()]);
    for (size_t carried = 0; carried < chain.size(); ++carried) {
      const size_t above = chain[carried];
      const auto carries = [&](size_t i) {
        return i != above && placement.offsets[i] + blocks_[i].bytes == placement.offsets[above] && collide(i, above);
      };
      const auto carrier = std::ranges::find_if(movable_, carries);
      if (carrier != movable_.end()) chain.push_back(*carrier);
    }
    return chain;
  }

  std::span<const BlockLifetime> blocks_;
  int64_t enough_;
  int64_t steps_ = kSearchSteps;
  Order movable_, fixed_;
  std::vector<Place> fixed_places_;
  int64_t base_ = 0;  // end of the highest fixed block
  Placement best_;
  Order best_order_;
  Fit best_fit_ = Fit::lowest;
};

}  // namespace

int64_t largest_sum(std::span<const BlockLifetime> blocks) {
  int64_t sum = 0, largest = 0;
  visit_changes(blocks, [&](size_t, int64_t bytes) {
    sum += bytes;
    largest = std::max(largest, sum);
  });
  return largest;
}

int64_t height_bound(std::span<const BlockLifetime> blocks) {
  std::map<int32_t, std::pair<int64_t, int64_t>> groups;  // sum now, and the largest
  visit_changes(blocks, [&](size_t block, int64_t bytes) {
    auto& [sum, largest] = groups[blocks[block].group];
    sum += bytes;
    largest = std::max(largest, sum);
  });
  int64_t apart = 0;
  for (const auto& [group, sums] : groups) apart += sums.second;
  return std::max(apart, largest_sum(blocks));
}

Placement place_blocks(std::span<const BlockLifetime> blocks, int64_t enough) {
  for (const BlockLifetime& block : blocks)
    VITRINE_ASSERT(block.bytes > 0 && block.first < block.end, "a block has bytes and a lifetime");
  return Placer(blocks, std::max(enough, height_bound(blocks))).solve();
}

}  // namespace vitrine
