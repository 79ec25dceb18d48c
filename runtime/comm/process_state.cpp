// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "runtime/comm/process_communicator.h"
#include "runtime/error.h"

namespace vitrine::comm {
namespace {

// Longer than the process group takes to find which process died.
constexpr int64_t kEchoPatienceMs = 2000;

}  // namespace

ProcessState::ProcessState(DeviceGroup& devices, std::vector<std::unique_ptr<LocalCommunicator>> local_ends)
    : locals(std::move(local_ends)),
      counts(devices.devices_of_processes()),
      process(devices.process()),
      process_group(devices.options().process_group) {
  first_ranks_.assign(counts.size() + 1, 0);
  std::inclusive_scan(counts.begin(), counts.end(), first_ranks_.begin() + 1);
  const bool several_devices = std::any_of(counts.begin(), counts.end(), [](int count) { return count > 1; });
  unrounded_ = several_devices || counts.size() > ProcessExchange::kLargestDirect;
  plans_gpus = devices.options().place && devices.options().place->gpus;
  if (devices[0].id().backend == Backend::meta) return;
  {
    const ProcessGroup::Waiting waiting(*process_group, "the opening of communicators");
    exchange = make_mpi_exchange(*process_group);
  }
  wait_causes_.resize(counts.size());
  for (size_t p = 0; p < counts.size(); ++p) {
    for (int op = 0; op < kOperationCount; ++op) {
      wait_causes_[p][static_cast<size_t>(op)] =
          fmt::format("rank {} in {}", p, operation_name(static_cast<Operation>(op)));
    }
  }
  number = process_group->new_group();
  handler_ = process_group->on_failure([this](const Reason& reason) { end(reason); });
}

ProcessState::~ProcessState() {
  if (process_group) process_group->remove_handler(handler_);
}

void ProcessState::end(const Reason& reason) {
  locals[0]->abort(reason);
  if (exchange) exchange->abort(reason);
}

void ProcessState::barrier(Operation operation, uint64_t tag, CpuStream* traced) {
  const int64_t begin_ns = traced != nullptr ? steady_now_ns() : 0;
  const int last = exchange->barrier(tag);
  if (traced == nullptr || last == process) return;
  const int64_t now_ns = steady_now_ns();
  if (now_ns - begin_ns < kShortestNotedWaitNs) return;
  traced->note_wait(begin_ns, now_ns, wait_causes_[static_cast<size_t>(last)][static_cast<size_t>(operation)].c_str());
}

void ProcessState::exchange_with_peers(Operation operation, uint64_t tag, CpuStream* traced,
                                       const std::function<void(ProcessExchange&)>& work) {
  try {
    barrier(operation, tag, traced);
    work(*exchange);
  } catch (const CommError& error) {
    // More often a peer's fault than this process's.
    process_group->fail(error.reason(), kEchoPatienceMs);
    throw;
  }
}

void ProcessState::add_route(uint64_t tag, int device, Route route) {
  const std::lock_guard lock(routes_mutex_);
  auto& routes = routes_[tag];
  routes.resize(static_cast<size_t>(counts[static_cast<size_t>(process)]));
  routes[static_cast<size_t>(device)] = route;
}

std::vector<ProcessState::Route> ProcessState::take_routes(uint64_t tag) {
  const std::lock_guard lock(routes_mutex_);
  return std::move(routes_.extract(tag).mapped());
}

void ProcessState::send_and_receive(std::byte* inputs, std::byte* outputs, int64_t bytes, uint64_t tag) {
  const std::vector<Route> routes = take_routes(tag);
  const int first = first_rank(process);
  std::vector<ProcessExchange::Part> sends, receives;
  std::map<int, std::byte*> output_of_source;  // messages from one process arrive in the order of its ranks
  for (size_t i = 0; i < routes.size(); ++i) {
    const int64_t offset = static_cast<int64_t>(i) * bytes;
    if (routes[i].from >= 0) output_of_source[routes[i].from] = outputs + offset;
    if (routes[i].to < 0) continue;
    const int to = process_of(routes[i].to);
    if (to != process) {
      sends.push_back({to, inputs + offset, bytes});
      continue;
    }
    const int target = routes[i].to - first;
    if (routes[static_cast<size_t>(target)].from != first + static_cast<int>(i)) {
      throw CommError(fmt::format("send_receive: rank {} sends to rank {}, which does not receive from it",
                                  first + static_cast<int>(i), routes[i].to));
    }
    if (bytes > 0) std::memcpy(outputs + target * bytes, inputs + offset, static_cast<size_t>(bytes));
  }
  for (const auto& [source, output] : output_of_source) {
    const int from = process_of(source);
    if (from != process) receives.push_back({from, output, bytes});
  }
  exchange->exchange(sends, receives, tag);
}

int ProcessState::process_of(int rank) const {
  return static_cast<int>(std::upper_bound(first_ranks_.begin(), first_ranks_.end(), rank) - first_ranks_.begin()) - 1;
}

std::vector<int> ProcessState::processes_of_ranks() const {
  std::vector<int> processes;
  for (size_t p = 0; p < counts.size(); ++p)
    processes.insert(processes.end(), static_cast<size_t>(counts[p]), static_cast<int>(p));
  return processes;
}

}  // namespace vitrine::comm
