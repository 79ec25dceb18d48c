// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include <vitrine/nn/layer.h>

namespace vitrine {

/// Consecutive parts of a Sequential: begin <= part < end.
struct PartRange {
  int begin = 0, end = 0;
  friend bool operator==(const PartRange&, const PartRange&) = default;
};

/// Layers applied one after the other. The parameters of a layer are named "NAME.weight", where NAME is the name of its
/// part; so are its buffers and counters. A part without a name leaves its layer's names as they are.
class Sequential final : public Layer {
 public:
  struct Part {
    std::string name;  // "features.0"
    std::unique_ptr<Layer> layer;
    std::string label = {};  // set by Sequential: the name after those of the parts around it, "layer1.0.conv1"
  };

  /// throws ConfigError when two parts have the same name, or a part shares a parameter that no earlier part has alone.
  explicit Sequential(std::vector<Part> parts);

  /// Freezes the parameters whose names match a pattern, in which * stands for any characters: "features.*". Frozen
  /// parameters have no gradients and no optimizer state. Backward stops at the first part with a trained parameter,
  /// and the parts before it keep nothing for backward. Dropout and batch norm still behave as in training. For the
  /// outermost model, before anything is made of it.
  /// throws ConfigError for a pattern without a match, and if no parameter remains to be trained
  void freeze(const std::vector<std::string>& patterns);

  std::string describe() const override;
  std::vector<ParamSpec> parameters() const override;
  std::vector<BufferSpec> buffers() const override;
  std::vector<std::string> counters() const override;
  /// That of the first part.
  DType input_dtype(DType activations) const override;
  Shape output_shape(const Shape& x) const override;
  bool is_identity(const Shape& x, const Pass& pass) const override;
  Work forward_work(const Shape& x) const override;
  /// True when that holds for all parts.
  bool can_be_replayed() const override;
  bool handles_leaves() const override { return true; }
  bool calls_hooks() const override { return true; }
  void prefix_labels(const std::string& prefix) override;
  /// That of the first part.
  ImageForm input_form(const Shape& x, const InputTarget& target) const override;
  Saved forward(const ForwardCall& call) const override;
  void backward(const BackwardCall& call) const override;
  void forward_empty(const EmptyCall& call) const override { forward_empty(call, nullptr); }
  void backward_empty(const EmptyCall& call) const override { backward_empty(call, {}, nullptr); }

  /// Called before and after work that reads parameters [first, end) is queued: the parameters of a part, or of a
  /// recomputed segment, whose backward pass reads them again. At Use::begins it may set their elements of `params`.
  enum class Use { begins, ends };
  using ParametersUsed = std::function<void(Use use, int first, int end)>;

  /// Called with each part that computes and its output.
  using OutputReady = std::function<void(int part, const Tensor& output)>;

  /// Segments of activation checkpointing: disjoint ranges of parts, ascending (see segments.h). All other parts are
  /// kept.
  using Recomputed = std::span<const PartRange>;

  /// forward() for the outermost model. Allocates the outputs of all parts; `output`, if empty, receives the last one,
  /// otherwise the result is written to it. In training, each segment of `recomputed` keeps only its input. With
  /// Pass::input_form, `input` is in that form.
  ///   buffers  of all parts, in the order of buffers()
  Saved forward_from(ExecContext& ctx, ParamViews params, const Tensor& input, Tensor& output, const Pass& pass,
                     const OutputReady& observe = nullptr, Recomputed recomputed = {}, BufferViews buffers = {},
                     const ParametersUsed& used = nullptr) const;
  /// backward() for the outermost model. Releases the saved tensors and gradients of each part as soon as they are no
  /// longer needed. Takes over grad_output, whose shape may be any with as many elements as the output; computes no
  /// gradient of the input of the model. A segment that kept only its input is first recomputed, in Phase::recompute,
  /// with the same Pass and therefore the same bits.
  ///   recomputed  as in forward_from()
  void backward_from(ExecContext& ctx, ParamViews params, Saved saved, Tensor grad_output, ParamViews grad_params,
                     GradMode mode, const Pass& pass, const GradientHooks& hooks, Recomputed recomputed = {},
                     BufferViews buffers = {}, const ParametersUsed& used = nullptr) const;
  /// forward_empty() and backward_empty() for the outermost model: call `used` and hooks.ready where forward_from() and
  /// backward_from() do, so that the caller's collectives and the layers' collectives have the same order on all
  /// devices. Layers are called if the pass sums_over_devices().
  void forward_empty(const EmptyCall& call, const ParametersUsed& used) const;
  void backward_empty(const EmptyCall& call, Recomputed recomputed, const ParametersUsed& used) const;

  /// The parts that compute for an input of this shape, ascending; the others are identities.
  std::vector<int> computing_parts(const Shape& input, const Pass& pass) const;
  /// True when backward does not need the memory of the output, so that a gradient may be written over it.
  bool output_is_free(const Shape& input, const Pass& pass) const;

  const std::vector<Part>& parts() const { return parts_; }
  /// Those of `all` that a part gets: its own, or the one that it shares.
  ParamViews of_part(ParamViews all, size_t part) const;

 private:
  /// A segment, or the parts between two of them.
  struct Run {
    size_t begin, end;
    bool kept;
  };
  std::vector<Run> runs_of(Recomputed recomputed) const;
  Tensor run_parts(ExecContext& ctx, ParamViews params, BufferViews buffers, Tensor x, const Run& run,
                   std::span<const Shape> shapes, const Tensor& output, std::vector<Saved>* saved, const Pass& pass,
                   const OutputReady& observe, const ParametersUsed& used) const;
  void run_backward(ExecContext& ctx, ParamViews params, BufferViews buffers, Saved saved, Tensor grad,
                    const Tensor& grad_input, ParamViews grad_params, GradMode mode, const Pass& pass,
                    const GradientHooks& hooks, Recomputed recomputed, const ParametersUsed& used) const;
  /// Calls `used`, if given, with the parameters of parts [begin, end), if they have any.
  void report(const ParametersUsed& used, Use use, size_t begin, size_t end) const;
  int bias_before(size_t part, std::span<const Shape> shapes, const Pass& pass) const;
  std::vector<Shape> shapes_of_parts(const Shape& input) const;
  BufferViews buffers_of_part(BufferViews all, size_t part) const;
  struct SharedGradients;
  /// Calls layer.backward() of part i. The gradient of a shared parameter is written by each part that has it, in the
  /// order of backward, and is held in `shared` while its own memory is not there.
  void backward_part(size_t i, const BackwardCall& call, SharedGradients& shared, bool in_buckets) const;
  bool has_parameters(size_t part) const { return first_parameter_[part] < first_parameter_[part + 1]; }
  bool part_is_identity(size_t part, const Shape& input, const Pass& pass) const {
    return parts_[part].layer->is_identity(input, pass);
  }

  std::vector<Part> parts_;
  std::vector<int> first_parameter_;   // of each part, and one past the last
  std::vector<size_t> first_buffer_;   // likewise
  std::vector<int> shared_parameter_;  // of each part: the one that it shares, -1 if none
  std::vector<bool> frozen_;           // of each parameter
  size_t first_trained_part_ = 0;      // parts before it run no backward
};

}  // namespace vitrine
