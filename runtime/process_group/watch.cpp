// SPDX-License-Identifier: Apache-2.0
// The process group's own thread: carries messages between the processes and receives failures.
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <fmt/format.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "runtime/clock.h"
#include "runtime/process_group/process_group_state.h"
#include "runtime/process_group/sockets.h"

namespace vitrine {

using namespace process_group;  // NOLINT: its private parts

namespace {

constexpr int kTickMs = 50;
constexpr int64_t kBeatNs = 200 * kMs;
// Longer than the server takes to judge.
constexpr int64_t kServerSilentNs = 2500 * kMs;
constexpr int64_t kLongestFarewellNs = 1000 * kMs;

int64_t processor_ns(clockid_t clock) {
  timespec now{};
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

char process_group::state_of(const std::filesystem::path& process) {
  std::ifstream file(process / "stat", std::ios::binary);
  const std::string stat{std::istreambuf_iterator<char>(file), {}};
  const size_t end = stat.rfind(')');  // of the command's name
  return end == std::string::npos || end + 2 >= stat.size() ? '?' : stat[end + 2];
}

bool process_group::is_runnable(const std::string& process_name) {
  const size_t pid = process_name.find("(pid "), host = process_name.find(" on ");
  if (pid == std::string::npos || host == std::string::npos) return false;
  if (process_name.substr(host) != fmt::format(" on {})", host_name())) return false;
  std::error_code gone;
  const std::string tasks = fmt::format("/proc/{}/task", process_name.substr(pid + 5, host - pid - 5));
  for (std::filesystem::directory_iterator task(tasks, gone), end; !gone && task != end; task.increment(gone)) {
    if (state_of(task->path()) == 'R') return true;
  }
  return false;
}

void ProcessGroup::State::wake() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(wake_up.get(), &one, sizeof one);
}

void ProcessGroup::State::stop() {
  {
    const std::lock_guard lock(mutex);
    stopping = true;
    changed.notify_all();
  }
  wake();
  if (thread.joinable()) thread.join();
  if (exit_thread.joinable()) exit_thread.join();
}

void ProcessGroup::State::open_poll_set() {
  poll_set = Descriptor(epoll_create1(EPOLL_CLOEXEC));
  epoll_event own{.events = EPOLLIN, .data = {.u32 = static_cast<uint32_t>(rank)}};
  if (!poll_set || epoll_ctl(poll_set.get(), EPOLL_CTL_ADD, wake_up.get(), &own) != 0) {
    throw CommError(fmt::format("cannot watch the connections to other processes: {}", describe_error(errno)));
  }
  // Messages that arrived before this point are already in the connections' buffers.
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank && (is_server() || peer == 0)) ready.push_back(peer);
  }
}

void ProcessGroup::State::wait_for_something() {
  constexpr int kMostEvents = 256;
  std::array<epoll_event, kMostEvents> events{};
  // A process that was stopped resumes with EINTR: it reads the messages that arrived meanwhile before it judges the
  // silence of others.
  int count = 0;
  do {
    count = epoll_wait(poll_set.get(), events.data(), kMostEvents, kTickMs);
  } while (count < 0 && errno == EINTR);
  ready.clear();
  if (count < 0) std::this_thread::sleep_for(std::chrono::milliseconds(kTickMs));
  for (int e = 0; e < count; ++e) {
    const uint32_t peer = events[static_cast<size_t>(e)].data.u32;
    if (peer != static_cast<uint32_t>(rank)) {
      ready.push_back(static_cast<int>(peer));
      continue;
    }
    uint64_t wakes = 0;
    [[maybe_unused]] const ssize_t taken = read(wake_up.get(), &wakes, sizeof wakes);
  }
}

void ProcessGroup::State::watch() {
  for (bool first = true;; first = false) {
    int64_t now_ns = steady_now_ns();
    try {
      first ? open_poll_set() : wait_for_something();
      now_ns = steady_now_ns();
      if (watched_ns != 0 && now_ns - watched_ns > FailureDetector::kSilentNs)
        detector.was_stopped(now_ns - watched_ns, now_ns);
      watched_ns = now_ns;
      for (const int peer : ready) serve(peer, now_ns);
      report_local(now_ns);
      check_waits(now_ns);
      if (is_server()) {
        detector.tick(now_ns, [this](int peer) {
          using Silence = FailureDetector::Silence;
          // The kernel acknowledges also for a process that waits for a processor.
          const std::optional<Connection>& connection = connection_to(peer);
          if (connection && !connection->acknowledged()) return Silence::kUnreachable;
          return is_runnable(detector.name(peer)) ? Silence::kStarved : Silence::kHanging;
        });
        if (const Reason notice = detector.take_notice(); !notice.empty() && options.on_slow) options.on_slow(notice);
        if (!detector.verdict().empty()) declare(detector.verdict());
      }
      if (mpi && failed_ns == 0 && now_ns - progressed_ns >= kTickMs * kMs) {
        mpi->progress();
        progressed_ns = now_ns;
      }
    } catch (const std::exception& error) {
      declare(fmt::format("{}: its connection thread failed: {}", process_name(rank), error.what()));
    }
    if (done(now_ns)) return;
  }
}

bool ProcessGroup::State::has_unsent() const {
  return (server && server->has_unsent()) ||
         std::any_of(members.begin(), members.end(), [](const auto& m) { return m && m->has_unsent(); });
}

bool ProcessGroup::State::done(int64_t now_ns) {
  const std::lock_guard lock(mutex);
  // A process that detects a failure sends the verdict before it exits.
  if (stopping) return failure.empty() || !has_unsent() || now_ns - failed_ns > kLongestFarewellNs;
  if (!closing || closed) return closed;
  if (bye_ns == 0) bye_ns = now_ns;
  const bool too_long = now_ns - bye_ns > kByeTimeoutNs;
  if (is_server()) {
    detector.bye(0);
    if (!said_bye && (detector.all_said_bye() || too_long)) {
      said_bye = true;
      send_to_members(Bye{});
    }
    closed = said_bye && (!has_unsent() || too_long);
  } else {
    if (!said_bye) send_to_server(Bye{});
    said_bye = true;
    closed = server_said_bye || server->gone() || too_long;
  }
  if (closed) changed.notify_all();
  return closed;
}

void ProcessGroup::State::leave_together() {
  if (thread.joinable()) thread.join();
  const std::string bye = encode(Bye{});
  // Returns when the other side has said bye, or has ended.
  const auto wait_for_bye = [](Connection& connection) {
    for (bool open = true; open; open = connection.receive()) {
      connection.flush();
      while (const auto bytes = connection.take()) {
        if (std::holds_alternative<Bye>(decode(*bytes))) return;
      }
      connection.wait(kTickMs);
    }
  };
  if (server) {
    server->send(bye);
    wait_for_bye(*server);
  }
  for (std::optional<Connection>& member : members) {
    if (member) wait_for_bye(*member);
  }
  for (std::optional<Connection>& member : members) {
    if (member) member->send(bye);
  }
}

void ProcessGroup::State::send_to(int peer, const std::string& bytes) {
  std::optional<Connection>& connection = connection_to(peer);
  if (!connection) return;
  connection->send(bytes);
  if (poll_set) connection->watch(poll_set, static_cast<uint32_t>(peer));
}

void ProcessGroup::State::send_to_server(Message message) {
  const std::string bytes = encode(std::move(message));
  // Rank 0 reads its own messages like those of the others, so that all ranks show the same text.
  is_server() ? handle_from_member(0, decode(bytes), steady_now_ns()) : send_to(0, bytes);
}

void ProcessGroup::State::send_to_members(Message message) {
  const std::string bytes = encode(std::move(message));
  for (int peer = 1; is_server() && peer < size; ++peer) send_to(peer, bytes);
}

void ProcessGroup::State::post(Message message) {
  post_progress();
  outbox.push_back(std::move(message));
  wake();
}

void ProcessGroup::State::post_progress() {
  for (size_t i = 0; i < devices.size(); ++i) {
    Device& device = devices[i];
    if (device.unreported.empty() && device.finished == device.reported_finished) continue;
    outbox.push_back(Progress{static_cast<int>(i), device.finished, std::exchange(device.unreported, {})});
    device.reported_finished = device.finished;
  }
}

void ProcessGroup::State::report_local(int64_t now_ns) {
  std::vector<Message> messages;
  std::optional<std::vector<std::string>> answers;
  {
    const std::lock_guard lock(mutex);
    post_progress();
    messages = std::exchange(outbox, {});
    answers = std::exchange(to_answer, std::nullopt);
  }
  if (answers) {
    for (int peer = 1; peer < size; ++peer)
      send_to(peer, encode(Gathered{{(*answers)[answers->size() == 1 ? 0 : static_cast<size_t>(peer)]}}));
    const std::lock_guard lock(mutex);
    answered = answers->front();
    changed.notify_all();
  }
  for (Message& message : messages) send_to_server(std::move(message));
  if (now_ns - last_beat_ns < kBeatNs) return;
  last_beat_ns = now_ns;
  const Activity activity{options.processor_ns
                              ? options.processor_ns()
                              : processor_ns(CLOCK_PROCESS_CPUTIME_ID) - processor_ns(CLOCK_THREAD_CPUTIME_ID),
                          transfers.load(std::memory_order_relaxed)};
  if (is_server()) send_to_members(Beat{activity, detector.position(0)});
  send_to_server(Beat{activity, {}});
}

void ProcessGroup::State::check_waits(int64_t now_ns) {
  std::string what;
  int64_t waited_ns = 0;
  uint64_t longest = 0;
  bool first_step = false;
  {
    const std::lock_guard lock(mutex);
    if (!failure.empty()) return;
    first_step = !warm;
    for (const auto& [id, wait] : waits) {
      if (now_ns - wait.since_ns < timeout_ns() || now_ns - wait.since_ns <= waited_ns) continue;
      waited_ns = now_ns - wait.since_ns;
      longest = id;
      what = wait.what;
    }
  }
  const auto report = [&](int64_t silent_ms) { send_to_server(Overdue{what, waited_ns / kMs, first_step, silent_ms}); };
  if (longest != reported_wait) report(0);
  reported_wait = longest;
  const int64_t silent_ns = now_ns - server_heard_ns;
  if (is_server() || longest == 0 || silent_ns < kServerSilentNs) return;
  const bool acknowledged = server->acknowledged();
  if (acknowledged && silent_ns < FailureDetector::kPatienceWhileStarved * timeout_ns() && is_runnable(server_name))
    return;
  report(silent_ns / kMs);  // it may arrive all the same
  const std::string verdict =
      acknowledged
          ? fmt::format(
                "{} hangs: it has sent nothing for {:.1f} s, but its connection is open (is it stopped, or its "
                "machine unreachable?)",
                server_name, static_cast<double>(silent_ns) * 1e-9)
          : no_messages(server_name, process_name(rank), silent_ns / kMs);
  declare(fmt::format("{}; {}{}", verdict, server_position, own_position()));
}

void ProcessGroup::State::serve(int peer, int64_t now_ns) {
  std::optional<Connection>& connection = connection_to(peer);
  if (!connection) return;
  const bool open = connection->receive();
  connection->flush();
  try {
    while (const auto bytes = connection->take()) {
      is_server() ? handle_from_member(peer, decode(*bytes), now_ns) : handle_from_server(decode(*bytes), now_ns);
    }
  } catch (const std::exception& error) {
    if (!is_server()) throw;
    detector.fail(peer, fmt::format("it sent an invalid message: {}", error.what()));
    return connection.reset();
  }
  connection->watch(poll_set, static_cast<uint32_t>(peer));
  if (open) return;
  if (is_server()) {
    connection.reset();
    detector.lost(peer, now_ns);
  } else if (!said_bye && !server_said_bye) {
    declare(
        fmt::format("{} died: its connection closed unexpectedly; {}{}", server_name, server_position, own_position()));
  }
}

void ProcessGroup::State::handle_from_member(int from, Message message, int64_t now_ns) {
  detector.hear(from, now_ns);
  const auto gather = [&](Gather& m) {
    const bool ends = m.what == kEndOfRun;
    std::optional<std::vector<std::string>> parts =
        detector.gather(from, m.sequence, std::move(m.what), std::move(m.part.bytes));
    if (!parts) return;
    if (ends) detector.compare_counts();
    if (!detector.verdict().empty()) return;
    const std::lock_guard lock(mutex);
    gathered = std::move(parts);
    changed.notify_all();
  };
  std::visit(
      Cases{[&](const Beat& m) { detector.set_activity(from, m.activity); },
            [&](Devices& m) { detector.set_devices(from, std::move(m.names)); },
            [&](const Progress& m) { detector.progress(from, m.device, m.finished, m.begun); },
            [&](Overdue& m) {
              m.what.empty() ? detector.not_overdue(from) : detector.overdue(from, std::move(m), now_ns);
            },
            gather, [&](const Failed& m) { detector.fail(from, m.reason); }, [&](const Bye&) { detector.bye(from); },
            [](const auto&) { throw CommError("a message that only rank 0 sends"); }},
      message);
}

void ProcessGroup::State::handle_from_server(Message message, int64_t now_ns) {
  server_heard_ns = now_ns;
  std::visit(Cases{[&](Beat& m) { server_position = std::move(m.position); },
                   [&](Gathered& m) {
                     const std::lock_guard lock(mutex);
                     answered = std::move(m.answer.bytes);
                     changed.notify_all();
                   },
                   [&](const Verdict& m) { declare(m.reason, false); }, [&](const Bye&) { server_said_bye = true; },
                   [](const auto&) { throw CommError("a message that only other processes send"); }},
             message);
}

std::string ProcessGroup::State::own_position() const {
  const std::lock_guard lock(mutex);
  for (const Device& device : devices) {
    if (device.last) return fmt::format("; rank {} has reached {}", rank, device.last->str());
  }
  return {};
}

void ProcessGroup::State::declare(const Reason& verdict, bool found_here) {
  {
    const std::lock_guard lock(mutex);
    if (!failure.empty()) return;
  }
  if (found_here && options.on_failure_found) options.on_failure_found(verdict);
  // The other processes first: the handlers here may end this process.
  if (is_server()) send_to_members(Verdict{verdict});
  {
    const std::lock_guard lock(mutex);
    failure = verdict;
    failed_ns = steady_now_ns();
    changed.notify_all();
  }
  // A separate thread, because handlers may block for long or forever.
  if (options.exit_after_ms > 0) {
    exit_thread = std::thread([this] {
      std::unique_lock lock(mutex);
      const std::chrono::milliseconds patience(options.exit_after_ms);
      if (!changed.wait_for(lock, patience, [&] { return stopping || closed; })) _exit(1);
    });
  }
  const std::lock_guard lock(handler_mutex);
  announced = true;
  while (!handlers.empty()) {
    const auto handler = handlers.extract(handlers.begin());
    try {
      handler.mapped()(verdict);
    } catch (...) {  // the other handlers are called all the same
    }
  }
  const std::lock_guard report_lock(mutex);
  all_reported = true;
  changed.notify_all();
}

}  // namespace vitrine
