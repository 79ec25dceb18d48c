// SPDX-License-Identifier: Apache-2.0
#include "nn/buffer_layout.h"

#include <utility>

namespace vitrine {
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
