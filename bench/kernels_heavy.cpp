// SPDX-License-Identifier: Apache-2.0
// Convolution and linear layers of AlexNet at 227 x 227 and of small-cnn, pass by pass, in GFLOP/s; a multiply-add
// counts as two.
#include "bench/kernel_bench.h"
#include "kernels/conv2d.h"
#include "kernels/linear.h"

namespace vitrine::bench {
namespace {

/// Layers at batch sizes for a CPU; a GPU gets eight times as many samples.
int64_t batch_factor(const Place& place) { return place.on_gpu() ? 8 : 1; }

struct ConvolutionLayer {
  const char* name;
  Shape x, w;
  Conv2dConfig config;
};
const ConvolutionLayer kConvolutions[] = {
    {"alexnet/features.0", {32, 227, 227, 3}, {64, 11, 11, 3}, {4, 2, true}},
    {"alexnet/features.3", {32, 27, 27, 64}, {192, 5, 5, 64}, {1, 2, true}},
    {"alexnet/features.6", {32, 13, 13, 192}, {384, 3, 3, 192}, {1, 1, true}},
    {"alexnet/features.8", {32, 13, 13, 384}, {256, 3, 3, 384}, {1, 1, true}},
    {"alexnet/features.10", {32, 13, 13, 256}, {256, 3, 3, 256}, {1, 1, true}},
    {"small-cnn/features.0", {128, 32, 32, 3}, {32, 3, 3, 3}, {1, 1, true}},
    {"small-cnn/features.3", {128, 16, 16, 32}, {64, 3, 3, 32}, {1, 1, true}},
};

struct LinearLayer {
  const char* name;
  int64_t samples, in, out;
};
const LinearLayer kLinears[] = {{"alexnet/classifier.1", 32, 9216, 4096},
                                {"alexnet/classifier.4", 32, 4096, 4096},
                                {"alexnet/classifier.6", 32, 4096, 10},
                                {"small-cnn/classifier.0", 128, 4096, 128}};

enum class Pass { forward, backward_data, backward_weight };
constexpr std::pair<Pass, const char*> kPasses[] = {
    {Pass::forward, "forward"}, {Pass::backward_data, "backward_data"}, {Pass::backward_weight, "backward_weight"}};

void add_convolution(const Place& place, const ConvolutionLayer& layer, Pass pass, const std::string& pass_name) {
  add_kernel("convolution/" + pass_name + "/" + layer.name, place, [=](KernelBench& b, benchmark::State& state) {
    const Shape x_shape = layer.x.with_dim0(layer.x[0] * batch_factor(place));
    const Shape y_shape = conv2d_output_shape(layer.config, x_shape, layer.w);
    const Tensor x = b.filled(x_shape), w = b.filled(layer.w), bias = b.filled({layer.w[0]}), y = b.filled(y_shape);
    const int64_t taps = layer.w.numel() / layer.w[0];
    const double flop = 2.0 * static_cast<double>(y_shape.numel()) * static_cast<double>(taps);
    b.run_flop(state, flop, [&] {
      if (pass == Pass::forward) conv2d_forward(b.ctx(), layer.config, x, w, bias, y);
      if (pass == Pass::backward_data) conv2d_backward_data(b.ctx(), layer.config, y, w, x);
      if (pass == Pass::backward_weight)
        conv2d_backward_weight(b.ctx(), layer.config, x, y, w, bias, GradMode::overwrite);
    });
  });
}

void add_linear(const Place& place, const LinearLayer& layer, Pass pass, const std::string& pass_name) {
  add_kernel("linear/" + pass_name + "/" + layer.name, place, [=](KernelBench& b, benchmark::State& state) {
    const int64_t samples = layer.samples * batch_factor(place);
    const Tensor x = b.filled({samples, layer.in}), w = b.filled({layer.out, layer.in});
    const Tensor bias = b.filled({layer.out}), y = b.filled({samples, layer.out});
    const double flop =
        2.0 * static_cast<double>(samples) * static_cast<double>(layer.in) * static_cast<double>(layer.out);
    b.run_flop(state, flop, [&] {
      if (pass == Pass::forward) linear_forward(b.ctx(), x, w, bias, true, y);
      if (pass == Pass::backward_data) linear_backward_data(b.ctx(), y, w, x);
      if (pass == Pass::backward_weight) linear_backward_weight(b.ctx(), x, y, w, bias, GradMode::overwrite);
    });
  });
}

}  // namespace

void add_heavy_kernels(const Place& place) {
  for (const auto& [pass, name] : kPasses) {
    for (const ConvolutionLayer& layer : kConvolutions) add_convolution(place, layer, pass, name);
    for (const LinearLayer& layer : kLinears) add_linear(place, layer, pass, name);
  }
}

}  // namespace vitrine::bench
