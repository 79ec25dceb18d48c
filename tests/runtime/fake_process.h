// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "runtime/process_group/connection.h"
#include "runtime/process_group/handshake.h"
#include "runtime/process_group/message.h"
#include "runtime/process_group/rendezvous.h"

/// One end of a process group's connections under the control of a test.
namespace vitrine::test {

class FakeProcess {
 public:
  explicit FakeProcess(Descriptor socket) : connection(std::move(socket)) {}

  void send(const process_group::Writer& message) {
    connection.send(message.bytes());
    connection.flush();
  }
  /// The next message of this kind, without the kind byte. Other messages are skipped, but a refusal ends the wait.
  std::string wait_for(process_group::MessageKind kind) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < give_up) {
      const bool open = connection.receive();
      while (const auto bytes = connection.take()) {
        process_group::Reader reader(*bytes);
        const auto received = reader.number<process_group::MessageKind>();
        if (received == kind) return bytes->substr(sizeof kind);
        if (received == process_group::MessageKind::refused) throw std::runtime_error("refused");
      }
      if (!open) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    throw std::runtime_error("the message did not come");
  }

  /// The handshake, as a member and as rank 0; ignores the other side's proof.
  void join(const process_group::Key& key) {
    const std::string nonce = process_group::random_bytes();
    send(process_group::Writer(process_group::MessageKind::hello).number(process_group::kMagic).raw(nonce));
    const process_group::Handshake handshake(key, nonce, wait_for(process_group::MessageKind::challenge));
    send(process_group::Writer(process_group::MessageKind::proof).raw(handshake.member_proof));
    wait_for(process_group::MessageKind::proof);
    connection.seal(handshake.to_server, handshake.to_member);
  }
  void lead(const process_group::Key& key) {
    const std::string nonce = process_group::random_bytes();
    const std::string hello = wait_for(process_group::MessageKind::hello);
    send(process_group::Writer(process_group::MessageKind::challenge).raw(nonce));
    const process_group::Handshake handshake(key, hello.substr(sizeof process_group::kMagic), nonce);
    wait_for(process_group::MessageKind::proof);
    send(process_group::Writer(process_group::MessageKind::proof).raw(handshake.server_proof));
    connection.seal(handshake.to_member, handshake.to_server);
    wait_for(process_group::MessageKind::join);
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

/// The address, as soon as there is one.
inline std::string wait_for_address(const std::string& path) {
  std::string text;
  while ((text = process_group::read_address(path)).empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return text;
}

/// Joins a process group as a member and takes part until it is complete.
inline FakeProcess join_as(int rank, int size, const std::string& path, const std::string& name = {}) {
  using process_group::MessageKind;
  using process_group::Writer;
  const std::string text = wait_for_address(path);
  FakeProcess process(connect_to_address(text));
  process.join(process_group::run_key("", process_group::Address::parse(text).key));
  process.send(Writer(MessageKind::join)
                   .number(rank)
                   .number(size)
                   .text(name.empty() ? "rank " + std::to_string(rank) + " (fake)" : name));
  process.wait_for(MessageKind::welcome);
  process.send(Writer(MessageKind::gather).number(uint64_t{0}).text("the machine it runs on").text("fake"));
  process.wait_for(MessageKind::gathered);
  return process;
}

/// Opens a process group of two as its rank 0.
inline FakeProcess lead_one(const std::string& path) {
  using process_group::MessageKind;
  using process_group::Writer;
  const Descriptor listener = process_group::listen_on(0);
  const process_group::Address address{
      process_group::random_bytes(), process_group::port_of(listener), process_group::host_name(), {}};
  process_group::write_address(path, address);
  Descriptor socket;
  while (!(socket = process_group::accept_one(listener))) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  FakeProcess process(std::move(socket));
  process.lead(process_group::run_key("", address.key));
  process.send(Writer(MessageKind::accepted));
  process.send(Writer(MessageKind::welcome).text("rank 0 (fake)"));
  process.wait_for(MessageKind::gather);
  process.send(Writer(MessageKind::gathered).text("1 2 1"));
  return process;
}

}  // namespace vitrine::test
