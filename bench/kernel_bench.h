// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <chrono>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "runtime/copy.h"
#include "runtime/device.h"

namespace vitrine::bench {

/// The device that kernels run on.
struct Place {
  Backend backend = Backend::cpu;
  int threads = 1;  // CPU devices

  bool on_gpu() const { return backend == Backend::cuda; }
  /// Suffix of benchmark names.
  std::string suffix() const { return on_gpu() ? "/cuda" : "/threads:" + std::to_string(threads); }
};

/// A device whose kernels are timed from issue to synchronize; on a GPU many times in a row, because synchronizing
/// takes as long as a kernel.
class KernelBench {
 public:
  explicit KernelBench(const Place& place) : place_(place), group_(options(place)) {
    ctx().reserve_workspace(int64_t{64} << 20);
  }
  ExecContext& ctx() { return group_[0].compute(); }

  Tensor make(const Shape& shape, DType dtype = DType::f32) {
    Tensor t = ctx().allocate(shape, dtype, Category::activations, "bench");
    zero(ctx(), t);
    group_.synchronize();
    return t;
  }
  /// Values that repeat with a period of 1009, between -1 and 1.
  Tensor filled(const Shape& shape) {
    std::vector<float> values(static_cast<size_t>(shape.numel()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1009) / 504.5F - 1.0F;
    return from_host(shape, values);
  }
  Tensor from_host(const Shape& shape, const std::vector<float>& values) {
    Tensor t = ctx().allocate(shape, DType::f32, Category::activations, "bench");
    copy(ctx(), ConstView(values.data(), shape, DType::f32, DeviceId::host()), t);
    group_.synchronize();
    return t;
  }

  /// Reports bytes per second, and as copy_ratio the median of their ratio to a copy of as many bytes (at most 512 MiB)
  /// on the device, timed alternately.
  ///   bytes  read and written by one call of `issue`
  template <class Issue>
  void run_bytes(benchmark::State& state, int64_t bytes, const Issue& issue) {
    const int64_t copied = std::min<int64_t>(bytes / 2, int64_t{256} << 20);
    const Tensor from = make({copied}, DType::u8);
    const Tensor to = make({copied}, DType::u8);
    const auto copy_once = [&] { copy(ctx(), from, to); };
    const int copies = repeats(copy_once), calls = repeats(issue);
    std::vector<double> ratios;
    for (auto _ : state) {
      const double time = seconds(issue, calls);
      state.SetIterationTime(time);
      const double copy_time = seconds(copy_once, copies);
      ratios.push_back(static_cast<double>(bytes) / time / (static_cast<double>(2 * copied) / copy_time));
    }
    state.SetBytesProcessed(state.iterations() * bytes);
    std::sort(ratios.begin(), ratios.end());
    if (!ratios.empty()) state.counters["copy_ratio"] = ratios[ratios.size() / 2];
  }

  /// Reports GFLOP/s.
  template <class Issue>
  void run_flop(benchmark::State& state, double flop, const Issue& issue) {
    seconds(issue, 2);
    for (auto _ : state) state.SetIterationTime(seconds(issue, place_.on_gpu() ? 20 : 1));
    state.counters["GFLOP/s"] = benchmark::Counter(flop * 1e-9, benchmark::Counter::kIsIterationInvariantRate);
  }

 private:
  /// Calls to time at once, after two by which libraries and caches get ready.
  template <class Issue>
  int repeats(const Issue& issue) {
    constexpr double kSeconds = 3e-3;
    seconds(issue, 1);
    const double once = seconds(issue, 1);
    return place_.on_gpu() ? static_cast<int>(std::clamp(kSeconds / once, 1.0, 200.0)) : 1;
  }
  /// Seconds of one call, averaged over `count` calls.
  template <class Issue>
  double seconds(const Issue& issue, int count) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < count; ++i) issue();
    group_.synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / count;
  }

  static DeviceGroupOptions options(const Place& place) {
    DeviceGroupOptions o;
    o.devices = {DeviceId{place.backend, 0}};
    o.memory_bytes = {int64_t{3} << 30};
    if (!place.on_gpu()) o.threads_per_device = {place.threads};
    o.trace = TraceLevel::off;
    return o;
  }

  Place place_;
  DeviceGroup group_;
};

/// Registers run(bench, state) with the name and the device.
template <class Run>
void add_kernel(const std::string& name, const Place& place, const Run& run) {
  auto* registered =
      benchmark::RegisterBenchmark((name + place.suffix()).c_str(), [place, run](benchmark::State& state) {
        KernelBench bench(place);
        run(bench, state);
      });
  registered->UseManualTime()->Unit(benchmark::kMillisecond);
  if (place.on_gpu()) registered->MinTime(0.2);  // thousands of calls
}

void add_heavy_kernels(const Place& place);
void add_light_kernels(const Place& place);

}  // namespace vitrine::bench
