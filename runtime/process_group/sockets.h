// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/descriptor.h"

/// Creation of sockets: names, addresses, and exhausted descriptors. Private to runtime/process_group.
namespace vitrine::process_group {

/// This machine's name, and the addresses of its active interfaces except loopback.
std::string host_name();
std::vector<std::string> interface_addresses();
/// Whether a name means this machine's loopback: "localhost" and similar, 127.0.0.0/8 and ::1. A name that merely
/// resolves to such an address does not count: Debian's /etc/hosts maps a machine's own name to 127.0.1.1, and other
/// machines know it by another address.
bool names_loopback(const std::string& host);
/// Returns the addresses to listen on for a name that resolves to `resolved`: these, and, if all of them are loopback
/// addresses although the name is not a loopback name, also the machine's other addresses, by which other machines
/// reach it.
std::vector<std::string> addresses_to_bind(const std::string& host, std::vector<std::string> resolved,
                                           const std::vector<std::string>& interfaces);

/// Listens only on the addresses of a name; empty: on all interfaces. port 0: any free port. throws CommError naming
/// host, port and cause.
std::vector<Descriptor> listen_at(const std::string& host, int port);
int port_of(const Descriptor& socket);
/// Accepts a waiting connection, if any, and stores its address; otherwise errno gives the cause.
Descriptor accept_one(const Descriptor& listener, std::string* address = nullptr);
/// Connects within `timeout_ms`. Without a connection, `problem` gives the cause.
Descriptor connect_to(const std::string& host, int port, int64_t timeout_ms, std::string& problem);

/// Creates an event that wakes a thread in poll(): readable once an 8-byte number was written to it. throws CommError.
Descriptor make_event();
/// Text of an errno. If descriptors have run out, also gives the limit and how to raise it.
std::string describe_error(int error);
/// Raises the number of files this process may open to at least `needed`, as far as the system permits.
void raise_descriptor_limit(uint64_t needed);

}  // namespace vitrine::process_group
