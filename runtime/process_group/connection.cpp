// SPDX-License-Identifier: Apache-2.0
#include "runtime/process_group/connection.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sodium.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "runtime/clock.h"
#include "runtime/error.h"

namespace vitrine::process_group {
namespace {

static_assert(kKeyBytes == crypto_generichash_BYTES && kKeyBytes == crypto_aead_chacha20poly1305_ietf_KEYBYTES);
static_assert(Connection::kSealBytes == crypto_aead_chacha20poly1305_ietf_ABYTES);
static_assert(EPOLLIN == POLLIN && EPOLLOUT == POLLOUT);

// Limit of data that one peer has not read.
constexpr size_t kMostUnsent = size_t{2} << 30;

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
  std::string text(2 * bytes.size() + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), bytes_of(bytes), bytes.size());
  text.pop_back();
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

Connection::Connection(Descriptor socket) : socket_(std::move(socket)) {
  fcntl(socket_.get(), F_SETFL, fcntl(socket_.get(), F_GETFL) | O_NONBLOCK);
  const int on = 1;
  setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

void Connection::seal(const Key& sending, const Key& receiving) {
  sending_ = Direction{sending};
  receiving_ = Direction{receiving};
}

void Connection::send(std::string_view message) {
  if (message.size() > kLargestMessage)
    throw CommError(
        fmt::format("a message to another process has {} bytes; the limit is {}", message.size(), kLargestMessage));
  if (!takes_more_) return;
  if (unsent_.size() - sent_ > kMostUnsent) {
    // The peer has not read for long: it hangs or is malicious.
    takes_more_ = false;
    shutdown(socket_.get(), SHUT_RDWR);
    return;
  }
  const uint64_t size = message.size() + (sending_ ? kSealBytes : 0);
  unsent_.append(reinterpret_cast<const char*>(&size), sizeof size);
  if (sending_) {
    const size_t begin = unsent_.size();
    unsent_.resize(begin + size);
    crypto_aead_chacha20poly1305_ietf_encrypt(bytes_of(unsent_) + begin, nullptr, bytes_of(message), message.size(),
                                              nullptr, 0, nullptr, nonce_of(sending_->count++).data(),
                                              sending_->key.data());
  } else {
    unsent_.append(message);
  }
  flush();
}

void Connection::flush() {
  while (has_unsent()) {
    const ssize_t count = ::send(socket_.get(), unsent_.data() + sent_, unsent_.size() - sent_, MSG_NOSIGNAL);
    if (count > 0) {
      sent_ += static_cast<size_t>(count);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return;
    } else if (errno != EINTR) {
      // Data that the other side sent before it closed the connection can still be read.
      takes_more_ = false;
      break;
    }
  }
  unsent_.clear();
  sent_ = 0;
}

bool Connection::receive() {
  std::array<char, 65536> buffer{};
  const uint64_t most = sizeof(uint64_t) + largest_ + kSealBytes;
  while (!gone_ && received_.size() - taken_ < most) {
    const size_t room = static_cast<size_t>(std::min<uint64_t>(buffer.size(), most - (received_.size() - taken_)));
    const ssize_t count = recv(socket_.get(), buffer.data(), room, 0);
    if (count > 0) {
      received_.append(buffer.data(), static_cast<size_t>(count));
    } else if (count == 0) {
      gone_ = true;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      break;
    } else if (errno != EINTR) {
      gone_ = true;
    }
  }
  return !gone_;
}

std::string Connection::open_sealed(std::string_view sealed) {
  std::string message(sealed.size() < kSealBytes ? 0 : sealed.size() - kSealBytes, '\0');
  if (sealed.size() < kSealBytes || crypto_aead_chacha20poly1305_ietf_decrypt(
                                        bytes_of(message), nullptr, nullptr, bytes_of(sealed), sealed.size(), nullptr,
                                        0, nonce_of(receiving_->count++).data(), receiving_->key.data()) != 0) {
    throw CommError(
        "a message between processes failed authentication: it was changed in transit or sent by someone else");
  }
  return message;
}

std::optional<std::string> Connection::take() {
  uint64_t size = 0;
  const size_t available = received_.size() - taken_;
  if (available >= sizeof size) {
    std::memcpy(&size, received_.data() + taken_, sizeof size);
    if (size > largest_ + (receiving_ ? kSealBytes : 0))
      throw CommError("data on a connection between processes is not a message of Vitrine");
    if (available - sizeof size >= size) {
      const std::string_view bytes = std::string_view(received_).substr(taken_ + sizeof size, size);
      std::string message = receiving_ ? open_sealed(bytes) : std::string(bytes);
      taken_ += sizeof size + size;
      unfinished_since_ns_ = 0;
      return message;
    }
  }
  received_.erase(0, taken_);
  taken_ = 0;
  if (available == 0) return std::nullopt;
  const int64_t now_ns = steady_now_ns();
  if (unfinished_since_ns_ == 0) unfinished_since_ns_ = now_ns;
  if (now_ns - unfinished_since_ns_ > kLongestMessageMs * 1'000'000)
    throw CommError(
        fmt::format("a message between processes did not arrive completely within {} s", kLongestMessageMs / 1000));
  return std::nullopt;
}

bool Connection::acknowledged() const {
  constexpr uint32_t kLongestMs = 1000;
  tcp_info info{};
  socklen_t size = sizeof info;
  return getsockopt(socket_.get(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || info.tcpi_unacked == 0 ||
         info.tcpi_last_ack_recv < kLongestMs;
}

uint32_t Connection::events() const { return gone_ ? 0U : EPOLLIN | (has_unsent() ? EPOLLOUT : 0U); }

void Connection::wait(int wait_ms) const {
  pollfd waiting{descriptor(), static_cast<short>(events()), 0};
  poll(&waiting, 1, wait_ms);
}

void Connection::watch(const Descriptor& epoll, uint32_t number) {
  const uint32_t wanted = events();
  if (wanted == watched_) return;
  epoll_event event{.events = wanted, .data = {.u32 = number}};
  const int change = watched_ == 0 ? EPOLL_CTL_ADD : wanted == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
  if (epoll_ctl(epoll.get(), change, descriptor(), &event) != 0 && wanted != 0)
    throw CommError(fmt::format("cannot watch the connection to rank {}: {}", number, std::strerror(errno)));
  watched_ = wanted;
}

}  // namespace vitrine::process_group
