// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/process_group/connection.h"
#include "runtime/process_group/handshake.h"
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

  /// A process that knows the key, with its identity.
  struct JoinRequest {
    Connection connection;
    Join join;
  };

  Acceptor(std::vector<Descriptor> listeners, const Key& key, size_t most_peers, int64_t patience_ms = kPatienceMs);
  /// Waits up to `wait_ms` for activity and returns the processes that completed the handshake. throws CommError if the
  /// process has run out of file descriptors.
  std::vector<JoinRequest> serve(int wait_ms);
  /// Keeps the connection of a refused process until it hangs up or its time is over, so that it can read the refusal.
  void dismiss(JoinRequest request);
  /// " 10.0.0.3 connected and was refused: ...", or empty.
  const std::string& last_refusal() const { return last_refusal_; }
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
  void admit(const Descriptor& listener);
  void close_oldest_peer();
  /// Returns false if the connection is to be closed.
  bool serve_peer(Peer& peer, int64_t now_ns, std::vector<JoinRequest>& requests);
  bool handle(Peer& peer, Message message, std::vector<JoinRequest>& requests);
  void refuse(Peer& peer, const std::string& reason);

  std::vector<Descriptor> listeners_;
  Key key_;
  size_t most_peers_;
  int64_t patience_ns_;
  std::vector<Peer> peers_;  // in order of arrival
  std::string last_refusal_;
};

}  // namespace vitrine::process_group
