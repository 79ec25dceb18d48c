// SPDX-License-Identifier: Apache-2.0
#include "kernels/gpu_probe.h"

#include <memory>
#include <vector>

#include <fmt/format.h>

#include "kernels/elementwise.h"
#include "kernels/gemm.h"
#include "runtime/copy.h"
#include "runtime/device.h"
#include "runtime/error.h"
#include "runtime/gpu_features.h"

namespace vitrine {
namespace {

constexpr int64_t kSide = 64;
constexpr int64_t kElements = kSide * kSide;

/// Small integers, whose sums and products are exact in f32.
std::vector<float> integers(int64_t factor) {
  std::vector<float> values(kElements);
  for (int64_t i = 0; i < kElements; ++i) values[static_cast<size_t>(i)] = static_cast<float>(i * factor % 5);
  return values;
}

View on_host(std::vector<float>& values) { return {values.data(), {kSide, kSide}, DType::f32, DeviceId::host()}; }

class Probe {
 public:
  explicit Probe(int gpu) : devices_(options(gpu)), a_host_(integers(3)), b_host_(integers(7)) {
    for (Tensor* tensor : {&a_, &b_, &total_, &copied_, &cleared_, &product_})
      *tensor = compute().allocate({kSide, kSide}, DType::f32, Category::activations, "the probe of a GPU");
    copy(compute(), on_host(a_host_), a_);
    copy(compute(), on_host(b_host_), b_);
    zero(compute(), total_);
    for (auto* event : {&forked_, &joined_}) *event = compute().stream().make_event();
  }

  /// total += 3 a, then total = total + total's copy + a b. Each operation reads what the one before has written.
  void issue() {
    const PhaseScope phase(compute(), Phase::forward);
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
  }

  void replay(int launches) {
    Stream* const other = &communication().stream();
    compute().stream().begin_capture({&other, 1}, true);
    issue();
    const std::unique_ptr<CapturedWork> work = compute().stream().end_capture();
    for (int i = 0; i < launches; ++i) compute().stream().launch(*work, i);
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
  static float at(const std::vector<float>& matrix, int64_t row, int64_t column) {
    return matrix[static_cast<size_t>(row * kSide + column)];
  }
  ExecContext& compute() { return devices_[0].compute(); }
  ExecContext& communication() { return devices_[0].communication(); }

  DeviceGroup devices_;
  std::vector<float> a_host_, b_host_;
  Tensor a_, b_, total_, copied_, cleared_, product_;
  std::unique_ptr<Event> forked_, joined_;
};

}  // namespace

void probe_gpu(int gpu) {
  Probe probe(gpu);
  probe.issue();
  probe.check(1, "kernels in a row");
  if (!why_off(GpuFeature::graphs).empty()) return;
  probe.replay(2);
  probe.check(3, "a CUDA graph launched twice");
}

}  // namespace vitrine
