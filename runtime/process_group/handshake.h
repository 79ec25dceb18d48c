// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "runtime/process_group/message.h"

/// Mutual proof of two processes that they know the run's key, and sealing of their messages. The cryptography is
/// libsodium's: keyed BLAKE2b for proofs and session keys, ChaCha20-Poly1305 for messages. Private to
/// runtime/process_group.
namespace vitrine::process_group {

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

/// One direction of a connection: messages are encrypted, authenticated and numbered, so that reading, changing,
/// omitting, repeating or moving one is impossible or detected.
class Seal {
 public:
  static constexpr size_t kOverhead = 16;

  explicit Seal(const Key& key) : key_(key) {}
  /// Appends the sealed message to `to`, kOverhead bytes longer.
  void close(std::string_view message, std::string& to);
  /// throws CommError if it is not the next message that the other side sealed.
  std::string open(std::string_view sealed);

 private:
  Key key_;
  uint64_t count_ = 0;
};

}  // namespace vitrine::process_group
