// SPDX-License-Identifier: Apache-2.0
#include "runtime/process_group/process_group.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include <fmt/format.h>

#include "runtime/clock.h"
#include "runtime/hash.h"
#include "runtime/process_group/process_group_state.h"
#include "runtime/process_group/sockets.h"

namespace vitrine {

using namespace process_group;  // NOLINT: its private parts

namespace {

std::string machine_identity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  file >> boot;
  return host_name() + " " + boot;
}

/// For each process: its index among those on its machine, their number, and the number of machines.
std::vector<std::string> places_on_machines(const std::vector<std::string>& machines) {
  std::map<std::string, int> processes;
  std::vector<int> indices;
  for (const std::string& machine : machines) indices.push_back(processes[machine]++);
  std::vector<std::string> places;
  for (size_t r = 0; r < machines.size(); ++r)
    places.push_back(fmt::format("{} {} {}", indices[r], processes[machines[r]], processes.size()));
  return places;
}

/// Run lengths, such as "3 2 1 1": three processes with two devices each, then one with one.
std::vector<std::string> run_lengths(const std::vector<std::string>& counts) {
  std::string text;
  for (size_t begin = 0, end = 0; begin < counts.size(); begin = end) {
    while (end < counts.size() && counts[end] == counts[begin]) ++end;
    text += fmt::format("{} {} ", end - begin, counts[begin]);
  }
  return {text};
}

}  // namespace

ProcessGroup::ProcessGroup(const ProcessGroupOptions& options) : state_(std::make_unique<State>(options)) {
  State& s = *state_;
  if (s.size < 1 || s.rank < 0 || s.rank >= s.size)
    throw ConfigError(
        fmt::format("process group: rank is {}, expected 0 to size - 1, where size is {}", s.rank, s.size));
  if (options.timeout_ms < 1)
    throw ConfigError(fmt::format("process group: timeout is {} ms, expected more than 0", options.timeout_ms));
  s.machine = machine_identity();
  s.connect();
  s.thread = std::thread([&s] { s.watch(); });
  try {
    std::istringstream place(exchange("the machine it runs on", s.machine, places_on_machines));
    if (!(place >> s.local_rank >> s.local_size >> s.host_count))
      throw CommError("the machine it runs on: rank 0's answer is invalid");
  } catch (...) {
    s.stop();
    throw;
  }
}

ProcessGroup::~ProcessGroup() { state_->stop(); }

int ProcessGroup::rank() const { return state_->rank; }
int ProcessGroup::size() const { return state_->size; }
const std::string& ProcessGroup::machine() const { return state_->machine; }
int ProcessGroup::local_rank() const { return state_->local_rank; }
int ProcessGroup::local_size() const { return state_->local_size; }
bool ProcessGroup::over_mpi() const { return state_->mpi != nullptr; }

std::string ProcessGroup::description() const {
  const State& s = *state_;
  if (s.size == 1) return "1 process on 1 host";
  return fmt::format("{} processes on {} {}, connected {}", s.size, s.host_count, s.host_count == 1 ? "host" : "hosts",
                     s.connected_text);
}

std::string ProcessGroup::exchange(const std::string& what, const std::string& mine, const MakeAnswer& answer) {
  State& s = *state_;
  const Waiting waiting(*this, "the exchange of " + what);
  std::unique_lock lock(s.mutex);
  s.throw_if_failed_locked();
  if (s.closed) throw CommError(fmt::format("the exchange of {}: this process has left the process group", what));
  s.gathered.reset();
  s.answered.reset();
  s.post(Gather{s.next_gathering++, what, {mine}});
  if (s.is_server()) {
    s.changed.wait(lock, [&] { return s.gathered || !s.failure.empty(); });
    if (!s.gathered) s.throw_if_failed_locked();
    std::vector<std::string> parts = *std::exchange(s.gathered, std::nullopt);
    lock.unlock();
    std::vector<std::string> answers;
    try {
      answers = answer(std::move(parts));
    } catch (...) {
      fail(Reason(fmt::format("the exchange of {}: ", what)) +
           reason_of(std::current_exception()));  // the others wait for the answer
      throw;
    }
    VITRINE_ASSERT(answers.size() == 1 || answers.size() == static_cast<size_t>(s.size),
                   "an exchange has one answer, or one for each rank");
    lock.lock();
    s.to_answer = std::move(answers);
    s.wake();
  }
  s.changed.wait(lock, [&] { return s.answered || !s.failure.empty(); });
  if (!s.answered) s.throw_if_failed_locked();
  return *std::exchange(s.answered, std::nullopt);
}

std::vector<std::string> ProcessGroup::gather(const std::string& what, const std::string& mine) {
  std::vector<std::string> all;
  exchange(what, mine, [&](std::vector<std::string> parts) {
    all = std::move(parts);
    return std::vector<std::string>(1);
  });
  return all;
}

std::string ProcessGroup::broadcast(const std::string& what, const std::string& from_rank0) {
  const auto first = [](std::vector<std::string> parts) { return std::vector<std::string>{std::move(parts.front())}; };
  return exchange(what, rank() == 0 ? from_rank0 : std::string(), first);
}

bool ProcessGroup::all_equal(const std::string& what, std::string_view mine) {
  const uint64_t hash = hash_bytes(0, mine.data(), static_cast<int64_t>(mine.size()));
  const auto compare = [](const std::vector<std::string>& hashes) {
    const bool equal = std::ranges::all_of(hashes, [&](const std::string& h) { return h == hashes.front(); });
    return std::vector<std::string>{equal ? "equal" : "different"};
  };
  return exchange(what, fmt::format("{:x} {}", hash, mine.size()), compare) == "equal";
}

std::vector<double> ProcessGroup::sum(const std::string& what, const std::vector<double>& mine) {
  const auto bytes_of = [](const std::vector<double>& values) {
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double));
  };
  const auto read = [&](const std::string& bytes) {
    if (bytes.size() != mine.size() * sizeof(double)) {
      throw CommError(
          fmt::format("the sum of {}: received {} bytes, expected {} numbers; run the same version on all processes",
                      what, bytes.size(), mine.size()));
    }
    std::vector<double> values(mine.size());
    if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  };
  const auto add = [&](const std::vector<std::string>& parts) {
    std::vector<double> sums(mine.size());
    for (const std::string& part : parts) {
      const std::vector<double> values = read(part);
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += values[i];
    }
    return std::vector<std::string>{bytes_of(sums)};
  };
  return read(exchange(what, bytes_of(mine), add));
}

std::vector<int> ProcessGroup::register_devices(const std::vector<std::string>& names) {
  State& s = *state_;
  {
    const std::lock_guard lock(s.mutex);
    s.post(Devices{names});
    s.devices.assign(names.size(), {});
  }
  std::istringstream runs(exchange("the number of its devices", std::to_string(names.size()), run_lengths));
  std::vector<int> counts;
  const auto size = static_cast<size_t>(s.size);
  for (size_t length = 0, devices = 0; runs >> length >> devices;)
    counts.insert(counts.end(), std::min(length, size), static_cast<int>(devices));
  if (counts.size() != size) throw CommError("the number of its devices: rank 0's answer does not name every process");
  return counts;
}

int ProcessGroup::new_group() {
  const std::lock_guard lock(state_->mutex);
  return state_->next_group++;
}

void ProcessGroup::begin_collective(int device, const CollectiveRecord& record) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  VITRINE_ASSERT(device >= 0 && static_cast<size_t>(device) < s.devices.size(),
                 "devices are registered before they begin a collective");
  State::Device& state = s.devices[static_cast<size_t>(device)];
  state.last = record;
  state.unreported.push_back(record);
}

void ProcessGroup::finish_collective(int device) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  VITRINE_ASSERT(device >= 0 && static_cast<size_t>(device) < s.devices.size(),
                 "devices are registered before they finish a collective");
  ++s.devices[static_cast<size_t>(device)].finished;
}

ProcessGroup::Waiting::Waiting(ProcessGroup& process_group, std::string what) : process_group_(process_group) {
  State& s = *process_group.state_;
  const std::lock_guard lock(s.mutex);
  id_ = s.next_id++;
  s.waits[id_] = {std::move(what), steady_now_ns()};
}

ProcessGroup::Waiting::~Waiting() {
  const std::lock_guard lock(process_group_.state_->mutex);
  process_group_.state_->waits.erase(id_);
}

void ProcessGroup::set_warm() {
  const std::lock_guard lock(state_->mutex);
  state_->warm = true;
}

void ProcessGroup::note_transfer() { state_->transfers.fetch_add(1, std::memory_order_relaxed); }

void ProcessGroup::fail(const Reason& reason, int64_t patience_ms) {
  State& s = *state_;
  constexpr std::chrono::seconds kLongestTelling{1};
  std::unique_lock lock(s.mutex);
  const auto ended = [&] { return !s.failure.empty() || s.closed; };
  if (patience_ms > 0) s.changed.wait_for(lock, std::chrono::milliseconds(patience_ms), ended);
  if (!ended()) s.post(Failed{reason.empty() ? Reason("without a reason") : reason});
  // Notifying includes the handlers.
  if (std::this_thread::get_id() == s.thread.get_id()) return;
  s.changed.wait_for(lock, kLongestTelling, [&] { return s.all_reported || s.closed; });
}

Reason ProcessGroup::failure() const {
  const std::lock_guard lock(state_->mutex);
  return state_->failure;
}

uint64_t ProcessGroup::on_failure(std::function<void(const Reason&)> handler) {
  State& s = *state_;
  const std::lock_guard handlers(s.handler_mutex);
  std::unique_lock lock(s.mutex);
  const uint64_t id = s.next_id++;
  if (!s.announced) {
    s.handlers[id] = std::move(handler);
    return id;
  }
  const Reason reason = s.failure;
  lock.unlock();
  handler(reason);
  return id;
}

void ProcessGroup::remove_handler(uint64_t id) {
  const std::lock_guard handlers(state_->handler_mutex);
  state_->handlers.erase(id);
}

void ProcessGroup::close() {
  State& s = *state_;
  // Everything begun is reported before it, because rank 0 compares.
  gather(kEndOfRun, {});
  {
    std::unique_lock lock(s.mutex);
    s.throw_if_failed_locked();
    s.closing = true;
    s.wake();
    s.changed.wait_for(lock, std::chrono::nanoseconds(2 * State::kByeTimeoutNs),
                       [&] { return s.closed || !s.failure.empty(); });
    s.throw_if_failed_locked();
  }
  if (s.mpi) s.mpi->finish(s.mpi_deadline_ms(), [&] { s.leave_together(); });
}

bool ProcessGroup::closed() const {
  const std::lock_guard lock(state_->mutex);
  return state_->closed;
}

}  // namespace vitrine
