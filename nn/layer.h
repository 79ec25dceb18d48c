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

/// What differs between passes over one model. A value handed down, never state.
struct Pass {
  bool training = true;
  uint64_t seed = 0;
  int64_t step = 0;          // optimizer step, for dropout
  int64_t first_sample = 0;  // position of the slice's first sample in the global batch of the step
};

/// How a parameter is filled at the start.
struct Init {
  enum class Kind { zeros, ones, uniform, normal } kind = Kind::zeros;
  float bound = 0.0F;  // uniform in (-bound, bound); normal: the standard deviation
};

/// How a parameter is stored here and in a checkpoint, which has PyTorch's layout.
struct CheckpointLayout {
  enum class Kind {
    same,        // same bytes
    conv_oihw,   // here (K, R, S, C), there (K, C, R, S)
    linear_chw,  // here (O, H*W*C), there (O, C*H*W): the first Linear after a flatten of (H, W, C)
  } kind = Kind::same;
  int64_t h = 0, w = 0, c = 0;  // linear_chw
};

/// A parameter that a layer asks for. `name` is relative to the layer: "weight".
struct ParamSpec {
  std::string name;
  Shape shape;
  Init init;
  CheckpointLayout layout;
};

using ParamViews = std::span<const View>;  // in the order of Layer::parameters()
using Tensors = std::span<const Tensor>;

/// What a layer keeps between forward and backward: tensors (its own, or shares of its inputs and outputs), shapes, and what its parts keep.
struct Saved {
  std::vector<Tensor> tensors;
  std::vector<Shape> shapes;
  std::vector<Saved> parts;
};

/// What a layer needs of its own output in backward, and then keeps of it.
enum class OutputNeed : uint8_t {
  nothing,
  sign,    // which elements are above 0 (a merged ReLU)
  values,  // or nothing is known
};

/// A function with parameters and an explicit backward pass. A layer holds configuration only: parameters, gradients and activations come in and
/// go out. Precision is that of the tensors handed in: outputs and what is kept have the inputs' dtype (f32, f16 or bf16), parameters too, gradients
/// of parameters are f32. A layer may be made of layers; inputs and outputs are several tensors. Dimension 0 is the batch, which may be empty (then
/// forward and backward are not called).
///
/// The engine calls forward and backward on a meta device first, to plan the memory, and on the devices afterwards. An implementation therefore
///   - computes in functions given to ctx.dispatch (or calls kernels, which do), and declares there which views are read and written. Outside of them
///     tensors have no elements: View::as throws UnsupportedError on meta devices. Views are captured by value.
///   - allocates with ctx.allocate and nothing else, and the same tensors on every backend: their sizes depend on shapes and the Pass alone. The pool
///     throws UnsupportedError for what the plan does not contain. What is not among Saved is released when forward returns.
///   - computes in the dtype of its tensors, or checks dtype() and throws DtypeError: View::as throws DtypeError where it does not fit.
///   - never waits for the device. On GPUs dispatch is given a second function, which queues kernels on native_stream.
/// Errors name the layer. docs/examples/custom_layer.cpp is an example.
class Layer {
 public:
  virtual ~Layer() = default;

  /// What the layer is and how it is configured: "conv2d(3 -> 64, 11x11, stride 4, pad 2) + relu".
  virtual std::string describe() const = 0;
  virtual std::vector<ParamSpec> parameters() const { return {}; }
  /// throws ShapeError naming what the layer needs.
  virtual std::vector<Shape> output_shapes(std::span<const Shape> inputs) const = 0;
  /// True where the output is the input under the shape of output_shapes (a flatten, an adaptive pooling to the size it gets, dropout in
  /// evaluation): the caller then passes the input's memory on, and the gradient's likewise, and calls neither forward nor backward.
  virtual bool is_identity(std::span<const Shape> inputs, const Pass& pass) const;
  virtual OutputNeed output_need() const;
  /// True where outputs[0] may be inputs[0], of which others may still need the sign: elements that this layer makes 0 have no gradient, all others
  /// keep their sign (dropout, ReLU).
  virtual bool forward_in_place() const;
  /// True where grad_inputs[0] may be grad_outputs[0] (an elementwise layer).
  virtual bool backward_in_place() const;

  /// Writes `outputs` (allocated by the caller, of output_shapes) and returns what backward needs. In evaluation it may return nothing.
  virtual Saved forward(ExecContext& ctx, ParamViews params, Tensors inputs, Tensors outputs, const Pass& pass) const = 0;

  /// Writes `grad_inputs` (overwritten; an empty Tensor is skipped) and `grad_params` (by `mode`). May use grad_outputs as scratch: their content is
  /// lost. `saved` is what forward returned.
  virtual void backward(ExecContext& ctx, ParamViews params, const Saved& saved, Tensors grad_outputs, Tensors grad_inputs, ParamViews grad_params,
                        GradMode mode, const Pass& pass) const = 0;
};

}  // namespace vitrine
