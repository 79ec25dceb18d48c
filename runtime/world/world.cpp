// SPDX-License-Identifier: Apache-2.0
#include "runtime/world/world.h"

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "runtime/error.h"
#include "runtime/trace/span.h"
#include "runtime/world/connection.h"
#include "runtime/world/meeting.h"
#include "runtime/world/message.h"
#include "runtime/world/mpi_session.h"
#include "runtime/world/referee.h"

namespace vitrine {

using namespace world;  // NOLINT: its private parts

namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int kFirstStepFactor = 5;
constexpr int kTickMs = 50;
constexpr int64_t kBeatNs = 200 * kMs;
constexpr int64_t kByeTimeoutNs = 5000 * kMs;
// Longer than the hub takes to judge.
constexpr int64_t kHubSilentNs = 2500 * kMs;
constexpr uint32_t kMagic = 0x56495431;  // "VIT1"

std::string machine_identity() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot;
  file >> boot;
  return host_name() + " " + boot;
}

std::string process_name(int rank) { return fmt::format("rank {} (pid {} on {})", rank, getpid(), host_name()); }

}  // namespace

struct World::State {
  explicit State(const WorldOptions& o) : options(o), rank(o.rank), size(o.size), referee(o.size) {}

  // Meeting, in meet.
  void meet();
  void wait_for_members();
  /// Takes a process in, or refuses it. False when whoever connected is no process of Vitrine's, or is gone.
  bool greet(Connection& connection, uint64_t token);
  void find_hub();
  bool try_hub(const Address& address, std::string& problem);
  int64_t meeting_ms() const { return options.timeout_ms * kFirstStepFactor; }

  // The world's own thread.
  void watch();
  void wait_for_something();
  void tell_local(int64_t now_ns);
  void tell_progress();
  void check_waits(int64_t now_ns);
  void serve_members(int64_t now_ns);
  void serve_hub(int64_t now_ns);
  void handle_from_member(int from, const std::string& bytes, int64_t now_ns);
  void handle_from_hub(const std::string& bytes);
  void send_to_hub(const std::string& bytes);
  void send_to_members(const std::string& bytes);
  void take_gathered(std::vector<std::string> parts);
  void declare(const std::string& verdict);
  /// "; rank 2 has come to collective 17 (...)", or empty.
  std::string own_position() const;
  bool done(int64_t now_ns);
  void wake() {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_up.get(), &one, sizeof one);
  }
  bool is_hub() const { return rank == 0; }
  void throw_if_failed_locked() const {
    if (!failure.empty()) throw CommError(failure);
  }
  int64_t timeout_ns() const { return options.timeout_ms * kMs * (warm ? 1 : kFirstStepFactor); }

  struct Slot {
    std::string name;
    uint64_t begun = 0, finished = 0, told_finished = 0;
    std::optional<CollectiveRecord> last;
    std::vector<CollectiveRecord> fresh;  // begun, and not yet told
  };
  struct Wait {
    std::string what;
    int64_t since_ns = 0;
    bool told = false;
  };
  struct Gathering {
    uint64_t sequence;
    std::string what, part;
  };

  WorldOptions options;
  int rank, size, local_rank = 0, local_size = 1;
  std::string met_text, machine = machine_identity();
  int host_count = 1;
  std::unique_ptr<MpiSession> mpi;
  Descriptor wake_up{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};
  std::thread thread;

  // Under the mutex: what other threads hand to the world's thread and get from it.
  mutable std::mutex mutex;
  std::condition_variable changed;
  std::string failure;
  bool warm = false, closing = false, stopping = false, closed = false;
  bool all_told = false;  // of the failure: the other processes, and the handlers
  std::vector<Slot> slots;
  bool slots_told = true;
  std::map<uint64_t, Wait> waits;
  uint64_t next_id = 1, next_gathering = 0;
  std::optional<Gathering> to_gather;
  std::optional<std::vector<std::string>> gathered;
  std::string error_to_tell;
  std::recursive_mutex handler_mutex;  // held while handlers are called, which may call on
  bool announced = false;
  std::map<uint64_t, std::function<void(const std::string&)>> handlers;

  // Of the world's thread.
  Referee referee;
  std::vector<std::optional<Connection>> members;  // of the hub, by rank
  std::optional<Connection> hub;                   // of the others
  std::string hub_name, hub_position = "nothing is known of its collectives";
  int64_t hub_heard_ns = 0, last_beat_ns = 0, failed_ns = 0, bye_ns = 0;
  bool said_bye = false;
};

// --- Meeting ---

void World::State::meet() {
  if (size == 1) {
    referee.join(0, process_name(0), steady_now_ns());
    met_text = "alone";
    return;
  }
  if (options.init.empty()) {
    mpi = MpiSession::open();
    if (mpi->rank() != rank || mpi->size() != size) {
      throw CommError(
          fmt::format("MPI says that this is rank {} of {}, but it was started as rank {} of {}; was it started by mpirun (under Slurm: "
                      "srun --mpi=pmix)?",
                      mpi->rank(), mpi->size(), rank, size));
    }
    met_text = "over MPI";
  } else {
    met_text = "at " + options.init;
  }
  is_hub() ? wait_for_members() : find_hub();
}

void World::State::wait_for_members() {
  const InitMethod method = options.init.empty() ? InitMethod{} : parse_init_method(options.init);
  const Descriptor listener = listen_on(method.port);
  // At a port that was told beforehand nobody can know a token.
  const Address address{method.port != 0 ? 0 : make_token(), port_of(listener), host_name(), interface_addresses()};
  if (mpi) mpi->broadcast(address.str(), meeting_ms());
  if (!method.path.empty()) write_address(method.path, address);
  members.resize(static_cast<size_t>(size));
  referee.join(0, process_name(0), steady_now_ns());
  std::vector<Connection> strangers;
  const int64_t deadline_ns = steady_now_ns() + meeting_ms() * kMs;
  while (!referee.complete()) {
    if (steady_now_ns() > deadline_ns) {
      throw CommError(
          fmt::format("rank 0 waited {} s for {} of {} processes, which did not come; were they started, and can they reach {} (port {})?",
                      meeting_ms() / 1000, referee.missing(), size, host_name(), address.port));
    }
    while (Descriptor socket = accept_one(listener)) strangers.emplace_back(std::move(socket));
    std::erase_if(strangers, [&](Connection& stranger) { return !greet(stranger, address.token); });
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (!method.path.empty()) unlink(method.path.c_str());
  send_to_members(Writer(MessageKind::welcome).text(process_name(0)).bytes());
}

bool World::State::greet(Connection& connection, uint64_t token) try {
  const bool open = connection.receive();
  const std::optional<std::string> bytes = connection.take();
  if (!bytes) return open;
  Reader reader(*bytes);
  if (reader.number<MessageKind>() != MessageKind::hello || reader.number<uint32_t>() != kMagic) return false;
  const auto given = reader.number<uint64_t>();
  const int who = reader.number<int>(), their_size = reader.number<int>();
  const std::string name = reader.text();
  std::string refusal;
  if (given != token) {
    refusal = "it belongs to another run";
  } else if (their_size != size) {
    refusal = fmt::format("it counts {} processes, rank 0 counts {}", their_size, size);
  } else if (who < 1 || who >= size) {
    refusal = fmt::format("there are ranks 0 to {}", size - 1);
  } else if (members[static_cast<size_t>(who)]) {
    refusal = fmt::format("there is another rank {}", who);
  }
  if (!refusal.empty()) {
    connection.send(Writer(MessageKind::refused).text(refusal).bytes());
    return true;
  }
  members[static_cast<size_t>(who)].emplace(std::move(connection));
  referee.join(who, name, steady_now_ns());
  return false;
} catch (const CommError&) {
  return false;
}

void World::State::find_hub() {
  const int64_t deadline_ns = steady_now_ns() + meeting_ms() * kMs;
  const InitMethod method = options.init.empty() ? InitMethod{} : parse_init_method(options.init);
  const std::string told = mpi ? mpi->broadcast({}, meeting_ms()) : std::string();
  std::string problem = method.path.empty() ? "nobody listens there" : "the file is not there";
  while (true) {
    Address address;
    const std::string text = method.path.empty() ? told : read_address(method.path);
    if (!method.host.empty()) {
      address = {0, method.port, {}, {method.host}};
    } else if (!text.empty()) {
      address = Address::parse(text);
    }
    if (address.host_name == host_name()) address.hosts.insert(address.hosts.begin(), "127.0.0.1");
    if (!address.hosts.empty() && try_hub(address, problem)) return;
    if (steady_now_ns() > deadline_ns) {
      throw CommError(
          fmt::format("rank {} could not reach rank 0 {} within {} s: {}; was it started?", rank, met_text, meeting_ms() / 1000, problem));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

bool World::State::try_hub(const Address& address, std::string& problem) {
  constexpr int64_t kConnectMs = 1000;
  for (const std::string& host : address.hosts) {
    Descriptor socket = connect_to(host, address.port, kConnectMs, problem);
    if (!socket) continue;
    Connection connection(std::move(socket));
    connection.send(Writer(MessageKind::hello).number(kMagic).number(address.token).number(rank).number(size).text(process_name(rank)).bytes());
    const int64_t deadline_ns = steady_now_ns() + meeting_ms() * kMs;
    for (bool open = true; open && steady_now_ns() < deadline_ns;) {
      open = connection.receive();
      if (const auto bytes = connection.take()) {
        Reader reader(*bytes);
        const auto kind = reader.number<MessageKind>();
        if (kind == MessageKind::refused) {
          problem = fmt::format("rank 0 at {}:{} refuses it: {}", host, address.port, reader.text());
          break;
        }
        hub_name = reader.text();
        hub.emplace(std::move(connection));
        hub_heard_ns = steady_now_ns();
        return true;
      }
      if (!open) problem = fmt::format("rank 0 at {}:{} ended before all processes had come", host, address.port);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  return false;
}

// --- The world's own thread ---

void World::State::wait_for_something() {
  std::vector<pollfd> waiting = {{wake_up.get(), POLLIN, 0}};
  const auto add = [&](const std::optional<Connection>& c) {
    if (c) waiting.push_back({c->descriptor(), static_cast<short>(POLLIN | (c->has_unsent() ? POLLOUT : 0)), 0});
  };
  for (const auto& member : members) add(member);
  add(hub);
  poll(waiting.data(), waiting.size(), kTickMs);
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t taken = read(wake_up.get(), &count, sizeof count);
}

void World::State::watch() {
  while (true) {
    wait_for_something();
    const int64_t now_ns = steady_now_ns();
    try {
      is_hub() ? serve_members(now_ns) : serve_hub(now_ns);
      tell_local(now_ns);
      check_waits(now_ns);
      if (is_hub()) {
        referee.tick(now_ns);
        if (!referee.verdict().empty()) declare(referee.verdict());
      }
    } catch (const std::exception& error) {
      declare(fmt::format("{}: its watch over the others failed: {}", process_name(rank), error.what()));
    }
    if (failed_ns != 0 && options.exit_after_ms > 0 && now_ns - failed_ns > options.exit_after_ms * kMs) _exit(1);
    if (done(now_ns)) return;
  }
}

bool World::State::done(int64_t now_ns) {
  const std::lock_guard lock(mutex);
  if (stopping) return true;
  if (!closing) return false;
  if (!is_hub()) {
    if (!said_bye) hub->send(Writer(MessageKind::bye).bytes());
    said_bye = true;
    if (!hub->flush() || !hub->has_unsent()) closed = true;
  } else {
    if (bye_ns == 0) bye_ns = now_ns;
    referee.bye(0);
    closed = referee.all_said_bye() || now_ns - bye_ns > kByeTimeoutNs;
  }
  if (closed) changed.notify_all();
  return closed;
}

void World::State::send_to_hub(const std::string& bytes) {
  if (is_hub()) {
    handle_from_member(0, bytes, steady_now_ns());
  } else {
    hub->send(bytes);
  }
}

void World::State::send_to_members(const std::string& bytes) {
  for (auto& member : members) {
    if (member) member->send(bytes);
  }
}

void World::State::tell_progress() {
  std::vector<std::string> messages;
  {
    const std::lock_guard lock(mutex);
    if (!slots_told) {
      Writer writer(MessageKind::devices);
      writer.number(slots.size());
      for (const Slot& slot : slots) writer.text(slot.name);
      messages.push_back(writer.bytes());
      slots_told = true;
    }
    for (size_t i = 0; i < slots.size(); ++i) {
      Slot& slot = slots[i];
      if (slot.fresh.empty() && slot.finished == slot.told_finished) continue;
      Writer writer(MessageKind::progress);
      writer.number(static_cast<int>(i)).number(slot.finished).number(slot.fresh.size());
      for (const CollectiveRecord& record : slot.fresh) writer.record(record);
      slot.fresh.clear();
      slot.told_finished = slot.finished;
      messages.push_back(writer.bytes());
    }
  }
  for (const std::string& message : messages) send_to_hub(message);
}

void World::State::tell_local(int64_t now_ns) {
  tell_progress();
  std::optional<Gathering> gathering;
  std::string error;
  {
    const std::lock_guard lock(mutex);
    gathering = std::exchange(to_gather, std::nullopt);
    error = std::exchange(error_to_tell, {});
  }
  // Progress first: when a gathering is complete, all that was begun before it has been compared.
  if (gathering) send_to_hub(Writer(MessageKind::gather).number(gathering->sequence).text(gathering->what).text(gathering->part).bytes());
  if (!error.empty()) send_to_hub(Writer(MessageKind::error).text(error).bytes());
  if (now_ns - last_beat_ns < kBeatNs) return;
  last_beat_ns = now_ns;
  if (is_hub()) {
    referee.hear(0, now_ns);
    send_to_members(Writer(MessageKind::beat).text(referee.position(0)).bytes());
  } else {
    hub->send(Writer(MessageKind::beat).bytes());
  }
}

void World::State::check_waits(int64_t now_ns) {
  std::string what;
  int64_t waited_ns = 0;
  {
    const std::lock_guard lock(mutex);
    if (!failure.empty()) return;
    for (auto& [id, wait] : waits) {
      if (now_ns - wait.since_ns < timeout_ns() || now_ns - wait.since_ns < waited_ns) continue;
      waited_ns = now_ns - wait.since_ns;
      what = wait.told ? std::string() : wait.what;
      wait.told = true;
    }
  }
  if (!what.empty()) send_to_hub(Writer(MessageKind::waiting).text(what).number(waited_ns / kMs).bytes());
  if (is_hub() || waited_ns == 0 || now_ns - hub_heard_ns < kHubSilentNs) return;
  declare(
      fmt::format("{} hangs: nothing was heard of it for {:.1f} s, though its connection is open (is it stopped, or its machine out of reach?); {}{}",
                  hub_name, static_cast<double>(now_ns - hub_heard_ns) * 1e-9, hub_position, own_position()));
}

void World::State::serve_members(int64_t now_ns) {
  for (size_t i = 0; i < members.size(); ++i) {
    if (!members[i]) continue;
    const bool open = members[i]->receive() && members[i]->flush();
    while (auto bytes = members[i]->take()) handle_from_member(static_cast<int>(i), *bytes, now_ns);
    if (open) continue;
    members[i].reset();
    referee.lost(static_cast<int>(i), now_ns);
  }
}

void World::State::handle_from_member(int from, const std::string& bytes, int64_t now_ns) {
  Reader reader(bytes);
  referee.hear(from, now_ns);
  switch (reader.number<MessageKind>()) {
    case MessageKind::devices: {
      std::vector<std::string> names(reader.number<size_t>());
      for (std::string& name : names) name = reader.text();
      return referee.set_devices(from, std::move(names));
    }
    case MessageKind::progress: {
      const int device = reader.number<int>();
      const auto finished = reader.number<uint64_t>();
      std::vector<CollectiveRecord> begun(reader.number<size_t>());
      for (CollectiveRecord& record : begun) record = reader.record();
      return referee.progress(from, device, finished, begun);
    }
    case MessageKind::waiting: {
      std::string what = reader.text();
      return referee.overdue(from, std::move(what), reader.number<int64_t>(), now_ns);
    }
    case MessageKind::gather: {
      const auto sequence = reader.number<uint64_t>();
      std::string what = reader.text();
      std::optional<std::vector<std::string>> parts = referee.gather(from, sequence, std::move(what), reader.text());
      if (!parts) return;
      Writer writer(MessageKind::gathered);
      for (const std::string& part : *parts) writer.text(part);
      send_to_members(writer.bytes());
      return take_gathered(std::move(*parts));
    }
    case MessageKind::error:
      return referee.fail(from, reader.text());
    case MessageKind::bye:
      return referee.bye(from);
    default:
      return;
  }
}

void World::State::serve_hub(int64_t now_ns) {
  const bool open = hub->receive() && hub->flush();
  while (auto bytes = hub->take()) {
    hub_heard_ns = now_ns;
    handle_from_hub(*bytes);
  }
  if (!open && !said_bye) declare(fmt::format("{} died: its connection closed without a word; {}{}", hub_name, hub_position, own_position()));
}

std::string World::State::own_position() const {
  const std::lock_guard lock(mutex);
  for (const Slot& slot : slots) {
    if (slot.last) return fmt::format("; rank {} has come to {}", rank, slot.last->str());
  }
  return {};
}

void World::State::handle_from_hub(const std::string& bytes) {
  Reader reader(bytes);
  switch (reader.number<MessageKind>()) {
    case MessageKind::beat:
      hub_position = reader.text();
      return;
    case MessageKind::gathered: {
      std::vector<std::string> parts(static_cast<size_t>(size));
      for (std::string& part : parts) part = reader.text();
      return take_gathered(std::move(parts));
    }
    case MessageKind::verdict:
      return declare(reader.text());
    default:
      return;
  }
}

void World::State::take_gathered(std::vector<std::string> parts) {
  const std::lock_guard lock(mutex);
  gathered = std::move(parts);
  changed.notify_all();
}

void World::State::declare(const std::string& verdict) {
  {
    const std::lock_guard lock(mutex);
    if (!failure.empty()) return;
    failure = verdict;
    failed_ns = steady_now_ns();
    changed.notify_all();
  }
  if (is_hub()) send_to_members(Writer(MessageKind::verdict).text(verdict).bytes());
  const std::lock_guard lock(handler_mutex);
  announced = true;
  for (auto& [id, handler] : handlers) handler(verdict);
  const std::lock_guard told_lock(mutex);
  all_told = true;
  changed.notify_all();
}

// --- World ---

World::World(const WorldOptions& options) : state_(std::make_unique<State>(options)) {
  State& s = *state_;
  if (s.size < 1 || s.rank < 0 || s.rank >= s.size)
    throw ConfigError(fmt::format("world: rank {} of {} cannot be; ranks are 0 to size - 1", s.rank, s.size));
  if (options.timeout_ms < 1) throw ConfigError(fmt::format("world: a timeout of {} ms; it must be above 0", options.timeout_ms));
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
    s.stopping = true;
    s.wake();
    s.thread.join();
    throw;
  }
}

World::~World() {
  State& s = *state_;
  {
    const std::lock_guard lock(s.mutex);
    s.stopping = true;
  }
  s.wake();
  if (s.thread.joinable()) s.thread.join();
}

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
    Reader reader(part);
    reader.number<MessageKind>();
    all.emplace_back(reader.number<size_t>());
    for (std::string& name : all.back()) name = reader.text();
  }
  return all;
}

void World::begin_collective(int device, const CollectiveRecord& record) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  State::Slot& slot = s.slots[static_cast<size_t>(device)];
  if (record.sequence >= slot.begun) slot.last = record;
  slot.begun = std::max(slot.begun, record.sequence + 1);
  slot.fresh.push_back(record);
}

void World::finish_collective(int device) {
  State& s = *state_;
  const std::lock_guard lock(s.mutex);
  ++s.slots[static_cast<size_t>(device)].finished;
}

World::Waiting::Waiting(World& world, std::string what) : world_(world) {
  State& s = *world.state_;
  const std::lock_guard lock(s.mutex);
  id_ = s.next_id++;
  s.waits[id_] = {std::move(what), steady_now_ns(), false};
}

World::Waiting::~Waiting() {
  const std::lock_guard lock(world_.state_->mutex);
  world_.state_->waits.erase(id_);
}

void World::set_warm() {
  const std::lock_guard lock(state_->mutex);
  state_->warm = true;
}

void World::fail(const std::string& reason) {
  State& s = *state_;
  constexpr std::chrono::seconds kLongestTelling{1};
  std::unique_lock lock(s.mutex);
  if (s.closed) return;
  if (s.failure.empty()) {
    s.error_to_tell = reason.empty() ? "without a reason" : reason;
    s.wake();
  }
  // A handler is part of the telling.
  if (std::this_thread::get_id() == s.thread.get_id()) return;
  s.changed.wait_for(lock, kLongestTelling, [&] { return s.all_told; });
}

std::string World::failure() const {
  const std::lock_guard lock(state_->mutex);
  return state_->failure;
}

uint64_t World::on_failure(std::function<void(const std::string&)> handler) {
  State& s = *state_;
  const std::lock_guard handlers(s.handler_mutex);
  if (s.announced) handler(failure());
  const std::lock_guard lock(s.mutex);
  s.handlers[s.next_id] = std::move(handler);
  return s.next_id++;
}

void World::remove_handler(uint64_t id) {
  const std::lock_guard handlers(state_->handler_mutex);
  state_->handlers.erase(id);
}

void World::close() {
  State& s = *state_;
  std::string begun;
  {
    const std::lock_guard lock(s.mutex);
    for (const State::Slot& slot : s.slots) begun += fmt::format("{} ", slot.begun);
  }
  // Progress is told before it; so once all have come, all collectives have been compared.
  const std::vector<std::string> all = all_gather("the end of the run", begun);
  for (size_t r = 0; r < all.size(); ++r) {
    const auto count = [](const std::string& text) { return std::strtoull(text.c_str(), nullptr, 10); };
    if (count(all[r]) == count(all[0])) continue;
    throw CommError(
        fmt::format("rank {} began {} collectives, rank 0 {}; every rank must issue the same collectives", r, count(all[r]), count(all[0])));
  }
  {
    std::unique_lock lock(s.mutex);
    s.throw_if_failed_locked();
    s.closing = true;
    s.wake();
    s.changed.wait_for(lock, std::chrono::nanoseconds(2 * kByeTimeoutNs), [&] { return s.closed; });
  }
  if (s.mpi) s.mpi->finish();
}

bool World::closed() const {
  const std::lock_guard lock(state_->mutex);
  return state_->closed;
}

}  // namespace vitrine
