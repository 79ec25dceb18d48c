// SPDX-License-Identifier: Apache-2.0
#include "kernels/gpu_probe.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "kernels/cast.h"
#include "kernels/conv2d.h"
#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "runtime/copy.h"
#include "runtime/device.h"
#include "runtime/error.h"
#include "runtime/gpu_features.h"
#include "runtime/host_buffer.h"

namespace vitrine {
namespace {

constexpr int64_t kSide = 64;
constexpr int64_t kElements = kSide * kSide;
constexpr std::chrono::seconds kAnswersWithin{5};
constexpr int64_t kPatternElements = int64_t{1} << 18;  // 1 MiB

/// Small integers, whose sums and products are exact in f32.
std::vector<float> integers(int64_t factor) {
  std::vector<float> values(kElements);
  for (int64_t i = 0; i < kElements; ++i) values[static_cast<size_t>(i)] = static_cast<float>(i * factor % 5);
  return values;
}

View on_host(std::vector<float>& values) { return {values.data(), {kSide, kSide}, DType::f32, DeviceId::host()}; }

class Probe {
 public:
  explicit Probe(int gpu)
      : devices_(options(gpu)),
        a_host_(integers(3)),
        b_host_(integers(7)),
        words_(2 * size_of(DType::i32), devices_.host_memory()) {
    number_ = compute().allocate({1}, DType::i32, Category::activations, "the probe of a GPU");
    for (Tensor* tensor : {&a_, &b_, &total_, &copied_, &cleared_, &product_})
      *tensor = compute().allocate({kSide, kSide}, DType::f32, Category::activations, "the probe of a GPU");
    compute().reserve_workspace(int64_t{2} << 20);
    copy(compute(), on_host(a_host_), a_);
    copy(compute(), on_host(b_host_), b_);
    zero(compute(), total_);
    for (auto* event : {&forked_, &joined_}) *event = compute().stream().make_event();
  }

  /// total += 3 a, then total = total + total's copy + a b. Each operation reads what the one before has written. A
  /// number comes from the host's memory, and goes back after the work.
  void issue() {
    const PhaseScope phase(compute(), Phase::forward);
    copy_blocks(compute(), {{CopiedBlock{word(0), number_}}});
    for (int i = 0; i < 3; ++i) add(compute(), total_, a_, total_);
    compute().record(*forked_);
    {
      const PhaseScope other(communication(), Phase::reduce);
      communication().wait(*forked_, "forward");
      zero(communication(), cleared_);
      copy(communication(), total_, copied_);
      communication().record(*joined_);
    }
    gemm(compute(), false, false, a_, b_, product_);
    compute().wait(*joined_, "reduce");
    add(compute(), total_, copied_, total_);
    add(compute(), total_, cleared_, total_);
    add(compute(), total_, product_, total_);
    copy_blocks(compute(), {}, {number_, word(1)});
  }

  /// Gives the work a number, and waits for its return without a call of CUDA.
  void call(int32_t number, const char* what, const std::function<void()>& work) {
    std::atomic_ref(*word(0).as<int32_t>()).store(number);
    work();
    const std::atomic_ref<int32_t> answer(*word(1).as<int32_t>());
    for (const auto begin = std::chrono::steady_clock::now(); answer.load() != number; std::this_thread::yield()) {
      if (std::chrono::steady_clock::now() - begin > kAnswersWithin)
        throw DataError(fmt::format("{}: {} does not write to the host's memory, or not what it has read there", what,
                                    devices_[0].name()));
    }
  }

  /// A convolution and its gradients, which cuDNN computes where it is on.
  void convolve(DType dtype) {
    const Conv2dConfig config{.pad = 1};
    const Shape images{1, 8, 8, 8}, weights{8, 3, 3, 8};
    const auto stored = [&](const Tensor& values, const Shape& shape, DType type) {
      Tensor to = compute().allocate(shape, type, Category::activations, "the probe of a GPU");
      cast(compute(), values.reshape({kElements}).rows(0, shape.numel()).reshape(shape), to);
      return to;
    };
    const Tensor x = stored(a_, images, dtype), w = stored(b_, weights, dtype), grad_y = stored(b_, images, dtype);
    const Tensor y = stored(a_, images, dtype), grad_x = stored(a_, images, dtype);
    const Tensor grad_w = stored(a_, weights, DType::f32);
    conv2d_forward(compute(), config, x, w, {}, y);
    conv2d_backward_data(compute(), config, grad_y, w, grad_x);
    conv2d_backward_weight(compute(), config, x, grad_y, grad_w, {}, GradMode::overwrite);
    // All are integers that f16 holds, so the three products are equal.
    const double by_y = product(y, b_host_), by_x = product(grad_x, a_host_), by_w = product(grad_w, b_host_);
    if (by_y > 0 && by_y == by_x && by_y == by_w) return;
    throw DataError(
        fmt::format("a convolution in {}: <y, dy> is {}, <x, dx> {} and <w, dw> {} on {}; expected one value",
                    dtype_name(dtype), by_y, by_x, by_w, devices_[0].name()));
  }

  void replay(int launches) {
    Stream* const other = &communication().stream();
    compute().stream().begin_capture({&other, 1});
    issue();
    const std::unique_ptr<CapturedWork> work = compute().stream().end_capture();
    for (int i = 0; i < launches; ++i)
      call(20 + i, "a CUDA graph launched twice", [&] { compute().stream().launch(*work, i); });
    devices_.synchronize();
  }

  /// Compares with what `times` calls of issue() compute.
  void check(int times, const char* what) {
    std::vector<float> got(kElements);
    copy(compute(), total_, on_host(got));
    devices_.synchronize();
    for (int64_t i = 0; i < kElements; ++i) {
      float product = 0, expected = 0;
      for (int64_t k = 0; k < kSide; ++k) product += at(a_host_, i / kSide, k) * at(b_host_, k, i % kSide);
      for (int t = 0; t < times; ++t) expected = 2 * (expected + 3 * at(a_host_, i / kSide, i % kSide)) + product;
      const float found = got[static_cast<size_t>(i)];
      if (found != expected)
        throw DataError(
            fmt::format("{}: element {} of {} is {}, expected {}", what, i, devices_[0].name(), found, expected));
    }
    for (ExecContext* ctx : {&compute(), &communication()}) {
      for (const SpanRecord& span : ctx->stream().take_spans()) {
        if (span.end_ns < span.begin_ns) throw DataError(fmt::format("{}: a span ends before it begins", what));
      }
    }
  }

 private:
  static DeviceGroupOptions options(int gpu) {
    DeviceGroupOptions options;
    options.devices = {{Backend::cuda, gpu}};
    options.memory_bytes = {int64_t{8} << 20};
    return options;
  }
  double product(const Tensor& values, const std::vector<float>& others) {
    Tensor wide = compute().allocate(values.shape(), DType::f32, Category::activations, "the probe of a GPU");
    std::vector<float> got(static_cast<size_t>(values.numel()));
    cast(compute(), values, wide);
    copy(compute(), wide, View{got.data(), values.shape(), DType::f32, DeviceId::host()});
    devices_.synchronize();
    return std::inner_product(got.begin(), got.end(), others.begin(), 0.0);
  }
  static float at(const std::vector<float>& matrix, int64_t row, int64_t column) {
    return matrix[static_cast<size_t>(row * kSide + column)];
  }
  View word(int64_t i) const { return words_.view({2}, DType::i32).rows(i, i + 1); }
  ExecContext& compute() { return devices_[0].compute(); }
  ExecContext& communication() { return devices_[0].communication(); }

  DeviceGroup devices_;
  std::vector<float> a_host_, b_host_;
  HostBuffer words_;
  Tensor a_, b_, total_, copied_, cleared_, product_, number_;
  std::unique_ptr<Event> forked_, joined_;
};

}  // namespace

void probe_peers(const std::vector<int>& gpus) {
  DeviceGroupOptions options;
  for (const int gpu : gpus) options.devices.push_back({Backend::cuda, gpu});
  options.memory_bytes = {int64_t{8} << 20};
  DeviceGroup devices(options);
  std::vector<int32_t> sent(kPatternElements), got(sent.size());
  const auto on_host = [](std::vector<int32_t>& values) {
    return View{values.data(), {kPatternElements}, DType::i32, DeviceId::host()};
  };
  const auto pattern = [&](int i) {
    return devices[i].compute().allocate({kPatternElements}, DType::i32, Category::activations, "the probe of a GPU");
  };
  for (int from = 0; from < devices.size(); ++from) {
    const Tensor source = pattern(from);
    std::iota(sent.begin(), sent.end(), (from + 1) << 24);
    copy(devices[from].compute(), on_host(sent), source);
    devices.synchronize();
    for (int to = 0; to < devices.size(); ++to) {
      if (to == from) continue;
      const Tensor target = pattern(to);
      zero(devices[to].compute(), target);
      copy(devices[to].compute(), source, target);
      copy(devices[to].compute(), target, on_host(got));
      devices.synchronize();
      if (got != sent)
        throw DataError(fmt::format("a copy from {} to {} delivers other bytes; is an IOMMU on?", devices[from].name(),
                                    devices[to].name()));
    }
  }
}

void probe_gpu(int gpu) {
  Probe probe(gpu);
  probe.call(10, "kernels in a row", [&] { probe.issue(); });
  probe.check(1, "kernels in a row");
  if (why_off(GpuFeature::cudnn).empty()) {
    for (const DType dtype : {DType::f32, DType::f16}) probe.convolve(dtype);
  }
  if (!why_off(GpuFeature::graphs).empty()) return;
  probe.replay(2);
  probe.check(3, "a CUDA graph launched twice");
}

}  // namespace vitrine
