// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

#include "runtime/world/connection.h"
#include "runtime/world/handshake.h"
#include "runtime/world/meeting.h"
#include "runtime/world/message.h"

/// One end of a world's connections that says what a test wants it to say, and is silent where no process would be.
namespace vitrine::test {

class FakeProcess {
 public:
  explicit FakeProcess(world::Descriptor socket) : connection(std::move(socket)) {}

  void send(const world::Writer& message) {
    connection.send(message.bytes());
    connection.flush();
  }
  /// The next message of this kind, without the kind; others are passed over, but a refusal ends the wait.
  std::string wait_for(world::MessageKind kind) {
    const auto give_up = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < give_up) {
      const bool open = connection.receive();
      while (const auto bytes = connection.take()) {
        world::Reader reader(*bytes);
        const auto came = reader.number<world::MessageKind>();
        if (came == kind) return bytes->substr(sizeof kind);
        if (came == world::MessageKind::refused) throw std::runtime_error("refused");
      }
      if (!open) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    throw std::runtime_error("the message did not come");
  }

  /// The handshake, as a member and as rank 0; the other side's proof is not looked at.
  void join(const world::Key& key) {
    const std::string nonce = world::random_bytes();
    send(world::Writer(world::MessageKind::hello).number(world::kMagic).raw(nonce));
    const world::Handshake handshake(key, nonce, wait_for(world::MessageKind::challenge));
    send(world::Writer(world::MessageKind::proof).raw(handshake.member_proof));
    wait_for(world::MessageKind::proof);
    connection.seal(handshake.to_hub, handshake.to_member);
  }
  void lead(const world::Key& key) {
    const std::string nonce = world::random_bytes();
    const std::string hello = wait_for(world::MessageKind::hello);
    send(world::Writer(world::MessageKind::challenge).raw(nonce));
    const world::Handshake handshake(key, hello.substr(sizeof world::kMagic), nonce);
    wait_for(world::MessageKind::proof);
    send(world::Writer(world::MessageKind::proof).raw(handshake.hub_proof));
    connection.seal(handshake.to_member, handshake.to_hub);
    wait_for(world::MessageKind::join);
  }

  world::Connection connection;
};

/// Connects to where `text`, an address, says.
inline world::Descriptor connect_to_address(const std::string& text) {
  std::string problem;
  world::Descriptor socket = world::connect_to("127.0.0.1", world::Address::parse(text).port, 60000, problem);
  if (!socket) throw std::runtime_error(problem);
  return socket;
}

/// The address, as soon as there is one.
inline std::string wait_for_address(const std::string& path) {
  std::string text;
  while ((text = world::read_address(path)).empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return text;
}

/// Joins a world as a member, and takes part until it has opened.
inline FakeProcess join_as(int rank, int size, const std::string& path, const std::string& name = {}) {
  using world::MessageKind;
  using world::Writer;
  const std::string text = wait_for_address(path);
  FakeProcess process(connect_to_address(text));
  process.join(world::run_key("", world::Address::parse(text).key));
  process.send(Writer(MessageKind::join).number(rank).number(size).text(name.empty() ? "rank " + std::to_string(rank) + " (fake)" : name));
  process.wait_for(MessageKind::welcome);
  process.send(Writer(MessageKind::gather).number(uint64_t{0}).text("the machine it runs on").text("fake"));
  process.wait_for(MessageKind::gathered);
  return process;
}

/// Opens a world of two as its rank 0.
inline FakeProcess lead_one(const std::string& path) {
  using world::MessageKind;
  using world::Writer;
  const world::Descriptor listener = world::listen_on(0);
  const world::Address address{world::random_bytes(), world::port_of(listener), world::host_name(), {}};
  world::write_address(path, address);
  world::Descriptor socket;
  while (!(socket = world::accept_one(listener))) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  FakeProcess process(std::move(socket));
  process.lead(world::run_key("", address.key));
  process.send(Writer(MessageKind::accepted));
  process.send(Writer(MessageKind::welcome).text("rank 0 (fake)"));
  process.wait_for(MessageKind::gather);
  process.send(Writer(MessageKind::gathered).text("1 2 1"));
  return process;
}

}  // namespace vitrine::test
