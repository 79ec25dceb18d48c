// SPDX-License-Identifier: Apache-2.0
#include "prelu.h"

#include <vitrine/runtime/error.h>
#include <vitrine/runtime/parallel_for.h>

using namespace vitrine;

std::string PReLU::describe() const { return "prelu(" + std::to_string(features_) + ")"; }

// The engine allocates the parameter, its gradient and the optimizer's state, and passes views of them in this order.
std::vector<ParamSpec> PReLU::parameters() const { return {{"weight", {features_}, {Init::Kind::zeros}, {}}}; }

Shape PReLU::output_shape(const Shape& x) const {
  if (x.rank() == 2 && x[1] == features_) return x;
  throw ShapeError(describe() + ": input has shape " + x.str() + ", expected (N, " + std::to_string(features_) + ")");
}

// Forward and backward also run on a meta device, which plans the memory: there, dispatch() runs nothing and views have
// no elements.
Saved PReLU::forward(const ForwardCall& call) const {
  const ConstView x = call.x, weight = call.params[0];
  const View y = call.y;
  if (x.dtype != DType::f32)
    throw DtypeError(describe() + ": x is " + dtype_name(x.dtype) + ", expected f32; train in f32");
  call.ctx.dispatch({"prelu_forward", {x, weight}, {y}}, [x, weight, y, features = features_] {
    const float *const from = x.as<float>(), *const slope = weight.as<float>();
    float* const to = y.as<float>();
    parallel_for(x.numel(), 4096, [=](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) to[i] = from[i] > 0 ? from[i] : slope[i % features] * from[i];
    });
  });
  Saved saved;
  if (call.pass.training) saved.tensors.push_back(call.x);
  return saved;
}

void PReLU::backward(const BackwardCall& call) const {
  const ConstView x = call.saved.tensors[0], weight = call.params[0], grad_y = call.grad_y;
  const View grad_weight = call.grad_params[0];
  // A feature is summed by one thread, in the order of the samples, so that the bits do not depend on the number of
  // threads. In the second and later micro-batches of a step the sum is added to what is there.
  const bool adds = call.mode == GradMode::accumulate;
  call.ctx.dispatch({"prelu_backward_weight", {x, grad_y}, {grad_weight}},
                    [x, grad_y, grad_weight, adds, features = features_] {
                      const float *const at = x.as<float>(), *const from = grad_y.as<float>();
                      float* const to = grad_weight.as<float>();
                      const int64_t samples = x.shape[0];
                      parallel_for(features, 64, [=](int64_t begin, int64_t end) {
                        for (int64_t f = begin; f < end; ++f) {
                          float sum = adds ? to[f] : 0.0F;
                          for (int64_t n = 0; n < samples; ++n) {
                            const int64_t i = n * features + f;
                            if (!(at[i] > 0)) sum += from[i] * at[i];
                          }
                          to[f] = sum;
                        }
                      });
                    });
  if (!call.grad_x) return;  // the first layer of a model
  const View grad_x = call.grad_x;
  call.ctx.dispatch(
      {"prelu_backward_data", {x, weight, grad_y}, {grad_x}}, [x, weight, grad_y, grad_x, features = features_] {
        const float *const at = x.as<float>(), *const slope = weight.as<float>(), *const from = grad_y.as<float>();
        float* const to = grad_x.as<float>();
        parallel_for(x.numel(), 4096, [=](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) to[i] = from[i] * (at[i] > 0 ? 1.0F : slope[i % features]);
        });
      });
}
