// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/process_group/message.h"

/// How two processes of a run prove to each other that they know its key, and how their messages are sealed afterwards. The cryptography is
/// libsodium's: BLAKE2b with a key for proofs and session keys, ChaCha20-Poly1305 for messages. Private to runtime/process_group.
namespace vitrine::process_group {

/// kKeyBytes secret bytes, erased at the end.
class Key {
 public:
  Key() = default;
  /// throws CommError unless there are kKeyBytes.
  explicit Key(std::string_view bytes);
  Key(const Key&) = default;
  Key& operator=(const Key&) = default;
  ~Key();
  const uint8_t* data() const { return bytes_.data(); }

 private:
  std::array<uint8_t, kKeyBytes> bytes_{};
};

/// kKeyBytes from the system's generator: a nonce or a key.
std::string random_bytes();
std::string to_hex(std::string_view bytes);
/// Empty where the text is no hexadecimal number of whole bytes.
std::string from_hex(std::string_view text);

/// What proves membership of a run: made of the secret that the user gave and of the one that rank 0 made for this run; either may be empty.
Key run_key(std::string_view given, std::string_view made);

/// What follows from a run's key and both sides' nonces. Each of the four is made under a name of its own: one side's proof is none of the other's,
/// and with a fresh nonce of either side nothing recorded earlier is right again.
struct Handshake {
  Handshake(const Key& key, std::string_view member_nonce, std::string_view server_nonce);
  std::string member_proof, server_proof;
  Key to_server, to_member;
};

/// Compares in constant time.
bool proves(std::string_view given, std::string_view expected);

/// One direction of a connection: messages are encrypted, authenticated and numbered, so that none can be read, changed, left out, repeated or put
/// elsewhere unnoticed.
class Seal {
 public:
  static constexpr size_t kOverhead = 16;

  explicit Seal(const Key& key) : key_(key) {}
  /// Appends the sealed message, kOverhead bytes longer, to `to`.
  void close(std::string_view message, std::string& to);
  /// throws CommError when it is not what the other side sealed next.
  std::string open(std::string_view sealed);

 private:
  Key key_;
  uint64_t count_ = 0;
};

}  // namespace vitrine::process_group
