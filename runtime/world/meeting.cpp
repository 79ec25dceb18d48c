// SPDX-License-Identifier: Apache-2.0
#include "runtime/world/meeting.h"

#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <unistd.h>

#include "runtime/error.h"

namespace vitrine::world {

std::string Address::str() const {
  std::string text = fmt::format("vitrine {:016x} {} {}", token, port, host_name);
  for (const std::string& host : hosts) text += " " + host;
  return text + "\n";
}

Address Address::parse(const std::string& text) {
  std::istringstream in(text);
  std::string magic, token;
  Address address;
  const bool whole = (in >> magic >> token >> address.port >> address.host_name) && magic == "vitrine";
  const auto [end, error] = std::from_chars(token.data(), token.data() + token.size(), address.token, 16);
  if (!whole || error != std::errc{} || end != token.data() + token.size() || address.port < 1 || address.port > 65535)
    throw CommError("'" + text.substr(0, 80) + "' is not where a run of Vitrine meets");
  for (std::string host; in >> host;) address.hosts.push_back(host);
  return address;
}

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
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0 || (at->ifa_flags & IFF_LOOPBACK) != 0 || at->ifa_addr->sa_family != AF_INET)
      continue;
    std::array<char, INET_ADDRSTRLEN> text{};
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr, text.data(), text.size());
    addresses.emplace_back(text.data());
  }
  freeifaddrs(interfaces);
  return addresses;
}

uint64_t make_token() {
  std::random_device device;
  const uint64_t token = (uint64_t{device()} << 32) | device();
  return token == 0 ? 1 : token;
}

void write_address(const std::string& path, const Address& address) {
  const std::string temporary = fmt::format("{}.{}.tmp", path, getpid());
  std::ofstream file(temporary);
  file << address.str();
  file.close();
  if (!file || std::rename(temporary.c_str(), path.c_str()) != 0) {
    const std::string reason = std::strerror(errno);
    std::remove(temporary.c_str());
    throw CommError(fmt::format("--rendezvous file:{}: it cannot be written ({}); name a file in a folder that all processes see", path, reason));
  }
}

std::string read_address(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

InitMethod parse_init_method(const std::string& text) {
  const auto bad = [&](const char* why) {
    return ConfigError(
        fmt::format("--rendezvous {}: {}; use tcp://HOST:PORT of the first process's machine, or file:PATH that all processes see", text, why));
  };
  InitMethod method;
  if (text.rfind("file:", 0) == 0) {
    method.path = text.substr(text.rfind("file://", 0) == 0 ? 7 : 5);
    if (method.path.empty()) throw bad("it names no file");
    return method;
  }
  if (text.rfind("tcp://", 0) != 0) throw bad("it is neither");
  const size_t colon = text.rfind(':');
  if (colon < 6 || colon == 6) throw bad("it has no host and port");
  method.host = text.substr(6, colon - 6);
  if (method.host.size() > 2 && method.host.front() == '[' && method.host.back() == ']') method.host = method.host.substr(1, method.host.size() - 2);
  const auto [end, error] = std::from_chars(text.data() + colon + 1, text.data() + text.size(), method.port);
  if (error != std::errc{} || end != text.data() + text.size() || method.port < 1 || method.port > 65535)
    throw bad("its port is not one of 1 to 65535");
  return method;
}

}  // namespace vitrine::world
