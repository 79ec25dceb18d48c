// SPDX-License-Identifier: Apache-2.0
#include "runtime/world/connection.h"

#include <array>
#include <cerrno>
#include <cstring>

#include <fcntl.h>
#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/error.h"

namespace vitrine::world {
namespace {

void prepare(int fd) {
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

/// Waits until a connection that was begun is made. Empty, or why it is not.
std::string finish_connecting(int fd, int64_t timeout_ms) {
  pollfd waiting{fd, POLLOUT, 0};
  if (poll(&waiting, 1, static_cast<int>(timeout_ms)) <= 0) return "no answer";
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error == 0 ? std::string() : std::strerror(error);
}

/// A socket that connects to a free port of its own machine may be given that very port, and so talk to itself.
bool talks_to_itself(int fd) {
  sockaddr_storage own{}, other{};
  socklen_t own_size = sizeof own, other_size = sizeof other;
  getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size);
  getpeername(fd, reinterpret_cast<sockaddr*>(&other), &other_size);
  return own_size == other_size && std::memcmp(&own, &other, own_size) == 0;
}

}  // namespace

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

Connection::Connection(Descriptor socket) : socket_(std::move(socket)) { prepare(socket_.get()); }

void Connection::send(std::string_view message) {
  if (!takes_more_) return;
  const uint64_t size = message.size();
  unsent_.append(reinterpret_cast<const char*>(&size), sizeof size);
  unsent_.append(message);
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
      // What the other side has sent before it went can still be read.
      takes_more_ = false;
      break;
    }
  }
  unsent_.clear();
  sent_ = 0;
}

bool Connection::receive() {
  std::array<char, 65536> buffer{};
  while (!gone_) {
    const ssize_t count = recv(socket_.get(), buffer.data(), buffer.size(), 0);
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

std::optional<std::string> Connection::take(uint64_t largest) {
  uint64_t size = 0;
  if (received_.size() - taken_ >= sizeof size) {
    std::memcpy(&size, received_.data() + taken_, sizeof size);
    if (size > largest) throw CommError("what came over a connection between processes is no message of Vitrine's");
    if (received_.size() - taken_ - sizeof size >= size) {
      std::string message = received_.substr(taken_ + sizeof size, size);
      taken_ += sizeof size + size;
      return message;
    }
  }
  received_.erase(0, taken_);
  taken_ = 0;
  return std::nullopt;
}

Descriptor make_event() { return Descriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)); }

Descriptor listen_on(int port) {
  Descriptor listener(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_storage address{};
  socklen_t size = 0;
  const int on = 1, off = 0;
  if (listener) {
    // Takes IPv4 too.
    setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    auto& any = reinterpret_cast<sockaddr_in6&>(address);
    any.sin6_family = AF_INET6;
    any.sin6_addr = in6addr_any;
    any.sin6_port = htons(static_cast<uint16_t>(port));
    size = sizeof any;
  } else {
    listener = Descriptor(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    auto& any = reinterpret_cast<sockaddr_in&>(address);
    any.sin_family = AF_INET;
    any.sin_addr.s_addr = htonl(INADDR_ANY);
    any.sin_port = htons(static_cast<uint16_t>(port));
    size = sizeof any;
  }
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(listener.get(), reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener.get(), 1024) != 0) {
    throw CommError(
        fmt::format("rank 0 cannot listen on port {}: {}; choose another one with --rendezvous tcp://HOST:PORT", port, std::strerror(errno)));
  }
  return listener;
}

int port_of(const Descriptor& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

Descriptor accept_one(const Descriptor& listener) { return Descriptor(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)); }

Descriptor connect_to(const std::string& host, int port, int64_t timeout_ms, std::string& problem) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int result = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (result != 0) {
    problem = fmt::format("{}: {}", host, gai_strerror(result));
    return {};
  }
  Descriptor connected;
  for (const addrinfo* at = found; at != nullptr && !connected; at = at->ai_next) {
    Descriptor fd(socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol));
    if (!fd) continue;
    std::string failed;
    if (connect(fd.get(), at->ai_addr, at->ai_addrlen) != 0)
      failed = errno == EINPROGRESS ? finish_connecting(fd.get(), timeout_ms) : std::strerror(errno);
    if (failed.empty() && talks_to_itself(fd.get())) failed = std::strerror(ECONNREFUSED);
    if (failed.empty()) {
      connected = std::move(fd);
    } else {
      problem = fmt::format("{}:{}: {}", host, port, failed);
    }
  }
  freeaddrinfo(found);
  return connected;
}

}  // namespace vitrine::world
