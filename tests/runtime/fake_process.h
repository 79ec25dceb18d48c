// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "runtime/process_group/connection.h"
#include "runtime/process_group/message.h"
#include "runtime/process_group/rendezvous.h"
#include "runtime/process_group/sockets.h"

/// One end of a process group's connections under the control of a test.
namespace vitrine::test {

class FakeProcess {
 public:
  explicit FakeProcess(Descriptor socket) : connection(std::move(socket)) {}

  void send(process_group::Message message) {
    connection.send(process_group::encode(std::move(message)));
    connection.flush();
  }
  /// The next message of this kind. Other messages are skipped, but a refusal ends the wait.
  template <class Kind>
  Kind wait_for() {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < give_up) {
      const bool open = connection.receive();
      while (const auto bytes = connection.take()) {
        process_group::Message message = process_group::decode(*bytes);
        if (auto* const kind = std::get_if<Kind>(&message)) return std::move(*kind);
        if (std::holds_alternative<process_group::Refused>(message)) throw std::runtime_error("refused");
      }
      if (!open) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    throw std::runtime_error("the message did not come");
  }

  /// The handshake, as a member and as rank 0; ignores the other side's proof.
  void join(const process_group::Key& key) {
    const std::string nonce = process_group::random_bytes();
    send(process_group::Hello{process_group::kMagic, {nonce}});
    const process_group::Handshake handshake(key, nonce, wait_for<process_group::Challenge>().nonce.bytes);
    send(process_group::Proof{{handshake.member_proof}});
    wait_for<process_group::Proof>();
    connection.seal(handshake.to_server, handshake.to_member);
  }
  void lead(const process_group::Key& key) {
    const std::string nonce = process_group::random_bytes();
    const std::string hello = wait_for<process_group::Hello>().nonce.bytes;
    send(process_group::Challenge{{nonce}});
    const process_group::Handshake handshake(key, hello, nonce);
    wait_for<process_group::Proof>();
    send(process_group::Proof{{handshake.server_proof}});
    connection.seal(handshake.to_member, handshake.to_server);
    wait_for<process_group::Join>();
  }

  process_group::Connection connection;
};

/// Connects to the address in `text`.
inline Descriptor connect_to_address(const std::string& text) {
  std::string problem;
  Descriptor socket = process_group::connect_to("127.0.0.1", process_group::Address::parse(text).port, 60000, problem);
  if (!socket) throw std::runtime_error(problem);
  return socket;
}

/// Listens on all interfaces; port 0: any free port.
inline Descriptor listen_on(int port) { return std::move(process_group::listen_at("", port)[0]); }

/// The content of an address file; empty if there is none.
inline std::string address_in(const std::string& path) {
  std::string problem;
  return process_group::read_address(path, false, problem);
}

/// The address, as soon as there is one.
inline std::string wait_for_address(const std::string& path) {
  std::string text;
  while ((text = address_in(path)).empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return text;
}

/// Joins a process group as a member and takes part until it is complete.
inline FakeProcess join_as(int rank, int size, const std::string& path, const std::string& name = {}) {
  const std::string text = wait_for_address(path);
  FakeProcess process(connect_to_address(text));
  process.join(process_group::run_key("", process_group::Address::parse(text).key));
  process.send(process_group::Join{rank, size, name.empty() ? "rank " + std::to_string(rank) + " (fake)" : name});
  process.wait_for<process_group::Welcome>();
  process.send(process_group::Gather{0, "the machine it runs on", {"fake"}});
  process.wait_for<process_group::Gathered>();
  return process;
}

/// Opens a process group of two as its rank 0.
inline FakeProcess lead_one(const std::string& path) {
  const Descriptor listener = listen_on(0);
  const process_group::Address address{
      process_group::random_bytes(), process_group::port_of(listener), process_group::host_name(), {}};
  process_group::write_address(path, address);
  Descriptor socket;
  while (!(socket = process_group::accept_one(listener))) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  FakeProcess process(std::move(socket));
  process.lead(process_group::run_key("", address.key));
  process.send(process_group::Accepted{});
  process.send(process_group::Welcome{"rank 0 (fake)"});
  process.wait_for<process_group::Gather>();
  process.send(process_group::Gathered{{"1 2 1"}});
  return process;
}

}  // namespace vitrine::test
