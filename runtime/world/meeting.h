// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

/// Where the processes of a world find rank 0. Private to runtime/world.
namespace vitrine::world {

/// Where rank 0 listens.
struct Address {
  uint64_t token = 0;  // of this run: who does not know it may not join. 0: anybody may
  int port = 0;
  std::string host_name;
  std::vector<std::string> hosts;  // names or addresses to try, in order

  std::string str() const;
  /// throws CommError on what is no address.
  static Address parse(const std::string& text);
};

/// This machine's name, and the addresses of its interfaces that are up, without loopback.
std::string host_name();
std::vector<std::string> interface_addresses();
/// A token that no other run has.
uint64_t make_token();

/// Writes an address for others to read, whole or not at all. throws CommError.
void write_address(const std::string& path, const Address& address);
/// Empty while there is none.
std::string read_address(const std::string& path);

/// "tcp://host:port" or "file:PATH" (also "file://PATH"). throws ConfigError.
struct InitMethod {
  std::string host, path;
  int port = 0;
};
InitMethod parse_init_method(const std::string& text);

}  // namespace vitrine::world
