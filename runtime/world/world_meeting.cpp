// SPDX-License-Identifier: Apache-2.0
// How the processes of a world find rank 0, and how it takes them in.
#include <algorithm>
#include <chrono>

#include <fmt/format.h>
#include <unistd.h>

#include "runtime/trace/span.h"
#include "runtime/world/world_state.h"

namespace vitrine {

using namespace world;  // NOLINT: its private parts

namespace {

constexpr uint64_t kLargestHello = 4096;
constexpr int64_t kConnectMs = 1000;
// A hub that does not answer a hello for so long is none.
constexpr int64_t kAnswerMs = 3000;

std::string seconds(int64_t milliseconds) { return fmt::format("{:g} s", static_cast<double>(milliseconds) * 1e-3); }

/// The file that tells where rank 0 listens, as long as rank 0 waits there.
class AddressFile {
 public:
  AddressFile(std::string path, const Address& address) : path_(std::move(path)), text_(address.str()) {
    if (path_.empty()) return;
    // What was left by an earlier run is replaced; a file of the user's is not.
    if (const std::string there = read_address(path_); !there.empty()) Address::parse(there);
    write_address(path_, address);
  }
  ~AddressFile() {
    if (!path_.empty() && read_address(path_) == text_) unlink(path_.c_str());
  }
  AddressFile(const AddressFile&) = delete;
  AddressFile& operator=(const AddressFile&) = delete;

 private:
  std::string path_, text_;
};

/// What a hub says to a hello.
struct Answer {
  MessageKind kind = MessageKind::hello;  // which no hub says
  bool may_return = false;
  std::string text;
};

std::optional<Answer> next_answer(Connection& connection) try {
  const std::optional<std::string> bytes = connection.take(kLargestHello);
  if (!bytes) return std::nullopt;
  Reader reader(*bytes);
  Answer answer;
  answer.kind = reader.number<MessageKind>();
  if (answer.kind == MessageKind::refused) answer.may_return = reader.number<uint8_t>() != 0;
  if (answer.kind != MessageKind::accepted) answer.text = reader.text();
  return answer;
} catch (const CommError&) {
  return Answer{};
}

}  // namespace

std::string world::process_name(int rank) { return fmt::format("rank {} (pid {} on {})", rank, getpid(), host_name()); }

void World::State::meet() {
  if (size == 1) {
    referee.join(0, process_name(0), steady_now_ns());
    met_text = "alone";
    return;
  }
  if (options.rendezvous.empty()) {
    mpi = MpiSession::open(rank, options.exit_after_ms > 0 ? meeting_ms() : 0);
    if (mpi->rank() != rank || mpi->size() != size) {
      throw CommError(
          fmt::format("MPI says that this is rank {} of {}, but it was started as rank {} of {}; was it started by mpirun (under Slurm: "
                      "srun --mpi=pmix)?",
                      mpi->rank(), mpi->size(), rank, size));
    }
    met_text = "over MPI";
  } else {
    met_text = "at " + options.rendezvous;
  }
  is_hub() ? wait_for_members() : find_hub();
}

void World::State::wait_for_members() {
  const InitMethod method = options.rendezvous.empty() ? InitMethod{} : parse_init_method(options.rendezvous);
  const Descriptor listener = listen_on(method.port);
  // At a port that was told beforehand nobody can know a token.
  const Address address{method.port != 0 ? 0 : make_token(), port_of(listener), host_name(), interface_addresses()};
  if (mpi) mpi->broadcast(address.str(), meeting_ms());
  const AddressFile file(method.path, address);
  members.resize(static_cast<size_t>(size));
  referee.join(0, process_name(0), steady_now_ns());
  std::vector<Connection> strangers;
  const int64_t deadline_ns = steady_now_ns() + meeting_ms() * kMs;
  while (true) {
    while (Descriptor socket = accept_one(listener)) strangers.emplace_back(std::move(socket));
    // Before their successors are greeted.
    forget_those_who_left();
    std::erase_if(strangers, [&](Connection& stranger) { return !greet(stranger, address.token); });
    if (referee.complete()) break;
    if (steady_now_ns() > deadline_ns) {
      const std::string reason =
          fmt::format("rank 0 waited {} for {} of {} processes, which did not come; were they started, and can they reach {} (port {})?{}",
                      seconds(meeting_ms()), referee.missing(), size, host_name(), address.port, last_refusal);
      send_to_members(Writer(MessageKind::verdict).text(reason).bytes());
      throw CommError(reason);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  send_to_members(Writer(MessageKind::welcome).text(process_name(0)).bytes());
}

bool World::State::greet(Connection& connection, uint64_t token) try {
  const bool open = connection.receive();
  const std::optional<std::string> bytes = connection.take(kLargestHello);
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
    // Where it read of another run, it may read of this one later.
    const bool may_return = given != token;
    if (!may_return) last_refusal = fmt::format(" {} came and was refused: {}", name, refusal);
    connection.send(Writer(MessageKind::refused).number(static_cast<uint8_t>(may_return)).text(refusal).bytes());
    return true;
  }
  connection.send(Writer(MessageKind::accepted).bytes());
  members[static_cast<size_t>(who)].emplace(std::move(connection));
  referee.join(who, name, steady_now_ns());
  return false;
} catch (const CommError&) {
  return false;
}

void World::State::forget_those_who_left() {
  for (size_t i = 0; i < members.size(); ++i) {
    if (!members[i] || members[i]->receive()) continue;
    members[i].reset();
    referee.leave(static_cast<int>(i));
  }
}

void World::State::find_hub() {
  const int64_t deadline_ns = steady_now_ns() + meeting_ms() * kMs;
  const InitMethod method = options.rendezvous.empty() ? InitMethod{} : parse_init_method(options.rendezvous);
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
          fmt::format("rank {} could not reach rank 0 {} within {}: {}; was it started?", rank, met_text, seconds(meeting_ms()), problem));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

bool World::State::try_hub(const Address& address, std::string& problem) {
  for (const std::string& host : address.hosts) {
    Descriptor socket = connect_to(host, address.port, kConnectMs, problem);
    if (!socket) continue;
    Connection connection(std::move(socket));
    connection.send(Writer(MessageKind::hello).number(kMagic).number(address.token).number(rank).number(size).text(process_name(rank)).bytes());
    if (!wait_for_welcome(connection, fmt::format("{}:{}", host, address.port), problem)) continue;
    hub.emplace(std::move(connection));
    hub_heard_ns = steady_now_ns();
    return true;
  }
  return false;
}

bool World::State::wait_for_welcome(Connection& connection, const std::string& where, std::string& problem) {
  const int64_t begin_ns = steady_now_ns();
  bool accepted = false;
  while (true) {
    const bool open = connection.receive();
    const std::optional<Answer> answer = next_answer(connection);
    const int64_t waited_ms = (steady_now_ns() - begin_ns) / kMs;
    if (!answer && open && waited_ms <= (accepted ? meeting_ms() + kAnswerMs : std::min(kAnswerMs, meeting_ms()))) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      continue;
    }
    if (!answer) {
      const char* const silence = open ? "does not answer" : "hangs up";
      problem = accepted ? fmt::format("rank 0 at {} {} before all processes have come", where, silence)
                         : fmt::format("who listens at {} {}", where, silence);
      return false;
    }
    switch (answer->kind) {
      case MessageKind::accepted:
        accepted = true;
        continue;
      case MessageKind::welcome:
        hub_name = answer->text;
        return true;
      case MessageKind::refused:
        problem = fmt::format("rank 0 at {} refuses it: {}", where, answer->text);
        if (answer->may_return) return false;
        throw CommError(fmt::format("rank {} cannot join: {}; give every process its own --rank and the same --world-size", rank, problem));
      case MessageKind::verdict:
        throw CommError(answer->text);
      default:
        problem = fmt::format("who listens at {} is not Vitrine", where);
        return false;
    }
  }
}

}  // namespace vitrine
