// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/process_group/connection.h"
#include "runtime/process_group/message.h"

/// Private to runtime/process_group.
namespace vitrine::process_group {

/// The largest message, in bytes, from a process that has not joined.
inline constexpr uint64_t kLargestHello = 4096;

/// Accepts connections on rank 0 and runs the handshake. Until a peer has proved that it knows the run's key, it
/// receives only a nonce and occupies at most kLargestHello bytes of memory for at most kPatienceMs. Its errors close
/// its own connection only. Beyond `most_peers` connections, the oldest one from the address with the most connections
/// is closed, so that one address cannot keep others out.
class Acceptor {
 public:
  static constexpr int64_t kPatienceMs = 10000;
  /// More than these occur only under a flood of connections.
  static constexpr size_t kSparePeers = 128;

  /// Takes the connection of a process that knows the key, or returns why it may not join.
  using Admit = std::function<std::string(const Join&, Connection&)>;

  Acceptor(std::vector<Descriptor> listeners, const Key& key, size_t most_peers, Admit admit,
           int64_t patience_ms = kPatienceMs);
  /// Waits up to `wait_ms` for activity and admits the processes that completed the handshake. throws CommError if the
  /// process has run out of file descriptors.
  void serve(int wait_ms);
  /// " 10.0.0.3 connected and was refused: ...", or empty.
  std::string last_refusals() const { return refused_process_ + refused_peer_; }
  size_t peer_count() const { return peers_.size(); }

 private:
  enum class Stage { hello, proof, join, refused };
  struct Peer {
    Connection connection;
    std::string address;
    int64_t since_ns = 0;
    Stage stage = Stage::hello;
    std::optional<Handshake> handshake = {};
  };
  void wait(int wait_ms) const;
  void accept(const Descriptor& listener);
  void close_oldest_peer();
  /// Returns false if the connection is to be closed.
  bool serve_peer(Peer& peer, int64_t now_ns);
  bool handle(Peer& peer, const Message& message);
  /// Keeps the connection until the peer hangs up or its time is over, so that it can read the refusal.
  void refuse(Peer& peer, const std::string& name, const std::string& reason, std::string& last);

  std::vector<Descriptor> listeners_;
  Key key_;
  size_t most_peers_;
  Admit admit_;
  int64_t patience_ns_;
  std::vector<Peer> peers_;                     // in order of arrival
  std::string refused_process_, refused_peer_;  // the last one that knows the key, and one that does not
};

}  // namespace vitrine::process_group
