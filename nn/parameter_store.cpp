// SPDX-License-Identifier: Apache-2.0
#include "nn/parameter_store.h"

#include <algorithm>
#include <iterator>
#include <system_error>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/error.h"
#include "runtime/philox.h"

namespace vitrine {
namespace {

constexpr size_t kPartElements = size_t{1} << 16;
constexpr size_t kDrawnElements = size_t{1} << 14;  // worth a thread

int64_t aligned(int64_t elements) {
  return (elements + FlatLayout::kAlignmentElements - 1) / FlatLayout::kAlignmentElements *
         FlatLayout::kAlignmentElements;
}

/// Draws the elements of a parameter from `first` on, with a thread for each core. They end with the call: a team of
/// OpenMP's would stay, and the devices' threads would sleep sooner while there are more threads than cores.
void fill(const Init& init, uint64_t seed, uint64_t stream, int64_t first, std::span<float> values) {
  if (init.kind == Init::Kind::zeros) return;
  if (init.kind == Init::Kind::ones) return std::fill(values.begin(), values.end(), 1.0F);
  const bool uniform = init.kind == Init::Kind::uniform;
  const auto draw = [=](size_t begin, size_t end) {
    PhiloxSequence random(seed, stream, (static_cast<uint64_t>(first) + begin) * (uniform ? 1 : 2));
    for (float& v : values.subspan(begin, end - begin))
      v = (uniform ? 2.0F * random.next_uniform() - 1.0F : random.next_normal()) * init.bound;
  };
  const size_t cores = std::max(1U, std::thread::hardware_concurrency());
  const size_t threads = std::clamp(values.size() / kDrawnElements, size_t{1}, cores);
  std::vector<std::thread> others;
  others.reserve(threads);
  size_t end = values.size();
  try {
    for (size_t t = threads; --t > 0; end = values.size() * t / threads)
      others.emplace_back(draw, values.size() * t / threads, end);
  } catch (const std::system_error&) {  // NOLINT: no more threads: this one draws the rest
  }
  draw(0, end);
  for (std::thread& other : others) other.join();
}

}  // namespace

FlatLayout::FlatLayout(std::vector<ParamSpec> specs, int64_t tail_elements)
    : specs_(std::move(specs)), offsets_(specs_.size()), tail_elements_(tail_elements) {
  VITRINE_ASSERT(tail_elements >= 0, "FlatLayout: tail_elements is negative");
  for (const bool trained : {true, false}) {
    for (size_t i = specs_.size(); i-- > 0;) {
      if (specs_[i].trained != trained) continue;
      offsets_[i] = parameter_elements_;
      parameter_elements_ += aligned(specs_[i].shape.numel());
    }
    if (trained) trained_elements_ = parameter_elements_;
  }
}

FlatLayout FlatLayout::staying_f32() const {
  std::vector<ParamSpec> specs;
  std::copy_if(specs_.begin(), specs_.end(), std::back_inserter(specs), [](const ParamSpec& s) { return s.stays_f32; });
  return FlatLayout(std::move(specs), 0);
}

FlatLayout FlatLayout::trained() const {
  std::vector<ParamSpec> specs;
  std::copy_if(specs_.begin(), specs_.end(), std::back_inserter(specs), [](const ParamSpec& s) { return s.trained; });
  return FlatLayout(std::move(specs), tail_elements_);
}

int64_t FlatLayout::parameter_count() const {
  int64_t count = 0;
  for (const ParamSpec& spec : specs_) count += spec.shape.numel();
  return count;
}

bool FlatLayout::any_stays_f32() const {
  return std::any_of(specs_.begin(), specs_.end(), [](const ParamSpec& spec) { return spec.stays_f32; });
}

std::vector<View> FlatLayout::views(const View& flat, const View& masters) const {
  std::vector<View> all = views(flat);
  if (flat.dtype == DType::f32 || !any_stays_f32()) return all;
  const std::vector<View> wide = views(masters);
  for (size_t i = 0; i < all.size(); ++i) {
    if (specs_[i].stays_f32) all[i] = wide[i];
  }
  return all;
}

std::vector<View> FlatLayout::gradient_views(const View& flat) const {
  std::vector<View> trained_views = trained().views(flat);
  std::vector<View> all(specs_.size());
  for (size_t i = 0, next = 0; i < specs_.size(); ++i) {
    if (specs_[i].trained) all[i] = trained_views[next++];
  }
  return all;
}

std::vector<View> FlatLayout::views(const View& flat) const {
  if (flat.dtype != DType::f32 && flat.dtype != DType::f16 && flat.dtype != DType::bf16) {
    throw DtypeError(fmt::format("FlatLayout::views: flat is {}, expected f32, f16 or bf16", dtype_name(flat.dtype)));
  }
  if (flat.numel() < parameter_elements_) {
    throw ShapeError(fmt::format("FlatLayout::views: flat has shape {}, expected ({}) or more for the parameters",
                                 flat.shape.str(), parameter_elements_));
  }
  std::vector<View> views;
  views.reserve(specs_.size());
  for (size_t i = 0; i < specs_.size(); ++i) {
    views.push_back({flat.as<char>() + offsets_[i] * size_of(flat.dtype), specs_[i].shape, flat.dtype, flat.device});
  }
  return views;
}

bool name_matches(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern.front() == '*')
    return name_matches(pattern.substr(1), name) || (!name.empty() && name_matches(pattern, name.substr(1)));
  return !name.empty() && (pattern.front() == '?' || pattern.front() == name.front()) &&
         name_matches(pattern.substr(1), name.substr(1));
}

std::vector<size_t> parameters_matching(std::string_view pattern, const std::vector<ParamSpec>& specs) {
  std::vector<size_t> matching;
  for (size_t i = 0; i < specs.size(); ++i) {
    if (name_matches(pattern, specs[i].name)) matching.push_back(i);
  }
  if (!matching.empty()) return matching;
  std::vector<std::string> names;
  for (const ParamSpec& spec : specs) names.push_back(spec.name);
  constexpr size_t kShown = 8;
  const std::string more = names.size() > kShown ? fmt::format(" and {} more", names.size() - kShown) : "";
  names.resize(std::min(names.size(), kShown));
  throw ConfigError(
      fmt::format("no parameter matches '{}'; the parameters are {}{}", pattern, fmt::join(names, ", "), more));
}

void initialize(const FlatLayout& layout, uint64_t seed, std::span<float> flat) {
  if (static_cast<int64_t>(flat.size()) < layout.parameter_elements()) {
    throw ShapeError(fmt::format("initialize: flat has {} elements, expected {} or more for the parameters",
                                 flat.size(), layout.parameter_elements()));
  }
  std::fill(flat.begin(), flat.end(), 0.0F);
  std::vector<float> part(kPartElements);
  initialize_in_parts(layout, seed, part, [&](int64_t first, std::span<const float> values) {
    std::copy(values.begin(), values.end(), flat.begin() + first);
  });
}

void initialize_in_parts(const FlatLayout& layout, uint64_t seed, std::span<float> part,
                         const std::function<void(int64_t, std::span<const float>)>& take) {
  VITRINE_ASSERT(!part.empty(), "initialize_in_parts: the scratch has no elements");
  for (int i = 0; i < layout.size(); ++i) {
    const ParamSpec& spec = layout.specs()[static_cast<size_t>(i)];
    const int64_t elements = spec.shape.numel(), all = aligned(elements);
    const uint64_t stream = random_stream(RandomPurpose::initialization, static_cast<uint64_t>(i));
    for (int64_t begin = 0; begin < all;) {
      const std::span<float> values = part.first(std::min(part.size(), static_cast<size_t>(all - begin)));
      std::fill(values.begin(), values.end(), 0.0F);
      const auto left = static_cast<size_t>(std::max<int64_t>(0, elements - begin));
      fill(spec.init, seed, stream, begin, values.first(std::min(values.size(), left)));
      take(layout.offset(i) + begin, values);
      begin += static_cast<int64_t>(values.size());
    }
  }
}

namespace {

std::vector<ParamSpec> select(const std::vector<BufferSpec>& buffers, bool saved) {
  std::vector<ParamSpec> specs;
  for (const BufferSpec& buffer : buffers) {
    if (buffer.saved == saved) specs.push_back({buffer.name, buffer.shape, buffer.init, {}});
  }
  return specs;
}

}  // namespace

BufferLayout::BufferLayout(const std::vector<BufferSpec>& buffers, std::vector<std::string> counters)
    : saved_(select(buffers, true), 0), transient_(select(buffers, false), 0), counters_(std::move(counters)) {
  for (const BufferSpec& buffer : buffers) is_saved_.push_back(buffer.saved);
}

std::vector<View> BufferLayout::views(const View& saved, const View& transient) const {
  const std::vector<View> of_saved =
      saved ? saved_.views(saved) : std::vector<View>(static_cast<size_t>(saved_.size()));
  const std::vector<View> of_transient =
      transient ? transient_.views(transient) : std::vector<View>(static_cast<size_t>(transient_.size()));
  auto next_saved = of_saved.begin(), next_transient = of_transient.begin();
  std::vector<View> all;
  all.reserve(is_saved_.size());
  for (const bool is_saved : is_saved_) all.push_back(is_saved ? *next_saved++ : *next_transient++);
  return all;
}

BufferValues BufferLayout::initial() const {
  BufferValues start{std::vector<float>(static_cast<size_t>(saved_.parameter_elements())),
                     std::vector<int64_t>(counters_.size())};
  initialize(saved_, 0, start.values);
  return start;
}

}  // namespace vitrine
