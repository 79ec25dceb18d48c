// SPDX-License-Identifier: Apache-2.0
#include "nn/parameter_store.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "runtime/error.h"
#include "runtime/philox.h"

namespace vitrine {
namespace {

int64_t aligned(int64_t elements) {
  return (elements + FlatLayout::kAlignmentElements - 1) / FlatLayout::kAlignmentElements *
         FlatLayout::kAlignmentElements;
}

void fill(const Init& init, PhiloxSequence random, std::span<float> values) {
  switch (init.kind) {
    case Init::Kind::zeros:
      return;
    case Init::Kind::ones:
      std::fill(values.begin(), values.end(), 1.0F);
      return;
    case Init::Kind::uniform:
      for (float& v : values) v = (2.0F * random.next_uniform() - 1.0F) * init.bound;
      return;
    case Init::Kind::normal:
      for (float& v : values) v = random.next_normal() * init.bound;
      return;
  }
}

}  // namespace

FlatLayout::FlatLayout(std::vector<ParamSpec> specs, int64_t tail_elements)
    : specs_(std::move(specs)), offsets_(specs_.size()), tail_elements_(tail_elements) {
  VITRINE_ASSERT(tail_elements >= 0, "FlatLayout: tail_elements is negative");
  for (size_t i = specs_.size(); i-- > 0;) {
    offsets_[i] = parameter_elements_;
    parameter_elements_ += aligned(specs_[i].shape.numel());
  }
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

void initialize(const FlatLayout& layout, uint64_t seed, std::span<float> flat) {
  if (static_cast<int64_t>(flat.size()) < layout.parameter_elements()) {
    throw ShapeError(fmt::format("initialize: flat has {} elements, expected {} or more for the parameters",
                                 flat.size(), layout.parameter_elements()));
  }
  std::fill(flat.begin(), flat.end(), 0.0F);
  for (int i = 0; i < layout.size(); ++i) {
    const ParamSpec& spec = layout.specs()[static_cast<size_t>(i)];
    const auto values = flat.subspan(static_cast<size_t>(layout.offset(i)), static_cast<size_t>(spec.shape.numel()));
    fill(spec.init, PhiloxSequence(seed, random_stream(RandomPurpose::initialization, static_cast<uint64_t>(i))),
         values);
  }
}

}  // namespace vitrine
