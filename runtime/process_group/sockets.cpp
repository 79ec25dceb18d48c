// SPDX-License-Identifier: Apache-2.0
#include "runtime/process_group/sockets.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/error.h"
#include "runtime/settings.h"

namespace vitrine::process_group {
namespace {

constexpr int kBacklog = 1024;

/// Waits until a connection in progress is established. Returns an empty string, or the cause of the failure.
std::string finish_connecting(int fd, int64_t timeout_ms) {
  pollfd waiting{fd, POLLOUT, 0};
  if (poll(&waiting, 1, static_cast<int>(timeout_ms)) <= 0) return "no answer";
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error == 0 ? std::string() : std::strerror(error);
}

/// A socket that connects to a free port of its own machine may be assigned that very port, and so talk to itself.
bool talks_to_itself(int fd) {
  sockaddr_storage own{}, other{};
  socklen_t own_size = sizeof own, other_size = sizeof other;
  getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_size);
  getpeername(fd, reinterpret_cast<sockaddr*>(&other), &other_size);
  return own_size == other_size && std::memcmp(&own, &other, own_size) == 0;
}

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

/// Returns null if there are no addresses; `problem` gives the cause.
Addresses resolve(const std::string& host, int port, int flags, std::string& problem) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int result = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (result != 0)
    problem = fmt::format("{}: {}", host, result == EAI_SYSTEM ? describe_error(errno) : gai_strerror(result));
  return Addresses(result == 0 ? found : nullptr);
}

/// Formats an address without the port, IPv4 in its own notation.
std::string address_text(const sockaddr* address, socklen_t size) {
  std::array<char, NI_MAXHOST> text{};
  if (getnameinfo(address, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) != 0)
    return "an unknown address";
  const std::string shown = text.data();
  constexpr std::string_view kMapped = "::ffff:";
  return shown.starts_with(kMapped) ? shown.substr(kMapped.size()) : shown;
}

bool is_loopback_address(const std::string& text) {
  in_addr v4{};
  in6_addr v6{};
  if (inet_pton(AF_INET, text.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  return inet_pton(AF_INET6, text.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

/// Returns an empty descriptor on failure; errno gives the cause.
Descriptor bind_and_listen(const sockaddr* address, socklen_t size, bool v6_only) {
  Descriptor listener(socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const int on = 1, only = v6_only ? 1 : 0;
  if (!listener) return {};
  if (address->sa_family == AF_INET6) setsockopt(listener.get(), IPPROTO_IPV6, IPV6_V6ONLY, &only, sizeof only);
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(listener.get(), address, size) == 0 && listen(listener.get(), kBacklog) == 0) return listener;
  const int error = errno;
  listener = Descriptor();
  errno = error;
  return {};
}

}  // namespace

std::string host_name() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::vector<std::string> interface_addresses() {
  std::vector<std::string> addresses;
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return addresses;
  for (const ifaddrs* at = interfaces; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0 || (at->ifa_flags & IFF_LOOPBACK) != 0 ||
        at->ifa_addr->sa_family != AF_INET)
      continue;
    addresses.push_back(address_text(at->ifa_addr, sizeof(sockaddr_in)));
  }
  freeifaddrs(interfaces);
  return addresses;
}

Descriptor make_event() {
  Descriptor event(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!event) throw CommError(fmt::format("process group: cannot create an event: {}", describe_error(errno)));
  return event;
}

std::string describe_error(int error) {
  rlimit limit{};
  if (error != EMFILE || getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::strerror(error);
  return fmt::format(
      "{}: this process may have {} file descriptors; raise their number with ulimit -n (up to {}), or above that as "
      "root",
      std::strerror(error), limit.rlim_cur, limit.rlim_max);
}

void raise_descriptor_limit(uint64_t needed) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) return;
  limit.rlim_cur = std::min<rlim_t>(needed, limit.rlim_max);
  setrlimit(RLIMIT_NOFILE, &limit);  // a failure shows when descriptors run out
}

bool names_loopback(const std::string& host) {
  return host == "localhost" || host == "localhost.localdomain" || host == "ip6-localhost" || host == "ip6-loopback" ||
         host.ends_with(".localhost") || is_loopback_address(host);
}

std::vector<std::string> addresses_to_bind(const std::string& host, std::vector<std::string> resolved,
                                           const std::vector<std::string>& interfaces) {
  if (!names_loopback(host) && std::all_of(resolved.begin(), resolved.end(), is_loopback_address))
    resolved.insert(resolved.end(), interfaces.begin(), interfaces.end());
  return resolved;
}

std::vector<Descriptor> listen_at(const std::string& host, int port) {
  const bool everywhere = host.empty();
  const auto refuse = [&](const Reason& why) {
    return CommError(fmt::format("rank 0 cannot listen on port {}{}: ", port, everywhere ? "" : " of " + host) + why);
  };
  std::string problem;
  std::vector<std::string> resolved, addresses = {"::", "0.0.0.0"};  // the first accepts IPv4 too
  if (!everywhere) {
    const Addresses found = resolve(host, port, 0, problem);
    if (!found) throw refuse(problem);
    for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next)
      resolved.push_back(address_text(at->ai_addr, at->ai_addrlen));
    addresses = addresses_to_bind(host, resolved, interface_addresses());
  }
  std::vector<Descriptor> listeners;
  for (const std::string& address : addresses) {
    const Addresses numeric = resolve(address, port, AI_NUMERICHOST, problem);
    if (!numeric) continue;
    if (Descriptor listener = bind_and_listen(numeric->ai_addr, numeric->ai_addrlen, !everywhere)) {
      listeners.push_back(std::move(listener));
      if (everywhere) break;
    } else if (errno != EADDRNOTAVAIL && errno != EAFNOSUPPORT) {
      throw refuse(
          {describe_error(errno), "; choose another port with ", propose(settings::kRendezvous, "tcp://HOST:PORT")});
    }
  }
  if (listeners.empty()) {
    throw refuse(
        fmt::format("its address is {}, but this machine has {}; give the name or the address of rank 0's machine",
                    fmt::join(resolved, ", "), fmt::join(interface_addresses(), ", ")));
  }
  return listeners;
}

int port_of(const Descriptor& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

Descriptor accept_one(const Descriptor& listener, std::string* address) {
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  Descriptor socket(accept4(listener.get(), reinterpret_cast<sockaddr*>(&peer), &size, SOCK_CLOEXEC));
  if (socket && address != nullptr) *address = address_text(reinterpret_cast<const sockaddr*>(&peer), size);
  return socket;
}

Descriptor connect_to(const std::string& host, int port, int64_t timeout_ms, std::string& problem) {
  const Addresses found = resolve(host, port, 0, problem);
  Descriptor connected;
  for (const addrinfo* at = found.get(); at != nullptr && !connected; at = at->ai_next) {
    Descriptor fd(socket(at->ai_family, at->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, at->ai_protocol));
    std::string failed;
    if (!fd) {
      failed = describe_error(errno);
    } else if (connect(fd.get(), at->ai_addr, at->ai_addrlen) != 0) {
      failed = errno == EINPROGRESS ? finish_connecting(fd.get(), timeout_ms) : std::strerror(errno);
    }
    if (failed.empty() && talks_to_itself(fd.get())) failed = std::strerror(ECONNREFUSED);
    if (failed.empty()) {
      connected = std::move(fd);
    } else {
      problem = fmt::format("{}:{}: {}", host, port, failed);
    }
  }
  return connected;
}

}  // namespace vitrine::process_group
