// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/operation_cases.h"

#include <cmath>
#include <numbers>
#include <set>

#include <fmt/format.h>

#include "kernels/attention.h"
#include "kernels/average.h"
#include "kernels/batch_norm.h"
#include "kernels/cast.h"
#include "kernels/conv2d.h"
#include "kernels/cross_entropy.h"
#include "kernels/difference.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/embedding.h"
#include "kernels/layer_norm.h"
#include "kernels/linear.h"
#include "kernels/pool2d.h"
#include "kernels/step_control.h"
#include "kernels/transpose.h"
#include "kernels/tree_sum.h"
#include "tests/support/reference_light.h"
#include "tests/support/stored.h"

namespace vitrine::test {
namespace {

using Cases = std::vector<OperationCase>;
using Views = std::vector<View>;
using Content = std::function<std::vector<float>(const Arguments&, DType)>;

/// Seeds differ between the arguments of a call.
Content uniform(const Shape& shape, float low, float high) {
  return [=](const Arguments& before, DType dtype) {
    return random_stored(dtype, shape.numel(), 17 + before.size(), low, high);
  };
}
Content constant(std::vector<float> values) {
  return [values = std::move(values)](const Arguments&, DType) { return values; };
}

OperationArgument input(const char* name, const Shape& shape, float low = -1, float high = 1) {
  return {.name = name, .shape = shape, .content = uniform(shape, low, high)};
}
OperationArgument with_specials(const char* name, const Shape& shape) {
  return {.name = name, .shape = shape, .content = [=](const Arguments& before, DType dtype) {
            return random_with_specials(dtype, shape.numel(), 11 + before.size());
          }};
}
OperationArgument floats(const char* name, const Shape& shape, Content content) {
  return {.name = name, .shape = shape, .dtype = DType::f32, .content = std::move(content)};
}
OperationArgument floats(const char* name, const Shape& shape) { return floats(name, shape, uniform(shape, -1, 1)); }
OperationArgument output(const char* name, const Shape& shape, double relative = 0, double absolute = 0) {
  return {.name = name, .shape = shape, .output = true, .relative = relative, .absolute = absolute};
}
OperationArgument float_output(const char* name, const Shape& shape, double relative, double absolute) {
  return {
      .name = name, .shape = shape, .dtype = DType::f32, .output = true, .relative = relative, .absolute = absolute};
}
/// The same, overwritten or added to.
OperationArgument gradient(const char* name, const Shape& shape, GradMode mode, double relative, double absolute) {
  OperationArgument argument = float_output(name, shape, relative, absolute);
  if (mode == GradMode::accumulate) argument.content = uniform(shape, -1, 1);
  return argument;
}

std::vector<float> to_floats(const std::vector<double>& values) { return {values.begin(), values.end()}; }
DoubleTensor zeros(const Shape& shape) { return {shape, std::vector<double>(static_cast<size_t>(shape.numel()))}; }
template <class Function>
DoubleTensor map(DoubleTensor a, const DoubleTensor& b, const Function& function) {
  for (size_t i = 0; i < a.values.size(); ++i) a.values[i] = function(a.values[i], b.values[i]);
  return a;
}
/// to = sums of the columns of x, or to + sums.
void sum_columns(const DoubleTensor& x, GradMode mode, DoubleTensor& to) {
  if (mode == GradMode::overwrite) to = zeros(to.shape);
  for (size_t i = 0; i < x.values.size(); ++i) to.values[i % to.values.size()] += x.values[i];
}

/// Lengths around those of packs and tiles.
const int64_t kElementCounts[] = {0, 1, 2, 3, 4, 5, 7, 8, 15, 1023, 1025, 4100, 16389, 70001};
constexpr GradMode kModes[] = {GradMode::overwrite, GradMode::accumulate};

void add_elementwise(Cases& all) {
  for (const int64_t n : kElementCounts) {
    all.push_back({.name = "add",
                   .arguments = {with_specials("a", {n}), with_specials("b", {n}), output("y", {n})},
                   .call = [](ExecContext& ctx, const Views& v) { add(ctx, v[0], v[1], v[2]); },
                   .reference = [](Arguments& v) { v[2] = reference_add(v[0], v[1]); },
                   .in_place = {0, 1}});
    all.push_back({.name = "tree_sum",
                   .arguments = {with_specials("input", {n}), with_specials("input", {n}), output("output", {n})},
                   .call =
                       [](ExecContext& ctx, const Views& v) {
                         tree_sum(ctx, std::vector<Subtree>{{0, 1}, {1, 2}}, std::vector<ConstView>{v[0], v[1]}, v[2]);
                       },
                   .reference = [](Arguments& v) { v[2] = reference_add(v[0], v[1]); },
                   .in_place = {0, 1}});
    all.push_back({.name = "relu_forward",
                   .arguments = {with_specials("x", {n}), output("y", {n})},
                   .call = [](ExecContext& ctx, const Views& v) { relu_forward(ctx, v[0], v[1]); },
                   .reference = [](Arguments& v) { v[1] = reference_relu(v[0]); },
                   .in_place = {0}});
    all.push_back({.name = "cast",
                   .arguments = {floats("x", {n}), output("y", {n})},
                   .call = [](ExecContext& ctx, const Views& v) { cast(ctx, v[0], v[1]); },
                   .reference = [](Arguments& v) { v[1] = v[0]; }});
  }
}

double masked(double y, double gradient) { return y > 0 ? gradient : 0; }

void add_relu_backward(Cases& all) {
  for (const int64_t n : kElementCounts) {
    all.push_back({.name = "relu_backward",
                   .arguments = {with_specials("y", {n}), with_specials("grad_y", {n}), output("grad_x", {n})},
                   .call = [](ExecContext& ctx, const Views& v) { relu_backward(ctx, v[0], v[1], v[2]); },
                   .reference = [](Arguments& v) { v[2] = map(v[0], v[1], masked); },
                   .in_place = {1}});
  }
  for (const GradMode mode : kModes) {
    for (const Shape& s : {Shape{0, 3}, Shape{1, 1}, Shape{3, 7}, Shape{37, 24}, Shape{5, 1003}, Shape{2, 8203}}) {
      all.push_back(
          {.name = "relu_backward",
           .options = mode == GradMode::accumulate ? "adds to the sums" : "sums",
           .arguments = {input("y", s), input("grad_y", s), output("grad_x", s),
                         gradient("sums", {s[1]}, mode, 1e-6, 1e-6)},
           .call = [mode](ExecContext& ctx, const Views& v) { relu_backward(ctx, v[0], v[1], v[2], v[3], mode); },
           .reference =
               [mode](Arguments& v) {
                 v[2] = map(v[0], v[1], masked);
                 sum_columns(v[2], mode, v[3]);
               },
           .in_place = {1},
           .forward = [](const Arguments&, const DoubleTensor& x) { return reference_relu(x); },
           .x = 0});
    }
  }
}

void add_gelu(Cases& all) {
  // 1 + erf has a rounding error of 2^-24 where it is close to 0, as in PyTorch.
  constexpr double kRelative = 1e-6, kAbsolute = 6e-7;
  const auto call = [](ExecContext& ctx, const Views& v) { gelu_forward(ctx, v[0], v[1]); };
  const auto reference = [](Arguments& v) { v[1] = reference_gelu(v[0]); };
  for (const int64_t n : {1, 9, 1027, 5000}) {
    all.push_back({.name = "gelu_forward",
                   .arguments = {input("x", {n}, -6, 6), output("y", {n}, kRelative, kAbsolute)},
                   .call = call,
                   .reference = reference,
                   .in_place = {0}});
    all.push_back(
        {.name = "gelu_backward",
         .arguments = {input("x", {n}, -6, 6), input("grad_y", {n}), output("grad_x", {n}, kRelative, kAbsolute)},
         .call = [](ExecContext& ctx, const Views& v) { gelu_backward(ctx, v[0], v[1], v[2]); },
         .reference =
             [](Arguments& v) {
               v[2] = map(v[0], v[1], [](double x, double grad_y) {
                 const double distribution = 0.5 * std::erfc(-x / std::numbers::sqrt2),
                              density = std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
                 return grad_y * (distribution + x * density);
               });
             },
         .in_place = {1},
         .forward = [](const Arguments&, const DoubleTensor& x) { return reference_gelu(x); },
         .x = 0});
  }
  const auto tanh_gradient = [](double x, double grad_y) {
    const double slope = std::sqrt(2 / std::numbers::pi), t = std::tanh(slope * (x + 0.044715 * x * x * x));
    return grad_y * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * slope * (1 + 3 * 0.044715 * x * x));
  };
  for (const int64_t n : {1, 9, 1027, 5000}) {
    all.push_back({.name = "gelu_forward",
                   .options = "tanh",
                   .arguments = {input("x", {n}, -6, 6), output("y", {n}, kRelative, kAbsolute)},
                   .call = [](ExecContext& ctx, const Views& v) { gelu_forward(ctx, v[0], v[1], GeluForm::tanh); },
                   .reference = [](Arguments& v) { v[1] = reference_gelu_tanh(v[0]); },
                   .in_place = {0}});
    all.push_back(
        {.name = "gelu_backward",
         .options = "tanh",
         .arguments = {input("x", {n}, -6, 6), input("grad_y", {n}),
                       output("grad_x", {n}, 2 * kRelative, 2 * kAbsolute)},
         .call = [](ExecContext& ctx, const Views& v) { gelu_backward(ctx, v[0], v[1], v[2], GeluForm::tanh); },
         .reference = [=](Arguments& v) { v[2] = map(v[0], v[1], tanh_gradient); },
         .in_place = {1},
         .forward = [](const Arguments&, const DoubleTensor& x) { return reference_gelu_tanh(x); },
         .x = 0});
  }
  all.push_back({.name = "gelu_forward",
                 .options = "NaN and infinity",
                 .arguments = {floats("x", {2}, constant({NAN, INFINITY})), output("y", {2})},
                 .call = call,
                 .reference = reference,
                 .in_place = {0}});
  all.back().arguments[0].dtype = {};
}

void add_transpose(Cases& all) {
  const auto reference = [](const DoubleTensor& x) {
    const int64_t rows = x.shape[1], columns = x.shape[2];
    DoubleTensor y{{x.shape[0], columns, rows}, x.values};
    for (int64_t i = 0; i < x.shape.numel(); ++i) {
      const int64_t n = i / (rows * columns), r = i / columns % rows;
      y.values[static_cast<size_t>((n * columns + i % columns) * rows + r)] = x.values[static_cast<size_t>(i)];
    }
    return y;
  };
  for (const Shape& s : {Shape{0, 3, 2}, Shape{2, 0, 3}, Shape{1, 1, 1}, Shape{3, 7, 5}, Shape{2, 1, 9},
                         Shape{5, 49, 33}, Shape{2, 300, 67}}) {
    all.push_back({.name = "transpose",
                   .arguments = {input("x", s), output("y", {s[0], s[2], s[1]})},
                   .call = [](ExecContext& ctx, const Views& v) { transpose(ctx, v[0], v[1]); },
                   .reference = [=](Arguments& v) { v[1] = reference(v[0]); }});
  }
}

void add_dropout(Cases& all) {
  DropoutConfig config{.p = 0, .seed = 0x123456789ABCDEFULL, .step = 17, .layer = 3, .first_sample = 41};
  for (const Shape& s : {Shape{0, 5}, Shape{1, 1}, Shape{3, 4}, Shape{3, 7}, Shape{3, 8}, Shape{5, 3, 2, 11},
                         Shape{3, 1027}, Shape{4, 4100}, Shape{40, 1030}}) {
    for (const float p : {0.0F, 0.1F, 0.3F, 0.5F, 0.999F}) {
      config.p = p;
      ++config.seed;
      for (const bool specials : {false, true}) {
        all.push_back({.name = "dropout",
                       .options = fmt::format("p = {}", p),
                       .arguments = {specials ? with_specials("x", s) : input("x", s), output("y", s, 1e-6)},
                       .call = [config](ExecContext& ctx, const Views& v) { dropout(ctx, config, v[0], v[1]); },
                       .reference = [config](Arguments& v) { v[1] = reference_dropout(config, v[0]); },
                       .in_place = {0}});
      }
    }
  }
}

constexpr float kEps = 1e-3F;

/// (2, C): mean, and sum of the squared deviations or 1 / sqrt(variance + eps), of the columns of x.
std::vector<double> moments_of(const DoubleTensor& x, bool statistics) {
  const auto channels = static_cast<size_t>(x.shape[x.shape.rank() - 1]);
  const size_t whole = x.values.size() / channels;
  const auto rows = static_cast<double>(whole);
  std::vector<double> m(2 * channels);
  for (size_t i = 0; i < x.values.size(); ++i) m[i % channels] += x.values[i] / rows;
  for (size_t i = 0; i < x.values.size(); ++i) m[channels + i % channels] += std::pow(x.values[i] - m[i % channels], 2);
  for (size_t c = channels; statistics && c < m.size(); ++c)
    m[c] = 1 / std::sqrt(m[c] / rows + static_cast<double>(kEps));
  return m;
}
std::vector<float> statistics_of_x(const Arguments& before, DType) { return to_floats(moments_of(before[0], true)); }

/// Of x, grad_y and statistics: sums of grad_y, and of grad_y * (x - mean) * invstd.
std::vector<double> backward_sums(const Arguments& v) {
  const size_t channels = v[2].values.size() / 2;
  std::vector<double> sums(2 * channels);
  for (size_t i = 0; i < v[0].values.size(); ++i) {
    const size_t c = i % channels;
    sums[c] += v[1].values[i];
    sums[channels + c] += v[1].values[i] * (v[0].values[i] - v[2].values[c]) * v[2].values[channels + c];
  }
  return sums;
}

void add_batch_norm(Cases& all) {
  for (const Shape& s : {Shape{2, 1}, Shape{3, 5}, Shape{64, 16}, Shape{65, 17}, Shape{700, 33}, Shape{1111, 72},
                         Shape{40, 300}, Shape{2, 3, 2, 8}}) {
    const int64_t channels = s[s.rank() - 1], rows = s.numel() / channels;
    const Shape c{channels}, pair{2, channels};
    const double slack = 1e-6 * static_cast<double>(rows + 10);
    // Means far from zero compared with the deviations: sums of squares would lose all digits.
    const auto far_from_zero = [=](const Arguments&, DType dtype) {
      std::vector<float> x = random_floats(s.numel(), 1);
      for (size_t i = 0; i < x.size(); ++i) x[i] += static_cast<float>(i % static_cast<size_t>(channels) % 7) * 100.0F;
      return stored(dtype, x);
    };
    all.push_back(
        {.name = "batch_norm_moments",
         .arguments = {{.name = "x", .shape = s, .content = far_from_zero}, float_output("moments", pair, 2e-4, 1e-5)},
         .call = [](ExecContext& ctx, const Views& v) { batch_norm_moments(ctx, v[0], v[1]); },
         .reference = [](Arguments& v) { v[1].values = moments_of(v[0], false); }});
    for (const bool relu : {false, true}) {
      const BatchNormConfig config{.eps = kEps, .relu = relu};
      all.push_back(
          {.name = "batch_norm_forward",
           .options = relu ? "ReLU" : "",
           .arguments = {input("x", s), floats("statistics", pair, statistics_of_x), floats("weight", c),
                         floats("bias", c), output("y", s, 4e-6, 4e-6)},
           .call = [config](ExecContext& ctx,
                            const Views& v) { batch_norm_forward(ctx, config, v[0], v[1], v[2], v[3], v[4]); },
           .reference = [config](Arguments& v) { v[4] = reference_batch_norm(config, v[0], v[2], v[3]); },
           .in_place = {0}});
    }
    for (const GradMode mode : kModes) {
      all.push_back(
          {.name = "batch_norm_backward_sums",
           .options = mode == GradMode::accumulate ? "added" : "",
           .arguments = {input("x", s), input("grad_y", s), floats("statistics", pair, statistics_of_x),
                         float_output("sums", pair, 1e-5, slack), gradient("grad_weight", c, mode, 1e-5, slack),
                         gradient("grad_bias", c, mode, 1e-5, slack)},
           .call = [mode](ExecContext& ctx,
                          const Views& v) { batch_norm_backward_sums(ctx, v[0], v[1], v[2], v[3], v[4], v[5], mode); },
           .reference =
               [mode](Arguments& v) {
                 v[3].values = backward_sums(v);
                 const auto middle = v[3].values.begin() + static_cast<int64_t>(v[4].values.size());
                 sum_columns({v[4].shape, {middle, v[3].values.end()}}, mode, v[4]);
                 sum_columns({v[5].shape, {v[3].values.begin(), middle}}, mode, v[5]);
               }});
    }
    all.push_back(
        {.name = "batch_norm_backward_data",
         .arguments = {input("x", s), input("grad_y", s), floats("statistics", pair, statistics_of_x),
                       floats("weight", c),
                       floats("sums", pair, [](const Arguments& v, DType) { return to_floats(backward_sums(v)); }),
                       output("grad_x", s, 1e-5, 3e-5)},
         .call = [rows](ExecContext& ctx,
                        const Views& v) { batch_norm_backward_data(ctx, v[0], v[1], v[2], v[3], v[4], rows, v[5]); },
         .reference =
             [rows](Arguments& v) {
               const size_t count = v[3].values.size();
               for (size_t i = 0; i < v[0].values.size(); ++i) {
                 const size_t k = i % count;
                 const double invstd = v[2].values[count + k], normal = (v[0].values[i] - v[2].values[k]) * invstd;
                 v[5].values[i] =
                     v[3].values[k] * invstd *
                     (v[1].values[i] - (v[4].values[k] + normal * v[4].values[count + k]) / static_cast<double>(rows));
               }
             },
         .in_place = {1},
         .forward =
             [](const Arguments& v, const DoubleTensor& x) {
               return reference_batch_norm({.eps = kEps}, x, v[3], zeros(v[3].shape));
             },
         .x = 0});
  }
  const Shape c{19}, pair{2, 19};
  all.push_back(
      {.name = "batch_norm_running",
       .arguments = {floats("running_mean", c), floats("running_var", c, uniform(c, 0.1F, 3)),
                     float_output("statistics", pair, 1e-6, 0)},
       .call = [](ExecContext& ctx, const Views& v) { batch_norm_running(ctx, {.eps = kEps}, v[0], v[1], v[2]); },
       .reference =
           [](Arguments& v) {
             v[2].values = v[0].values;
             for (const double variance : v[1].values)
               v[2].values.push_back(1 / std::sqrt(variance + static_cast<double>(kEps)));
           }});
}

/// Few distinct values, which every dtype holds, so that windows have equal maxima; NaN and infinities among them.
std::vector<float> with_ties(int64_t count) {
  std::vector<float> values;
  for (const int32_t v : random_integers<int32_t>(count, 4, -3, 3)) values.push_back(static_cast<float>(v) * 0.5F);
  for (size_t i = 3; i < values.size(); i += 23) values[i] = NAN;
  for (size_t i = 5; i < values.size(); i += 13) values[i] = -INFINITY;
  for (size_t i = 8; i < values.size(); i += 41) values[i] = INFINITY;
  return values;
}

/// (rows, 2): mean and 1 / sqrt(variance + eps) of each row of the first argument.
std::vector<double> statistics_of_rows(const DoubleTensor& x) {
  const auto columns = static_cast<size_t>(x.shape[x.shape.rank() - 1]);
  std::vector<double> all;
  for (size_t first = 0; first < x.values.size(); first += columns) {
    double mean = 0, variance = 0;
    for (size_t c = 0; c < columns; ++c) mean += x.values[first + c] / static_cast<double>(columns);
    for (size_t c = 0; c < columns; ++c)
      variance += std::pow(x.values[first + c] - mean, 2) / static_cast<double>(columns);
    all.push_back(mean);
    all.push_back(1 / std::sqrt(variance + static_cast<double>(kEps)));
  }
  return all;
}

void add_layer_norm(Cases& all) {
  const Content statistics = [](const Arguments& v, DType) { return to_floats(statistics_of_rows(v[0])); };
  for (const Shape& s : {Shape{0, 5}, Shape{2, 1}, Shape{3, 5}, Shape{65, 17}, Shape{7, 64}, Shape{2, 3, 100},
                         Shape{300, 33}, Shape{5, 1030}}) {
    const int64_t columns = s[s.rank() - 1], rows = s.numel() / columns;
    const Shape c{columns}, of_rows{rows, 2};
    all.push_back(
        {.name = "layer_norm_forward",
         .arguments = {input("x", s), floats("weight", c), floats("bias", c), output("y", s, 5e-6, 5e-6),
                       float_output("statistics", of_rows, 5e-6, 1e-6)},
         .call = [](ExecContext& ctx, const Views& v) { layer_norm_forward(ctx, kEps, v[0], v[1], v[2], v[3], v[4]); },
         .reference =
             [](Arguments& v) {
               v[3] = reference_layer_norm(static_cast<double>(kEps), v[0], v[1], v[2]);
               v[4].values = statistics_of_rows(v[0]);
             },
         .in_place = {0}});
    all.push_back(
        {.name = "layer_norm_backward_data",
         .arguments = {input("x", s), input("grad_y", s), floats("statistics", of_rows, statistics),
                       floats("weight", c), output("grad_x", s, 1e-5, 6e-5)},
         .call = [](ExecContext& ctx, const Views& v) { layer_norm_backward_data(ctx, v[0], v[1], v[2], v[3], v[4]); },
         .reference =
             [columns](Arguments& v) {
               const auto width = static_cast<size_t>(columns);
               for (size_t first = 0; first < v[0].values.size(); first += width) {
                 const double mean = v[2].values[2 * first / width], inverse = v[2].values[2 * first / width + 1];
                 double sum = 0, dot = 0;
                 const auto normal = [&](size_t k) { return (v[0].values[first + k] - mean) * inverse; };
                 const auto gradient = [&](size_t k) { return v[1].values[first + k] * v[3].values[k]; };
                 for (size_t k = 0; k < width; ++k) {
                   sum += gradient(k) / static_cast<double>(columns);
                   dot += gradient(k) * normal(k) / static_cast<double>(columns);
                 }
                 for (size_t k = 0; k < width; ++k)
                   v[4].values[first + k] = inverse * (gradient(k) - sum - normal(k) * dot);
               }
             },
         .in_place = {1},
         .forward =
             [](const Arguments& v, const DoubleTensor& x) {
               return reference_layer_norm(static_cast<double>(kEps), x, v[3], zeros(v[3].shape));
             },
         .x = 0});
    for (const GradMode mode : kModes) {
      const double slack = 2e-6 * static_cast<double>(rows + 10);
      all.push_back(
          {.name = "layer_norm_backward_weight",
           .options = mode == GradMode::accumulate ? "added" : "",
           .arguments = {input("x", s), input("grad_y", s), floats("statistics", of_rows, statistics),
                         gradient("grad_weight", c, mode, 1e-5, slack), gradient("grad_bias", c, mode, 1e-5, slack)},
           .call = [mode](ExecContext& ctx,
                          const Views& v) { layer_norm_backward_weight(ctx, v[0], v[1], v[2], v[3], v[4], mode); },
           .reference =
               [mode, columns](Arguments& v) {
                 DoubleTensor scaled = v[1];
                 for (size_t i = 0; i < scaled.values.size(); ++i) {
                   const size_t row = 2 * (i / static_cast<size_t>(columns));
                   scaled.values[i] *= (v[0].values[i] - v[2].values[row]) * v[2].values[row + 1];
                 }
                 sum_columns(scaled, mode, v[3]);
                 sum_columns(v[1], mode, v[4]);
               }});
    }
  }
}

void add_embeddings(Cases& all) {
  uint64_t seed = 900;
  for (const auto& [count, table_rows, columns] :
       {std::tuple<int64_t, int64_t, int64_t>{0, 3, 2}, {1, 1, 1}, {40, 3, 5}, {70, 100, 33}, {130, 60, 130}}) {
    const std::vector<int32_t> rows = random_integers<int32_t>(count, ++seed, 0, table_rows - 1);
    for (const GradMode mode : kModes) {
      all.push_back(
          {.name = "embedding_backward",
           .options = mode == GradMode::accumulate ? "added" : "",
           .arguments = {input("grad_y", {count, columns}),
                         {.name = "rows",
                          .shape = {count},
                          .dtype = DType::i32,
                          .content = constant({rows.begin(), rows.end()})},
                         gradient("grad_table", {table_rows, columns}, mode, 1e-5, 1e-5)},
           .call = [mode](ExecContext& ctx, const Views& v) { embedding_backward(ctx, v[1], v[0], v[2], mode); },
           .reference =
               [mode, rows, width = static_cast<size_t>(columns)](Arguments& v) {
                 if (mode == GradMode::overwrite) v[2] = zeros(v[2].shape);
                 for (size_t i = 0; i < v[0].values.size(); ++i)
                   v[2].values[static_cast<size_t>(rows[i / width]) * width + i % width] += v[0].values[i];
               }});
    }
  }
  for (const auto& [s, positions] : {std::pair<Shape, int64_t>{{0, 2, 3}, 2},
                                     {{1, 1, 1}, 1},
                                     {{3, 5, 7}, 9},
                                     {{2, 64, 48}, 64},
                                     {{40, 3, 130}, 5}}) {
    const Shape table{positions, s[2]};
    const int64_t elements = s[1] * s[2];
    all.push_back({.name = "add_positions",
                   .arguments = {input("x", s), input("table", table), output("y", s)},
                   .call = [](ExecContext& ctx, const Views& v) { add_positions(ctx, v[0], v[1], v[2]); },
                   .reference =
                       [elements](Arguments& v) {
                         for (size_t i = 0; i < v[0].values.size(); ++i)
                           v[2].values[i] = v[0].values[i] + v[1].values[i % static_cast<size_t>(elements)];
                       },
                   .in_place = {0}});
    for (const GradMode mode : kModes) {
      all.push_back(
          {.name = "add_positions_backward",
           .options = mode == GradMode::accumulate ? "added" : "",
           .arguments = {input("grad_y", s), gradient("grad_table", table, mode, 1e-5, 1e-5)},
           .call = [mode](ExecContext& ctx, const Views& v) { add_positions_backward(ctx, v[0], v[1], mode); },
           .reference =
               [mode, elements](Arguments& v) {
                 if (mode == GradMode::overwrite) v[1] = zeros(v[1].shape);
                 for (size_t i = 0; i < v[0].values.size(); ++i)
                   v[1].values[i % static_cast<size_t>(elements)] += v[0].values[i];
               }});
    }
  }
}

/// The gradient by x (N, T, 3 * heads * D) of attention, from the weights' definition.
DoubleTensor attention_gradient(int64_t heads, const Arguments& v) {
  const DoubleTensor& x = v[0];
  const int64_t length = x.shape[1], width = x.shape[2] / 3, size = width / heads;
  const double scale = 1 / std::sqrt(static_cast<double>(size));
  DoubleTensor gradient = zeros(x.shape);
  for (int64_t n = 0; n < x.shape[0]; ++n) {
    for (int64_t h = 0; h < heads; ++h) {
      const auto at = [&](int64_t t, int64_t part, int64_t d) {
        return static_cast<size_t>(((n * length + t) * 3 + part) * width + h * size + d);
      };
      const auto of_y = [&](int64_t t, int64_t d) {
        return static_cast<size_t>((n * length + t) * width + h * size + d);
      };
      for (int64_t i = 0; i < length; ++i) {
        double dot = 0;
        for (int64_t d = 0; d < size; ++d) dot += v[1].values[of_y(i, d)] * v[3].values[of_y(i, d)];
        for (int64_t j = 0; j <= i; ++j) {
          double score = 0, product = 0;
          for (int64_t d = 0; d < size; ++d) {
            score += x.values[at(i, 0, d)] * x.values[at(j, 1, d)] * scale;
            product += x.values[at(j, 2, d)] * v[3].values[of_y(i, d)];
          }
          const double weight = std::exp(score - v[2].values[static_cast<size_t>((n * heads + h) * length + i)]);
          const double of_score = weight * (product - dot) * scale;
          for (int64_t d = 0; d < size; ++d) {
            gradient.values[at(i, 0, d)] += of_score * x.values[at(j, 1, d)];
            gradient.values[at(j, 1, d)] += of_score * x.values[at(i, 0, d)];
            gradient.values[at(j, 2, d)] += weight * v[3].values[of_y(i, d)];
          }
        }
      }
    }
  }
  return gradient;
}

/// (N, heads, T): the dot products of y and grad_y of each head.
DoubleTensor attention_dots(int64_t head_count, const Arguments& v) {
  const auto length = static_cast<size_t>(v[0].shape[1]), heads = static_cast<size_t>(head_count);
  const size_t size = static_cast<size_t>(v[1].shape[2]) / heads;
  DoubleTensor dots = zeros(v[5].shape);
  for (size_t i = 0; i < v[1].values.size(); ++i) {
    const size_t row = i / (heads * size), head = i / size % heads;
    dots.values[(row / length * heads + head) * length + row % length] += v[1].values[i] * v[3].values[i];
  }
  return dots;
}

void add_attention(Cases& all) {
  for (const auto& [samples, length, heads, size] : {std::tuple<int64_t, int64_t, int64_t, int64_t>{0, 3, 1, 4},
                                                     {1, 1, 1, 1},
                                                     {2, 2, 3, 16},
                                                     {1, 63, 2, 20},
                                                     {1, 64, 1, 64},
                                                     {2, 65, 2, 8},
                                                     {1, 130, 1, 96},
                                                     {1, 17, 1, 128}}) {
    const int64_t width = heads * size, h = heads;
    const Shape x{samples, length, 3 * width}, y{samples, length, width}, of_rows{samples, heads, length};
    const Content of_y = [h](const Arguments& v, DType dtype) {
      return stored(dtype, to_floats(reference_attention(h, v[0]).values));
    };
    const Content log_sums = [h](const Arguments& v, DType) {
      DoubleTensor sums;
      reference_attention(h, v[0], &sums);
      return to_floats(sums.values);
    };
    all.push_back(
        {.name = "attention_forward",
         .options = fmt::format("{} heads", heads),
         .arguments = {input("x", x, -2, 2), output("y", y, 2e-5, 2e-6), float_output("log_sums", of_rows, 5e-6, 5e-6)},
         .call = [h](ExecContext& ctx, const Views& v) { attention_forward(ctx, h, v[0], v[1], v[2]); },
         .reference = [h](Arguments& v) { v[1] = reference_attention(h, v[0], &v[2]); }});
    all.push_back({.name = "attention_backward",
                   .options = fmt::format("{} heads", heads),
                   .arguments = {input("x", x, -2, 2),
                                 {.name = "y", .shape = y, .content = of_y},
                                 floats("log_sums", of_rows, log_sums),
                                 input("grad_y", y),
                                 output("grad_x", x, 5e-5, 2e-5),
                                 float_output("dots", of_rows, 1e-5, 1e-5)},
                   .call = [h](ExecContext& ctx,
                               const Views& v) { attention_backward(ctx, h, v[0], v[1], v[2], v[3], v[5], v[4]); },
                   .reference =
                       [h](Arguments& v) {
                         v[4] = attention_gradient(h, v);
                         v[5] = attention_dots(h, v);
                       }});
  }
}

void add_pools(Cases& all) {
  struct Pool {
    Pool2dConfig config;
    Shape x;
  };
  // Windows that overlap, touch and leave gaps, with and without padding; H != W; channels below, at and above the
  // vector width and several vectors.
  const std::vector<Pool> pools{
      {{2, 2, 0}, {0, 4, 4, 3}},    {{2, 2, 0}, {3, 8, 6, 32}},   {{2, 2, 0}, {2, 7, 9, 5}},
      {{3, 2, 0}, {2, 13, 11, 19}}, {{3, 2, 1}, {1, 10, 7, 8}},   {{3, 1, 1}, {2, 5, 8, 3}},
      {{2, 3, 1}, {2, 9, 11, 9}},   {{5, 1, 2}, {1, 6, 7, 17}},   {{1, 2, 0}, {1, 5, 6, 10}},
      {{4, 3, 2}, {2, 12, 5, 1}},   {{2, 2, 1}, {1, 1, 1, 7}},    {{16, 5, 8}, {1, 21, 18, 9}},
      {{3, 3, 0}, {5, 3, 3, 24}},   {{8, 3, 4}, {1, 19, 12, 40}}, {{2, 3, 0}, {1, 10, 9, 260}},
      {{5, 1, 2}, {1, 5, 5, 300}},  {{1, 1, 0}, {1, 1, 1, 1}},    {{3, 1, 1}, {3, 6, 11, 17}},
      {{3, 2, 1}, {2, 7, 8, 45}},   {{2, 2, 0}, {3, 9, 7, 70}}};
  for (const Pool& pool : pools) {
    const Pool2dConfig config = pool.config;
    const Shape s = pool.x;
    const Shape small = pool2d_output_shape(config, s);
    const double in_f32 = 4e-7 * static_cast<double>(config.window * config.window);
    const std::vector<float> values = with_ties(s.numel());
    const OperationArgument ties{.name = "x", .shape = s, .content = constant(values)};
    if (config.window < 16) {
      const reference::MaxPool expected = reference::max_pool2d(config, s, values);
      const std::vector<float> positions(expected.indices.begin(), expected.indices.end());
      OperationArgument indices{.name = "indices", .shape = small, .dtype = DType::u8, .output = true};
      all.push_back(
          {.name = "max_pool2d_forward",
           .arguments = {ties, output("y", small), indices},
           .call = [config](ExecContext& ctx, const Views& v) { max_pool2d_forward(ctx, config, v[0], v[1], v[2]); },
           .reference =
               [expected](Arguments& v) {
                 v[1].values = expected.y;
                 v[2].values.assign(expected.indices.begin(), expected.indices.end());
               }});
      indices.output = false;
      indices.content = constant(positions);
      all.push_back(
          {.name = "max_pool2d_backward",
           .arguments = {input("grad_y", small), indices, output("grad_x", s, 1e-6, in_f32)},
           .call = [config](ExecContext& ctx, const Views& v) { max_pool2d_backward(ctx, config, v[0], v[1], v[2]); },
           .reference =
               [config, s, positions](Arguments& v) {
                 v[2].values = reference::max_pool2d_backward(config, s, to_floats(v[0].values),
                                                              {positions.begin(), positions.end()});
               }});
    }
    all.push_back(
        {.name = "max_pool2d_forward",
         .options = "without indices",
         .arguments = {ties, output("y", small)},
         .call = [config](ExecContext& ctx, const Views& v) { max_pool2d_forward(ctx, config, v[0], v[1], View{}); },
         .reference = [config,
                       s](Arguments& v) { v[1].values = reference::max_pool2d(config, s, to_floats(v[0].values)).y; }});
    for (const OperationArgument& x : {input("x", s), ties}) {
      all.push_back(
          {.name = "avg_pool2d_forward",
           .arguments = {x, output("y", small, 1e-6, in_f32)},
           .call = [config](ExecContext& ctx, const Views& v) { avg_pool2d_forward(ctx, config, v[0], v[1]); },
           .reference = [config](Arguments& v) { v[1] = reference_avg_pool2d(config, v[0]); }});
    }
    all.push_back(
        {.name = "avg_pool2d_backward",
         .arguments = {input("grad_y", small), output("grad_x", s, 1e-6, in_f32)},
         .call = [config](ExecContext& ctx, const Views& v) { avg_pool2d_backward(ctx, config, v[0], v[1]); },
         .reference =
             [config, s](Arguments& v) {
               v[1].values = reference::avg_pool2d_backward(config, s, to_floats(v[0].values));
             },
         .forward = [config](const Arguments&, const DoubleTensor& x) { return reference_avg_pool2d(config, x); }});
  }
  const std::vector<std::pair<Shape, Shape>> adaptive{
      {{0, 4, 4, 3}, {0, 2, 2, 3}},     {{2, 6, 6, 32}, {2, 6, 6, 32}},     {{3, 7, 5, 9}, {3, 1, 1, 9}},
      {{2, 10, 7, 11}, {2, 3, 4, 11}},  {{1, 5, 3, 8}, {1, 7, 6, 8}},       {{2, 13, 1, 3}, {2, 6, 6, 3}},
      {{2, 12, 9, 8}, {2, 1, 1, 8}},    {{1, 21, 11, 160}, {1, 2, 1, 160}}, {{2, 19, 19, 21}, {2, 3, 2, 21}},
      {{1, 5, 3, 270}, {1, 7, 4, 270}}, {{3, 7, 7, 16}, {3, 1, 1, 16}}};
  for (const auto& [s, small] : adaptive) {
    const int64_t height = small[1], width = small[2];
    for (const OperationArgument& x :
         {input("x", s), OperationArgument{.name = "x", .shape = s, .content = constant(with_ties(s.numel()))}}) {
      all.push_back({.name = "adaptive_avg_pool2d_forward",
                     .arguments = {x, output("y", small, 1e-6, 2e-5)},
                     .call = [](ExecContext& ctx, const Views& v) { adaptive_avg_pool2d_forward(ctx, v[0], v[1]); },
                     .reference = [=](Arguments& v) { v[1] = reference_adaptive_avg_pool2d(height, width, v[0]); }});
    }
    all.push_back({.name = "adaptive_avg_pool2d_backward",
                   .arguments = {input("grad_y", small), output("grad_x", s, 1e-6, 2e-5)},
                   .call = [](ExecContext& ctx, const Views& v) { adaptive_avg_pool2d_backward(ctx, v[0], v[1]); },
                   .reference =
                       [s = s, small = small](Arguments& v) {
                         v[1].values = reference::adaptive_avg_pool2d_backward(s, small, to_floats(v[0].values));
                       },
                   .forward = [=](const Arguments&,
                                  const DoubleTensor& x) { return reference_adaptive_avg_pool2d(height, width, x); }});
  }
}

/// Class counts on both sides of every bound between the ways to share a row.
void add_cross_entropy(Cases& all) {
  std::vector<float> before(LossTotals::kCount);  // totals are added to
  before[LossTotals::kLossSum] = 3;
  LossTotals::add_to_count(before.data(), LossTotals::kValid, 1023);
  uint64_t seed = 0;
  for (const int64_t classes : {1,   3,    4,    5,    7,    10,   31,   32,   33,   100,  128,  129,  132,  256,
                                512, 1000, 1003, 1024, 1028, 2000, 2048, 4099, 8192, 8196, 8203, 9001, 20011}) {
    for (const float smoothing : {0.0F, 0.1F, 1.0F}) {
      const int64_t rows = classes == 3 ? 0 : classes == 1 ? 1 : classes < 100 ? 65 : classes < 1000 ? 9 : 2;
      const float range = ++seed % 3 == 0 ? 1.0F
                          : seed % 3 == 1 ? 30.0F
                                          : 10000.0F,
                  scale = seed % 2 == 0 ? 1.0F : 64.0F;
      const CrossEntropyConfig config{seed % 4 == 0 ? -100 : 0, 0.37F, smoothing};
      std::vector<int32_t> targets = random_integers<int32_t>(rows, seed, 0, classes - 1);
      for (size_t i = 1; i < targets.size(); i += 3) targets[i] = config.ignore_index;
      if (rows > 0) targets[0] = static_cast<int32_t>(classes - 1);
      const Shape s{rows, classes};
      const double magnitude = smoothing > 0 ? static_cast<double>(range) * 1e-6 : 1e-6;
      all.push_back(
          {.name = "softmax_cross_entropy",
           .options = fmt::format("+-{}, smoothing {}, scale {}", range, smoothing, scale),
           .arguments = {input("logits", s, -range, range),
                         {.name = "targets",
                          .shape = {rows},
                          .dtype = DType::i32,
                          .content = constant({targets.begin(), targets.end()})},
                         floats("loss_scale", {1}, constant({scale})),
                         output("grad_logits", s, 2e-6, 1e-7 * static_cast<double>(scale)),
                         float_output("totals", {LossTotals::kCount}, 1e-6, magnitude)},
           .call = [config](ExecContext& ctx,
                            const Views& v) { softmax_cross_entropy(ctx, config, v[0], v[1], v[2], v[3], v[4]); },
           .reference =
               [=](Arguments& v) {
                 const reference::CrossEntropy r =
                     reference::cross_entropy(config, classes, to_floats(v[0].values), targets);
                 v[3].values = r.grad;
                 for (double& g : v[3].values) g *= static_cast<double>(scale);
                 std::vector<float> totals = before;
                 totals[LossTotals::kLossSum] += static_cast<float>(r.loss_sum);
                 LossTotals::add_to_count(totals.data(), LossTotals::kValid, r.valid);
                 LossTotals::add_to_count(totals.data(), LossTotals::kCorrect, r.correct);
                 LossTotals::add_to_count(totals.data(), LossTotals::kTop5, r.top5);
                 v[4].values.assign(totals.begin(), totals.end());
               },
           .in_place = {0}});
      all.back().arguments[4].content = constant(before);
    }
  }
}

/// Products: other shapes, paths and tighter bounds are tested in test_kernels_heavy.
void add_products(Cases& all) {
  for (const Shape& sizes : {Shape{0, 3, 2}, Shape{1, 1, 1}, Shape{3, 17, 5}, Shape{8, 33, 20}}) {
    const int64_t n = sizes[0], in = sizes[1], out = sizes[2];
    const Shape x{n, in}, w{out, in}, y{n, out};
    for (const bool relu : {false, true}) {
      all.push_back(
          {.name = "linear_forward",
           .options = relu ? "ReLU" : "",
           .arguments = {input("x", x), input("w", w), input("bias", {out}), output("y", y, 2e-5, 2e-5)},
           .call = [relu](ExecContext& ctx, const Views& v) { linear_forward(ctx, v[0], v[1], v[2], relu, v[3]); },
           .reference =
               [relu](Arguments& v) {
                 v[3] = reference_linear(v[0], v[1], &v[2]);
                 if (relu) v[3] = reference_relu(v[3]);
               }});
    }
    all.push_back(
        {.name = "linear_backward_data",
         .arguments = {input("grad_y", y), input("w", w), output("grad_x", x, 2e-5, 2e-5)},
         .call = [](ExecContext& ctx, const Views& v) { linear_backward_data(ctx, v[0], v[1], v[2]); },
         .reference =
             [=](Arguments& v) {
               v[2].values =
                   reference_gemm(false, false, n, in, out, to_floats(v[0].values), to_floats(v[1].values)).values;
             },
         .forward = [](const Arguments& v,
                       const DoubleTensor& from) { return reference_linear(from, v[1], nullptr); }});
    for (const GradMode mode : kModes) {
      all.push_back({.name = "linear_backward_weight",
                     .options = mode == GradMode::accumulate ? "added" : "",
                     .arguments = {input("x", x), input("grad_y", y), gradient("grad_w", w, mode, 2e-5, 2e-5),
                                   gradient("grad_bias", {out}, mode, 2e-5, 2e-5)},
                     .call = [mode](ExecContext& ctx,
                                    const Views& v) { linear_backward_weight(ctx, v[0], v[1], v[2], v[3], mode); },
                     .reference =
                         [=](Arguments& v) {
                           const std::vector<float> old = to_floats(v[2].values);
                           v[2].values =
                               reference_gemm(true, false, out, in, n, to_floats(v[1].values), to_floats(v[0].values),
                                              mode == GradMode::accumulate ? std::span<const float>(old)
                                                                           : std::span<const float>())
                                   .values;
                           sum_columns(v[1], mode, v[3]);
                         },
                     .forward = [](const Arguments& v,
                                   const DoubleTensor& weight) { return reference_linear(v[0], weight, nullptr); }});
    }
  }
}

/// f32 alone; the storage type that is tested has no effect.
void add_flat_buffers(Cases& all) {
  std::vector<float> taken(StepControl::kCount);
  taken[StepControl::kActive] = 1;
  for (const int64_t n : {1, 7, 64, 20003}) {
    const Shape s{n};
    OperationArgument average = float_output("average", s, 1e-6, 1e-6), a = float_output("a", s, 0, 0);
    average.content = a.content = uniform(s, -3, 3);
    OperationArgument b = a;
    b.name = "b";
    all.push_back({.name = "update_average",
                   .arguments = {floats("param", s),
                                 average,
                                 {.name = "step", .shape = {1}, .dtype = DType::i32, .content = constant({2})},
                                 floats("control", {StepControl::kCount}, constant(taken))},
                   .call = [](ExecContext& ctx, const Views& v) { update_average(ctx, 0.9, v[0], v[1], v[2], v[3]); },
                   .reference =
                       [](Arguments& v) {
                         v[1] = map(v[1], v[0], [](double old, double now) { return 0.9 * old + 0.1 * now; });
                       }});
    all.push_back({.name = "exchange",
                   .arguments = {a, b},
                   .call = [](ExecContext& ctx, const Views& v) { exchange(ctx, v[0], v[1]); },
                   .reference = [](Arguments& v) { std::swap(v[0], v[1]); }});
  }
  for (const int64_t n : {0, 1, 3, 1000, 4097, 100'003}) {
    all.push_back({.name = "difference_norms",
                   .arguments = {input("x", {n}, -50, 50), floats("reference", {n}, uniform({n}, -3, 3)),
                                 float_output("norms", {2}, 1e-6, 0)},
                   .call = [](ExecContext& ctx, const Views& v) { difference_norms(ctx, v[0], v[1], v[2]); },
                   .reference =
                       [](Arguments& v) {
                         double difference = 0, norm = 0;
                         for (size_t i = 0; i < v[0].values.size(); ++i) {
                           difference += std::pow(v[0].values[i] - v[1].values[i], 2);
                           norm += std::pow(v[1].values[i], 2);
                         }
                         v[2].values = {std::sqrt(difference), std::sqrt(norm)};
                       }});
  }
}

}  // namespace

std::string OperationCase::str() const {
  std::string text = name + (options.empty() ? "" : " (" + options + ")") + " of";
  for (const OperationArgument& argument : arguments)
    text += fmt::format(" {} {}", argument.name, argument.shape.str());
  return text;
}

const std::vector<OperationCase>& operation_cases() {
  static const Cases all = [] {
    Cases cases;
    for (const auto add :
         {add_elementwise, add_relu_backward, add_gelu, add_transpose, add_dropout, add_batch_norm, add_layer_norm,
          add_embeddings, add_attention, add_pools, add_cross_entropy, add_products, add_flat_buffers})
      add(cases);
    return cases;
  }();
  return all;
}

std::vector<std::string> operation_names(bool with_forward) {
  std::set<std::string> names;
  for (const OperationCase& c : operation_cases())
    if (c.forward || !with_forward) names.insert(c.name);
  return {names.begin(), names.end()};
}

}  // namespace vitrine::test
