// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <vitrine/nn/parameter_store.h>

namespace vitrine {

/// Values of a model's saved buffers in host memory.
struct BufferValues {
  std::vector<float> values;      // BufferLayout::saved().parameter_elements()
  std::vector<int64_t> counters;  // in the order of BufferLayout::counters()
};

/// The places of a model's buffers in two flat f32 buffers: those that are saved, and those that only the passes of one
/// micro-batch need.
class BufferLayout {
 public:
  /// No buffers.
  BufferLayout() : BufferLayout(std::vector<BufferSpec>{}, {}) {}
  explicit BufferLayout(const Layer& model) : BufferLayout(model.buffers(), model.counters()) {}
  BufferLayout(const std::vector<BufferSpec>& buffers, std::vector<std::string> counters);

  const FlatLayout& saved() const { return saved_; }
  const FlatLayout& transient() const { return transient_; }
  const std::vector<std::string>& counters() const { return counters_; }
  /// Whether anything is saved.
  bool any_saved() const { return saved_.size() > 0 || !counters_.empty(); }

  /// Views in the order of Layer::buffers(). An empty `saved` or `transient` gives empty views.
  std::vector<View> views(const View& saved, const View& transient) const;
  /// The values of a new model.
  BufferValues initial() const;

 private:
  std::vector<bool> is_saved_;  // in the order of Layer::buffers()
  FlatLayout saved_, transient_;
  std::vector<std::string> counters_;
};

}  // namespace vitrine
