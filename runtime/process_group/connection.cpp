// SPDX-License-Identifier: Apache-2.0
#include "runtime/process_group/connection.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/clock.h"
#include "runtime/error.h"

namespace vitrine::process_group {
namespace {

// Limit of data that one peer has not read.
constexpr size_t kMostUnsent = size_t{2} << 30;

void prepare(int fd) {
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace

Connection::Connection(Descriptor socket) : socket_(std::move(socket)) { prepare(socket_.get()); }

void Connection::seal(const Key& sending, const Key& receiving) {
  sending_.emplace(sending);
  receiving_.emplace(receiving);
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
  const uint64_t size = message.size() + (sending_ ? Seal::kOverhead : 0);
  unsent_.append(reinterpret_cast<const char*>(&size), sizeof size);
  if (sending_) {
    sending_->close(message, unsent_);
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
  const uint64_t most = sizeof(uint64_t) + largest_ + Seal::kOverhead;
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

bool Connection::acknowledged() const {
  constexpr uint32_t kLongestMs = 1000;
  tcp_info info{};
  socklen_t size = sizeof info;
  return getsockopt(socket_.get(), IPPROTO_TCP, TCP_INFO, &info, &size) != 0 || info.tcpi_unacked == 0 ||
         info.tcpi_last_ack_recv < kLongestMs;
}

std::optional<std::string> Connection::take() {
  uint64_t size = 0;
  const size_t available = received_.size() - taken_;
  if (available >= sizeof size) {
    std::memcpy(&size, received_.data() + taken_, sizeof size);
    if (size > largest_ + (receiving_ ? Seal::kOverhead : 0))
      throw CommError("data on a connection between processes is not a message of Vitrine");
    if (available - sizeof size >= size) {
      const std::string_view bytes = std::string_view(received_).substr(taken_ + sizeof size, size);
      std::string message = receiving_ ? receiving_->open(bytes) : std::string(bytes);
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

Descriptor make_event() {
  Descriptor event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) throw CommError(fmt::format("process group: cannot create an event: {}", describe_error(errno)));
  return event;
}

}  // namespace vitrine::process_group
