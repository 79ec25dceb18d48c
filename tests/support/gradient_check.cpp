// SPDX-License-Identifier: Apache-2.0
#include "tests/support/gradient_check.h"

#include <algorithm>
#include <cmath>

#include "nn/parameter_store.h"

namespace vitrine::test {
namespace {

constexpr double kStep = 1e-6;      // of the differences, in double precision
constexpr double kRelative = 2e-5;  // of the f32 results
constexpr double kAbsolute = 2e-5;
constexpr size_t kElementsChecked = 60;
constexpr int64_t kWorkspaceBytes = int64_t{16} << 20;

DoubleTensor to_double(const Shape& shape, const std::vector<float>& values) {
  return {shape, {values.begin(), values.end()}};
}

// A layer on a device, with random parameters, input and gradient of the output.
class Subject {
 public:
  Subject(const Layer& layer, const Shape& input, const Pass& pass, uint64_t seed)
      : layer_(layer),
        pass_(pass),
        layout_(layer.parameters(), 0),
        buffer_layout_(layer),
        output_shape_(layer.output_shape(input)) {
    device.ctx().reserve_workspace(kWorkspaceBytes);
    const Shape x_shape = pass.input_form ? pass.input_form.packed_shape(input[0]) : input;
    x = random_floats(x_shape.numel(), seed);
    grad_y = random_floats(output_shape_.numel(), seed + 1);
    flat = random_floats(layout_.parameter_elements(), seed + 2, -0.5F, 0.5F);
    x_ = device.tensor(x_shape, x);
    flat_ = device.tensor({layout_.parameter_elements()}, flat);
    params_ = layout_.views(flat_);
    saved_buffers_ = device.tensor({buffer_layout_.saved().parameter_elements()}, buffer_layout_.initial().values);
    transient_buffers_ = device.empty({buffer_layout_.transient().parameter_elements()});
    buffers_ = buffer_layout_.views(saved_buffers_, transient_buffers_);
  }

  std::vector<float> forward() {
    y_ = device.empty(output_shape_);
    saved_ = layer_.forward({device.ctx(), params_, x_, y_, pass_, buffers_});
    return device.values(ConstView(y_));
  }

  struct Gradients {
    std::vector<float> input, flat;
  };
  // Backward of the latest forward; the gradients of the parameters hold `before` initially.
  Gradients backward(float before, GradMode mode, bool with_input) {
    const Tensor grad_output = device.tensor(output_shape_, grad_y);
    const Tensor grad_flat = device.tensor(flat_.shape(), std::vector<float>(flat.size(), before));
    const std::vector<View> grad_params = layout_.views(grad_flat);
    GuardedTensor guarded;
    Tensor grad_input;
    if (with_input) {
      guarded = device.guarded(x_.shape());
      grad_input = Tensor(nullptr, guarded.view);
    }
    layer_.backward({device.ctx(), params_, saved_, grad_output, grad_input, grad_params, mode, pass_, buffers_});
    Gradients result{.input = {}, .flat = device.values(ConstView(grad_flat))};
    if (with_input) result.input = device.values(guarded);
    return result;
  }

  void release() {
    saved_ = {};
    y_ = {};
  }
  int64_t allocated_bytes() { return device.ctx().pool().statistics().allocated_bytes; }
  const FlatLayout& layout() const { return layout_; }
  const Shape& input_shape() const { return x_.shape(); }

  std::vector<DoubleTensor> double_params() const {
    std::vector<DoubleTensor> params;
    for (int i = 0; i < layout_.size(); ++i) {
      const Shape& shape = layout_.specs()[static_cast<size_t>(i)].shape;
      const auto begin = flat.begin() + layout_.offset(i);
      params.push_back({shape, {begin, begin + shape.numel()}});
    }
    return params;
  }

  TestDevice device;
  std::vector<float> x, grad_y, flat;

 private:
  const Layer& layer_;
  Pass pass_;
  FlatLayout layout_;
  BufferLayout buffer_layout_;
  Shape output_shape_;
  Tensor x_, flat_, y_, saved_buffers_, transient_buffers_;
  std::vector<View> params_, buffers_;
  Saved saved_;
};

// Compares gradient[i] with central differences of the loss by values[i], at evenly spaced elements.
void compare(const char* what, std::vector<double>& values, const float* gradient,
             const std::function<double()>& loss) {
  const size_t count = std::min(values.size(), kElementsChecked);
  for (size_t k = 0; k < count; ++k) {
    const size_t i = k * values.size() / count;
    const double value = values[i];
    values[i] = value + kStep;
    const double above = loss();
    values[i] = value - kStep;
    const double below = loss();
    values[i] = value;
    const double expected = (above - below) / (2 * kStep);
    ASSERT_NEAR(gradient[i], expected, kAbsolute + kRelative * std::abs(expected)) << what << ", element " << i;
  }
}

}  // namespace

void check_gradients(const Layer& layer, const Shape& input, const Pass& pass, uint64_t seed,
                     const ReferenceForward& reference) {
  SCOPED_TRACE(layer.describe() + " of " + input.str() + ", seed " + std::to_string(seed));
  Subject subject(layer, input, pass, seed);
  const int64_t allocated_before = subject.allocated_bytes();
  DoubleTensor x = to_double(subject.input_shape(), subject.x);
  std::vector<DoubleTensor> params = subject.double_params();

  expect_close(subject.forward(), reference(x, params).values, kRelative, kAbsolute, "output");
  const Subject::Gradients overwritten = subject.backward(7.0F, GradMode::overwrite, true);

  const std::function<double()> loss = [&] {
    const DoubleTensor y = reference(x, params);
    double sum = 0.0;
    for (size_t i = 0; i < y.values.size(); ++i) sum += static_cast<double>(subject.grad_y[i]) * y.values[i];
    return sum;
  };
  compare("gradient of the input", x.values, overwritten.input.data(), loss);
  for (int i = 0; i < subject.layout().size(); ++i) {
    const auto index = static_cast<size_t>(i);
    const std::string& name = subject.layout().specs()[index].name;
    compare(("gradient of " + name).c_str(), params[index].values, overwritten.flat.data() + subject.layout().offset(i),
            loss);
  }

  subject.forward();
  std::vector<float> added(subject.backward(3.0F, GradMode::accumulate, false).flat);
  for (float& v : added) v -= 3.0F;
  for (int i = 0; i < subject.layout().size(); ++i) {
    const auto begin = subject.layout().offset(i);
    const auto end = begin + subject.layout().specs()[static_cast<size_t>(i)].shape.numel();
    expect_close(std::vector<float>(added.begin() + begin, added.begin() + end),
                 std::vector<float>(overwritten.flat.begin() + begin, overwritten.flat.begin() + end), kRelative,
                 kAbsolute,
                 "accumulated, without the input's gradient: " + subject.layout().specs()[static_cast<size_t>(i)].name);
  }
  subject.release();
  EXPECT_EQ(subject.allocated_bytes(), allocated_before);
}

}  // namespace vitrine::test
