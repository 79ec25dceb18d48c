// SPDX-License-Identifier: Apache-2.0
#include "runtime/process_group/rendezvous.h"

#include <array>
#include <sstream>

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/error.h"
#include "runtime/printable.h"
#include "runtime/process_group/connection.h"
#include "runtime/process_group/handshake.h"
#include "runtime/process_group/private_file.h"
#include "runtime/settings.h"
#include "runtime/text.h"

namespace vitrine::process_group {

namespace {

constexpr size_t kLongestAddress = 65536;

}  // namespace

std::string Address::str() const {
  std::string text = fmt::format("vitrine {} {} {}", to_hex(key), port, host_name);
  for (const std::string& host : hosts) text += " " + host;
  return text + "\n";
}

Address Address::parse(const std::string& text) {
  std::istringstream in(text);
  std::string magic, digits;
  Address address;
  const bool whole = (in >> magic >> digits >> address.port >> address.host_name) && magic == "vitrine";
  address.key = from_hex(digits);
  if (!whole || address.key.size() != kKeyBytes || address.port < 1 || address.port > 65535) {
    throw CommError("'" + printable(text.substr(0, 80)) + "' is not the address of a Vitrine run");
  }
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
    if (at->ifa_addr == nullptr || (at->ifa_flags & IFF_UP) == 0 || (at->ifa_flags & IFF_LOOPBACK) != 0 ||
        at->ifa_addr->sa_family != AF_INET)
      continue;
    std::array<char, INET_ADDRSTRLEN> text{};
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(at->ifa_addr)->sin_addr, text.data(), text.size());
    addresses.emplace_back(text.data());
  }
  freeifaddrs(interfaces);
  return addresses;
}

void write_address(const std::string& path, const Address& address) {
  const std::string problem = write_private_file(path, address.str());
  if (problem.empty()) return;
  throw CommError({given(settings::kRendezvous, "file:" + path),
                   fmt::format(": cannot write it ({}); give a file in a folder that all processes share", problem)});
}

std::string read_address(const std::string& path) {
  // Opening or reading a fifo must not block.
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file) return {};
  struct stat status {};
  if (fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode)) {
    throw CommError({given(settings::kRendezvous, "file:" + path),
                     ": it is not a regular file; give a new file in a folder that all processes share"});
  }
  std::string text;
  return read_content(file, kLongestAddress, text) ? text : std::string();
}

std::string read_private_address(const std::string& path, std::string& problem) {
  if (access(path.c_str(), F_OK) == 0) return read_private_file(path, kLongestAddress, problem);
  problem = kNoAddressFile;
  return {};
}

InitMethod parse_init_method(const std::string& text) {
  const auto bad = [&](const char* why) {
    return ConfigError({given(settings::kRendezvous, text),
                        fmt::format(": {}; use tcp://HOST:PORT of rank 0's machine, or file:PATH on a file system "
                                    "that all processes share",
                                    why)});
  };
  InitMethod method;
  if (text.rfind("file:", 0) == 0) {
    method.path = text.substr(text.rfind("file://", 0) == 0 ? 7 : 5);
    if (method.path.empty()) throw bad("the path is empty");
    return method;
  }
  if (text.rfind("tcp://", 0) != 0) throw bad("unknown method");
  const size_t colon = text.rfind(':');
  if (colon < 6 || colon == 6) throw bad("host and port are missing");
  method.host = text.substr(6, colon - 6);
  if (method.host.size() > 2 && method.host.front() == '[' && method.host.back() == ']')
    method.host = method.host.substr(1, method.host.size() - 2);
  method.port = parse_number<int>(std::string_view(text).substr(colon + 1)).value_or(0);
  if (method.port < 1 || method.port > 65535) throw bad("the port is not a number from 1 to 65535");
  return method;
}

Rendezvous plan_rendezvous(const std::string& init, const std::string& secret, const std::string& run_id,
                           bool one_machine) {
  Rendezvous plan;
  check_secret(secret, "the secret of the processes");
  plan.secret = secret;
  plan.run_id = run_id;
  if (init.empty()) return plan;  // MPI carries the address and the key made for this run
  plan.method = parse_init_method(init);
  plan.address_file = plan.method.path;
  if (plan.method.host.empty()) return plan;
  if (one_machine) plan.method.host = "127.0.0.1";
  if (!secret.empty()) return plan;
  if (!names_loopback(plan.method.host)) {
    throw ConfigError(
        {given(settings::kRendezvous, init),
         ": a rendezvous over a network needs a secret, because anyone there can connect; set VITRINE_SECRET, or "
         "VITRINE_SECRET_FILE to a "
         "file of mode 0600, to the same for all of them, for example to the output of: openssl rand -hex 32"});
  }
  plan.address_file = private_address_path(plan.method.port);
  return plan;
}

}  // namespace vitrine::process_group
