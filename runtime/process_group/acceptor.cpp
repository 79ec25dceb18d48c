// SPDX-License-Identifier: Apache-2.0
#include "runtime/process_group/acceptor.h"

#include <algorithm>
#include <cerrno>
#include <map>

#include <fmt/format.h>
#include <poll.h>

#include "runtime/clock.h"
#include "runtime/error.h"
#include "runtime/process_group/sockets.h"

namespace vitrine::process_group {

namespace {

// Accepted at a time, so that current members do not wait.
constexpr int kMostAccepted = 64;

}  // namespace

Acceptor::Acceptor(std::vector<Descriptor> listeners, const Key& key, size_t most_peers, Admit admit,
                   int64_t patience_ms)
    : listeners_(std::move(listeners)),
      key_(key),
      most_peers_(most_peers),
      admit_(std::move(admit)),
      patience_ns_(patience_ms * 1'000'000) {}

void Acceptor::wait(int wait_ms) const {
  std::vector<pollfd> waiting;
  for (const Descriptor& listener : listeners_) waiting.push_back({listener.get(), POLLIN, 0});
  for (const Peer& peer : peers_) {
    // Data from a refused peer is not read.
    if (peer.stage != Stage::refused) waiting.push_back({peer.connection.descriptor(), POLLIN, 0});
  }
  poll(waiting.data(), waiting.size(), wait_ms);
}

void Acceptor::serve(int wait_ms) {
  wait(wait_ms);
  for (const Descriptor& listener : listeners_) accept(listener);
  const int64_t now_ns = steady_now_ns();
  std::erase_if(peers_, [&](Peer& peer) { return !serve_peer(peer, now_ns); });
}

void Acceptor::accept(const Descriptor& listener) {
  for (int i = 0; i < kMostAccepted; ++i) {
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

bool Acceptor::serve_peer(Peer& peer, int64_t now_ns) try {
  if (now_ns - peer.since_ns > patience_ns_) return false;
  const bool open = peer.connection.receive();
  peer.connection.flush();
  if (peer.stage == Stage::refused) return open;
  while (const std::optional<std::string> bytes = peer.connection.take()) {
    if (!handle(peer, decode(*bytes))) return false;
    if (peer.stage == Stage::refused) break;
  }
  return open;
} catch (const std::exception&) {
  return false;
}

bool Acceptor::handle(Peer& peer, const Message& message) {
  const std::string somebody = fmt::format("A process at {}", peer.address);
  if (const auto* const hello = std::get_if<Hello>(&message); hello != nullptr && peer.stage == Stage::hello) {
    const std::optional<int> version = protocol_version(hello->magic);
    if (!version) return false;
    if (hello->magic != kMagic) {
      refuse(peer, somebody,
             fmt::format("it speaks version {} of the protocol between processes, rank 0 version {}; start all of them "
                         "with the same version of Vitrine",
                         *version, *protocol_version(kMagic)),
             refused_peer_);
      return true;
    }
    const std::string nonce = random_bytes();
    peer.handshake.emplace(key_, hello->nonce.bytes, nonce);
    peer.connection.send(encode(Challenge{{nonce}}));
    peer.stage = Stage::proof;
    return true;
  }
  if (const auto* const proof = std::get_if<Proof>(&message); proof != nullptr && peer.stage == Stage::proof) {
    if (!proves(proof->code.bytes, peer.handshake->member_proof)) {
      refuse(peer, somebody, "it does not know this run's secret, or has another run id", refused_peer_);
      return true;
    }
    peer.connection.send(encode(Proof{{peer.handshake->server_proof}}));
    peer.connection.seal(peer.handshake->to_member, peer.handshake->to_server);
    peer.stage = Stage::join;
    return true;
  }
  const auto* const join = std::get_if<Join>(&message);
  if (join == nullptr || peer.stage != Stage::join) return false;
  const std::string refusal = admit_(*join, peer.connection);
  if (refusal.empty()) return false;
  refuse(peer, join->name, refusal, refused_process_);
  return true;
}

void Acceptor::refuse(Peer& peer, const std::string& name, const std::string& reason, std::string& last) {
  last = fmt::format(" {} connected and was refused: {}.", name, reason);
  peer.connection.send(encode(Refused{reason}));
  peer.stage = Stage::refused;
}

}  // namespace vitrine::process_group
