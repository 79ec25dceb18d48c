// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <vitrine/kernels/accumulate.h>
#include <vitrine/kernels/conv2d_form.h>
#include <vitrine/kernels/step_values.h>
#include <vitrine/runtime/exec_context.h>
#include <vitrine/runtime/row_range.h>

namespace vitrine {

/// A fixed range of samples of the global batch that is always computed with the same shapes, wherever it runs. Results
/// of leaves are added along one binary tree over their numbers, so the sum has the same bits on any devices.
struct Leaf {
  RowRange rows;   // in the slice that the layer gets
  int number = 0;  // among the leaves of the step
  int group = 0;   // of leaves that share batch statistics, among those of the micro-batch
};

/// What layers add up over leaves. The engine implements it.
class LeafSums {
 public:
  virtual ~LeafSums() = default;
  /// sums (groups, n) f32 = for each group of leaves of the micro-batch the sum over its leaves on all devices.
  ///   by_leaf (own leaves, n) f32; empty on a device without leaves
  /// A collective: every device that takes part in the pass makes the same calls in the same order.
  virtual void sum_groups(ExecContext& ctx, const View& by_leaf, const View& sums) = 0;
  /// Adds what the device's leaves contribute to a gradient.
  ///   by_leaf (own leaves, n) f32, used as scratch      grad (n): the parameter's view of the flat gradients
  virtual void add_gradient(ExecContext& ctx, const View& by_leaf, const View& grad) = 0;
};

/// The leaves of a pass in exact mode.
struct Leaves {
  std::vector<Leaf> own;               // of this device, ascending, none of them empty
  std::vector<int64_t> group_samples;  // of each group of the micro-batch, on all devices
  LeafSums* sums = nullptr;            // in training
};

/// Adds up values over the devices that share a micro-batch, for layers whose output depends on all of its samples. The
/// engine implements it; layers do not know the scheme.
class BatchSum {
 public:
  virtual ~BatchSum() = default;
  /// `values` (f32, memory of ctx's device) become their sum over all devices, with the same bits on all of them, for
  /// work that is queued on ctx afterwards. A collective: every device that takes part in the pass makes the same calls
  /// in the same order.
  virtual void sum(ExecContext& ctx, const View& values) = 0;
};

/// What differs between passes over one model. Passed to every layer; no layer stores it.
struct Pass {
  bool training = true;
  uint64_t seed = 0;
  int64_t step = 0;          // optimizer step, for dropout
  int64_t first_sample = 0;  // position of the slice's first sample in the global batch of the step
  /// Samples of the micro-batch on all devices that `batch_sum` adds up; 0: only the samples of the call.
  int64_t batch_samples = 0;
  /// Null: the samples of the call are all there are, or statistics are taken on each device alone.
  BatchSum* batch_sum = nullptr;
  /// Exact mode: Sequential calls each layer once for every leaf, without this, unless the layer handles_leaves().
  const Leaves* leaves = nullptr;
  /// Backward computes a forward pass again: layers read what the first one wrote to their buffers, and write nothing
  /// there.
  bool recomputes = false;
  /// Not empty: the pass is captured in a CUDA graph. (StepValues::kCount) i32 of the device, from which work must read
  /// `step` and `first_sample`.
  ConstView step_values = {};
  /// False: a training pass leaves saved buffers (running statistics) as they are.
  bool updates_buffers = true;
  /// Not empty: the input of the model, and of the layer that gets this pass, is in the form that Layer::input_form()
  /// returned. Shapes in arguments and in Saved::shapes remain the images' shapes; the gradient of the input has the
  /// form too.
  ImageForm input_form = {};

  /// Whether layers of a device without samples take part in sums over the micro-batch.
  bool sums_over_devices() const { return batch_sum != nullptr || (training && leaves != nullptr); }
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
    transposed,  // here (O, I), in the checkpoint (I, O): transformers' Conv1D
  } kind = Kind::same;
  int64_t h = 0, w = 0, c = 0;  // linear_chw
};

/// A parameter of a layer. `name` is relative to the layer: "weight".
struct ParamSpec {
  std::string name;
  Shape shape;
  Init init;
  CheckpointLayout layout;
  bool of_norm = false;    // of a normalization layer: optimizers often do not decay it
  bool stays_f32 = false;  // the layer sees it in f32 in every precision
  bool trained = true;     // false: frozen (Sequential::freeze); it has no gradient and no optimizer state
  /// Names that files may also give it: those of parts that share it ("lm_head.weight").
  std::vector<std::string> other_names = {};
};

/// Memory of a layer that is no parameter: f32, never trained by the optimizer, at one place for the life of the model.
struct BufferSpec {
  std::string name;
  Shape shape;
  Init init;
  /// True: part of the model, such as running statistics; saved with the parameters, equal on all replicas between
  /// steps. False: what the latest forward pass in training leaves for its backward pass and for recomputation; only
  /// engines that train hold it.
  bool saved = true;
};

using ParamViews = std::span<const View>;  // in the order of Layer::parameters()
using BufferViews =
    std::span<const View>;  // in the order of Layer::buffers(); empty views for buffers that are not held

/// What a layer keeps between forward and backward: tensors (its own, its input, its output), shapes, and what its
/// parts keep.
struct Saved {
  std::vector<Tensor> tensors;
  std::vector<Shape> shapes;
  std::vector<Saved> parts;
};

/// What a layer needs of its output in backward, and therefore keeps.
enum class OutputNeed : uint8_t {
  nothing,
  sign,    // which elements are above 0 (a merged ReLU)
  values,  // the values, or unknown
};

/// Work of a forward pass, for estimates of its time.
struct Work {
  int64_t flops = 0;     // multiplications and additions of matrix products
  int64_t elements = 0;  // read or written: input, output, parameters

  Work& operator+=(const Work& other) {
    flops += other.flops;
    elements += other.elements;
    return *this;
  }
};

/// What the engine does with gradients while backward runs.
struct GradientHooks {
  /// Called before gradients are written, with the index of the first parameter that has one of them. May set the
  /// elements of grad_params that are written next.
  std::function<void(int first_parameter)> begin = {};
  /// Called with the index of the first parameter whose gradient is final; all later ones are final, too.
  std::function<void(int first_parameter)> ready = {};

  /// Those of a layer whose first parameter is number `parameter` here. They refer to these, which must outlive them.
  GradientHooks of_layer(int parameter) const;
};

/// Arguments of Layer::forward.
struct ForwardCall {
  ExecContext& ctx;
  ParamViews params;
  const Tensor& x;
  const Tensor& y;  // of output_shape(x.shape()), allocated by the caller
  const Pass& pass;
  BufferViews buffers = {};
};

/// Arguments of Layer::backward.
struct BackwardCall {
  ExecContext& ctx;
  ParamViews params;
  const Saved& saved;      // what forward returned
  const Tensor& grad_y;    // may be used as scratch: its content is lost
  const Tensor& grad_x;    // overwritten; empty when the gradient of the input is not needed
  ParamViews grad_params;  // empty: of a frozen parameter, or of bias_parameter() if already computed
  GradMode mode;           // whether grad_params are overwritten or added to
  const Pass& pass;
  BufferViews buffers = {};
  /// If not empty: also receives the sums of grad_x over all dimensions but the last, overwritten or added to as
  /// grad_params. Only layers with sums_grad_x() get it.
  View grad_x_sums = {};
  /// Only layers with calls_hooks() get them.
  GradientHooks hooks = {};
};

/// Arguments of Layer::forward_empty and backward_empty.
struct EmptyCall {
  ExecContext& ctx;
  const Shape& x;  // shape of the layer's input for one sample
  const Pass& pass;
  BufferViews buffers = {};
  GradientHooks hooks = {};  // of backward_empty, for layers with calls_hooks()
};

/// A function of one tensor, with parameters and an explicit backward pass. A layer holds configuration only:
/// parameters, buffers, gradients and activations are passed in and returned. It computes in the dtype of its tensors:
/// activations and parameters are all f32, all f16 or all bf16 (parameters that stay f32 excepted); buffers and
/// gradients of parameters are f32. See input_dtype() for the first layer
/// of a model. A layer may be made of layers (Sequential, Residual). Dimension 0 is the batch;
/// forward and backward are not called for an empty batch.
///
/// The engine calls forward and backward on a meta device first, to plan the memory, and then on the devices. An
/// implementation therefore
///   - computes inside functions given to ctx.dispatch (or calls kernels, which do so), and declares there which views
///     they read and write. Outside of them tensors have no elements: View::as throws UnsupportedError on meta devices.
///     Capture views by value.
///   - allocates with ctx.allocate only, and the same tensors on every backend: their sizes depend on shapes and the
///     Pass alone. The pool throws UnsupportedError for allocations that are not in the plan. Tensors that are not in
///     Saved are released when forward returns.
///   - accepts every dtype, or checks dtype() and throws DtypeError. View::as throws DtypeError for a type that does
///     not match.
///   - never waits for the device. For GPUs, dispatch takes a second function, which queues kernels on native_stream.
/// Errors name the layer. docs/examples/custom_layer.cpp is an example.
class Layer {
 public:
  virtual ~Layer() = default;

  /// Kind and configuration of the layer: "conv2d(3 -> 64, 11x11, stride 4, pad 2) + relu".
  virtual std::string describe() const = 0;
  virtual std::vector<ParamSpec> parameters() const { return {}; }
  /// Not empty: the layer has no parameters of its own. It gets the one of this name, the only one of an earlier part
  /// of the same Sequential ("wte.weight"), and adds to its gradient.
  virtual std::string shared_parameter() const { return {}; }
  virtual std::vector<BufferSpec> buffers() const { return {}; }
  /// Names of numbers of training passes, saved as int64 scalars with the parameters ("num_batches_tracked"). The
  /// engine counts; layers do not read them.
  virtual std::vector<std::string> counters() const { return {}; }
  /// dtype of the input, where activations have this one: i32 for a layer that takes tokens.
  virtual DType input_dtype(DType activations) const { return activations; }
  /// throws ShapeError that states the expected shape when x does not fit.
  virtual Shape output_shape(const Shape& x) const = 0;
  /// True when the output is the input under output_shape(x): a flatten, an adaptive pool to the size of its input,
  /// dropout in evaluation. The caller then passes the memory of the input (and of the gradient) on, and calls neither
  /// forward nor backward.
  virtual bool is_identity(const Shape& /*x*/, const Pass& /*pass*/) const { return false; }
  /// Work of forward for an input of this shape. The default counts a parameter with two dimensions or more as a matrix
  /// of rows for the last dimension of the output, as in Linear and Conv2d; layers made of layers add up theirs.
  virtual Work forward_work(const Shape& x) const;
  /// The form in which the layer wants images x, if it is the first one of a model. Only a layer that returns one gets
  /// a Pass::input_form, and has to accept images as they are as well.
  virtual ImageForm input_form(const Shape& /*x*/, const InputTarget& /*target*/) const { return {}; }
  virtual OutputNeed output_need() const { return OutputNeed::values; }
  /// True when y may be x even if the layer before needs the sign of x: elements that this layer zeroes have no
  /// gradient, and all others keep their sign (dropout, ReLU).
  virtual bool forward_in_place() const { return false; }
  /// True when the layer takes all leaves of Pass::leaves in one call, because it is made of layers or adds up values
  /// over leaves.
  virtual bool handles_leaves() const { return false; }
  /// True when backward and backward_empty call the hooks of their call, because the layer is made of layers; else the
  /// caller does it before and after them.
  virtual bool calls_hooks() const { return false; }
  /// Puts `prefix` before the labels of the layers inside, which name them in tables, traces and messages.
  virtual void prefix_labels(const std::string& /*prefix*/) {}
  /// True when grad_x may be grad_y (an elementwise layer).
  virtual bool backward_in_place() const { return false; }
  /// True when forward and backward do nothing but issue work, and issue the same work in every training step of one
  /// shape, apart from what they read in Pass::step_values. The engine may then replay this work as a CUDA graph,
  /// without calling the layer.
  virtual bool can_be_replayed() const { return false; }

  /// Index of the parameter whose gradient is the sum of grad_y over all dimensions but the last: the layer after this
  /// one may compute it, as grad_x_sums. -1: there is none.
  virtual int bias_parameter() const { return -1; }
  /// True when backward can add up grad_x in the pass that computes it.
  virtual bool sums_grad_x() const { return false; }

  /// Computes y and returns what backward needs. In evaluation it may return nothing.
  virtual Saved forward(const ForwardCall& call) const = 0;
  /// Computes grad_x and grad_params from grad_y and `saved`.
  virtual void backward(const BackwardCall& call) const = 0;

  /// Called in training instead of forward and backward on a device that has no sample of a micro-batch, where
  /// Pass::batch_sum is set: the layer takes part in the sums with zeros, in the order of forward and backward, and
  /// updates its buffers as on the other devices.
  virtual void forward_empty(const EmptyCall& /*call*/) const {}
  virtual void backward_empty(const EmptyCall& /*call*/) const {}
};

}  // namespace vitrine
