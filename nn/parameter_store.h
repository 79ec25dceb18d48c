// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <vitrine/kernels/cross_entropy.h>
#include <vitrine/nn/layer.h>

namespace vitrine {

/// Elements after the gradients that are reduced with them: totals of the loss, and votes to stop.
inline constexpr int64_t kTailElements = LossTotals::kCount + 1;

/// The place of each parameter of a model in a flat buffer: in the order in which backward finishes them (last layer
/// first), each aligned to kAlignmentElements, with zero padding, followed by `tail_elements` (the totals that are
/// reduced with the gradients). Frozen parameters follow the trained ones, so the layout of the trained parameters
/// alone has the same offsets.
class FlatLayout {
 public:
  static constexpr int64_t kAlignmentElements = 64;

  FlatLayout(std::vector<ParamSpec> specs, int64_t tail_elements);

  const std::vector<ParamSpec>& specs() const { return specs_; }
  int size() const { return static_cast<int>(specs_.size()); }
  /// The layout of gradients and optimizer states: without the frozen parameters.
  FlatLayout trained() const;
  /// First element of parameter i (order of specs()).
  int64_t offset(int i) const { return offsets_[static_cast<size_t>(i)]; }
  /// The layout of the parameters that stay f32, without a tail.
  FlatLayout staying_f32() const;
  /// Elements of parameters and padding, without the tail; a multiple of kAlignmentElements.
  int64_t parameter_elements() const { return parameter_elements_; }
  /// Elements of the trained parameters, which come first.
  int64_t trained_elements() const { return trained_elements_; }
  int64_t tail_elements() const { return tail_elements_; }
  int64_t total_elements() const { return parameter_elements_ + tail_elements_; }
  /// Number of values, without padding.
  int64_t parameter_count() const;
  /// Whether layers see a parameter in f32 in every precision.
  bool any_stays_f32() const;
  /// Views of the parameters within `flat` (total or parameter elements; f32, or a 16-bit copy of f16 or bf16), in the
  /// order of specs().
  std::vector<View> views(const View& flat) const;
  /// Views of the gradients within `flat`, which has the layout trained(), in the order of specs(); empty for frozen
  /// parameters.
  std::vector<View> gradient_views(const View& flat) const;
  /// What layers see: views of `flat`, and for parameters that stay f32 views of `masters` (f32, the same layout).
  std::vector<View> views(const View& flat, const View& masters) const;

 private:
  std::vector<ParamSpec> specs_;
  std::vector<int64_t> offsets_;
  int64_t parameter_elements_ = 0, trained_elements_ = 0;
  int64_t tail_elements_ = 0;
};

/// Whether a pattern fits the whole name: * stands for any characters, ? for one.
bool name_matches(std::string_view pattern, std::string_view name);
/// Indices of the parameters whose names the pattern fits.   throws ConfigError if there is none
std::vector<size_t> parameters_matching(std::string_view pattern, const std::vector<ParamSpec>& specs);

/// Fills host memory with the layout `layout` with initial values. Parameter i is drawn from Philox at (seed, stream i
/// of RandomPurpose::initialization) and depends on nothing else: freezing parameters changes no value.
void initialize(const FlatLayout& layout, uint64_t seed, std::span<float> flat);
/// The same values in parts, each written to `part` and given to take(its first element in the flat buffer, values):
/// every element once, with the zeros between parameters. The parts of a parameter follow one another. All threads of
/// the caller draw (runtime/parallel_for.h).
///   part  scratch of at least one element
void initialize_in_parts(const FlatLayout& layout, uint64_t seed, std::span<float> part,
                         const std::function<void(int64_t first, std::span<const float> values)>& take);

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
