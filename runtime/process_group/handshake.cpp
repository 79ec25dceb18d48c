// SPDX-License-Identifier: Apache-2.0
#include "runtime/process_group/handshake.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>
#include <sodium.h>

#include "runtime/error.h"

namespace vitrine::process_group {
namespace {

static_assert(kKeyBytes == crypto_generichash_BYTES && kKeyBytes == crypto_aead_chacha20poly1305_ietf_KEYBYTES);
static_assert(Seal::kOverhead == crypto_aead_chacha20poly1305_ietf_ABYTES);

void require_sodium() {
  static const bool ready = sodium_init() >= 0;
  if (!ready) throw CommError("libsodium cannot be initialized: the system provides no random numbers");
}

unsigned char* bytes_of(std::string& text) { return reinterpret_cast<unsigned char*>(text.data()); }
const unsigned char* bytes_of(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }

/// Hashes the parts with BLAKE2b, each preceded by its length.
std::string hash_of(const Key* key, std::initializer_list<std::string_view> parts) {
  require_sodium();
  std::string all;
  for (const std::string_view part : parts) {
    const uint64_t size = part.size();
    all.append(reinterpret_cast<const char*>(&size), sizeof size).append(part);
  }
  std::string hash(kKeyBytes, '\0');
  crypto_generichash(bytes_of(hash), hash.size(), bytes_of(std::string_view(all)), all.size(),
                     key == nullptr ? nullptr : key->data(), key == nullptr ? 0 : kKeyBytes);
  sodium_memzero(all.data(), all.size());
  return hash;
}

using Nonce = std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES>;

/// A session key seals each number once.
Nonce nonce_of(uint64_t count) {
  Nonce nonce{};
  std::memcpy(nonce.data(), &count, sizeof count);
  return nonce;
}

}  // namespace

Key::Key(std::string_view bytes) {
  if (bytes.size() != bytes_.size())
    throw CommError(fmt::format("a key has {} bytes, expected {}", bytes.size(), bytes_.size()));
  std::copy(bytes.begin(), bytes.end(), bytes_.begin());
}

Key::~Key() { sodium_memzero(bytes_.data(), bytes_.size()); }

std::string random_bytes() {
  require_sodium();
  std::string bytes(kKeyBytes, '\0');
  randombytes_buf(bytes.data(), bytes.size());
  return bytes;
}

std::string to_hex(std::string_view bytes) {
  std::string text;
  for (const char byte : bytes) text += fmt::format("{:02x}", static_cast<uint8_t>(byte));
  return text;
}

std::string from_hex(std::string_view text) {
  std::string bytes(text.size() / 2, '\0');
  size_t read = 0;
  const char* end = nullptr;
  const bool whole =
      sodium_hex2bin(bytes_of(bytes), bytes.size(), text.data(), text.size(), nullptr, &read, &end) == 0 &&
      end == text.data() + text.size() && 2 * read == text.size();
  return whole ? bytes : std::string();
}

Key run_key(std::string_view given, std::string_view made, std::string_view run_id) {
  return Key(hash_of(nullptr, {"vitrine run", given, made, run_id}));
}

Handshake::Handshake(const Key& key, std::string_view member_nonce, std::string_view server_nonce)
    : member_proof(hash_of(&key, {"vitrine member's proof", member_nonce, server_nonce})),
      server_proof(hash_of(&key, {"vitrine rank 0's proof", member_nonce, server_nonce})),
      to_server(hash_of(&key, {"vitrine key to rank 0", member_nonce, server_nonce})),
      to_member(hash_of(&key, {"vitrine key to member", member_nonce, server_nonce})) {}

bool proves(std::string_view given, std::string_view expected) {
  return given.size() == expected.size() && sodium_memcmp(given.data(), expected.data(), given.size()) == 0;
}

void Seal::close(std::string_view message, std::string& to) {
  const size_t begin = to.size();
  to.resize(begin + message.size() + kOverhead);
  crypto_aead_chacha20poly1305_ietf_encrypt(bytes_of(to) + begin, nullptr, bytes_of(message), message.size(), nullptr,
                                            0, nullptr, nonce_of(count_++).data(), key_.data());
}

std::string Seal::open(std::string_view sealed) {
  std::string message(sealed.size() < kOverhead ? 0 : sealed.size() - kOverhead, '\0');
  if (sealed.size() < kOverhead ||
      crypto_aead_chacha20poly1305_ietf_decrypt(bytes_of(message), nullptr, nullptr, bytes_of(sealed), sealed.size(),
                                                nullptr, 0, nonce_of(count_++).data(), key_.data()) != 0) {
    throw CommError(
        "a message between processes failed authentication: it was changed in transit or sent by someone else");
  }
  return message;
}

}  // namespace vitrine::process_group
