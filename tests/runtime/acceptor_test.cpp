// SPDX-License-Identifier: Apache-2.0
// Rank 0's acceptor and unauthenticated peers: limits on what they may send, how much, how long, and how many they may
// be.
#include "runtime/process_group/acceptor.h"

#include <algorithm>
#include <atomic>

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "tests/runtime/fake_process.h"
#include "tests/support/expect_contains.h"
#include "tests/support/leaves_nothing_behind.h"

namespace vitrine::test {
namespace {

using process_group::Acceptor;
using process_group::Challenge;
using process_group::encode;
using process_group::Hello;
using process_group::Join;
using process_group::Key;
using process_group::kMagic;
using process_group::Proof;
using process_group::Refused;

const Key kKey = process_group::run_key("the secret of this run", "");

std::string framed(const std::string& message) {
  const uint64_t size = message.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof size) + message;
}

/// An acceptor served by a separate thread, as on rank 0.
class AcceptorTest : public ::testing::Test {
 public:
  ~AcceptorTest() override { stop(); }

 protected:
  void open(size_t most_peers = 64, int64_t patience_ms = 60'000) {
    std::vector<Descriptor> listeners = process_group::listen_at("127.0.0.1", 0);
    port = process_group::port_of(listeners[0]);
    const auto admit = [this](const Join& join, process_group::Connection& /*connection*/) {
      names.push_back(join.name);
      ++requests;
      return std::string("enough");
    };
    acceptor.emplace(std::move(listeners), kKey, most_peers, admit, patience_ms);
    thread = std::thread([this] {
      while (!over) {
        acceptor->serve(5);
        most_seen = std::max(most_seen, acceptor->peer_count());
      }
    });
  }
  void stop() {
    over = true;
    if (thread.joinable()) thread.join();
  }
  FakeProcess connect() const {
    std::string problem;
    Descriptor socket = process_group::connect_to("127.0.0.1", port, 60000, problem);
    if (!socket) throw std::runtime_error(problem);
    return FakeProcess(std::move(socket));
  }
  /// A peer that knows the key completes the handshake.
  void expect_entry() {
    const int before = requests;
    FakeProcess honest = connect();
    honest.join(kKey);
    honest.send(Join{1, 2, "rank 1 (honest)"});
    while (requests == before) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  static bool send_bytes(const FakeProcess& process, const std::string& bytes) {
    return ::send(process.connection.descriptor(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }
  static void expect_hang_up(FakeProcess& process) {
    while (process.connection.receive()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

  LeavesNothingBehind check;
  int port = 0;
  std::optional<Acceptor> acceptor;
  std::atomic<bool> over{false};
  std::atomic<int> requests{0};
  size_t most_seen = 0;  // read after it is stopped
  std::vector<std::string> names;
  std::thread thread;
};

TEST_F(AcceptorTest, AdmitsAnAuthenticatedProcess) {
  open();
  expect_entry();
  stop();
  EXPECT_EQ(names, std::vector<std::string>{"rank 1 (honest)"});
  EXPECT_EQ(acceptor->last_refusals(), " rank 1 (honest) connected and was refused: enough.");
}

TEST_F(AcceptorTest, AWrongSecretIsReportedAndNothingElseIsRevealed) {
  open();
  FakeProcess impostor = connect();
  impostor.send(Hello{kMagic, {std::string(32, 'n')}});
  const process_group::Handshake guess(process_group::run_key("another secret of a run", ""), std::string(32, 'n'),
                                       impostor.wait_for<Challenge>().nonce.bytes);
  impostor.send(Proof{{guess.member_proof}});
  expect_contains(impostor.wait_for<Refused>().reason, "it does not know this run's secret");
  expect_entry();
  stop();
  EXPECT_EQ(requests, 1);
  expect_contains(
      acceptor->last_refusals(),
      "A process at 127.0.0.1 connected and was refused: it does not know this run's secret, or has another run id.");
}

TEST_F(AcceptorTest, RefusesAClaimWithoutAProof) {
  open();
  const std::string join = encode(Join{1, 2, "rank 1 (impostor)"});
  const std::string hello = encode(Hello{kMagic, {std::string(32, 'n')}});
  for (const std::string& says :
       {framed(join), framed(hello) + framed(join), framed(hello) + framed(hello),
        framed(encode(Proof{{std::string(32, 'p')}})), framed(encode(process_group::Bye{}))}) {
    FakeProcess impostor = connect();
    EXPECT_TRUE(send_bytes(impostor, says));
    expect_hang_up(impostor);
  }
  expect_entry();
  EXPECT_EQ(requests, 1);
}

TEST_F(AcceptorTest, RefusesAReplayedHandshake) {
  open();
  // The honest peer's hello and proof, recorded and replayed; and rank 0's own nonce and proof, reflected.
  FakeProcess honest = connect();
  const std::string nonce = process_group::random_bytes();
  honest.send(Hello{kMagic, {nonce}});
  const process_group::Handshake handshake(kKey, nonce, honest.wait_for<Challenge>().nonce.bytes);
  honest.send(Proof{{handshake.member_proof}});
  const std::string server_proof = honest.wait_for<Proof>().code.bytes;
  EXPECT_EQ(server_proof, handshake.server_proof);
  for (const std::string& proof : {handshake.member_proof, server_proof}) {
    FakeProcess impostor = connect();
    impostor.send(Hello{kMagic, {nonce}});
    impostor.wait_for<Challenge>();
    impostor.send(Proof{{proof}});
    expect_contains(impostor.wait_for<Refused>().reason, "secret");
  }
  EXPECT_EQ(requests, 0);
}

TEST_F(AcceptorTest, AfterTheHandshakeOnlySealedMessagesAreAccepted) {
  open();
  FakeProcess honest = connect();
  honest.join(kKey);
  // An attacker on the path who writes into the connection.
  EXPECT_TRUE(send_bytes(honest, framed(encode(Join{1, 2, "rank 1 (impostor)"}))));
  expect_hang_up(honest);
  EXPECT_EQ(requests, 0);
}

TEST_F(AcceptorTest, RefusesAnotherVersionAndNamesBoth) {
  open();
  const auto refusal_of = [&](uint32_t magic, const std::string& rest) {
    FakeProcess other = connect();
    other.connection.send(std::string(1, '\0') + std::string(reinterpret_cast<const char*>(&magic), sizeof magic) +
                          rest);
    return other.wait_for<Refused>().reason;
  };
  // The hello of an earlier version, and a possible one of the next.
  expect_contains(refusal_of(0x56495432, std::string(16, '\1') + "rank 1"),
                  "it speaks version 2 of the protocol between processes, rank 0 version 8; start all of them with the "
                  "same version of Vitrine");
  expect_contains(refusal_of(0x56495439, "who knows"), "version 9 of the protocol");
  stop();
  expect_contains(acceptor->last_refusals(), "version 9 of the protocol between processes, rank 0 version 8");
}

TEST_F(AcceptorTest, DoesNotBufferMegabytesBeforeTheProof) {
  open();
  const std::string hello = framed(encode(Hello{kMagic, {std::string(32, 'n')}}));
  uint64_t claimed = uint64_t{800} << 20;
  const std::string claim(reinterpret_cast<const char*>(&claimed), sizeof claimed);
  // One message of 800 MB; many small ones; zeros, which are empty messages.
  std::string many;
  for (int i = 0; i < 1000; ++i) many += hello;
  for (const std::string& start : {claim, hello + claim, many, std::string(8, '\0')}) {
    FakeProcess flood = connect();
    size_t sent = 0;
    const std::string chunk(1 << 16, '\0');
    EXPECT_TRUE(send_bytes(flood, start));
    while (sent < claimed) {
      const ssize_t count = ::send(flood.connection.descriptor(), chunk.data(), chunk.size(), MSG_NOSIGNAL);
      if (count > 0) sent += static_cast<size_t>(count);
      if (count < 0 && errno != EAGAIN) break;
    }
    EXPECT_LT(sent, size_t{32} << 20) << "it took more than sockets hold";
  }
  expect_entry();
}

TEST_F(AcceptorTest, IdleConnectionsDoNotPreventJoining) {
  open(64);
  std::vector<FakeProcess> idle;
  for (int i = 0; i < 80; ++i) idle.push_back(connect());
  expect_entry();
  for (int i = 0; i < 200; ++i) idle.push_back(connect());
  expect_entry();
  stop();
  EXPECT_LE(most_seen, 64U);
}

TEST_F(AcceptorTest, AnIdleConnectionIsClosedAfterItsTimeout) {
  open(64, 200);
  FakeProcess idle = connect(), slow = connect();
  slow.send(Hello{kMagic, {std::string(32, 'n')}});
  slow.wait_for<Challenge>();
  expect_hang_up(idle);
  expect_hang_up(slow);
}

TEST_F(AcceptorTest, AFloodFromOneAddressDoesNotCloseConnectionsFromAnother) {
  std::vector<Descriptor> listeners = process_group::listen_at("127.0.0.1", 0);
  port = process_group::port_of(listeners[0]);
  Acceptor narrow(std::move(listeners), kKey, 4, [](const Join& /*join*/, process_group::Connection& /*connection*/) {
    return std::string("enough");
  });
  // The honest peer comes first, from 127.0.0.2, and is the oldest of all.
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in own{}, there{};
  own.sin_family = there.sin_family = AF_INET;
  own.sin_addr.s_addr = htonl(0x7f000002);
  there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  there.sin_port = htons(static_cast<uint16_t>(port));
  ASSERT_EQ(bind(socket.get(), reinterpret_cast<sockaddr*>(&own), sizeof own), 0);
  ASSERT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&there), sizeof there), 0);
  FakeProcess honest(std::move(socket));
  narrow.serve(1000);
  std::vector<FakeProcess> flood;
  for (int i = 0; i < 20; ++i) {
    flood.push_back(connect());
    narrow.serve(1000);
  }
  EXPECT_EQ(narrow.peer_count(), 4U);
  honest.send(Hello{kMagic, {std::string(32, 'n')}});
  narrow.serve(1000);
  EXPECT_EQ(honest.wait_for<Challenge>().nonce.bytes.size(), 32U);
}

}  // namespace
}  // namespace vitrine::test
