// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/process_group/process_group.h"

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

/// Writes an address for this user's processes, atomically. throws CommError.
void write_address(const std::string& path, const Address& address);
/// Problem of an address file that has not been written yet.
inline constexpr const char* kNoAddressFile = "the file does not exist";
/// Returns the content of an address file; empty if there is none that can be read, and `problem` gives the cause.
/// throws CommError if it is not a regular file.
///   only_private  refuse a file that another user may have written, who would control the rendezvous
std::string read_address(const std::string& path, bool only_private, std::string& problem);

/// Returns the content of a regular file of at most `most_bytes` that belongs to this user (or root) and that no other
/// user may open; otherwise an empty string, and `problem` gives the cause.
std::string read_private_file(const std::string& path, size_t most_bytes, std::string& problem);
/// Writes or replaces a file that only this user may open, atomically. Returns the problem, or an empty string.
std::string write_private_file(const std::string& path, std::string_view content);

/// Where the processes of a run meet.
struct Rendezvous {
  std::string host;  // where rank 0 listens; empty: where MPI or the address file says
  int port = 0;
  std::string address_file;  // where rank 0 stores its address and the run's key; empty: nowhere
};
/// Parses "tcp://host:port" or "file:PATH" (also "file://PATH"). throws ConfigError.
Rendezvous parse_rendezvous(const std::string& text);
/// throws ConfigError if a secret is required and missing, or too short; CommError if the file for processes of one
/// machine cannot be used.
Rendezvous plan_rendezvous(const ProcessGroupOptions& options);

}  // namespace vitrine::process_group
