// SPDX-License-Identifier: Apache-2.0
#include "tests/nn/training.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <utility>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "kernels/cross_entropy.h"
#include "kernels/optimizer.h"
#include "kernels/step_control.h"
#include "nn/parameter_store.h"
#include "runtime/copy.h"
#include "runtime/device.h"
#include "runtime/philox.h"
#include "tests/support/paths.h"
#include "tests/support/test_devices.h"

namespace vitrine::test {
namespace {

constexpr int64_t kClasses = 10;
constexpr int64_t kMemoryBytes = int64_t{2} << 30;
constexpr int64_t kWorkspaceBytes = int64_t{128} << 20;

struct Batch {
  std::vector<float> images;
  std::vector<int32_t> labels;
};

Batch make_batch(int64_t step, int64_t samples, int64_t size) {
  Batch batch;
  for (int64_t n = 0; n < samples; ++n) {
    const int64_t label = (3 * n + 7 * step) % kClasses;
    batch.labels.push_back(static_cast<int32_t>(label));
    for (int64_t h = 0; h < size; ++h) {
      for (int64_t w = 0; w < size; ++w) {
        for (int64_t c = 0; c < 3; ++c) {
          const int64_t pixel = (h * (3 + 5 * label) + w * (50 - 4 * label) + 31 * c + 97 * n + 13 * step) % 256;
          batch.images.push_back(static_cast<float>(2 * pixel - 255) / 255.0F);
        }
      }
    }
  }
  return batch;
}

Batch make_random_batch(int64_t step, int64_t samples, int64_t size) {
  Batch batch;
  PhiloxSequence random(1, static_cast<uint64_t>(step));
  batch.images.resize(static_cast<size_t>(samples * size * size * 3));
  for (float& v : batch.images) v = 2.0F * random.next_uniform() - 1.0F;
  for (int64_t n = 0; n < samples; ++n) batch.labels.push_back(static_cast<int32_t>((3 * n + 7 * step) % kClasses));
  return batch;
}

template <class T>
ConstView host_view(const std::vector<T>& values, const Shape& shape, DType dtype) {
  return {values.data(), shape, dtype, DeviceId::host()};
}

}  // namespace

TrainingResult train(const TrainingJob& job) {
  const Model model = make_model(job.model, {.image_size = job.image_size, .classes = kClasses, .dropout = 0.0F});
  std::vector<ParamSpec> specs = model.net->parameters();
  for (ParamSpec& spec : specs) {
    if (spec.init.kind == Init::Kind::normal) {
      spec.init = {Init::Kind::uniform, static_cast<float>(static_cast<double>(spec.init.bound) * std::sqrt(3.0))};
    }
  }
  const FlatLayout layout(std::move(specs), LossTotals::kCount);
  const BufferLayout buffer_layout(*model.net);

  DeviceGroup devices({.devices = test_devices(1), .memory_bytes = {kMemoryBytes}, .check_order = true});
  ExecContext& ctx = devices[0].compute();
  ctx.reserve_workspace(kWorkspaceBytes);
  const auto flat = [&](Category category, const char* name) {
    return ctx.allocate({layout.total_elements()}, DType::f32, category, name);
  };
  const Tensor weights = flat(Category::parameters, "weights");
  const Tensor gradients = flat(Category::gradients, "gradients");
  const Tensor momentum = flat(Category::optimizer, "momentum");
  const Tensor updates = ctx.allocate({1}, DType::i32, Category::optimizer, "updates");
  const Tensor control = ctx.allocate({StepControl::kCount}, DType::f32, Category::optimizer, "control");
  const Tensor images = ctx.allocate(model.input_shape(job.samples), DType::f32, Category::staging, "images");
  const Tensor labels = ctx.allocate({job.samples}, DType::i32, Category::staging, "labels");
  const std::vector<View> params = layout.views(weights);
  const std::vector<View> grad_params = layout.views(gradients);
  const int64_t count = layout.parameter_elements();
  const Tensor totals = gradients.rows(count, layout.total_elements());

  const auto buffers_of = [&](const FlatLayout& of) {
    return ctx.allocate({std::max<int64_t>(1, of.parameter_elements())}, DType::f32, Category::parameters, "buffers");
  };
  const Tensor running_buffers = buffers_of(buffer_layout.saved()), transient = buffers_of(buffer_layout.transient());
  const std::vector<View> buffers = buffer_layout.views(running_buffers, transient);
  std::vector<float> running = buffer_layout.initial().values;
  running.resize(static_cast<size_t>(running_buffers.numel()));
  copy(ctx, host_view(running, running_buffers.shape(), DType::f32), running_buffers);

  std::vector<float> start(static_cast<size_t>(layout.total_elements()));
  initialize(layout, 0, start);
  copy(ctx, host_view(start, weights.shape(), DType::f32), weights);
  for (const Tensor& t : {gradients, momentum, updates, control}) zero(ctx, t);

  const auto read_buffers = [&] {
    copy(ctx, running_buffers, View{running.data(), running_buffers.shape(), DType::f32, DeviceId::host()});
    devices.synchronize();
    std::map<std::string, std::vector<float>> found;
    for (int i = 0; i < buffer_layout.saved().size(); ++i) {
      const ParamSpec& spec = buffer_layout.saved().specs()[static_cast<size_t>(i)];
      const auto begin = running.begin() + buffer_layout.saved().offset(i);
      found[spec.name] = {begin, begin + spec.shape.numel()};
    }
    return found;
  };
  const auto samples = static_cast<float>(job.samples);
  TrainingResult result;
  for (int step = 0; step < job.steps; ++step) {
    const Batch batch = (job.random_images ? make_random_batch : make_batch)(step, job.samples, job.image_size);
    copy(ctx, host_view(batch.images, images.shape(), DType::f32), images);
    copy(ctx, host_view(batch.labels, labels.shape(), DType::i32), labels);

    const Pass pass{.training = true, .seed = 0, .step = step};
    Tensor logits;
    Saved kept = model.net->forward_from(ctx, params, images, logits, pass, nullptr, {}, buffers);
    zero(ctx, totals);
    softmax_cross_entropy(ctx, {.grad_scale = 1.0F / samples}, logits, labels, {}, logits,
                          totals);  // the gradient overwrites the logits
    model.net->backward_from(ctx, params, std::move(kept), std::move(logits), grad_params, GradMode::overwrite, pass,
                             {}, {}, buffers);
    decide_step(ctx, samples, NonFinite::accept, totals, {}, control);
    sgd_update(ctx, {.lr = job.lr, .momentum = job.momentum}, weights.rows(0, count), gradients.rows(0, count),
               momentum.rows(0, count), updates, control);

    std::vector<float> host_totals(LossTotals::kCount);
    copy(ctx, totals, View{host_totals.data(), totals.shape(), DType::f32, DeviceId::host()});
    devices.synchronize();
    result.losses.push_back(static_cast<double>(host_totals[LossTotals::kLossSum]) /
                            LossTotals::count(host_totals.data(), LossTotals::kValid));
    if (step < job.early_steps) result.early_buffers.push_back(read_buffers());
  }
  result.buffers = read_buffers();
  return result;
}

namespace {

/// Before rounding has grown: evenly spaced values of every running statistic after each of the first steps.
void expect_early_statistics(const nlohmann::json& record, const TrainingResult& result) {
  ASSERT_EQ(record.size(), result.early_buffers.size());
  for (size_t step = 0; step < record.size(); ++step) {
    double difference = 0, norm = 0;
    EXPECT_EQ(record[step].size(), result.early_buffers[step].size());
    for (const auto& [name, values] : record[step].items()) {
      const auto expected = values.get<std::vector<double>>();
      const auto found = result.early_buffers[step].find(name);
      ASSERT_NE(found, result.early_buffers[step].end()) << name;
      const size_t apart = found->second.size() / expected.size();
      for (size_t i = 0; i < expected.size(); ++i) {
        difference += std::pow(static_cast<double>(found->second[i * apart]) - expected[i], 2);
        norm += std::pow(expected[i], 2);
      }
    }
    EXPECT_LE(std::sqrt(difference / norm), 1e-5) << "step " << step;
  }
}

TrainingJob job_of(const std::string& model, const nlohmann::json& record) {
  return {.model = model,
          .samples = record.at("samples").get<int64_t>(),
          .image_size = record.at("image_size").get<int64_t>(),
          .lr = record.at("lr").get<double>(),
          .momentum = record.at("momentum").get<double>(),
          .steps = static_cast<int>(record.at("losses").size())};
}

}  // namespace

void expect_recorded_resnet(const std::string& model) {
  // Rounding errors of two f32 computations are independent, and grow tenfold from step to step: one may be a step
  // ahead of the other.
  constexpr double kFactor = 4;
  constexpr double kFloor = 2e-6;
  std::ifstream file(test::source_path("tests/nn/data/resnet.json"));
  ASSERT_TRUE(file) << "resnet.json is missing; record_resnet.py writes it";
  const nlohmann::json record = nlohmann::json::parse(file).at(model);
  const auto losses = record.at("losses").get<std::vector<double>>(),
             exact = record.at("exact_losses").get<std::vector<double>>();
  ASSERT_EQ(losses.size(), 20U);
  TrainingJob job = job_of(model, record);
  job.random_images = true;
  job.early_steps = static_cast<int>(record.at("exact_early_running").size());
  const TrainingResult result = train(job);
  double largest = 0;  // difference of PyTorch's f32 up to the next step
  for (size_t i = 0; i < losses.size(); ++i) {
    const size_t next = std::min(i + 1, losses.size() - 1);
    largest = std::max(largest, std::abs(losses[next] - exact[next]) / exact[next]);
    EXPECT_NEAR(result.losses[i], exact[i], (kFactor * largest + kFloor) * exact[i]) << "step " << i;
  }
  expect_early_statistics(record.at("exact_early_running"), result);
  double own = 0, torch = 0, norm = 0;
  for (const auto& [name, values] : record.at("exact_running").items()) {
    const auto expected = values.get<std::vector<double>>(),
               of_torch = record.at("running").at(name).get<std::vector<double>>();
    const auto found = result.buffers.find(name);
    ASSERT_NE(found, result.buffers.end()) << name;
    for (size_t i = 0; i < expected.size(); ++i) {
      own += std::pow(static_cast<double>(found->second[i]) - expected[i], 2);
      torch += std::pow(of_torch[i] - expected[i], 2);
      norm += std::pow(expected[i], 2);
    }
  }
  EXPECT_EQ(result.buffers.size(), record.at("running").size());
  EXPECT_LE(std::sqrt(own / norm), kFactor * std::sqrt(torch / norm) + kFloor);
  ::testing::Test::RecordProperty("running_statistics", std::to_string(std::sqrt(own / norm)) + ", PyTorch " +
                                                            std::to_string(std::sqrt(torch / norm)));
}

void expect_recorded_losses(const std::string& model) {
  std::ifstream file(test::source_path("tests/nn/data/losses.json"));
  ASSERT_TRUE(file) << "losses.json is missing; record_losses.py writes it";
  const nlohmann::json record = nlohmann::json::parse(file).at(model);
  const auto expected = record.at("losses").get<std::vector<double>>();
  ASSERT_FALSE(expected.empty());
  const std::vector<double> losses = train(job_of(model, record)).losses;
  for (size_t i = 0; i < expected.size(); ++i)
    EXPECT_NEAR(losses[i], expected[i], 1e-4 * std::abs(expected[i])) << "step " << i;
}

}  // namespace vitrine::test
