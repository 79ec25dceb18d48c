// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

/// Private to runtime/world.
namespace vitrine::world {

/// An open file descriptor, closed at the end.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept;
  ~Descriptor();
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// A TCP socket that carries messages: each one's length, then its bytes. Never blocks.
class Connection {
 public:
  static constexpr uint64_t kLargestMessage = uint64_t{1} << 32;

  explicit Connection(Descriptor socket);
  int descriptor() const { return socket_.get(); }

  /// Queues a message, and sends what the socket takes. Nothing happens once the other side takes nothing more.
  void send(std::string_view message);
  /// Sends what is left.
  void flush();
  bool has_unsent() const { return sent_ < unsent_.size(); }
  /// Reads what has come. False once the other side is gone and all that it sent is here; it can still be taken.
  bool receive();
  bool gone() const { return gone_; }
  /// The next whole message. throws CommError when what came is no message, or one larger than `largest`.
  std::optional<std::string> take(uint64_t largest = kLargestMessage);

 private:
  Descriptor socket_;
  std::string unsent_, received_;
  size_t sent_ = 0, taken_ = 0;            // of these
  bool takes_more_ = true, gone_ = false;  // the other side
};

/// What a thread in poll() is woken by: readable once an 8-byte number was written to it.
Descriptor make_event();

/// Listens on all interfaces. port 0: one that is free. throws CommError naming the port and why.
Descriptor listen_on(int port);
int port_of(const Descriptor& socket);
/// The next one who connects, if any.
Descriptor accept_one(const Descriptor& listener);
/// Connects within `timeout_ms`; `problem` says why there is no connection.
Descriptor connect_to(const std::string& host, int port, int64_t timeout_ms, std::string& problem);

}  // namespace vitrine::world
