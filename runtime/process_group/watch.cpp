// SPDX-License-Identifier: Apache-2.0
// The process group's own thread: carries messages between the processes and receives failures.
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <ctime>

#include <fmt/format.h>
#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "runtime/clock.h"
#include "runtime/process_group/process_group_state.h"

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

void ProcessGroup::State::listen_to(int peer) {
  const auto i = static_cast<size_t>(peer);
  const std::optional<Connection>& connection = connection_to(peer);
  if (!connection) {
    listened[i] = wants_more[i] = 0;  // its descriptor is closed
    return;
  }
  const bool gone = connection->gone(), more = connection->has_unsent();
  if (!gone && listened[i] != 0 && more == (wants_more[i] != 0)) return;
  if (gone && listened[i] == 0) return;
  epoll_event event{};
  event.events = EPOLLIN | (more ? EPOLLOUT : 0U);
  event.data.u32 = static_cast<uint32_t>(peer);
  const int change = gone ? EPOLL_CTL_DEL : listened[i] != 0 ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
  if (epoll_ctl(poll_set.get(), change, connection->descriptor(), &event) != 0 && !gone) {
    throw CommError(fmt::format("cannot watch the connection to rank {}: {}", peer, std::strerror(errno)));
  }
  listened[i] = gone ? 0 : 1;
  wants_more[i] = !gone && more ? 1 : 0;
}

void ProcessGroup::State::listen_to_all() {
  listened.assign(static_cast<size_t>(size), 0);
  wants_more.assign(static_cast<size_t>(size), 0);
  poll_set = Descriptor(epoll_create1(EPOLL_CLOEXEC));
  epoll_event own{};
  own.events = EPOLLIN;
  own.data.u32 = static_cast<uint32_t>(rank);
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
      first ? listen_to_all() : wait_for_something();
      now_ns = steady_now_ns();
      if (watched_ns != 0 && now_ns - watched_ns > FailureDetector::kSilentNs)
        detector.was_stopped(now_ns - watched_ns, now_ns);
      watched_ns = now_ns;
      for (const int peer : ready) is_server() ? serve_member(peer, now_ns) : serve_members(now_ns);
      report_local(now_ns);
      check_waits(now_ns);
      if (is_server()) {
        detector.tick(now_ns, [this](int peer) {
          const std::optional<Connection>& connection = connection_to(peer);
          return !connection || connection->acknowledged();
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
      send_to_members(Writer(MessageKind::bye).bytes());
    }
    closed = said_bye && (!has_unsent() || too_long);
  } else {
    if (!said_bye) send_to(0, Writer(MessageKind::bye).bytes());
    said_bye = true;
    closed = server_said_bye || server->gone() || too_long;
  }
  if (closed) changed.notify_all();
  return closed;
}

void ProcessGroup::State::leave_together() {
  if (thread.joinable()) thread.join();
  const std::string bye = Writer(MessageKind::bye).bytes();
  // Returns when the other side has said bye, or has ended.
  const auto wait_for_bye = [](Connection& connection) {
    for (bool open = true; open; open = connection.receive()) {
      connection.flush();
      while (const auto bytes = connection.take()) {
        if (std::holds_alternative<Bye>(decode(*bytes))) return;
      }
      pollfd event{connection.descriptor(), static_cast<short>(POLLIN | (connection.has_unsent() ? POLLOUT : 0)), 0};
      poll(&event, 1, kTickMs);
    }
  };
  if (!is_server()) {
    if (!server) return;
    server->send(bye);
    return wait_for_bye(*server);
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
  if (poll_set) listen_to(peer);
}

void ProcessGroup::State::send_to_server(const std::string& bytes) {
  if (is_server()) {
    handle_from_member(0, bytes, steady_now_ns());
  } else {
    send_to(0, bytes);
  }
}

void ProcessGroup::State::send_to_members(const std::string& bytes) {
  for (int peer = 1; is_server() && peer < size; ++peer) send_to(peer, bytes);
}

void ProcessGroup::State::send_answers(const std::vector<std::string>& answers) {
  for (int peer = 1; peer < size; ++peer) {
    send_to(peer,
            Writer(MessageKind::gathered).text(answers[answers.size() == 1 ? 0 : static_cast<size_t>(peer)]).bytes());
  }
  take_answer(answers.front());
}

void ProcessGroup::State::report_progress() {
  std::vector<std::string> messages;
  {
    const std::lock_guard lock(mutex);
    if (!slots_reported) {
      Writer writer(MessageKind::devices);
      writer.number(slots.size());
      for (const Slot& slot : slots) writer.text(slot.name);
      messages.push_back(writer.bytes());
      slots_reported = true;
    }
    for (size_t i = 0; i < slots.size(); ++i) {
      Slot& slot = slots[i];
      if (slot.fresh.empty() && slot.finished == slot.reported_finished) continue;
      Writer writer(MessageKind::progress);
      writer.number(static_cast<int>(i)).number(slot.finished).number(slot.fresh.size());
      for (const CollectiveRecord& record : slot.fresh) writer.record(record);
      slot.fresh.clear();
      slot.reported_finished = slot.finished;
      messages.push_back(writer.bytes());
    }
  }
  for (const std::string& message : messages) send_to_server(message);
}

void ProcessGroup::State::report_local(int64_t now_ns) {
  std::optional<Gathering> gathering;
  std::optional<std::vector<std::string>> answers;
  Reason error;
  {
    const std::lock_guard lock(mutex);
    gathering = std::exchange(to_gather, std::nullopt);
    answers = std::exchange(to_answer, std::nullopt);
    error = std::exchange(error_to_report, {});
  }
  // Progress first: when a gathering is complete, everything begun before it has been compared.
  report_progress();
  if (answers) send_answers(*answers);
  if (gathering)
    send_to_server(
        Writer(MessageKind::gather).number(gathering->sequence).text(gathering->what).text(gathering->part).bytes());
  if (!error.empty()) send_to_server(Writer(MessageKind::error).reason(error).bytes());
  if (now_ns - last_beat_ns < kBeatNs) return;
  last_beat_ns = now_ns;
  const Activity activity{options.processor_ns
                              ? options.processor_ns()
                              : processor_ns(CLOCK_PROCESS_CPUTIME_ID) - processor_ns(CLOCK_THREAD_CPUTIME_ID),
                          transfers.load(std::memory_order_relaxed)};
  const std::string beat = Writer(MessageKind::beat)
                               .number(activity.processor_ns)
                               .number(activity.transfers)
                               .text(is_server() ? detector.position(0) : std::string())
                               .bytes();
  if (is_server()) {
    detector.hear(0, now_ns);
    detector.set_activity(0, activity);
    send_to_members(beat);
  } else {
    send_to(0, beat);
  }
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
  const auto report = [&](int64_t silent_ms) {
    send_to_server(Writer(MessageKind::waiting)
                       .text(what)
                       .number(waited_ns / kMs)
                       .number(static_cast<uint8_t>(first_step))
                       .number(silent_ms)
                       .bytes());
  };
  if (longest != reported_wait) report(0);
  reported_wait = longest;
  const int64_t silent_ns = now_ns - server_heard_ns;
  if (is_server() || longest == 0 || silent_ns < kServerSilentNs) return;
  report(silent_ns / kMs);  // it may arrive all the same
  const std::string verdict =
      server->acknowledged()
          ? fmt::format(
                "{} hangs: it has sent nothing for {:.1f} s, but its connection is open (is it stopped, or its "
                "machine unreachable?)",
                server_name, static_cast<double>(silent_ns) * 1e-9)
          : no_messages(server_name, process_name(rank), silent_ns / kMs);
  declare(fmt::format("{}; {}{}", verdict, server_position, own_position()));
}

void ProcessGroup::State::serve_member(int peer, int64_t now_ns) {
  std::optional<Connection>& connection = connection_to(peer);
  if (!connection) return;
  const bool open = connection->receive();
  connection->flush();
  bool readable = true;
  try {
    while (auto bytes = connection->take()) handle_from_member(peer, *bytes, now_ns);
  } catch (const std::exception& error) {
    detector.fail(peer, fmt::format("it sent an invalid message: {}", error.what()));
    readable = false;
  }
  if (!open || !readable) connection.reset();
  if (!open && readable) detector.lost(peer, now_ns);
  listen_to(peer);
}

void ProcessGroup::State::handle_from_member(int from, const std::string& bytes, int64_t now_ns) {
  Message message = decode(bytes);
  detector.hear(from, now_ns);
  const auto gather = [&](Gather& m) {
    const bool ends = m.what == kEndOfRun;
    std::optional<std::vector<std::string>> parts =
        detector.gather(from, m.sequence, std::move(m.what), std::move(m.part));
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

void ProcessGroup::State::serve_members(int64_t now_ns) {
  const bool open = server->receive();
  server->flush();
  listen_to(0);
  while (auto bytes = server->take()) {
    server_heard_ns = now_ns;
    handle_from_server(*bytes);
  }
  if (!open && !said_bye && !server_said_bye)
    declare(
        fmt::format("{} died: its connection closed unexpectedly; {}{}", server_name, server_position, own_position()));
}

std::string ProcessGroup::State::own_position() const {
  const std::lock_guard lock(mutex);
  for (const Slot& slot : slots) {
    if (slot.last) return fmt::format("; rank {} has reached {}", rank, slot.last->str());
  }
  return {};
}

void ProcessGroup::State::handle_from_server(const std::string& bytes) {
  Message message = decode(bytes);
  std::visit(Cases{[&](Beat& m) { server_position = std::move(m.position); },
                   [&](Gathered& m) { take_answer(std::move(m.answer)); },
                   [&](const Verdict& m) { declare(m.reason, false); }, [&](const Bye&) { server_said_bye = true; },
                   [](const auto&) { throw CommError("a message that only other processes send"); }},
             message);
}

void ProcessGroup::State::take_answer(std::string answer) {
  const std::lock_guard lock(mutex);
  answered = std::move(answer);
  changed.notify_all();
}

void ProcessGroup::State::declare(const Reason& verdict, bool found_here) {
  {
    const std::lock_guard lock(mutex);
    if (!failure.empty()) return;
  }
  if (found_here && options.on_failure_found) options.on_failure_found(verdict);
  // The other processes first: the handlers here may end this process.
  if (is_server()) send_to_members(Writer(MessageKind::verdict).reason(verdict).bytes());
  {
    const std::lock_guard lock(mutex);
    failure = verdict;
    failed_ns = steady_now_ns();
    changed.notify_all();
  }
  // A separate thread, because handlers may block for long or forever.
  if (options.exit_after_ms > 0) exit_thread = std::thread([this] { exit_in_time(); });
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

void ProcessGroup::State::exit_in_time() {
  std::unique_lock lock(mutex);
  const bool ended =
      changed.wait_for(lock, std::chrono::milliseconds(options.exit_after_ms), [&] { return stopping || closed; });
  if (!ended) _exit(1);
}

}  // namespace vitrine
