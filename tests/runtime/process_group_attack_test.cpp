// SPDX-License-Identifier: Apache-2.0
// Attacks on a process group over loopback: by unauthenticated peers, which do not know the run's key, and by one of
// its own processes.
#include <atomic>
#include <cstring>

#include <fmt/format.h>
#include <sys/resource.h>

#include "tests/runtime/fake_process.h"
#include "tests/runtime/processes.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test {
namespace {

using process_group::Challenge;
using process_group::Devices;
using process_group::Failed;
using process_group::Hello;
using process_group::Join;
using process_group::Progress;
using process_group::Proof;
using process_group::Refused;
using process_group::Verdict;

constexpr int64_t kImpatientMs = 300;
const std::string kSecret = "the secret of this run";

class ProcessGroupAttack : public ::testing::Test {
 protected:
  ProcessGroupAttack() : port_(process_group::port_of(listen_on(0))) {}
  std::string init() const { return "tcp://127.0.0.1:" + std::to_string(port_); }
  ProcessGroupOptions options(int rank, const std::string& secret = kSecret, int64_t timeout_ms = kPatientMs) const {
    ProcessGroupOptions all = process_options(rank, 2, init(), timeout_ms);
    all.secret = secret;
    return all;
  }
  /// Connects to rank 0 as soon as it listens.
  FakeProcess unauthenticated() const {
    std::string problem;
    Descriptor socket;
    while (!(socket = process_group::connect_to("127.0.0.1", port_, 1000, problem)))
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return FakeProcess(std::move(socket));
  }
  /// Two processes connect although `attack` comes first and continues meanwhile.
  void expect_rendezvous_despite(const std::function<void()>& attack) const {
    run_ranks(2, [&](int rank) {
      if (rank == 1) attack();
      ProcessGroup process_group(options(rank));
      EXPECT_EQ(process_group.broadcast("an id", process_group.rank() == 0 ? "from rank 0" : ""), "from rank 0");
      process_group.close();
    });
  }

  LeavesNothingBehind check_;
  int port_;
};

TEST_F(ProcessGroupAttack, AnImpostorThatClaimsToBeRankOneIsIgnored) {
  std::vector<FakeProcess> impostors;
  expect_rendezvous_despite([&] {
    // As any peer could until version 2; and in this version, without the secret.
    impostors.push_back(unauthenticated());
    impostors.back().send(Hello{0x56495432, {"rank 1"}});
    expect_contains(impostors.back().wait_for<Refused>().reason, "version 2 of the protocol");
    impostors.push_back(unauthenticated());
    EXPECT_THROW(impostors.back().join(process_group::run_key("a guess at the secret", "")), std::runtime_error);
  });
}

TEST_F(ProcessGroupAttack, AnImpostorInPlaceOfRankZeroLearnsNothing) {
  const Descriptor listener = std::move(process_group::listen_at("127.0.0.1", port_)[0]);
  std::atomic<bool> over{false};
  std::thread impostor([&] {
    while (!over) {
      Descriptor socket = process_group::accept_one(listener);
      if (!socket) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        continue;
      }
      FakeProcess server(std::move(socket));
      server.wait_for<Hello>();
      server.send(Challenge{{std::string(32, 'n')}});
      // The member's own proof, reflected.
      server.send(server.wait_for<Proof>());
      EXPECT_THROW(server.wait_for<Join>(), std::runtime_error);
    }
  });
  expect_contains(comm_error_of([&] { const ProcessGroup process_group(options(1, kSecret, kImpatientMs)); }),
                  "does not know this run's secret");
  over = true;
  impostor.join();
}

TEST_F(ProcessGroupAttack, AWrongSecretIsNamedOnBothSides) {
  std::vector<std::string> errors(2);
  run_ranks(2, [&](int rank) {
    errors[static_cast<size_t>(rank)] = comm_error_of([&] {
      const ProcessGroup process_group(
          options(rank, rank == 0 ? kSecret : "another secret, of another run", kImpatientMs));
    });
  });
  // After one timeout, where it waits for an absent rank 0 for as long as a first step may take.
  expect_contains(errors[1], "rank 1 could not reach rank 0", fmt::format(" within {:g} s: ", kImpatientMs * 1e-3),
                  "refused it: it does not know this run's secret, or has another run id");
  expect_contains(
      errors[0], "but rank 1 of 2 processes did not join",
      "A process at 127.0.0.1 connected and was refused: it does not know this run's secret, or has another run id.");
  for (const std::string& error : errors) expect_lacks(error, kSecret, "was it started");
}

TEST_F(ProcessGroupAttack, RunsOfOneSecretAndOneRendezvousStayApart) {
  std::vector<std::string> errors(2);
  run_ranks(2, [&](int rank) {
    errors[static_cast<size_t>(rank)] = comm_error_of([&] {
      ProcessGroupOptions of_run = options(rank, kSecret, kImpatientMs);
      of_run.run_id = rank == 0 ? "job 17" : "job 18";
      const ProcessGroup process_group(of_run);
    });
  });
  expect_contains(errors[0], "but rank 1 of 2 processes did not join");
  expect_contains(errors[1], "or has another run id");
}

// Anyone may listen where rank 0 is going to listen.
TEST_F(ProcessGroupAttack, AListenerThatRefusesEndsNoMember) {
  std::optional<Descriptor> listener = std::move(process_group::listen_at("127.0.0.1", port_).front());
  run_ranks(2, [&](int rank) {
    if (rank == 0) {
      Descriptor socket;
      while (!(socket = process_group::accept_one(*listener)))
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      FakeProcess impostor(std::move(socket));
      impostor.wait_for<Hello>();
      impostor.send(Refused{"go away"});
      listener.reset();
    }
    ProcessGroup process_group(options(rank));
    process_group.close();
  });
}

TEST_F(ProcessGroupAttack, OffLoopbackNoProcessStartsWithoutASecret) {
  for (const int rank : {0, 1})
    EXPECT_THROW(ProcessGroup(process_options(rank, 2, "tcp://10.255.255.1:29500")), ConfigError);
}

TEST_F(ProcessGroupAttack, WithoutASecretProcessesOfOneUserAuthenticate) {
  run_ranks(2, [&](int rank) {
    if (rank == 1) {
      FakeProcess other = unauthenticated();  // of another user, who cannot read the key
      EXPECT_THROW(other.join(process_group::run_key("", "")), std::runtime_error);
    }
    ProcessGroup process_group(options(rank, ""));
    process_group.close();
  });
}

TEST_F(ProcessGroupAttack, IdleConnectionsDoNotPreventJoining) {
  std::vector<FakeProcess> idle;
  rlimit before{}, few{};
  getrlimit(RLIMIT_NOFILE, &before);
  few = before;
  few.rlim_cur = std::min<rlim_t>(before.rlim_cur, 1024);
  setrlimit(RLIMIT_NOFILE, &few);
  expect_rendezvous_despite([&] {
    for (int i = 0; i < 300; ++i) idle.push_back(unauthenticated());
  });
  setrlimit(RLIMIT_NOFILE, &before);
}

/// A process that joined and then misbehaves; returns rank 0's message about it.
std::string verdict_on(const std::function<void(FakeProcess&)>& misbehave, const std::string& name = {}) {
  const RendezvousPlace place;
  std::string verdict;
  run_ranks(2, [&](int rank) {
    if (rank == 1) {
      FakeProcess member = join_as(1, 2, place.path(), name);
      misbehave(member);
      // Until rank 0 has closed the connection.
      while (member.connection.receive()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    ProcessGroup process_group(process_options(0, 2, place.init()));
    while (process_group.failure().empty()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    verdict = process_group.failure();
  });
  return verdict;
}

TEST_F(ProcessGroupAttack, SmallMessagesThatClaimMillionsOfElementsAreRefused) {
  const std::string verdict = verdict_on([](FakeProcess& member) {
    std::string message = process_group::encode(Devices{{""}});
    const uint64_t claimed = 20'000'000;
    EXPECT_EQ(message.size(), 17U);
    std::memcpy(&message[1], &claimed, sizeof claimed);
    member.connection.send(message);
  });
  expect_contains(verdict,
                  "rank 1 (fake) failed: it sent an invalid message: a message between processes is invalid: it "
                  "contains a count that exceeds its length");
}

TEST_F(ProcessGroupAttack, TheNumberOfDevicesCannotShrinkDuringACollective) {
  const std::string verdict = verdict_on([](FakeProcess& member) {
    CollectiveRecord record;
    record.operation = "all_reduce";
    member.send(Devices{{"cuda:0", "cuda:1", "cuda:2"}});
    member.send(Progress{2, 0, {record}});
    member.send(Devices{{"cuda:0"}});
    record.signature = 7;
    member.send(Progress{0, 0, {record}});
  });
  expect_contains(verdict, "rank 1 (fake) failed: it registered its devices again during collective 0 (all_reduce");
}

TEST_F(ProcessGroupAttack, MembersCannotSendMessagesOfRankZero) {
  expect_contains(verdict_on([](FakeProcess& member) { member.send(Verdict{"it is over"}); }),
                  "it sent an invalid message");
}

TEST_F(ProcessGroupAttack, AMessageChangedInTransitIsDetected) {
  const std::string verdict = verdict_on([](FakeProcess& member) {
    const std::string plain =
        std::string("\x11\0\0\0\0\0\0\0", 8) + std::string(17, '\x0c');  // the length of a sealed bye
    EXPECT_EQ(::write(member.connection.descriptor(), plain.data(), plain.size()), static_cast<ssize_t>(plain.size()));
  });
  expect_contains(verdict, "it sent an invalid message: a message between processes failed authentication");
}

TEST_F(ProcessGroupAttack, EscapeSequencesArePrintedAsText) {
  const std::string verdict = verdict_on(
      [](FakeProcess& member) {
        member.send(Devices{{"cuda:0\x1b[31m"}});
        member.send(Failed{"out of \x1b]0;memory\x07"});
      },
      "rank 1 \x1b[2J\r\n(fake)");
  expect_contains(verdict, "rank 1 \\x1b[2J\\x0d\\x0a(fake) failed: out of \\x1b]0;memory\\x07");
  for (const char c : verdict) EXPECT_TRUE(c >= 0x20 && c != 0x7f) << verdict;
}

TEST_F(ProcessGroupAttack, ManyProcessesRaiseTheLimitOfDescriptors) {
  rlimit before{}, few{};
  getrlimit(RLIMIT_NOFILE, &before);
  few = before;
  few.rlim_cur = 64;
  setrlimit(RLIMIT_NOFILE, &few);
  run_processes(40, [](ProcessGroup& process_group) { process_group.close(); });
  setrlimit(RLIMIT_NOFILE, &before);
}

}  // namespace
}  // namespace vitrine::test
