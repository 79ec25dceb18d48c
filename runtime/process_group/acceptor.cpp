// SPDX-License-Identifier: Apache-2.0
#include "runtime/process_group/acceptor.h"

#include <algorithm>
#include <cerrno>
#include <map>

#include <fmt/format.h>
#include <poll.h>

#include "runtime/clock.h"
#include "runtime/error.h"

namespace vitrine::process_group {

namespace {

// Accepted at a time, so that current members do not wait.
constexpr int kMostAdmitted = 64;

}  // namespace

Acceptor::Acceptor(std::vector<Descriptor> listeners, const Key& key, size_t most_peers, int64_t patience_ms)
    : listeners_(std::move(listeners)), key_(key), most_peers_(most_peers), patience_ns_(patience_ms * 1'000'000) {}

void Acceptor::wait(int wait_ms) const {
  std::vector<pollfd> waiting;
  for (const Descriptor& listener : listeners_) waiting.push_back({listener.get(), POLLIN, 0});
  for (const Peer& peer : peers_) {
    // Data from a refused peer is not read.
    if (peer.stage != Stage::refused) waiting.push_back({peer.connection.descriptor(), POLLIN, 0});
  }
  poll(waiting.data(), waiting.size(), wait_ms);
}

std::vector<Acceptor::JoinRequest> Acceptor::serve(int wait_ms) {
  wait(wait_ms);
  for (const Descriptor& listener : listeners_) admit(listener);
  std::vector<JoinRequest> requests;
  const int64_t now_ns = steady_now_ns();
  std::erase_if(peers_, [&](Peer& peer) { return !serve_peer(peer, now_ns, requests); });
  return requests;
}

void Acceptor::admit(const Descriptor& listener) {
  for (int i = 0; i < kMostAdmitted; ++i) {
    std::string address;
    Descriptor socket = accept_one(listener, &address);
    const int error = errno;
    if (!socket && (error == EMFILE || error == ENFILE)) {
      if (peers_.empty())
        throw CommError(fmt::format("rank 0 cannot accept more processes: {}", describe_error(error)));
      close_oldest_peer();
      continue;
    }
    if (!socket) return;
    if (peers_.size() >= most_peers_) close_oldest_peer();
    peers_.push_back({Connection(std::move(socket)), std::move(address), steady_now_ns()});
    peers_.back().connection.limit(kLargestHello);
  }
}

void Acceptor::close_oldest_peer() {
  std::map<std::string, int> counts;
  for (const Peer& peer : peers_) ++counts[peer.address];
  const auto most = std::ranges::max_element(counts, [](const auto& a, const auto& b) { return a.second < b.second; });
  const auto is_unproved = [&](const Peer& peer) { return peer.address == most->first && peer.stage != Stage::join; };
  const auto oldest = std::ranges::find_if(peers_, is_unproved);
  peers_.erase(oldest == peers_.end() ? peers_.begin() : oldest);
}

bool Acceptor::serve_peer(Peer& peer, int64_t now_ns, std::vector<JoinRequest>& requests) try {
  if (now_ns - peer.since_ns > patience_ns_) return false;
  const bool open = peer.connection.receive();
  peer.connection.flush();
  if (peer.stage == Stage::refused) return open;
  while (const std::optional<std::string> bytes = peer.connection.take()) {
    if (!handle(peer, decode(*bytes), requests)) return false;
    if (peer.stage == Stage::refused) break;
  }
  return open;
} catch (const std::exception&) {
  return false;
}

bool Acceptor::handle(Peer& peer, Message message, std::vector<JoinRequest>& requests) {
  if (const auto* const hello = std::get_if<Hello>(&message); hello != nullptr && peer.stage == Stage::hello) {
    if (hello->magic != kMagic) {
      const std::optional<int> version = protocol_version(hello->magic);
      if (!version) return false;
      refuse(peer,
             fmt::format("it speaks version {} of the protocol between processes, rank 0 version {}; start all of them "
                         "with the same version of Vitrine",
                         *version, *protocol_version(kMagic)));
      return true;
    }
    const std::string nonce = random_bytes();
    peer.handshake.emplace(key_, hello->nonce, nonce);
    peer.connection.send(Writer(MessageKind::challenge).raw(nonce).bytes());
    peer.stage = Stage::proof;
    return true;
  }
  if (const auto* const proof = std::get_if<Proof>(&message); proof != nullptr && peer.stage == Stage::proof) {
    if (!proves(proof->code, peer.handshake->member_proof)) {
      refuse(peer, "it does not know this run's secret, or has another run id");
      return true;
    }
    peer.connection.send(Writer(MessageKind::proof).raw(peer.handshake->server_proof).bytes());
    peer.connection.seal(peer.handshake->to_member, peer.handshake->to_server);
    peer.stage = Stage::join;
    return true;
  }
  if (auto* const join = std::get_if<Join>(&message); join != nullptr && peer.stage == Stage::join) {
    requests.push_back({std::move(peer.connection), std::move(*join)});
  }
  return false;
}

void Acceptor::refuse(Peer& peer, const std::string& reason) {
  last_refusal_ = fmt::format(" A process at {} connected and was refused: {}.", peer.address, reason);
  peer.connection.send(Writer(MessageKind::refused).text(reason).bytes());
  peer.stage = Stage::refused;
}

void Acceptor::dismiss(JoinRequest request) {
  peers_.push_back({std::move(request.connection), "", steady_now_ns(), Stage::refused});
}

}  // namespace vitrine::process_group
