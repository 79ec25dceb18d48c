// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

/// How the processes of a process group find rank 0. Private to runtime/process_group.
namespace vitrine::process_group {

/// Where rank 0 listens.
struct Address {
  std::string key;  // kKeyBytes, generated for this run; required to join
  int port = 0;
  std::string host_name;
  std::vector<std::string> hosts;  // names or addresses to try, in order

  std::string str() const;
  /// throws CommError if the text is not an address.
  static Address parse(const std::string& text);
};

/// This machine's name, and the addresses of its active interfaces except loopback.
std::string host_name();
std::vector<std::string> interface_addresses();

/// Writes an address for this user's processes, atomically. throws CommError.
void write_address(const std::string& path, const Address& address);
/// Returns nothing if there is no such file. throws CommError if it is not a regular file.
std::string read_address(const std::string& path);
/// Problem of an address file that has not been written yet.
inline constexpr const char* kNoAddressFile = "the file does not exist";
/// Like read_address(), but only for a file that no other user may open; otherwise `problem` gives the cause. The
/// writer of the file controls the rendezvous.
std::string read_private_address(const std::string& path, std::string& problem);

/// Parses "tcp://host:port" or "file:PATH" (also "file://PATH"). throws ConfigError.
struct InitMethod {
  std::string host, path;
  int port = 0;
};
InitMethod parse_init_method(const std::string& text);

/// How the processes of a run find and authenticate each other.
struct Rendezvous {
  InitMethod method;         // empty: over MPI
  std::string address_file;  // where rank 0 stores its address and the run's key; empty: nowhere
  std::string secret;        // the user's secret; may be empty
  std::string run_id;        // of ProcessGroupOptions
};
/// `init` as in ProcessGroupOptions. throws ConfigError if a secret is required and missing, or too short; CommError if
/// the file for processes of one machine cannot be used.
Rendezvous plan_rendezvous(const std::string& init, const std::string& secret, const std::string& run_id,
                           bool one_machine);

}  // namespace vitrine::process_group
