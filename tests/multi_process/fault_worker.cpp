// SPDX-License-Identifier: Apache-2.0
// One of several processes that train, or issue collectives, until one of them fails:
//   fault_worker FAULT RANK STEP DELAY_US TIMEOUT_MS MARKER
// FAULT: none; kill, stop, exit, throw, hang (in training); order, count, skip (of collectives); MPI_Init, MPI_Finalize
// (stopped there), Finalized (stopped at its end, when the others have ended it, too),
// elsewhere (runs another program instead). MARKER lets the test find the process.
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>

#include <unistd.h>

#include "nn/layers/linear.h"
#include "runtime/comm/communicator.h"
#include "runtime/copy.h"
#include "runtime/error.h"
#include "runtime/process_group/join_processes.h"
#include "tests/parallel/planted_layer.h"
#include "tests/parallel/random_model.h"

namespace {
bool stops_in_finalize = false, stops_finalized = false;
}

// MPI's profiling interface: the library's call comes here.
extern "C" int PMPI_Finalize();
extern "C" int MPI_Finalize() {
  if (stops_in_finalize) kill(getpid(), SIGSTOP);
  const int result = PMPI_Finalize();
  if (stops_finalized) kill(getpid(), SIGSTOP);
  return result;
}

namespace vitrine::test {
namespace {

constexpr int64_t kSteps = 1'000'000;  // more than there is time for
constexpr int64_t kBatch = 64;

struct Fault {
  std::string kind;
  int rank = 0;
  int64_t step = 0;
  int delay_us = 0;

  bool due(const ProcessGroup& process_group, int64_t at_step) const {
    return process_group.rank() == rank && at_step == step;
  }
};

/// Injects the fault: now, or a little later, in the middle of the step.
void strike(const Fault& fault) {
  const auto act = [kind = fault.kind] {
    if (kind == "kill") raise(SIGKILL);
    if (kind == "stop") kill(getpid(), SIGSTOP);
    if (kind == "exit") _exit(0);
  };
  if (fault.delay_us == 0) return act();
  std::thread([act, delay = fault.delay_us] {
    std::this_thread::sleep_for(std::chrono::microseconds(delay));
    act();
  }).detach();
}

void train(ProcessGroup& process_group, DeviceGroup& devices, const Fault& fault) {
  std::atomic<bool> armed = false;
  const Model model = planted_model(std::make_unique<RunsOutOfMemory>(armed));
  EngineConfig config = small_config(model, kBatch);
  config.scheme = scheme_preset("ddp");
  config.bucket_bytes = config.first_bucket_bytes = 4096;
  Engine engine(model, devices, config, {{kBatch}, {}});
  const OwnedBatch whole =
      random_batch(model, kBatch / process_group.size(), static_cast<uint32_t>(process_group.rank()), 0);
  HostBatch batch = whole.view();
  batch.global_samples = kBatch;
  for (int64_t step = 0; step < kSteps; ++step) {
    if (fault.due(process_group, step)) {
      armed = fault.kind == "throw";
      strike(fault);
      if (fault.kind == "hang") std::this_thread::sleep_for(std::chrono::hours(1));
    }
    engine.train_step(batch);
  }
}

void issue_collectives(ProcessGroup& process_group, DeviceGroup& devices, const Fault& fault) {
  static constexpr const char* kNames[] = {"bucket 0", "bucket 1", "bucket 2", "bucket 3"};
  const auto communicators = make_communicators(devices);
  ExecContext& ctx = devices[0].communication();
  const Tensor values = ctx.allocate({4096}, DType::f32, Category::communication, "values");
  zero(ctx, values);
  for (int64_t step = 0; step < kSteps; ++step) {
    ctx.set_step(step);
    int order[] = {0, 1, 2, 3};
    if (fault.due(process_group, step) && fault.kind == "order") std::swap(order[1], order[2]);
    for (const int bucket : order) {
      const bool now = fault.due(process_group, step) && bucket == 2;
      if (now && fault.kind == "skip") continue;
      const int64_t count = 512 * (bucket + 1) - (now && fault.kind == "count" ? 1 : 0);
      const PhaseScope phase(ctx, Phase::reduce, kNames[bucket]);
      communicators[0]->all_reduce(ctx, values.view().rows(0, count));
    }
    ctx.stream().synchronize();
    zero(ctx, values);
  }
}

int run(const Fault& fault, int64_t timeout_ms) {
  ProcessGroupOptions options;
  options.rank = std::atoi(std::getenv("OMPI_COMM_WORLD_RANK"));
  options.size = std::atoi(std::getenv("OMPI_COMM_WORLD_SIZE"));
  options.timeout_ms = timeout_ms;
  options.exit_after_ms = 2000;
  options.on_failure_found = [](const std::string& reason) {
    std::cerr << "process group: " + reason + "\n" << std::flush;
  };
  const bool struck = options.rank == fault.rank;
  if (struck && fault.kind == "MPI_Init") kill(getpid(), SIGSTOP);
  if (struck && fault.kind == "elsewhere") execlp("sleep", "sleep", "60", nullptr);
  stops_in_finalize = struck && fault.kind == "MPI_Finalize";
  stops_finalized = struck && fault.kind == "Finalized";
  const auto process_group = std::make_shared<ProcessGroup>(options);
  if (fault.kind == "MPI_Finalize" || fault.kind == "Finalized") {
    process_group->close();
    return 0;
  }
  const int rank = process_group->rank();
  try {
    DeviceGroupOptions group{
        .devices = {{Backend::cpu, 0}}, .memory_bytes = {int64_t{64} << 20}, .threads_per_device = {1}};
    DeviceGroup devices(join_processes(std::move(group), process_group));
    const bool collectives = fault.kind == "order" || fault.kind == "count" || fault.kind == "skip";
    collectives ? issue_collectives(*process_group, devices, fault) : train(*process_group, devices, fault);
  } catch (const std::exception& error) {
    process_group->fail(error.what());
    std::cerr << "rank " + std::to_string(rank) + " ends: " + error.what() + "\n" << std::flush;
    _exit(1);
  }
  return 0;
}

}  // namespace
}  // namespace vitrine::test

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  return vitrine::test::run({argv[1], std::atoi(argv[2]), std::atoll(argv[3]), std::atoi(argv[4])},
                            std::atoll(argv[5]));
}
