// SPDX-License-Identifier: Apache-2.0
// Processes that fail to connect, or connect late: missing and refused processes are named, and unauthenticated peers
// do no harm.
#include <atomic>
#include <filesystem>
#include <fstream>

#include <sys/socket.h>

#include "tests/runtime/fake_process.h"
#include "tests/runtime/processes.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test {
namespace {

// The rendezvous waits five times as long.
constexpr int64_t kRendezvousTimeoutMs = 300;

struct Member {
  int rank, size;
};

/// Error of each of these processes when they try to connect.
std::vector<std::string> errors_of(const std::vector<Member>& processes, const std::string& init,
                                   int64_t timeout_ms = kRendezvousTimeoutMs) {
  std::vector<std::string> errors(processes.size());
  run_ranks(static_cast<int>(processes.size()), [&](int i) {
    const auto [rank, size] = processes[static_cast<size_t>(i)];
    errors[static_cast<size_t>(i)] = comm_error_of([&, rank = rank, size = size] {
      const ProcessGroup process_group(process_options(rank, size, init, timeout_ms));
    });
  });
  return errors;
}

class ProcessGroupRendezvous : public ::testing::Test {
 public:
  ~ProcessGroupRendezvous() override {
    EXPECT_FALSE(std::filesystem::exists(place.path())) << "the address was left behind";
  }

 protected:
  /// Into a file that no other user may open: other files are not read.
  void write_text(const std::string& text) const {
    std::ofstream(place.path()) << text;
    std::filesystem::permissions(place.path(),
                                 std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  }

  LeavesNothingBehind check;
  RendezvousPlace place;
};

TEST_F(ProcessGroupRendezvous, WithoutRankZeroTimesOut) {
  const std::vector<std::string> errors = errors_of({{1, 3}, {2, 3}}, place.init());
  expect_contains(errors[0], "rank 1 could not reach rank 0 at " + place.init() +
                                 " within 1.5 s: the file does not exist; was it started?");
  expect_contains(errors[1], "rank 2 could not reach rank 0");
}

TEST_F(ProcessGroupRendezvous, WithoutRankZeroAtAPortTimesOut) {
  const int port = process_group::port_of(listen_on(0));
  const std::string init = "tcp://127.0.0.1:" + std::to_string(port);
  expect_contains(errors_of({{1, 2}}, init)[0], "rank 1 could not reach rank 0 at " + init +
                                                    " within 1.5 s: 127.0.0.1:" + std::to_string(port) +
                                                    ": rank 0 does not listen there yet");
  ProcessGroupOptions options = process_options(1, 2, init, kRendezvousTimeoutMs);
  options.secret = "a secret of the user's";
  expect_contains(comm_error_of([&] { const ProcessGroup process_group(options); }),
                  "within 1.5 s: 127.0.0.1:" + std::to_string(port) + ": Conn");
}

TEST_F(ProcessGroupRendezvous, NamesAMissingRankOnAllRanks) {
  const std::vector<std::string> errors = errors_of({{0, 5}, {1, 5}, {3, 5}}, place.init());
  expect_contains(errors[0], "rank 0 waited 1.5 s, but ranks 2, 4 of 5 processes did not join; were they started");
  // Processes that joined receive the same message, unless their own timeout ended first.
  for (const size_t i : {1, 2}) {
    if (errors[i].find("could not reach") == std::string::npos) {
      EXPECT_EQ(errors[i], errors[0]);
    }
  }
}

TEST_F(ProcessGroupRendezvous, RefusesAnotherSizeAtOnceAndRankZeroReportsIt) {
  const std::vector<std::string> errors = errors_of({{0, 2}, {1, 3}}, place.init());
  expect_contains(errors[1], "rank 1 cannot join: rank 0 at 127.0.0.1:",
                  "refused it: its world size is 3, rank 0's is 2; give every process its own "
                  "ProcessGroupOptions::rank and the same ProcessGroupOptions::size");
  expect_contains(errors[0], "but rank 1 of 2 processes did not join",
                  "connected and was refused: its world size is 3, rank 0's is 2");
}

TEST_F(ProcessGroupRendezvous, RefusesADuplicateRank) {
  const std::vector<std::string> errors = errors_of({{0, 3}, {1, 3}, {1, 3}}, place.init());
  const bool first = errors[1].find("cannot join") != std::string::npos;
  expect_contains(errors[first ? 1 : 2], "refused it: another process has rank 1");
  expect_contains(errors[0], "but rank 2 of 3 processes did not join", "another process has rank 1");
}

TEST_F(ProcessGroupRendezvous, RefusesASecondRankZeroAtOnePort) {
  const std::string init = "tcp://127.0.0.1:" + std::to_string(process_group::port_of(listen_on(0)));
  const std::vector<std::string> errors = errors_of({{0, 2}, {0, 2}}, init);
  const bool first = errors[0].find("cannot listen") != std::string::npos;
  expect_contains(errors[first ? 0 : 1], "rank 0 cannot listen on port");
}

TEST_F(ProcessGroupRendezvous, NamesAMissingFolder) {
  expect_contains(
      comm_error_of([] {
        const ProcessGroup process_group(process_options(0, 2, "file:/no/such/folder/meet", kRendezvousTimeoutMs));
      }),
      "ProcessGroupOptions::rendezvous file:/no/such/folder/meet: cannot write it (No such file or directory)");
}

TEST_F(ProcessGroupRendezvous, DoesNotOverwriteAFileOfTheUser) {
  const std::string text = "label,pixel0\n7,0\n";
  write_text(text);
  for (const std::string& error : errors_of({{0, 2}, {1, 2}}, place.init()))
    expect_contains(error, "is not the address of a Vitrine run");
  EXPECT_EQ(address_in(place.path()), text);
  std::filesystem::remove(place.path());
}

/// The processes connect although there is something else at the address; one is late, so that it is certain to be
/// tried.
void expect_rendezvous(
    const RendezvousPlace& place, const std::function<void()>& before_the_last = [] {}) {
  run_ranks(3, [&](int rank) {
    if (rank == 2) before_the_last();
    ProcessGroup process_group(process_options(rank, 3, place.init()));
    EXPECT_EQ(process_group.sum("x", {static_cast<double>(rank)}), std::vector{3.0});
    process_group.close();
  });
}

TEST_F(ProcessGroupRendezvous, AcceptsAnEmptyFile) {
  write_text("");
  expect_rendezvous(place);
}

TEST_F(ProcessGroupRendezvous, IgnoresUnauthenticatedPeers) {
  std::vector<FakeProcess> unauthenticated;
  expect_rendezvous(place, [&] {
    const std::string address = wait_for_address(place.path());
    const auto say = [&](const std::string& bytes) {
      unauthenticated.emplace_back(connect_to_address(address));
      EXPECT_EQ(::send(unauthenticated.back().connection.descriptor(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
                static_cast<ssize_t>(bytes.size()));
    };
    const auto framed = [](const std::string& message) {
      const uint64_t size = message.size();
      return std::string(reinterpret_cast<const char*>(&size), sizeof size) + message;
    };
    say("GET / HTTP/1.1\r\nHost: node1\r\n\r\n");
    say("");
    say("\x03");
    say(std::string("\x16\x03\x01\x02\x00\x01\x00\x01", 8));
    say(framed(""));
    say(framed("a message of no kind"));
    say(framed(std::string(1, '\0')));
    say(framed(process_group::encode(process_group::Hello{~process_group::kMagic})));
    say(framed(process_group::encode(process_group::Hello{process_group::kMagic, {process_group::random_bytes()}})) +
        framed(process_group::encode(process_group::Proof{{process_group::random_bytes()}})));
    say(framed(process_group::encode(process_group::Join{2, 3, "rank 2"})));
    say(framed(process_group::encode(process_group::Bye{})));
    unauthenticated.emplace_back(connect_to_address(address));
    unauthenticated.pop_back();  // and it is closed again
  });
  for (FakeProcess& peer : unauthenticated) EXPECT_THROW(peer.wait_for<process_group::Welcome>(), std::exception);
}

TEST_F(ProcessGroupRendezvous, ARankThatLeftBeforeAllJoinedMayReturn) {
  std::atomic<bool> went{false};
  run_ranks(3, [&](int rank) {
    if (rank == 2) {
      const std::string address = wait_for_address(place.path());
      FakeProcess first(connect_to_address(address));
      first.join(process_group::run_key("", process_group::Address::parse(address).key));
      first.send(process_group::Join{2, 3, "rank 2"});
      first.wait_for<process_group::Accepted>();
    }
    if (rank == 2) went = true;
    while (rank == 1 && !went) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ProcessGroup process_group(process_options(rank, 3, place.init()));
    process_group.close();
  });
}

/// An address left by an earlier run, at which a process listens that is not rank 0 of this run.
class StaleAddress : public ProcessGroupRendezvous {
 protected:
  /// Rank 1 first, which is certain to find the stale address; `serve` gets its connection.
  void expect_rendezvous_after(const std::function<void(std::optional<FakeProcess>&)>& serve) {
    const Descriptor listener = listen_on(0);
    process_group::write_address(
        place.path(),
        {process_group::random_bytes(), process_group::port_of(listener), process_group::host_name(), {}});
    run_ranks(2, [&](int rank) {
      std::optional<FakeProcess> unauthenticated;
      if (rank == 0) {
        Descriptor socket;
        while (!(socket = process_group::accept_one(listener)))
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        unauthenticated.emplace(std::move(socket));
        serve(unauthenticated);
      }
      ProcessGroup process_group(process_options(rank, 2, place.init()));
      process_group.close();
    });
  }
};

TEST_F(StaleAddress, WithoutAListenerIsReplaced) {
  int port = 0;
  {
    const Descriptor listener = listen_on(0);
    port = process_group::port_of(listener);
  }
  process_group::write_address(place.path(), {process_group::random_bytes(), port, process_group::host_name(), {}});
  run_ranks(2, [&](int rank) {
    if (rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(200));
    ProcessGroup process_group(process_options(rank, 2, place.init()));
    process_group.close();
  });
}

TEST_F(StaleAddress, OfAnHttpServerIsReplaced) {
  expect_rendezvous_after([](std::optional<FakeProcess>& server) {
    const std::string answer = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n";
    EXPECT_EQ(::send(server->connection.descriptor(), answer.data(), answer.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(answer.size()));
  });
}

TEST_F(StaleAddress, OfAListenerThatHangsUpIsReplaced) {
  expect_rendezvous_after([](std::optional<FakeProcess>& server) { server.reset(); });
}

TEST_F(StaleAddress, OfAnotherRunIsReplaced) {
  expect_rendezvous_after([](std::optional<FakeProcess>& server) {
    server->wait_for<process_group::Hello>();
    server->send(process_group::Refused{"it does not know this run's secret"});
  });
}

TEST_F(StaleAddress, OfASilentListenerIsReplaced) {
  expect_rendezvous_after([](std::optional<FakeProcess>& /*server*/) {});
}

}  // namespace
}  // namespace vitrine::test
