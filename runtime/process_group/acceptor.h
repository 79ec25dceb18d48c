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

/// The most bytes of a message before a process has joined.
inline constexpr uint64_t kLargestHello = 4096;

/// Rank 0's acceptor: takes whoever connects through the handshake. Until a peer has proved that it knows the run's key, it gets nothing but a nonce,
/// holds at most kLargestHello bytes of memory, and kPatienceMs of time; what it does wrong closes its own connection and nothing else. Beyond
/// `most_peers` connections the oldest one from the address with the most of them is closed, so that one address cannot keep others out.
class Acceptor {
 public:
  static constexpr int64_t kPatienceMs = 10000;
  /// More than these are there only when somebody floods the acceptor.
  static constexpr size_t kSparePeers = 128;

  /// A process that knows the key, and says who it is.
  struct Guest {
    Connection connection;
    Join who;
  };

  Acceptor(std::vector<Descriptor> listeners, const Key& key, size_t most_peers, int64_t patience_ms = kPatienceMs);
  /// Waits up to `wait_ms` for something to come, and returns the processes that got through. throws CommError when no descriptor is left to take one
  /// in.
  std::vector<Guest> serve(int wait_ms);
  /// Keeps a connection whose process was told that it may not join, until it hangs up or its time is over.
  void dismiss(Guest guest);
  /// " 10.0.0.3 came and was refused: ...", or empty.
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
  void evict();
  /// False when the connection is over.
  bool attend(Peer& peer, int64_t now_ns, std::vector<Guest>& guests);
  bool handle(Peer& peer, Message message, std::vector<Guest>& guests);
  void refuse(Peer& peer, bool may_return, const std::string& reason);

  std::vector<Descriptor> listeners_;
  Key key_;
  size_t most_peers_;
  int64_t patience_ns_;
  std::vector<Peer> peers_;  // in the order in which they came
  std::string last_refusal_;
};

}  // namespace vitrine::process_group
