// SPDX-License-Identifier: Apache-2.0
// Measures the effect of the bucket size: training steps on two devices with gradients reduced in buckets of 0.25 to
// 256 MiB. The largest size makes a single bucket, which is reduced after backward. CPU devices run once with spare
// cores, and once with all cores in the teams.
//
//   bench_buckets [--device=cuda] --benchmark_repetitions=5 --benchmark_format=json > buckets.json; tools/plot_buckets
//     buckets.json > buckets.svg
//
// Time: of one step. Counters, for the device that waited least for its peers: communication_ms in the collectives of a
// step; hidden, the share of it that overlapped compute; exposed_ms, the rest; late_ms, exposed waits for the peer;
// buckets.
#include <algorithm>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "bench/device_choice.h"
#include "bench/host_data.h"
#include "nn/parallel/engine.h"
#include "runtime/trace/communication_table.h"

namespace {

using namespace vitrine;

struct Job {
  const char* name;
  const char* model;
  int64_t batch;
  int64_t image_size;
  int64_t steps;  // of one measurement
};

constexpr Job kJobs[] = {{"alexnet_227_b32", "alexnet", 32, 227, 6}, {"small_cnn_b128", "small-cnn", 128, 32, 60}};
constexpr const char* kBucketMib[] = {"0.25", "1", "4", "16", "64", "256"};
constexpr int kDevices = 2;
constexpr int64_t kWarmUp = 2;  // steps

DeviceGroupOptions devices_of(Backend backend, int threads) {
  DeviceGroupOptions options;
  const int gpus = backend == Backend::cuda ? cuda_device_count() : kDevices;
  for (int i = 0; i < kDevices; ++i) options.devices.push_back({backend, i % gpus});
  if (backend == Backend::cpu) options.threads_per_device = {threads};
  return options;
}

/// The tables of all devices for the steps since `first`, and their wall time.
std::vector<CommunicationTable> tables_of(DeviceGroup& group, int64_t first, double& seconds) {
  for (int d = 0; d < group.size(); ++d) group[d].compute().mark_step();
  group.synchronize();
  std::vector<CommunicationTable> tables;
  for (int d = 0; d < group.size(); ++d) {
    const DeviceSpans spans{
        d, group[d].compute().stream().take_spans(), {}, group[d].communication().stream().take_spans(), {}};
    tables.push_back(make_communication_table(spans, {}, {.first_step = first}));
    seconds = make_phase_table(spans, {.first_step = first}).wall_seconds;
  }
  return tables;
}

void steps_with_buckets(benchmark::State& state, const Job& job, const DeviceGroupOptions& devices, double bucket_mib) {
  const Model model = make_model(job.model, {job.image_size, 3, 10, {}});
  DeviceGroup group(devices);
  EngineConfig config = bench::step_config("ddp", job.batch);
  config.bucket_bytes = config.first_bucket_bytes = static_cast<int64_t>(bucket_mib * (1 << 20));
  Engine engine(model, group, config, {{job.batch}, {}});
  const bench::HostData data(job.batch, group.host_memory());
  const auto steps = [&](int64_t count) {
    for (int64_t i = 0; i < count; ++i) engine.train_step(data.batch());
    engine.take_step_results(true);
  };
  for (auto _ : state) {
    const int64_t first = engine.steps_issued() + kWarmUp;
    steps(kWarmUp + job.steps);
    double seconds = 0;
    const std::vector<CommunicationTable> tables = tables_of(group, first, seconds);
    state.SetIterationTime(seconds / static_cast<double>(job.steps));
    const CommunicationTable& table = tables[least_late(tables)];
    const CommunicationRow all = table.total();
    const auto ms = [&](double total) { return total * 1e3 / static_cast<double>(table.steps); };
    state.counters["communication_ms"] = ms(all.seconds());
    state.counters["hidden"] = all.hidden_seconds / all.seconds();
    state.counters["exposed_ms"] = ms(all.exposed_seconds);
    state.counters["late_ms"] = ms(all.late_exposed_seconds);
    state.counters["buckets"] = static_cast<double>(table.rows.size());
  }
}

/// Division of the machine's cores: teams of equal size, and spare cores for copies and collectives.
struct Cores {
  std::string label;
  DeviceGroupOptions devices;
};

std::vector<Cores> core_variants(Backend backend) {
  if (backend == Backend::cuda) return {{"", devices_of(backend, 1)}};
  DeviceGroupOptions alone;
  alone.devices = {{backend, 0}};
  const int cores = static_cast<int>(DeviceGroup(alone)[0].cores().size());
  const int most = std::max(1, cores / kDevices);
  std::vector<Cores> variants;
  for (int threads = std::max(1, most - 1); threads <= most; ++threads) {
    variants.push_back(
        {"/spare_cores:" + std::to_string(std::max(0, cores - kDevices * threads)), devices_of(backend, threads)});
  }
  return variants;
}

}  // namespace

int main(int argc, char** argv) {
  const Backend backend = bench::take_device_choice(argc, argv);
  for (const Job& job : kJobs) {
    for (const Cores& cores : core_variants(backend)) {
      for (const std::string mib : kBucketMib) {
        const std::string label = std::string("buckets/") + job.name + cores.label + "/mib:" + mib;
        const auto run = [job, devices = cores.devices, mib](benchmark::State& s) {
          steps_with_buckets(s, job, devices, std::stod(mib));
        };
        benchmark::RegisterBenchmark(label.c_str(), run)->Unit(benchmark::kMillisecond)->UseManualTime()->Iterations(1);
      }
    }
  }
  return bench::run_benchmarks(argc, argv);
}
