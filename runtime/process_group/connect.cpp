// SPDX-License-Identifier: Apache-2.0
// How the processes of a process group connect: rank 0 waits for the others, which look for it.
#include <algorithm>
#include <chrono>

#include <fmt/format.h>
#include <unistd.h>

#include "runtime/clock.h"
#include "runtime/process_group/acceptor.h"
#include "runtime/process_group/process_group_state.h"
#include "runtime/process_group/sockets.h"
#include "runtime/settings.h"

namespace vitrine {

using namespace process_group;  // NOLINT: its private parts

namespace {

constexpr int kServeMs = 20;
constexpr int64_t kConnectMs = 1000;
// Time after which a silent server counts as absent.
constexpr int64_t kAnswerMs = 3000;
constexpr int kRetryMs = 50;
// In addition to the connections of processes: files, libraries, launchers.
constexpr uint64_t kOtherDescriptors = 512;

/// The file with rank 0's address, which exists while rank 0 waits.
class AddressFile {
 public:
  AddressFile(std::string path, const Address& address) : path_(std::move(path)), text_(address.str()) {
    if (path_.empty()) return;
    // Replaces a file left by an earlier run, but not a file of the user.
    std::string ignored;
    if (const std::string there = read_address(path_, false, ignored); !there.empty()) Address::parse(there);
    write_address(path_, address);
  }
  ~AddressFile() {
    if (path_.empty()) return;
    try {
      std::string ignored;
      if (read_address(path_, false, ignored) == text_) unlink(path_.c_str());
    } catch (const CommError&) {  // no longer a file, so not ours
    }
  }
  AddressFile(const AddressFile&) = delete;
  AddressFile& operator=(const AddressFile&) = delete;

 private:
  std::string path_, text_;
};

/// Why the process at an address is not rank 0 of this run; rank 0 may still come.
struct NotRankZero : CommError {
  using CommError::CommError;
};

/// Returns the next message of `who`. throws NotRankZero without one.
Message next_message(Connection& connection, int64_t patience_ms, const std::string& who) {
  const int64_t deadline_ns = steady_now_ns() + patience_ms * kMs;
  try {
    while (true) {
      connection.flush();
      const bool open = connection.receive();
      if (const std::optional<std::string> bytes = connection.take()) return decode(*bytes);
      if (!open) throw NotRankZero(who + " closes the connection");
      if (steady_now_ns() > deadline_ns) throw NotRankZero(who + " does not answer");
      connection.wait(kRetryMs);
    }
  } catch (const NotRankZero&) {
    throw;
  } catch (const std::exception& error) {
    throw NotRankZero(fmt::format("{} is not Vitrine, or a different version: {}", who, error.what()));
  }
}

}  // namespace

std::string process_group::process_name(int rank) {
  return fmt::format("rank {} (pid {} on {})", rank, getpid(), host_name());
}

void ProcessGroup::State::connect() {
  detector.join(0, process_name(0), steady_now_ns());
  if (size == 1) return;
  // A process that uses MPI may connect to every other one.
  raise_descriptor_limit(2 * static_cast<uint64_t>(size) + kOtherDescriptors);
  const Rendezvous rendezvous = plan_rendezvous(options);
  connected_text = options.rendezvous.empty() ? "over MPI" : "at " + options.rendezvous;
  if (options.rendezvous.empty()) {
    mpi = MpiSession::open(rank, size, mpi_deadline_ms());
    if (mpi->rank() != rank || mpi->size() != size) {
      throw CommError(
          fmt::format("MPI says that this is rank {} of {}, but it was started as rank {} of {}; was it started by "
                      "mpirun (under Slurm: "
                      "srun --mpi=pmix)?",
                      mpi->rank(), mpi->size(), rank, size));
    }
  }
  is_server() ? wait_for_members(rendezvous) : find_server(rendezvous);
}

void ProcessGroup::State::wait_for_members(const Rendezvous& rendezvous) {
  const std::string& host = rendezvous.host;
  std::vector<Descriptor> listeners =
      listen_at(host.empty() && options.one_machine ? "127.0.0.1" : host, rendezvous.port);
  Address address;
  address.port = port_of(listeners.front());
  address.host_name = host_name();
  // A port given in advance is found without a file; then only the user's secret authenticates processes.
  if (mpi || !rendezvous.address_file.empty()) address.key = random_bytes();
  if (!options.one_machine) address.hosts = interface_addresses();
  members.resize(static_cast<size_t>(size));
  Acceptor acceptor(std::move(listeners), run_key(options.secret, address.key, options.run_id),
                    static_cast<size_t>(size) + Acceptor::kSparePeers,
                    [this](const Join& join, Connection& connection) { return admit(join, connection); });
  if (mpi) mpi->broadcast(address.str(), rendezvous_ms());
  const AddressFile file(rendezvous.address_file, address);
  const int64_t deadline_ns = steady_now_ns() + rendezvous_ms() * kMs;
  while (true) {
    acceptor.serve(kServeMs);
    const bool late = steady_now_ns() > deadline_ns;
    if (late || detector.complete()) drop_disconnected();
    if (detector.complete()) break;
    if (late) {
      const std::string reason = fmt::format(
          "rank 0 waited {:g} s, but {} of {} processes did not join; were they started, and can they reach {} (port "
          "{})?{}",
          static_cast<double>(rendezvous_ms()) * 1e-3, detector.missing(), size, host.empty() ? host_name() : host,
          address.port, acceptor.last_refusals());
      send_to_members(Verdict{reason});
      throw CommError(reason);
    }
  }
  for (auto& member : members) {
    if (member) member->limit(Connection::kLargestMessage);
  }
  send_to_members(Welcome{process_name(0)});
}

std::string ProcessGroup::State::admit(const Join& join, Connection& connection) {
  if (join.size != size) return fmt::format("its world size is {}, rank 0's is {}", join.size, size);
  if (join.rank < 1 || join.rank >= size) return fmt::format("expected a rank from 0 to {}", size - 1);
  std::optional<Connection>& member = members[static_cast<size_t>(join.rank)];
  if (member) drop_disconnected();  // its predecessor may have exited
  if (member) return fmt::format("another process has rank {}", join.rank);
  connection.send(encode(Accepted{}));
  member.emplace(std::move(connection));
  detector.join(join.rank, join.name, steady_now_ns());
  return {};
}

void ProcessGroup::State::drop_disconnected() {
  for (size_t i = 0; i < members.size(); ++i) {
    if (!members[i] || members[i]->receive()) continue;
    members[i].reset();
    detector.leave(static_cast<int>(i));
  }
}

void ProcessGroup::State::find_server(const Rendezvous& rendezvous) {
  const int64_t begin_ns = steady_now_ns();
  int64_t refused_ns = begin_ns;  // since when every try was refused
  const std::string broadcast_text = mpi ? mpi->broadcast({}, rendezvous_ms()) : std::string();
  std::string problem = "no process listens there";
  while (true) {
    if (const std::optional<Address> address = address_of_server(rendezvous, broadcast_text, problem)) {
      for (const std::string& host : address->hosts) {
        Descriptor socket = connect_to(host, address->port, kConnectMs, problem);
        if (!socket) continue;
        try {
          return join_server(Connection(std::move(socket)), address->key, fmt::format("{}:{}", host, address->port));
        } catch (const NotRankZero& error) {
          problem = error.what();
        }
      }
    }
    const int64_t now_ns = steady_now_ns();
    if (problem != last_refusal) refused_ns = now_ns;
    // Who refuses may be of another run, whose place rank 0 takes when it starts.
    const bool refused = now_ns > refused_ns + options.timeout_ms * kMs;
    if (refused || now_ns > begin_ns + rendezvous_ms() * kMs) {
      if (!last_refusal.empty()) problem = last_refusal;  // it says more than what happened last
      throw CommError(fmt::format("rank {} could not reach rank 0 {} within {:g} s: {}{}", rank, connected_text,
                                  static_cast<double>(refused ? options.timeout_ms : rendezvous_ms()) * 1e-3, problem,
                                  last_refusal.empty() ? "; was it started?" : ""));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(kRetryMs));
  }
}

std::optional<Address> ProcessGroup::State::address_of_server(const Rendezvous& rendezvous,
                                                              const std::string& broadcast_text, std::string& problem) {
  std::string text = broadcast_text;
  if (!rendezvous.address_file.empty()) {
    // With the user's secret the file does not establish membership.
    text = read_address(rendezvous.address_file, options.secret.empty(), problem);
    if (text.empty() && problem.empty()) problem = kNoAddressFile;
    if (text.empty() && problem == kNoAddressFile && !rendezvous.host.empty())
      problem = fmt::format("{}:{}: rank 0 does not listen there yet", rendezvous.host, rendezvous.port);
    if (text.empty()) return std::nullopt;
  }
  Address address;
  if (!text.empty()) address = Address::parse(text);
  if (address.host_name == host_name()) address.hosts.insert(address.hosts.begin(), "127.0.0.1");
  if (!rendezvous.host.empty()) {
    address.port = rendezvous.port;
    address.hosts = {rendezvous.host};
  }
  return address;
}

void ProcessGroup::State::join_server(Connection connection, const std::string& key, const std::string& where) {
  const std::string listener = fmt::format("the process that listens at {}", where);
  const std::string server_at = fmt::format("rank 0 at {}", where);
  const int64_t patience_ms = std::min(kAnswerMs, rendezvous_ms());
  // What comes before the proof may be from anyone.
  const auto next = [&]<class Expected>(Expected /*type*/) {
    Message answer = next_message(connection, patience_ms, listener);
    if (const auto* const refused = std::get_if<Refused>(&answer))
      throw NotRankZero(last_refusal = fmt::format("{} refused it: {}", server_at, refused->reason));
    if (auto* const expected = std::get_if<Expected>(&answer)) return std::move(*expected);
    throw NotRankZero(listener + " is not rank 0 of this run");
  };
  connection.limit(kLargestHello);
  const std::string nonce = random_bytes();
  connection.send(encode(Hello{kMagic, {nonce}}));
  const Handshake handshake(run_key(options.secret, key, options.run_id), nonce, next(Challenge{}).nonce.bytes);
  connection.send(encode(Proof{{handshake.member_proof}}));
  if (!proves(next(Proof{}).code.bytes, handshake.server_proof))
    throw NotRankZero(last_refusal = listener + " does not know this run's secret, or has another run id");
  connection.seal(handshake.to_server, handshake.to_member);
  connection.send(encode(Join{rank, size, process_name(rank)}));
  Message answer = next_message(connection, patience_ms, server_at);
  if (std::holds_alternative<Accepted>(answer)) {
    try {
      answer = next_message(connection, rendezvous_ms() + kAnswerMs, server_at);
    } catch (const NotRankZero& error) {
      throw NotRankZero(std::string(error.what()) + " before all processes have joined");
    }
  }
  if (const auto* const refused = std::get_if<Refused>(&answer)) {
    throw CommError({fmt::format("rank {} cannot join: {} refused it: {}; give every process its own ", rank, server_at,
                                 refused->reason),
                     settings::kRank, " and the same ", settings::kSize});
  }
  if (const auto* const verdict = std::get_if<Verdict>(&answer)) throw CommError(verdict->reason);
  auto* const welcome = std::get_if<Welcome>(&answer);
  if (welcome == nullptr) throw NotRankZero(server_at + " sent an unexpected message to a joining process");
  server_name = std::move(welcome->name);
  connection.limit(Connection::kLargestMessage);
  server.emplace(std::move(connection));
  server_heard_ns = steady_now_ns();
}

}  // namespace vitrine
