// SPDX-License-Identifier: Apache-2.0
// Collectives of one CPU device in each of several processes, over MPI:
//   mpirun -np 4 --bind-to none bench_collectives_mpi
// Time per operation, many issued back to back, on rank 0, which alone prints. Argument: bytes of each device's buffer. busbw as nccl-tests count it.
#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>

#include <benchmark/benchmark.h>

#include "bench/collective_calls.h"
#include "runtime/copy.h"
#include "runtime/error.h"
#include "runtime/process_group/launch.h"
#include "runtime/process_group/process_group.h"

namespace vitrine::bench {
namespace {

constexpr int64_t kBytes[] = {int64_t{64} << 10, int64_t{1} << 20, int64_t{25} << 20, int64_t{256} << 20};

/// This process's device and its end of the communicator.
class Process {
 public:
  explicit Process(std::shared_ptr<ProcessGroup> process_group)
      : devices_(options_for(std::move(process_group))), communicators_(make_communicators(devices_)) {
    ExecContext& ctx = devices_[0].compute();
    for (Tensor* tensor : {&input_, &output_}) {
      *tensor = ctx.allocate({kBytes[3] / 4}, DType::f32, Category::communication, "buffer");
      zero(ctx, *tensor);
    }
  }

  /// Mean seconds of one operation.
  double seconds(Issue issue, int64_t bytes, int operations) {
    const Tensor input = input_.rows(0, bytes / 4), output = output_.rows(0, bytes / 4);
    const Rank rank{*communicators_[0], devices_[0].compute(), input, output};
    barrier(rank);
    devices_.synchronize();
    const int64_t begin_ns = steady_now_ns();
    for (int i = 0; i < operations; ++i) issue(rank);
    devices_.synchronize();
    return static_cast<double>(steady_now_ns() - begin_ns) * 1e-9 / operations;
  }
  int ranks() const { return devices_.world_size(); }

 private:
  static DeviceGroupOptions options_for(std::shared_ptr<ProcessGroup> process_group) {
    DeviceGroupOptions options;
    options.devices = {{Backend::cpu, 0}};
    options.memory_bytes = {int64_t{2} << 30};
    options.threads_per_device = {1};
    options.trace = TraceLevel::off;
    options.process_group = std::move(process_group);
    return options;
  }

  DeviceGroup devices_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  Tensor input_, output_;
};

void add(Process& process, const char* name, Issue issue, double (*factor)(double)) {
  for (const int64_t bytes : kBytes) {
    // All processes must do the same: so the number of repetitions does not depend on what is measured.
    const int operations = static_cast<int>(std::clamp<int64_t>((int64_t{128} << 20) / bytes, 2, 200));
    const auto run = [=, &process](benchmark::State& state) {
      while (state.KeepRunning()) state.SetIterationTime(process.seconds(issue, bytes, operations));
      const double moved = factor(process.ranks()) * static_cast<double>(bytes);
      if (moved > 0)
        state.counters["busbw"] = benchmark::Counter(moved, benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::OneK::kIs1000);
    };
    benchmark::RegisterBenchmark(name, run)->Arg(bytes)->ArgName("bytes")->Iterations(5)->UseManualTime()->Unit(benchmark::kMicrosecond);
  }
}

class Silent final : public benchmark::BenchmarkReporter {
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

int run(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const Launch launch = detect_launch({}, [](const char* name) { return std::getenv(name); });
  if (launch.launcher != Launch::Launcher::open_mpi) {
    throw ConfigError("bench_collectives_mpi: it was not started by mpirun; use mpirun -np 4 --bind-to none bench_collectives_mpi");
  }
  ProcessGroupOptions options;
  options.rank = launch.rank;
  options.size = launch.world_size;
  options.exit_after_ms = 2000;
  const auto process_group = std::make_shared<ProcessGroup>(options);
  {
    Process process(process_group);
    const std::pair<const char*, std::pair<Issue, double (*)(double)>> all[] = {
        {"all_reduce", {all_reduce, ring_factor}}, {"reduce", {reduce, whole_factor}},
        {"broadcast", {broadcast, whole_factor}},  {"reduce_scatter", {reduce_scatter, part_factor}},
        {"all_gather", {all_gather, part_factor}}, {"scatter", {scatter, part_factor}},
        {"gather", {gather, part_factor}},         {"gpu0_star", {gpu0_star, star_factor}}};
    for (const auto& [name, what] : all) add(process, name, what.first, what.second);
    Silent silent;
    process_group->rank() == 0 ? benchmark::RunSpecifiedBenchmarks() : benchmark::RunSpecifiedBenchmarks(&silent);
  }
  process_group->close();
  return 0;
}

}  // namespace
}  // namespace vitrine::bench

int main(int argc, char** argv) {
  try {
    return vitrine::bench::run(argc, argv);
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
