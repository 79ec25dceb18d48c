// SPDX-License-Identifier: Apache-2.0
// Finding rank 0 and joining its process group, on all other ranks.
#include <algorithm>
#include <chrono>

#include <fmt/format.h>
#include <poll.h>

#include "runtime/clock.h"
#include "runtime/process_group/process_group_state.h"
#include "runtime/settings.h"

namespace vitrine {

using namespace process_group;  // NOLINT: its private parts

namespace {

constexpr int64_t kConnectMs = 1000;
// Time after which a silent server counts as absent.
constexpr int64_t kAnswerMs = 3000;
constexpr int kRetryMs = 50;

}  // namespace

void ProcessGroup::State::find_server() {
  const int64_t begin_ns = steady_now_ns();
  int64_t refused_ns = begin_ns;  // since when every try was refused
  const InitMethod& method = rendezvous.method;
  const std::string broadcast_text = mpi ? mpi->broadcast({}, rendezvous_ms()) : std::string();
  std::string problem = "no process listens there";
  while (true) {
    Address address;
    std::string text = broadcast_text;
    if (!rendezvous.address_file.empty()) {
      // With the user's secret the file may be missing: it does not establish membership.
      text = rendezvous.secret.empty() ? read_private_address(rendezvous.address_file, problem)
                                       : read_address(rendezvous.address_file);
      if (text.empty() && !rendezvous.secret.empty()) problem = kNoAddressFile;
    }
    const bool known = rendezvous.address_file.empty() || !text.empty();
    if (!text.empty()) address = Address::parse(text);
    if (address.host_name == host_name()) address.hosts.insert(address.hosts.begin(), "127.0.0.1");
    if (!method.host.empty()) {
      address.port = method.port;
      address.hosts = {method.host};
      if (problem == kNoAddressFile)
        problem = fmt::format("{}:{}: rank 0 does not listen there yet", method.host, method.port);
    }
    if (known && try_server(address, problem)) return;
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

bool ProcessGroup::State::try_server(const Address& address, std::string& problem) {
  for (const std::string& host : address.hosts) {
    Descriptor socket = connect_to(host, address.port, kConnectMs, problem);
    if (!socket) continue;
    const std::string where = fmt::format("{}:{}", host, address.port);
    Connection connection(std::move(socket));
    connection.limit(kLargestHello);
    if (!shake_hands(connection, address, where, problem) || !wait_for_welcome(connection, where, problem)) continue;
    connection.limit(Connection::kLargestMessage);
    server.emplace(std::move(connection));
    server_heard_ns = steady_now_ns();
    return true;
  }
  return false;
}

std::optional<Message> ProcessGroup::State::wait_for_answer(Connection& connection, int64_t patience_ms,
                                                            const std::string& where, std::string& problem) const {
  const int64_t deadline_ns = steady_now_ns() + patience_ms * kMs;
  try {
    while (true) {
      connection.flush();
      const bool open = connection.receive();
      if (const std::optional<std::string> bytes = connection.take()) return decode(*bytes);
      if (!open || steady_now_ns() > deadline_ns) {
        problem = fmt::format("{} {}", where, open ? "does not answer" : "closes the connection");
        return std::nullopt;
      }
      pollfd waiting{connection.descriptor(), POLLIN, 0};
      poll(&waiting, 1, kRetryMs);
    }
  } catch (const std::exception& error) {
    problem = fmt::format("{} is not Vitrine, or a different version: {}", where, error.what());
    return std::nullopt;
  }
}

bool ProcessGroup::State::shake_hands(Connection& connection, const Address& address, const std::string& where,
                                      std::string& problem) {
  const std::string listener = fmt::format("the process that listens at {}", where);
  const int64_t patience_ms = std::min(kAnswerMs, rendezvous_ms());
  const auto not_rank_zero = [&](const std::optional<Message>& answer) {
    const Refused* const refused = answer ? std::get_if<Refused>(&*answer) : nullptr;
    if (refused != nullptr) last_refusal = problem = fmt::format("rank 0 at {} refused it: {}", where, refused->reason);
    if (answer && refused == nullptr) problem = fmt::format("{} is not rank 0 of this run", listener);
    return false;  // anyone may listen there and refuse; until the deadline, rank 0 may still come
  };
  const std::string nonce = random_bytes();
  connection.send(Writer(MessageKind::hello).number(kMagic).raw(nonce).bytes());
  const std::optional<Message> challenge = wait_for_answer(connection, patience_ms, listener, problem);
  if (!challenge || !std::holds_alternative<Challenge>(*challenge)) return not_rank_zero(challenge);
  const Handshake handshake(run_key(rendezvous.secret, address.key, rendezvous.run_id), nonce,
                            std::get<Challenge>(*challenge).nonce);
  connection.send(Writer(MessageKind::proof).raw(handshake.member_proof).bytes());
  const std::optional<Message> proof = wait_for_answer(connection, patience_ms, listener, problem);
  if (!proof || !std::holds_alternative<Proof>(*proof)) return not_rank_zero(proof);
  if (!proves(std::get<Proof>(*proof).code, handshake.server_proof)) {
    last_refusal = problem = fmt::format("{} does not know this run's secret, or has another run id", listener);
    return false;
  }
  connection.seal(handshake.to_server, handshake.to_member);
  connection.send(Writer(MessageKind::join).number(rank).number(size).text(process_name(rank)).bytes());
  return true;
}

bool ProcessGroup::State::wait_for_welcome(Connection& connection, const std::string& where, std::string& problem) {
  const std::string server_at = fmt::format("rank 0 at {}", where);
  std::optional<Message> answer = wait_for_answer(connection, std::min(kAnswerMs, rendezvous_ms()), server_at, problem);
  if (answer && std::holds_alternative<Accepted>(*answer)) {
    answer = wait_for_answer(connection, rendezvous_ms() + kAnswerMs, server_at, problem);
    if (!answer) problem += " before all processes have joined";
  }
  if (!answer) return false;
  if (const auto* const refused = std::get_if<Refused>(&*answer)) {
    throw CommError({fmt::format("rank {} cannot join: {} refused it: {}; give every process its own ", rank, server_at,
                                 refused->reason),
                     settings::kRank, " and the same ", settings::kSize});
  }
  if (const auto* const verdict = std::get_if<Verdict>(&*answer)) throw CommError(verdict->reason);
  if (auto* const welcome = std::get_if<Welcome>(&*answer)) {
    server_name = std::move(welcome->name);
    return true;
  }
  problem = fmt::format("{} sent an unexpected message to a joining process", server_at);
  return false;
}

}  // namespace vitrine
