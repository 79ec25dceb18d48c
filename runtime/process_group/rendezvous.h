// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

/// Where the processes of a process group find rank 0. Private to runtime/process_group.
namespace vitrine::process_group {

/// Where rank 0 listens.
struct Address {
  std::string key;  // kKeyBytes, made for this run: a process that does not know it may not join. Empty in what earlier versions wrote
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

/// Writes an address for this user's processes to read, whole or not at all. throws CommError.
void write_address(const std::string& path, const Address& address);
/// Empty where there is none.
std::string read_address(const std::string& path);
/// What is wrong with an address file that has not been written yet.
inline constexpr const char* kNoAddressFile = "the file is not there";
/// The same of a file that only this user may open, else empty, and `problem` says why: who can write it chooses where the processes meet.
std::string read_private_address(const std::string& path, std::string& problem);

/// "tcp://host:port" or "file:PATH" (also "file://PATH"). throws ConfigError.
struct InitMethod {
  std::string host, path;
  int port = 0;
};
InitMethod parse_init_method(const std::string& text);

/// How the processes of a run find and know each other.
struct Rendezvous {
  InitMethod method;         // empty: over MPI
  std::string address_file;  // where rank 0 leaves its address and the run's key; empty: nowhere
  std::string secret;        // that the user gave and that counts here
};
/// `init` as in ProcessGroupOptions. throws ConfigError where a secret is required and none was given, or it is too short; CommError where the file
/// of processes on one machine cannot be had.
Rendezvous plan_rendezvous(const std::string& init, const std::string& secret, bool one_machine);

}  // namespace vitrine::process_group
