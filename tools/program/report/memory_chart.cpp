// SPDX-License-Identifier: Apache-2.0
#include "tools/program/report/memory_chart.h"

#include <algorithm>
#include <array>
#include <map>

#include <fmt/format.h>

#include "tools/program/report/html.h"
#include "tools/program/report/palette.h"
#include "tools/program/report/scale.h"
#include "tools/program/report/svg.h"
#include "tools/program/tables.h"

namespace vitrine::tools::html {

namespace {

constexpr double kBandHeight = 16, kTop = 48, kPlotHeight = 240, kBottom = 20;
// A block below this share of the peak is drawn with the others of its category, and so are those beyond this number.
constexpr double kShareDrawn = 0.01;
constexpr size_t kBlocksDrawn = 400;
// A capacity this many times the peak is told in words: a line for it would flatten all else.
constexpr int64_t kCapacityDrawn = 3;
constexpr double kLabelWidth = 18;  // percent of the chart that a label needs on a phone

/// From the bottom up: what stays, then what comes and goes.
constexpr std::array<Category, kCategoryCount> kStack = {Category::parameters,  Category::optimizer,    Category::gradients,
                                                         Category::workspace,   Category::staging,      Category::communication,
                                                         Category::activations, Category::fragmentation};

/// A layer of the stack over some moments.
struct Ribbon {
  size_t first = 0;              // moment
  std::vector<int64_t> bottoms;  // from `first` on
  std::vector<int64_t> heights;
};

std::string holder_of(const HeldBlock& block) { return fmt::format("{}{}{}", block.tensor, block.layer.empty() ? "" : ", layer ", block.layer); }

class Drawing {
 public:
  explicit Drawing(const MemoryChart& chart)
      : chart_(chart), timeline_(chart.timeline), svg_(kTop + kPlotHeight + kBottom, "Memory of " + chart.device + " over one step, by category") {
    largest_ = std::max(chart.largest_bytes(), chart.scale_bytes);
    ticks_ = byte_ticks(largest_);
    capacity_drawn_ = chart.capacity_bytes > 0 && chart.capacity_bytes <= largest_;
  }

  std::string str() {
    axes();
    stack();
    bands();
    lines();
    return svg_.str();
  }

 private:
  size_t count() const { return timeline_.moments.size(); }
  int64_t peak_bytes() const { return timeline_.moments[timeline_.peak].extent_bytes; }
  double x(size_t moment) const { return 100.0 * static_cast<double>(moment) / static_cast<double>(count()); }
  double y(int64_t bytes) const { return kTop + kPlotHeight * (1 - static_cast<double>(bytes) / (static_cast<double>(largest_) * 1.02)); }

  void axes() {
    for (const int64_t tick : ticks_) {
      if (tick > largest_) continue;
      svg_.line({0, y(tick)}, {100, y(tick)}, "grid");
      labels_.push_back({tick, short_bytes(tick)});
    }
    svg_.text({0, kTop + kPlotHeight + 15}, Svg::Anchor::start, "axis", "start of the step");
    svg_.text({100, kTop + kPlotHeight + 15}, Svg::Anchor::end, "axis", fmt::format("{} changes", format_count(static_cast<int64_t>(count()) - 1)));
  }

  /// The blocks that are drawn apart, by category.
  std::map<Category, std::vector<const HeldBlock*>> large_blocks() const {
    std::vector<const HeldBlock*> large;
    for (const HeldBlock& block : timeline_.blocks) {
      if (static_cast<double>(block.bytes) >= kShareDrawn * static_cast<double>(peak_bytes())) large.push_back(&block);
    }
    if (large.size() > kBlocksDrawn) {
      std::nth_element(large.begin(), large.begin() + kBlocksDrawn, large.end(), [](const auto* a, const auto* b) { return a->bytes > b->bytes; });
      large.resize(kBlocksDrawn);
    }
    std::sort(large.begin(), large.end(),
              [](const auto* a, const auto* b) { return a->first != b->first ? a->first < b->first : a->offset < b->offset; });
    std::map<Category, std::vector<const HeldBlock*>> by_category;
    for (const HeldBlock* block : large) by_category[block->category].push_back(block);
    return by_category;
  }

  void stack() {
    const auto large = large_blocks();
    std::vector<int64_t> base(count(), 0);
    for (const Category category : kStack) {
      const auto found = large.find(category);
      const std::vector<int64_t> bottom = base;
      if (found != large.end()) {
        for (const HeldBlock* block : found->second) stack_block(*block, base);
      }
      stack_rest(category, bottom, base);
      label(category, bottom, base);
    }
  }

  void stack_block(const HeldBlock& block, std::vector<int64_t>& base) {
    Ribbon ribbon{block.first, {}, {}};
    for (size_t m = block.first; m < block.end; ++m) {
      ribbon.bottoms.push_back(base[m]);
      ribbon.heights.push_back(block.bytes);
      base[m] += block.bytes;
    }
    draw(ribbon, block.category,
         fmt::format("{} {}: {}. Taken in {}, held over changes {} to {}", category_name(block.category), short_bytes(block.bytes), holder_of(block),
                     phase_name(block.phase), block.first, block.end - 1));
  }

  /// What is left of the category, over all moments; `base` becomes its top.
  void stack_rest(Category category, const std::vector<int64_t>& bottom, std::vector<int64_t>& base) {
    Ribbon rest;
    int64_t largest = 0;
    for (size_t m = 0; m < count(); ++m) {
      const int64_t top = bottom[m] + timeline_.moments[m].by_category[static_cast<size_t>(category)];
      rest.bottoms.push_back(base[m]);
      rest.heights.push_back(top - base[m]);
      largest = std::max(largest, top - base[m]);
      base[m] = top;
    }
    if (largest == 0) return;
    const char* what = category == Category::fragmentation ? "between blocks" : "smaller blocks";
    draw(rest, category, fmt::format("{}: {}, at most {}", category_name(category), what, short_bytes(largest)));
  }

  void draw(const Ribbon& ribbon, Category category, const std::string& title) {
    std::vector<Svg::Point> upper, lower;
    const size_t size = ribbon.bottoms.size();
    for (size_t i = 0; i < size; ++i) {
      const double top = y(ribbon.bottoms[i] + ribbon.heights[i]), bottom = y(ribbon.bottoms[i]);
      const bool same = i > 0 && ribbon.bottoms[i] == ribbon.bottoms[i - 1] && ribbon.heights[i] == ribbon.heights[i - 1];
      if (!same) {
        upper.push_back({x(ribbon.first + i), top});
        lower.push_back({x(ribbon.first + i), bottom});
      }
      if (i + 1 == size || ribbon.bottoms[i + 1] != ribbon.bottoms[i] || ribbon.heights[i + 1] != ribbon.heights[i]) {
        upper.push_back({x(ribbon.first + i + 1), top});
        lower.push_back({x(ribbon.first + i + 1), bottom});
      }
    }
    upper.insert(upper.end(), lower.rbegin(), lower.rend());
    svg_.area(upper, fmt::format("block {}", category_paint(category).css_class), title);
  }

  /// The category's name, where it is thick for long enough.
  void label(Category category, const std::vector<int64_t>& bottom, const std::vector<int64_t>& top) {
    const auto needed = static_cast<size_t>(static_cast<double>(count()) * kLabelWidth / 100);
    size_t begin = 0, best_begin = 0, best_length = 0;
    double best_y = 0, low = 1e9, high = 0;
    for (size_t m = 0; m < count(); ++m) {
      const double upper = y(top[m]), under = y(bottom[m]);
      if (m == begin || std::min(low, under) - std::max(high, upper) < 13) {
        begin = under - upper >= 13 ? m : m + 1;
        low = under;
        high = upper;
        continue;
      }
      low = std::min(low, under);
      high = std::max(high, upper);
      if (m + 1 - begin > best_length) best_begin = begin, best_length = m + 1 - begin, best_y = (low + high) / 2 + 4;
    }
    if (best_length < std::max<size_t>(needed, 2)) return;
    names_.push_back({x(best_begin) + (x(best_begin + best_length) - x(best_begin)) / 2, best_y, category_name(category)});
  }

  void bands() {
    for (size_t begin = 0; begin < count();) {
      size_t end = begin + 1;
      while (end < count() && timeline_.moments[end].phase == timeline_.moments[begin].phase) ++end;
      const Phase phase = timeline_.moments[begin].phase;
      const char* name = phase == Phase::step ? "start" : phase_name(phase);
      svg_.rect(x(begin), 0, x(end) - x(begin), kBandHeight, fmt::format("band {}", phase_paint(phase).css_class),
                fmt::format("{}: changes {} to {}", name, begin, end - 1));
      if (x(end) - x(begin) >= 7) svg_.clipped_text(x(begin), 0, x(end) - x(begin), name);
      if (begin > 0) svg_.line({x(begin), kBandHeight}, {x(begin), kTop + kPlotHeight}, "border");
      begin = end;
    }
  }

  void lines() {
    for (const auto& name : names_) svg_.text({name.x, name.y}, Svg::Anchor::middle, "on", name.text);
    for (const auto& [bytes, text] : labels_) {
      if (bytes > 0) svg_.text({0, y(bytes) - 3}, Svg::Anchor::start, "axis halo", text);
    }
    if (capacity_drawn_) {
      svg_.line({0, y(chart_.capacity_bytes)}, {100, y(chart_.capacity_bytes)}, "beneath");
      svg_.line({0, y(chart_.capacity_bytes)}, {100, y(chart_.capacity_bytes)}, "capacity");
      svg_.text({100, y(chart_.capacity_bytes) - 4}, Svg::Anchor::end, "axis halo", "capacity " + short_bytes(chart_.capacity_bytes));
    }
    if (chart_.planned_bytes > 0) svg_.line({0, y(chart_.planned_bytes)}, {100, y(chart_.planned_bytes)}, "plan");
    const MemoryMoment& moment = timeline_.moments[timeline_.peak];
    const double at = (x(timeline_.peak) + x(timeline_.peak + 1)) / 2;
    const std::string where = fmt::format("{}{}{}", phase_name(moment.phase), moment.layer.empty() ? "" : " ", moment.layer);
    svg_.dot({at, y(peak_bytes())}, 4, "peak",
             fmt::format("the peak: {} ({} bytes) in {}", short_bytes(peak_bytes()), format_count(peak_bytes()), where));
    svg_.text({at < 50 ? 0.0 : 100.0, kBandHeight + 14}, at < 50 ? Svg::Anchor::start : Svg::Anchor::end, "strong halo",
              fmt::format("peak {} in {}", short_bytes(peak_bytes()), where));
  }

  struct Text {
    double x, y;
    std::string text;
  };
  const MemoryChart& chart_;
  const MemoryTimeline& timeline_;
  Svg svg_;
  int64_t largest_ = 1;
  std::vector<int64_t> ticks_;
  std::vector<std::pair<int64_t, std::string>> labels_;
  std::vector<Text> names_;
  bool capacity_drawn_ = false;
};

}  // namespace

int64_t MemoryChart::largest_bytes() const {
  if (timeline.moments.empty()) return 0;
  const int64_t peak = timeline.moments[timeline.peak].extent_bytes;
  return std::max({peak, planned_bytes, capacity_bytes <= kCapacityDrawn * peak ? capacity_bytes : int64_t{0}});
}

std::string memory_chart(const MemoryChart& chart) {
  if (chart.timeline.moments.size() < 2) return {};
  return Drawing(chart).str();
}

std::string peak_holders(const MemoryTimeline& timeline, size_t count) {
  std::vector<const HeldBlock*> held;
  for (const HeldBlock& block : timeline.blocks) {
    if (block.first <= timeline.peak && timeline.peak < block.end) held.push_back(&block);
  }
  std::stable_sort(held.begin(), held.end(), [](const HeldBlock* a, const HeldBlock* b) { return a->bytes > b->bytes; });
  HtmlTable table({"tensor", "bytes", "category", "layer", "taken in"});
  int64_t rest = 0;
  for (size_t i = 0; i < held.size(); ++i) {
    if (i >= count) {
      rest += held[i]->bytes;
      continue;
    }
    const HeldBlock& block = *held[i];
    table.add_row({block.tensor, short_bytes(block.bytes), category_name(block.category), block.layer, phase_name(block.phase)});
  }
  if (held.size() > count) table.add_row({fmt::format("{} more", held.size() - count), short_bytes(rest), "", "", ""});
  return table.str();
}

}  // namespace vitrine::tools::html
