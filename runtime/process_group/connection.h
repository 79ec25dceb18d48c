// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "runtime/descriptor.h"

/// Sealed connections. The cryptography is libsodium's: keyed BLAKE2b for proofs and session keys, ChaCha20-Poly1305
/// for messages. Private to runtime/process_group.
namespace vitrine::process_group {

/// A nonce, a proof or a key.
inline constexpr size_t kKeyBytes = 32;

/// kKeyBytes secret bytes, erased on destruction.
class Key {
 public:
  Key() = default;
  /// throws CommError for any other number of bytes.
  explicit Key(std::string_view bytes);
  Key(const Key&) = default;
  Key& operator=(const Key&) = default;
  ~Key();
  const uint8_t* data() const { return bytes_.data(); }

 private:
  std::array<uint8_t, kKeyBytes> bytes_{};
};

/// Returns kKeyBytes from the system's random generator: a nonce or a key.
std::string random_bytes();
std::string to_hex(std::string_view bytes);
/// Returns an empty string if the text is not the hexadecimal form of whole bytes.
std::string from_hex(std::string_view text);

/// Derives the key of a run from the user's secret, the one that rank 0 generated for this run, and the run's id; each
/// may be empty.
Key run_key(std::string_view given, std::string_view made, std::string_view run_id = {});

/// Values derived from a run's key and both sides' nonces. Each of the four is derived under its own name, so one
/// side's proof is useless to the other, and a fresh nonce of either side invalidates all recordings.
struct Handshake {
  Handshake(const Key& key, std::string_view member_nonce, std::string_view server_nonce);
  std::string member_proof, server_proof;
  Key to_server, to_member;
};

/// Compares in constant time.
bool proves(std::string_view given, std::string_view expected);

/// A TCP socket that carries messages, each as its length and its bytes. Never blocks. Buffers received data up to a
/// limit; the rest stays in the system's buffers. Once sealed, messages are encrypted, authenticated and numbered, so
/// that reading, changing, omitting, repeating or moving one is impossible or detected.
class Connection {
 public:
  static constexpr uint64_t kLargestMessage = uint64_t{1} << 30;
  /// What sealing adds to a message.
  static constexpr size_t kSealBytes = 16;
  /// Time within which a message must arrive completely after its first byte.
  static constexpr int64_t kLongestMessageMs = 300'000;

  explicit Connection(Descriptor socket);
  int descriptor() const { return socket_.get(); }
  /// Limits the size of messages from the other side from now on.
  void limit(uint64_t largest_message) { largest_ = largest_message; }
  /// Seals messages with these keys in both directions from now on.
  void seal(const Key& sending, const Key& receiving);

  /// Queues a message and sends as much as the socket accepts. Does nothing if the other side has closed its reading
  /// end. throws CommError for more than kLargestMessage bytes.
  void send(std::string_view message);
  /// Sends queued data.
  void flush();
  bool has_unsent() const { return sent_ < unsent_.size(); }
  /// Reads available data, up to the limit. False if the other side has closed the connection and everything it sent
  /// has been read; take() still works.
  bool receive();
  /// Returns the next complete message. throws CommError for data that is not a message, is too large or too slow, or
  /// was not sealed by the other side.
  std::optional<std::string> take();
  bool gone() const { return gone_; }
  /// Whether the other machine acknowledges what it is sent, as that of a stopped process does too.
  bool acknowledged() const;
  /// Waits until data arrives or, for unsent data, until the socket accepts more; at most `wait_ms`.
  void wait(int wait_ms) const;
  /// Makes an epoll report what wait() waits for, under this number. Call it again after each other call.
  void watch(const Descriptor& epoll, uint32_t number);

 private:
  /// The key of a direction, and the number of messages that it has sealed.
  struct Direction {
    Key key;
    uint64_t count = 0;
  };
  std::string open_sealed(std::string_view sealed);
  uint32_t events() const;

  Descriptor socket_;
  std::string unsent_, received_;
  size_t sent_ = 0, taken_ = 0;         // of unsent_ and received_
  uint64_t largest_ = kLargestMessage;  // limit for the other side
  std::optional<Direction> sending_, receiving_;
  int64_t unfinished_since_ns_ = 0;        // 0: no partial message
  bool takes_more_ = true, gone_ = false;  // state of the other side
  uint32_t watched_ = 0;                   // events that the epoll reports; 0: none
};

}  // namespace vitrine::process_group
