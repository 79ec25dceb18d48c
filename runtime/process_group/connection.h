// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/descriptor.h"
#include "runtime/process_group/handshake.h"

/// Private to runtime/process_group.
namespace vitrine::process_group {

/// A TCP socket that carries messages, each as its length and its bytes. Never blocks. Buffers received data up to a
/// limit; the rest stays in the system's buffers.
class Connection {
 public:
  static constexpr uint64_t kLargestMessage = uint64_t{1} << 30;
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
  bool gone() const { return gone_; }
  /// Whether the other machine acknowledges what it is sent, as that of a stopped process does too.
  bool acknowledged() const;
  /// Returns the next complete message. throws CommError for data that is not a message, is too large or too slow, or
  /// was not sealed by the other side.
  std::optional<std::string> take();

 private:
  Descriptor socket_;
  std::string unsent_, received_;
  size_t sent_ = 0, taken_ = 0;         // of outgoing_ and incoming_
  uint64_t largest_ = kLargestMessage;  // limit for the other side
  std::optional<Seal> sending_, receiving_;
  int64_t unfinished_since_ns_ = 0;        // 0: no partial message
  bool takes_more_ = true, gone_ = false;  // state of the other side
};

/// Creates an event that wakes a thread in poll(): readable once an 8-byte number was written to it. throws CommError.
Descriptor make_event();

/// Text of an errno. If descriptors have run out, also gives the limit and how to raise it.
std::string describe_error(int error);
/// Raises the number of files this process may open to at least `needed`, as far as the system permits.
void raise_descriptor_limit(uint64_t needed);

/// Whether a name means this machine's loopback: "localhost" and similar, 127.0.0.0/8 and ::1. A name that merely
/// resolves to such an address does not count: Debian's /etc/hosts maps a machine's own name to 127.0.1.1, and other
/// machines know it by another address.
bool names_loopback(const std::string& host);
/// Returns the addresses to listen on for a name that resolves to `resolved`: these, and, if all of them are loopback
/// addresses although the name is not a loopback name, also the machine's other addresses, by which other machines
/// reach it.
std::vector<std::string> addresses_to_bind(const std::string& host, std::vector<std::string> resolved,
                                           const std::vector<std::string>& interfaces);
/// Listens only on the addresses of a name. throws CommError naming host, port and cause.
std::vector<Descriptor> listen_at(const std::string& host, int port);
/// Listens on all interfaces. port 0: any free port. throws CommError naming the port and the cause.
Descriptor listen_on(int port);
int port_of(const Descriptor& socket);
/// Accepts a waiting connection, if any, and stores its address; otherwise errno gives the cause.
Descriptor accept_one(const Descriptor& listener, std::string* address = nullptr);
/// Connects within `timeout_ms`. Without a connection, `problem` gives the cause.
Descriptor connect_to(const std::string& host, int port, int64_t timeout_ms, std::string& problem);

}  // namespace vitrine::process_group
