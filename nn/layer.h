// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <vitrine/kernels/accumulate.h>
#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// What differs between passes over one model. Passed to every layer; no layer stores it.
struct Pass {
  bool training = true;
  uint64_t seed = 0;
  int64_t step = 0;          // optimizer step, for dropout
  int64_t first_sample = 0;  // position of the slice's first sample in the global batch of the step
};

/// How a parameter is initialized.
struct Init {
  enum class Kind { zeros, ones, uniform, normal } kind = Kind::zeros;
  float bound = 0.0F;  // uniform in (-bound, bound); normal: the standard deviation
};

/// How the layout of a parameter differs from its layout in a checkpoint, which is PyTorch's.
struct CheckpointLayout {
  enum class Kind {
    same,        // same bytes
    conv_oihw,   // here (K, R, S, C), in the checkpoint (K, C, R, S)
    linear_chw,  // here (O, H*W*C), in the checkpoint (O, C*H*W): the first Linear after a flatten of (H, W, C)
  } kind = Kind::same;
  int64_t h = 0, w = 0, c = 0;  // linear_chw
};

/// A parameter of a layer. `name` is relative to the layer: "weight".
struct ParamSpec {
  std::string name;
  Shape shape;
  Init init;
  CheckpointLayout layout;
  bool of_norm = false;  // of a normalization layer: optimizers often do not decay it
};

using ParamViews = std::span<const View>;  // in the order of Layer::parameters()

/// What a layer keeps between forward and backward: tensors (its own, its input, its output), shapes, and what its parts keep.
struct Saved {
  std::vector<Tensor> tensors;
  std::vector<Shape> shapes;
  std::vector<Saved> parts;
};

/// What a layer needs of its own output in backward, and therefore keeps.
enum class OutputNeed : uint8_t {
  nothing,
  sign,    // which elements are above 0 (a merged ReLU)
  values,  // the values, or unknown
};

/// Arguments of Layer::forward.
struct ForwardCall {
  ExecContext& ctx;
  ParamViews params;
  const Tensor& x;
  const Tensor& y;  // of output_shape(x.shape()), allocated by the caller
  const Pass& pass;
};

/// Arguments of Layer::backward.
struct BackwardCall {
  ExecContext& ctx;
  ParamViews params;
  const Saved& saved;    // what forward returned
  const Tensor& grad_y;  // may be used as scratch: its content is lost
  const Tensor& grad_x;  // overwritten; empty when the gradient of the input is not needed
  ParamViews grad_params;
  GradMode mode;  // whether grad_params are overwritten or added to
  const Pass& pass;
};

/// A function of one tensor, with parameters and an explicit backward pass. A layer holds configuration only: parameters, gradients and activations
/// are passed in and returned. It computes in the dtype of its tensors: activations and parameters are all f32, all f16 or all bf16; gradients of
/// parameters are f32. A layer may be made of layers (Sequential, Residual). Dimension 0 is the batch; forward and backward are not called for an
/// empty batch.
///
/// The engine calls forward and backward on a meta device first, to plan the memory, and then on the devices. An implementation therefore
///   - computes inside functions given to ctx.dispatch (or calls kernels, which do so), and declares there which views they read and write. Outside
///     of them tensors have no elements: View::as throws UnsupportedError on meta devices. Capture views by value.
///   - allocates with ctx.allocate only, and the same tensors on every backend: their sizes depend on shapes and the Pass alone. The pool throws
///     UnsupportedError for allocations that are not in the plan. Tensors that are not in Saved are released when forward returns.
///   - accepts every dtype, or checks dtype() and throws DtypeError. View::as throws DtypeError for a type that does not match.
///   - never waits for the device. For GPUs, dispatch takes a second function, which queues kernels on native_stream.
/// Errors name the layer. docs/examples/custom_layer.cpp is an example.
class Layer {
 public:
  virtual ~Layer() = default;

  /// Kind and configuration of the layer: "conv2d(3 -> 64, 11x11, stride 4, pad 2) + relu".
  virtual std::string describe() const = 0;
  virtual std::vector<ParamSpec> parameters() const { return {}; }
  /// throws ShapeError that states the expected shape when x does not fit.
  virtual Shape output_shape(const Shape& x) const = 0;
  /// True when the output is the input under output_shape(x): a flatten, an adaptive pool to the size of its input, dropout in evaluation. The
  /// caller then passes the memory of the input (and of the gradient) on, and calls neither forward nor backward.
  virtual bool is_identity(const Shape& /*x*/, const Pass& /*pass*/) const { return false; }
  virtual OutputNeed output_need() const { return OutputNeed::values; }
  /// True when y may be x even if the layer before needs the sign of x: elements that this layer zeroes have no gradient, and all others keep their
  /// sign (dropout, ReLU).
  virtual bool forward_in_place() const { return false; }
  /// True when grad_x may be grad_y (an elementwise layer).
  virtual bool backward_in_place() const { return false; }

  /// Computes y and returns what backward needs. In evaluation it may return nothing.
  virtual Saved forward(const ForwardCall& call) const = 0;
  /// Computes grad_x and grad_params from grad_y and `saved`.
  virtual void backward(const BackwardCall& call) const = 0;
};

}  // namespace vitrine
