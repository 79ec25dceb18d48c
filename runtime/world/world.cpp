// SPDX-License-Identifier: Apache-2.0
#include "runtime/world/world.h"

#include <algorithm>
#include <chrono>
#include <fstream>

#include <fmt/format.h>

#include "runtime/trace/span.h"
#include "runtime/world/world_state.h"

namespace vitrine {

using namespace world;  // NOLINT: its private parts

namespace {

std::string machine_identity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  file >> boot;
  return host_name() + " " + boot;
}

}  // namespace

World::World(const WorldOptions& options) : state_(std::make_unique<State>(options)) {
  State& s = *state_;
  if (s.size < 1 || s.rank < 0 || s.rank >= s.size)
    throw ConfigError(fmt::format("world: rank {} of {} cannot be; ranks are 0 to size - 1", s.rank, s.size));
  if (options.timeout_ms < 1) throw ConfigError(fmt::format("world: a timeout of {} ms; it must be above 0", options.timeout_ms));
  s.machine = machine_identity();
  s.meet();
  s.thread = std::thread([&s] { s.watch(); });
  try {
    const std::vector<std::string> machines = all_gather("the machine it runs on", s.machine);
    s.local_size = 0;
    std::vector<std::string> distinct;
    for (size_t r = 0; r < machines.size(); ++r) {
      if (std::find(distinct.begin(), distinct.end(), machines[r]) == distinct.end()) distinct.push_back(machines[r]);
      if (machines[r] != machines[static_cast<size_t>(s.rank)]) continue;
      if (static_cast<int>(r) == s.rank) s.local_rank = s.local_size;
      ++s.local_size;
    }
    s.host_count = static_cast<int>(distinct.size());
  } catch (...) {
    s.stop();
    throw;
  }
}

World::~World() { state_->stop(); }

int World::rank() const { return state_->rank; }
int World::size() const { return state_->size; }
const std::string& World::machine() const { return state_->machine; }
int World::local_rank() const { return state_->local_rank; }
int World::local_size() const { return state_->local_size; }
bool World::over_mpi() const { return state_->mpi != nullptr; }

std::string World::description() const {
  const State& s = *state_;
  return fmt::format("{} {} on {} {}, met {}", s.size, s.size == 1 ? "process" : "processes", s.host_count, s.host_count == 1 ? "host" : "hosts",
                     s.met_text);
}

std::vector<std::string> World::all_gather(const std::string& what, const std::string& mine) {
  State& s = *state_;
  const Waiting waiting(*this, "the exchange of " + what);
  std::unique_lock lock(s.mutex);
  s.throw_if_failed_locked();
  if (s.closed) throw CommError(fmt::format("the exchange of {}: this process has left the world", what));
  s.gathered.reset();
  s.to_gather = State::Gathering{s.next_gathering++, what, mine};
  s.wake();
  s.changed.wait(lock, [&] { return s.gathered || !s.failure.empty(); });
  if (!s.gathered) s.throw_if_failed_locked();
  return *std::exchange(s.gathered, std::nullopt);
}

std::string World::broadcast(const std::string& what, const std::string& from_rank0) {
  return all_gather(what, rank() == 0 ? from_rank0 : std::string()).front();
}

std::vector<std::vector<std::string>> World::register_devices(const std::vector<std::string>& names) {
  State& s = *state_;
  Writer writer(MessageKind::devices);
  writer.number(names.size());
  for (const std::string& name : names) writer.text(name);
  {
    const std::lock_guard lock(s.mutex);
    s.slots.clear();
    for (const std::string& name : names) {
      s.slots.emplace_back();
      s.slots.back().name = name;
    }
    s.slots_told = false;
  }
  std::vector<std::vector<std::string>> all;
  for (const std::string& part : all_gather("the names of its devices", writer.bytes())) {
    Message message = decode(part);
    Devices* const devices = std::get_if<Devices>(&message);
    if (devices == nullptr) throw CommError("the names of its devices: another process sent something else");
    all.push_back(std::move(devices->names));
  }
  return all;
}

int World::new_group() {
  const std::lock_guard lock(state_->mutex);
  return state_->next_group++;
}

void World::begin_collective(int device, const CollectiveRecord& record) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  VITRINE_ASSERT(device >= 0 && static_cast<size_t>(device) < s.slots.size(), "devices are registered before they begin a collective");
  State::Slot& slot = s.slots[static_cast<size_t>(device)];
  slot.last = record;
  slot.fresh.push_back(record);
}

void World::finish_collective(int device) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  VITRINE_ASSERT(device >= 0 && static_cast<size_t>(device) < s.slots.size(), "devices are registered before they finish a collective");
  ++s.slots[static_cast<size_t>(device)].finished;
}

World::Waiting::Waiting(World& world, std::string what) : world_(world) {
  State& s = *world.state_;
  const std::lock_guard lock(s.mutex);
  id_ = s.next_id++;
  s.waits[id_] = {std::move(what), steady_now_ns()};
}

World::Waiting::~Waiting() {
  const std::lock_guard lock(world_.state_->mutex);
  world_.state_->waits.erase(id_);
}

void World::set_warm() {
  const std::lock_guard lock(state_->mutex);
  state_->warm = true;
}

void World::fail(const std::string& reason, int64_t patience_ms) {
  State& s = *state_;
  constexpr std::chrono::seconds kLongestTelling{1};
  std::unique_lock lock(s.mutex);
  const auto ended = [&] { return !s.failure.empty() || s.closed; };
  if (patience_ms > 0) s.changed.wait_for(lock, std::chrono::milliseconds(patience_ms), ended);
  if (!ended()) {
    s.error_to_tell = reason.empty() ? "without a reason" : reason;
    s.wake();
  }
  // A handler is part of the telling.
  if (std::this_thread::get_id() == s.thread.get_id()) return;
  s.changed.wait_for(lock, kLongestTelling, [&] { return s.all_told || s.closed; });
}

std::string World::failure() const {
  const std::lock_guard lock(state_->mutex);
  return state_->failure;
}

uint64_t World::on_failure(std::function<void(const std::string&)> handler) {
  State& s = *state_;
  const std::lock_guard handlers(s.handler_mutex);
  std::unique_lock lock(s.mutex);
  const uint64_t id = s.next_id++;
  if (!s.announced) {
    s.handlers[id] = std::move(handler);
    return id;
  }
  const std::string reason = s.failure;
  lock.unlock();
  handler(reason);
  return id;
}

void World::remove_handler(uint64_t id) {
  const std::lock_guard handlers(state_->handler_mutex);
  state_->handlers.erase(id);
}

void World::close() {
  State& s = *state_;
  // All that was begun is told before it: rank 0 compares.
  all_gather(kEndOfRun, {});
  {
    std::unique_lock lock(s.mutex);
    s.throw_if_failed_locked();
    s.closing = true;
    s.wake();
    s.changed.wait_for(lock, std::chrono::nanoseconds(2 * State::kByeTimeoutNs), [&] { return s.closed || !s.failure.empty(); });
    s.throw_if_failed_locked();
  }
  if (s.mpi) s.mpi->finish();
}

bool World::closed() const {
  const std::lock_guard lock(state_->mutex);
  return state_->closed;
}

}  // namespace vitrine
