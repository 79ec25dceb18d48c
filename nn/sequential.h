// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include <vitrine/nn/layer.h>

namespace vitrine {

/// Layers one after the other, each with one input and one output. Parameters are named "NAME.weight", NAME being the layer's.
class Sequential final : public Layer {
 public:
  struct Part {
    std::string name;  // "features.0"
    std::unique_ptr<Layer> layer;
  };

  /// throws ConfigError when two parts have one name.
  explicit Sequential(std::vector<Part> parts);

  std::string describe() const override;
  std::vector<ParamSpec> parameters() const override;
  std::vector<Shape> output_shapes(std::span<const Shape> inputs) const override;
  bool is_identity(std::span<const Shape> inputs, const Pass& pass) const override;
  Saved forward(ExecContext& ctx, ParamViews params, Tensors inputs, Tensors outputs, const Pass& pass) const override;
  void backward(ExecContext& ctx, ParamViews params, const Saved& saved, Tensors grad_outputs, Tensors grad_inputs, ParamViews grad_params,
                GradMode mode, const Pass& pass) const override;

  /// Called with the index of the first parameter whose gradient is now final: all from there to the end of parameters() are.
  using GradientsReady = std::function<void(int first_parameter)>;

  /// Called with each part that computes and its output.
  using OutputReady = std::function<void(int part, const Tensor& output)>;

  /// Where the parts are cut in segments of activation checkpointing: the first part of every segment but the first, ascending (see segments.h).
  using Cuts = std::span<const int>;

  /// forward() for the outermost model: allocates the outputs of all parts; of the last too, which is returned through `output`, unless that is
  /// given. In training every segment but the last keeps its input and nothing else.
  Saved forward_from(ExecContext& ctx, ParamViews params, const Tensor& input, Tensor& output, const Pass& pass, const OutputReady& observe = nullptr,
                     Cuts cuts = {}) const;
  /// backward() that lets go of each part's saved tensors and gradients as soon as it is done with them, and tells which gradients are ready.
  /// grad_output, of the output's shape or another with as many elements, is given up; no gradient for the model's input is computed.
  /// A segment that kept only its input is computed again first, in Phase::recompute, with the same pass: so with the same bits.
  void backward_from(ExecContext& ctx, ParamViews params, Saved saved, Tensor grad_output, ParamViews grad_params, GradMode mode, const Pass& pass,
                     const GradientsReady& ready, Cuts cuts = {}) const;

  /// The parts that compute on such an input, ascending; the others are identities.
  std::vector<int> computing_parts(const Shape& input, const Pass& pass) const;
  /// True where backward needs nothing of the output's memory: a gradient may be written over it.
  bool output_is_free(const Shape& input, const Pass& pass) const;

  const std::vector<Part>& parts() const { return parts_; }

 private:
  struct Range {
    size_t begin, end;
  };
  Saved run_forward(ExecContext& ctx, ParamViews params, Tensor x, Tensor& output, const Pass& pass, const OutputReady& observe, Cuts cuts) const;
  Tensor run_parts(ExecContext& ctx, ParamViews params, Tensor x, Range parts, std::span<const Shape> shapes, const Tensor& output,
                   std::vector<Saved>* saved, const Pass& pass, const OutputReady& observe) const;
  void run_backward(ExecContext& ctx, ParamViews params, Saved saved, Tensor grad, const Tensor& grad_input, ParamViews grad_params, GradMode mode,
                    const Pass& pass, const GradientsReady& ready, Cuts cuts) const;
  Range segment(Cuts cuts, size_t index) const;
  std::vector<Shape> shapes_of_parts(const Shape& input) const;
  ParamViews of_part(ParamViews all, size_t part) const;
  bool part_is_identity(size_t part, const Shape& input, const Pass& pass) const;

  std::vector<Part> parts_;
  std::vector<int> first_parameter_;  // of each part, and one past the last
};

}  // namespace vitrine
