// SPDX-License-Identifier: Apache-2.0
// Accepting the other processes of a process group, on rank 0.

#include <fmt/format.h>
#include <unistd.h>

#include "runtime/clock.h"
#include "runtime/process_group/process_group_state.h"

namespace vitrine {

using namespace process_group;  // NOLINT: its private parts

namespace {

constexpr int kServeMs = 20;
// In addition to the connections of processes: files, libraries, launchers.
constexpr uint64_t kOtherDescriptors = 512;

/// The file with rank 0's address, which exists while rank 0 waits.
class AddressFile {
 public:
  AddressFile(std::string path, const Address& address) : path_(std::move(path)), text_(address.str()) {
    if (path_.empty()) return;
    // Replaces a file left by an earlier run, but not a file of the user.
    if (const std::string there = read_address(path_); !there.empty()) Address::parse(there);
    write_address(path_, address);
  }
  ~AddressFile() {
    if (path_.empty()) return;
    try {
      if (read_address(path_) == text_) unlink(path_.c_str());
    } catch (const CommError&) {  // no longer a file, so not ours
    }
  }
  AddressFile(const AddressFile&) = delete;
  AddressFile& operator=(const AddressFile&) = delete;

 private:
  std::string path_, text_;
};

}  // namespace

std::string process_group::process_name(int rank) {
  return fmt::format("rank {} (pid {} on {})", rank, getpid(), host_name());
}

void ProcessGroup::State::connect() {
  if (size == 1) {
    detector.join(0, process_name(0), steady_now_ns());
    return;
  }
  // A process that uses MPI may connect to every other one.
  raise_descriptor_limit(2 * static_cast<uint64_t>(size) + kOtherDescriptors);
  rendezvous = plan_rendezvous(options.rendezvous, options.secret, options.run_id, options.one_machine);
  if (options.rendezvous.empty()) {
    mpi = MpiSession::open(rank, size, mpi_deadline_ms());
    if (mpi->rank() != rank || mpi->size() != size) {
      throw CommError(
          fmt::format("MPI says that this is rank {} of {}, but it was started as rank {} of {}; was it started by "
                      "mpirun (under Slurm: "
                      "srun --mpi=pmix)?",
                      mpi->rank(), mpi->size(), rank, size));
    }
    connected_text = "over MPI";
  } else {
    connected_text = "at " + options.rendezvous;
  }
  is_server() ? wait_for_members() : find_server();
}

Acceptor ProcessGroup::State::open_acceptor(Address& address) {
  const InitMethod& method = rendezvous.method;
  std::vector<Descriptor> listeners;
  if (!method.host.empty()) {
    listeners = listen_at(method.host, method.port);
  } else if (options.one_machine) {
    listeners = listen_at("127.0.0.1", 0);
  } else {
    listeners.push_back(listen_on(0));
  }
  // A port given in advance is found without a file; then only the user's secret authenticates processes.
  if (mpi || !rendezvous.address_file.empty()) address.key = random_bytes();
  address.port = port_of(listeners.front());
  address.host_name = host_name();
  if (!options.one_machine) address.hosts = interface_addresses();
  return {std::move(listeners), run_key(rendezvous.secret, address.key, rendezvous.run_id),
          static_cast<size_t>(size) + Acceptor::kSparePeers};
}

void ProcessGroup::State::wait_for_members() {
  Address address;
  Acceptor acceptor = open_acceptor(address);
  if (mpi) mpi->broadcast(address.str(), rendezvous_ms());
  const AddressFile file(rendezvous.address_file, address);
  members.resize(static_cast<size_t>(size));
  detector.join(0, process_name(0), steady_now_ns());
  const int64_t deadline_ns = steady_now_ns() + rendezvous_ms() * kMs;
  while (true) {
    for (Acceptor::JoinRequest& request : acceptor.serve(kServeMs)) admit(std::move(request), acceptor);
    const bool late = steady_now_ns() > deadline_ns;
    if (late || detector.complete()) drop_disconnected();
    if (detector.complete()) break;
    if (late) {
      const std::string reason = fmt::format(
          "rank 0 waited {:g} s, but {} of {} processes did not join; were they started, and can they reach {} (port "
          "{})?{}{}",
          static_cast<double>(rendezvous_ms()) * 1e-3, detector.missing(), size,
          rendezvous.method.host.empty() ? host_name() : rendezvous.method.host, address.port, last_refusal,
          acceptor.last_refusal());
      send_to_members(Writer(MessageKind::verdict).reason(reason).bytes());
      throw CommError(reason);
    }
  }
  for (auto& member : members) {
    if (member) member->limit(Connection::kLargestMessage);
  }
  send_to_members(Writer(MessageKind::welcome).text(process_name(0)).bytes());
}

void ProcessGroup::State::admit(Acceptor::JoinRequest request, Acceptor& acceptor) {
  const Join& join = request.join;
  const bool known = join.rank >= 1 && join.rank < size;
  // Its predecessor may have exited.
  if (known && members[static_cast<size_t>(join.rank)]) drop_disconnected();
  std::string refusal;
  if (join.size != size) {
    refusal = fmt::format("its world size is {}, rank 0's is {}", join.size, size);
  } else if (!known) {
    refusal = fmt::format("expected a rank from 0 to {}", size - 1);
  } else if (members[static_cast<size_t>(join.rank)]) {
    refusal = fmt::format("another process has rank {}", join.rank);
  }
  if (!refusal.empty()) {
    last_refusal = fmt::format(" {} connected and was refused: {}.", join.name, refusal);
    request.connection.send(Writer(MessageKind::refused).text(refusal).bytes());
    return acceptor.dismiss(std::move(request));
  }
  request.connection.send(Writer(MessageKind::accepted).bytes());
  members[static_cast<size_t>(join.rank)].emplace(std::move(request.connection));
  detector.join(join.rank, join.name, steady_now_ns());
}

void ProcessGroup::State::drop_disconnected() {
  for (size_t i = 0; i < members.size(); ++i) {
    if (!members[i] || members[i]->receive()) continue;
    members[i].reset();
    detector.leave(static_cast<int>(i));
  }
}

}  // namespace vitrine
