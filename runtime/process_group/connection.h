// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/process_group/handshake.h"

/// Private to runtime/process_group.
namespace vitrine::process_group {

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

/// A TCP socket that carries messages: each one's length, then its bytes. Never blocks. What a peer sends is kept up to a limit; the rest waits in
/// the system's buffers.
class Connection {
 public:
  static constexpr uint64_t kLargestMessage = uint64_t{1} << 30;
  /// A message that has begun to come is there in this time, or never.
  static constexpr int64_t kLongestMessageMs = 300'000;

  explicit Connection(Descriptor socket);
  int descriptor() const { return socket_.get(); }
  /// From here on a message of the other side has at most so many bytes.
  void limit(uint64_t largest_message) { largest_ = largest_message; }
  /// From here on messages are sealed with these keys, both ways.
  void seal(const Key& sending, const Key& receiving);

  /// Queues a message, and sends what the socket takes. Nothing happens once the other side takes nothing more.
  /// throws CommError on more than kLargestMessage bytes.
  void send(std::string_view message);
  /// Sends what is left.
  void flush();
  bool has_unsent() const { return sent_ < unsent_.size(); }
  /// Reads what has come, up to the limit. False once the other side is gone and all that it sent is here; it can still be taken.
  bool receive();
  bool gone() const { return gone_; }
  /// The next whole message. throws CommError when what came is no message, one that is too large or too slow, or not what the other side sealed.
  std::optional<std::string> take();

 private:
  Descriptor socket_;
  std::string unsent_, received_;
  size_t sent_ = 0, taken_ = 0;         // of these
  uint64_t largest_ = kLargestMessage;  // that the other side may send
  std::optional<Seal> sending_, receiving_;
  int64_t unfinished_since_ns_ = 0;        // 0: no message has come in part
  bool takes_more_ = true, gone_ = false;  // the other side
};

/// What a thread in poll() is woken by: readable once an 8-byte number was written to it. throws CommError.
Descriptor make_event();

/// The text of an errno; where descriptors have run out, with their number and what raises it.
std::string describe_error(int error);
/// Lets this process open at least so many files, as far as the system allows it to raise its own limit.
void raise_descriptor_limit(uint64_t needed);

/// "localhost" and its like, 127.0.0.0/8 and ::1. A name that merely maps to one of these is none: Debian's /etc/hosts maps a machine's own name to
/// 127.0.1.1, and other machines know it by another address.
bool names_loopback(const std::string& host);
/// The addresses to listen at for a name that maps to `resolved`: these, and where all of them are loopback addresses of a name that is none, the
/// machine's others too, for under these the other machines know it.
std::vector<std::string> addresses_to_bind(const std::string& host, std::vector<std::string> resolved, const std::vector<std::string>& interfaces);
/// Listens at the addresses of a name only. throws CommError naming host, port and why.
std::vector<Descriptor> listen_at(const std::string& host, int port);
/// Listens on all interfaces. port 0: one that is free. throws CommError naming the port and why.
Descriptor listen_on(int port);
int port_of(const Descriptor& socket);
/// The next one who connects, if any, and its address; else errno says why.
Descriptor accept_one(const Descriptor& listener, std::string* address = nullptr);
/// Connects within `timeout_ms`; `problem` says why there is no connection.
Descriptor connect_to(const std::string& host, int port, int64_t timeout_ms, std::string& problem);

}  // namespace vitrine::process_group
