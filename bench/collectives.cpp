// SPDX-License-Identifier: Apache-2.0
// In-process collectives on CPU devices of one thread each.
//   queued   per operation, many queued back to back: the cost inside a step
//   synced   per operation with the host waiting for each: issue, wake-up and synchronisation too
//   memcpy   every device copies as many bytes as it handles in all_reduce: the machine's ceiling
// Arguments: devices, bytes of each device's buffer. all_reduce's busbw is 2 (N - 1) / N * bytes / time, as nccl-tests count it.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include <benchmark/benchmark.h>

#include "bench/collective_calls.h"
#include "runtime/copy.h"

namespace vitrine::bench {
namespace {

struct CommunicatorGroup {
  CommunicatorGroup(int count, int64_t bytes)
      : devices(options_for(count, bytes)), communicators(make_communicators(devices)), inputs(buffers(bytes)), outputs(buffers(bytes)) {
    devices.synchronize();
  }

  static DeviceGroupOptions options_for(int count, int64_t bytes) {
    DeviceGroupOptions options;
    for (int i = 0; i < count; ++i) options.devices.push_back({Backend::cpu, i});
    options.memory_bytes = {2 * bytes + (int64_t{64} << 20)};
    options.threads_per_device = {1};
    options.trace = TraceLevel::off;
    return options;
  }

  std::vector<Tensor> buffers(int64_t bytes) {
    std::vector<Tensor> tensors;
    for (int r = 0; r < devices.size(); ++r) {
      tensors.push_back(devices[r].compute().allocate({bytes / 4}, DType::f32, Category::communication, "buffer"));
      zero(devices[r].compute(), tensors.back());
    }
    return tensors;
  }

  Rank rank(int r) {
    const auto i = static_cast<size_t>(r);
    return {*communicators[i], devices[r].compute(), inputs[i], outputs[i]};
  }

  DeviceGroup devices;
  std::vector<std::unique_ptr<Communicator>> communicators;
  std::vector<Tensor> inputs, outputs;
};

void copy_own(const Rank& r) {
  const View from = r.input, to = r.output;
  r.ctx.dispatch({"memcpy", {from}, {to}, 0}, [=] { std::memcpy(to.data, from.data, static_cast<size_t>(from.bytes())); });
}

/// Time between the first and the last of the operations on device 0, everything being queued before the first starts.
double queued_seconds(CommunicatorGroup& group, Issue issue, int operations) {
  std::atomic<uint32_t> gate{0};
  int64_t begin_ns = 0, end_ns = 0;
  const auto stamp = [&](int rank, int64_t* time_ns) {
    barrier(group.rank(rank));
    group.devices[rank].compute().dispatch({"clock", {}, {}, 0}, [rank, time_ns] {
      if (rank == 0) *time_ns = steady_now_ns();
    });
  };
  for (int r = 0; r < group.devices.size(); ++r) group.devices[r].compute().dispatch({"gate", {}, {}, 0}, [&gate] { gate.wait(0); });
  for (int r = 0; r < group.devices.size(); ++r) {
    stamp(r, &begin_ns);
    for (int k = 0; k < operations; ++k) issue(group.rank(r));
    stamp(r, &end_ns);
  }
  gate = 1;
  gate.notify_all();
  group.devices.synchronize();
  return static_cast<double>(end_ns - begin_ns) * 1e-9;
}

void report(benchmark::State& state, int64_t bytes, double factor) {
  if (factor > 0) {
    state.counters["busbw"] =
        benchmark::Counter(factor * static_cast<double>(bytes), benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::OneK::kIs1000);
  }
}

void run_queued(benchmark::State& state, Issue issue, double (*factor)(double)) {
  const int64_t bytes = state.range(1);
  CommunicatorGroup group(static_cast<int>(state.range(0)), bytes);
  const int operations = static_cast<int>(std::clamp<int64_t>((int64_t{64} << 20) / (bytes + 1), 2, 200));
  queued_seconds(group, issue, operations);
  while (state.KeepRunningBatch(operations)) state.SetIterationTime(queued_seconds(group, issue, operations));
  report(state, bytes, factor(static_cast<double>(state.range(0))));
}

void run_synced(benchmark::State& state, Issue issue, double (*factor)(double)) {
  CommunicatorGroup group(static_cast<int>(state.range(0)), state.range(1));
  for (auto _ : state) {
    for (int r = 0; r < group.devices.size(); ++r) issue(group.rank(r));
    group.devices.synchronize();
  }
  report(state, state.range(1), factor(static_cast<double>(state.range(0))));
}

constexpr int64_t kBytes[] = {int64_t{4} << 10, int64_t{64} << 10, int64_t{1} << 20, int64_t{25} << 20, int64_t{256} << 20};

void sizes(benchmark::internal::Benchmark* bench) {
  for (const int64_t bytes : kBytes) bench->Args({4, bytes});
  for (const int64_t devices : {2, 3}) bench->Args({devices, int64_t{1} << 20});
  bench->ArgNames({"devices", "bytes"})->Unit(benchmark::kMicrosecond);
}

void sizes_queued(benchmark::internal::Benchmark* bench) {
  sizes(bench);
  bench->UseManualTime();
}

void sizes_synced(benchmark::internal::Benchmark* bench) {
  sizes(bench);
  bench->UseRealTime();
}

BENCHMARK_CAPTURE(run_queued, all_reduce, all_reduce, ring_factor)->Apply(sizes_queued);
BENCHMARK_CAPTURE(run_synced, all_reduce, all_reduce, ring_factor)->Apply(sizes_synced);
BENCHMARK_CAPTURE(run_queued, memcpy, copy_own, whole_factor)->Apply(sizes_queued);
BENCHMARK_CAPTURE(run_queued, reduce, reduce, whole_factor)->Apply(sizes_queued);
BENCHMARK_CAPTURE(run_queued, broadcast, broadcast, whole_factor)->Apply(sizes_queued);
BENCHMARK_CAPTURE(run_queued, reduce_scatter, reduce_scatter, part_factor)->Apply(sizes_queued);
BENCHMARK_CAPTURE(run_queued, all_gather, all_gather, part_factor)->Apply(sizes_queued);
BENCHMARK_CAPTURE(run_queued, scatter, scatter, part_factor)->Apply(sizes_queued);
BENCHMARK_CAPTURE(run_queued, gather, gather, part_factor)->Apply(sizes_queued);
BENCHMARK_CAPTURE(run_queued, gpu0_star, gpu0_star, star_factor)->Apply(sizes_queued);
BENCHMARK_CAPTURE(run_queued, barrier, barrier, no_factor)->Args({2, 4})->Args({4, 4})->UseManualTime()->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(run_synced, barrier, barrier, no_factor)->Args({2, 4})->Args({4, 4})->UseRealTime()->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace vitrine::bench

BENCHMARK_MAIN();
