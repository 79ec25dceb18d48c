// SPDX-License-Identifier: Apache-2.0
// Cost of rank 0's bookkeeping for the processes of a run, with simulated messages: no sockets and no peers. Argument:
// ranks. The time is that of one step (a rendezvous, an agreement, a collective of all ranks); "per rank" should not
// grow with the number of ranks.
#include <algorithm>
#include <string>

#include <benchmark/benchmark.h>

#include "runtime/process_group/failure_detector.h"
#include "runtime/process_group/message.h"

namespace vitrine::bench {
namespace {

using process_group::encode;
using process_group::FailureDetector;

void per_rank(benchmark::State& state) {
  state.counters["per rank"] =
      benchmark::Counter(static_cast<double>(state.range(0)) * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

FailureDetector complete_detector(int ranks) {
  FailureDetector detector(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    detector.join(rank, "rank " + std::to_string(rank) + " (pid 4242 on node17)", 1);
    detector.set_devices(rank, {"cuda:0"});
  }
  return detector;
}

void BM_Rendezvous(benchmark::State& state) {
  const auto ranks = static_cast<int>(state.range(0));
  const std::string join = encode(process_group::Join{1, ranks, "rank 1 (pid 4242 on node17)"});
  const std::string devices = encode(process_group::Devices{{"cuda:0"}});
  for (auto _ : state) {
    FailureDetector detector(ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      detector.join(rank, std::get<process_group::Join>(process_group::decode(join)).name, 1);
      detector.set_devices(rank, std::get<process_group::Devices>(process_group::decode(devices)).names);
    }
    benchmark::DoNotOptimize(detector.complete());
  }
  per_rank(state);
}

void BM_Agreement(benchmark::State& state) {
  const auto ranks = static_cast<int>(state.range(0));
  FailureDetector detector = complete_detector(ranks);
  uint64_t sequence = 0;
  for (auto _ : state) {
    const std::string message = encode(process_group::Gather{sequence, "what they train", {"0123456789abcdef 4096"}});
    bool equal = false;
    for (int rank = 0; rank < ranks; ++rank) {
      auto m = std::get<process_group::Gather>(process_group::decode(message));
      const auto parts = detector.gather(rank, m.sequence, std::move(m.what), std::move(m.part.bytes));
      if (!parts) continue;
      equal =
          std::all_of(parts->begin(), parts->end(), [&](const std::string& part) { return part == parts->front(); });
      for (int member = 1; member < ranks; ++member) {
        benchmark::DoNotOptimize(encode(process_group::Gathered{{equal ? "equal" : "different"}}));
      }
    }
    if (!equal) state.SkipWithError("the ranks differ");
    ++sequence;
  }
  per_rank(state);
}

/// Every rank begins a collective and has finished the previous one; the failure detector compares the records and
/// looks for late ranks.
void BM_Collective(benchmark::State& state) {
  const auto ranks = static_cast<int>(state.range(0));
  FailureDetector detector = complete_detector(ranks);
  CollectiveRecord record;
  record.operation = "all_reduce";
  record.label = "bucket 3";
  record.phase = "reduce";
  record.bytes = int64_t{25} << 20;
  int64_t now_ns = 1;
  for (auto _ : state) {
    record.step = static_cast<int64_t>(record.sequence);
    const std::string message = encode(process_group::Progress{0, record.sequence, {record}});
    for (int rank = 0; rank < ranks; ++rank) {
      const auto m = std::get<process_group::Progress>(process_group::decode(message));
      detector.hear(rank, now_ns);
      detector.progress(rank, m.device, m.finished, m.begun);
    }
    detector.tick(++now_ns, [](int) { return FailureDetector::Silence::kHanging; });
    ++record.sequence;
  }
  if (!detector.verdict().empty()) state.SkipWithError(detector.verdict().str().c_str());
  per_rank(state);
}

BENCHMARK(BM_Rendezvous)->Arg(64)->Arg(1000)->Arg(10000)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_Agreement)->Arg(64)->Arg(1000)->Arg(10000)->Unit(benchmark::kMicrosecond);
BENCHMARK(BM_Collective)->Arg(64)->Arg(1000)->Arg(10000)->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace vitrine::bench

BENCHMARK_MAIN();
