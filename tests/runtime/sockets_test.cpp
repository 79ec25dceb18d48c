// SPDX-License-Identifier: Apache-2.0
// Where rank 0 listens, and the messages when descriptors run out.
#include "runtime/process_group/sockets.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include "runtime/error.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine::process_group {
namespace {

Descriptor listen_on(int port) { return std::move(listen_at("", port)[0]); }

TEST(Listening, NamesAPortThatIsInUse) {
  const Descriptor first = listen_on(0);
  const std::string text = error_of<CommError>([&] { listen_on(port_of(first)); });
  expect_contains(text, "rank 0 cannot listen on port " + std::to_string(port_of(first)),
                  "ProcessGroupOptions::rendezvous");
}

TEST(Listening, AcceptReturnsNothingBeforeAConnection) {
  const Descriptor listener = listen_on(0);
  EXPECT_FALSE(accept_one(listener));
  std::string problem;
  for (const char* host : {"127.0.0.1", "localhost"}) {
    const Descriptor client = connect_to(host, port_of(listener), 60000, problem);
    ASSERT_TRUE(client) << problem;
    EXPECT_TRUE(accept_one(listener));
  }
}

TEST(Listening, AFailedConnectionIsReportedWithItsReason) {
  int port = 0;
  {
    const Descriptor listener = listen_on(0);
    port = port_of(listener);
  }
  std::string problem;
  EXPECT_FALSE(connect_to("127.0.0.1", port, 1000, problem));
  expect_contains(problem, "127.0.0.1:" + std::to_string(port));
  EXPECT_FALSE(connect_to("no-such-host.invalid", 1, 1000, problem));
  expect_contains(problem, "no-such-host.invalid");
}

TEST(Listening, SocketsDoNotConnectToThemselves) {
  // TCP connects a socket with itself if it is assigned the port that it connects to, so that port is in the range of
  // assigned ports.
  int port = 0;
  std::string problem;
  {
    const Descriptor listener = listen_on(0);
    port = port_of(connect_to("127.0.0.1", port_of(listener), 60000, problem));
  }
  for (int i = 0; i < 40000; ++i) {
    if (connect_to("127.0.0.1", port, 60000, problem))
      FAIL() << "attempt " << i << ": connected, although nothing listens";
  }
  expect_contains(problem, "Connection refused");
}

TEST(Listening, AtAnAddressAcceptsConnectionsToThatAddressOnly) {
  std::string problem;
  const std::vector<Descriptor> listeners = listen_at("127.0.0.2", 0);
  ASSERT_EQ(listeners.size(), 1U);
  const int port = port_of(listeners[0]);
  EXPECT_TRUE(connect_to("127.0.0.2", port, 60000, problem)) << problem;
  EXPECT_FALSE(connect_to("127.0.0.1", port, 60000, problem));
  for (const std::string& address : interface_addresses())
    EXPECT_FALSE(connect_to(address, port, 60000, problem)) << address;
}

TEST(Listening, AtLocalhostIsUnreachableFromInterfaces) {
  std::string problem;
  const int port = port_of(listen_on(0));
  const std::vector<Descriptor> listeners = listen_at("localhost", port);
  EXPECT_TRUE(connect_to("localhost", port, 60000, problem)) << problem;
  for (const std::string& address : interface_addresses())
    EXPECT_FALSE(connect_to(address, port, 60000, problem)) << address;
}

TEST(Listening, AtAnotherMachinesAddressNamesTheAddress) {
  // An address for documentation.
  expect_contains(error_of<CommError>([] { listen_at("192.0.2.1", 29500); }),
                  "rank 0 cannot listen on port 29500 of 192.0.2.1: its address is 192.0.2.1, but this machine has");
  EXPECT_THROW(listen_at("no-such-host.invalid", 29500), CommError);
}

TEST(Listening, RecognizesLoopbackNamesAndAddresses) {
  for (const char* host : {"localhost", "127.0.0.1", "127.0.1.1", "::1", "ip6-localhost", "a.localhost"})
    EXPECT_TRUE(names_loopback(host)) << host;
  for (const char* host :
       {"node1", "10.0.0.1", "0.0.0.0", "::", "localhost.example.org", "128.0.0.1", "127.0.0.1.example.org", ""})
    EXPECT_FALSE(names_loopback(host)) << host;
}

TEST(Listening, AHostNameThatMapsToLoopbackIncludesTheInterfaces) {
  using List = std::vector<std::string>;
  const List interfaces{"10.0.0.3", "192.168.1.3"};
  EXPECT_EQ(addresses_to_bind("node1", {"127.0.1.1"}, interfaces), (List{"127.0.1.1", "10.0.0.3", "192.168.1.3"}))
      << "as Debian's /etc/hosts has it";
  EXPECT_EQ(addresses_to_bind("node1", {"10.0.0.3"}, interfaces), List{"10.0.0.3"});
  EXPECT_EQ(addresses_to_bind("node1", {"127.0.1.1", "10.0.0.3"}, interfaces), (List{"127.0.1.1", "10.0.0.3"}));
  EXPECT_EQ(addresses_to_bind("localhost", {"::1", "127.0.0.1"}, interfaces), (List{"::1", "127.0.0.1"}));
  EXPECT_EQ(addresses_to_bind("127.0.1.1", {"127.0.1.1"}, interfaces), List{"127.0.1.1"});
}

/// Lowers the soft limit of descriptors for its lifetime.
class FewDescriptors : public ::testing::Test {
 public:
  ~FewDescriptors() override { setrlimit(RLIMIT_NOFILE, &before_); }

 protected:
  FewDescriptors() {
    getrlimit(RLIMIT_NOFILE, &before_);
    // The lowest free number and a few above it.
    const Descriptor lowest(open("/dev/null", O_RDONLY | O_CLOEXEC));
    few_ = before_;
    few_.rlim_cur = static_cast<rlim_t>(lowest.get()) + 3;
  }
  void limit() { ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few_), 0); }
  std::vector<Descriptor> take_all() {
    std::vector<Descriptor> taken;
    while (Descriptor next{open("/dev/null", O_RDONLY | O_CLOEXEC)}) taken.push_back(std::move(next));
    return taken;
  }

  rlimit before_{}, few_{};
};

TEST_F(FewDescriptors, AreReportedWithTheLimitAndTheRemedy) {
  limit();
  const std::vector<Descriptor> taken = take_all();
  const std::string expected = "Too many open files: this process may have " + std::to_string(few_.rlim_cur) +
                               " file descriptors; raise their number with ulimit -n";
  std::string problem;
  EXPECT_FALSE(connect_to("127.0.0.1", 1, 1000, problem));
  expect_contains(problem, expected);
  for (const auto& open_one : {+[] { make_event(); }, +[] { listen_on(0); }, +[] { listen_at("127.0.0.1", 0); }}) {
    expect_contains(error_of<CommError>([&] { open_one(); }), "Too many open files");
  }
}

TEST_F(FewDescriptors, CanBeRaisedUpToTheHardLimit) {
  limit();
  rlimit now{};
  raise_descriptor_limit(few_.rlim_cur + 10);
  getrlimit(RLIMIT_NOFILE, &now);
  EXPECT_EQ(now.rlim_cur, few_.rlim_cur + 10);
  raise_descriptor_limit(1);
  getrlimit(RLIMIT_NOFILE, &now);
  EXPECT_EQ(now.rlim_cur, few_.rlim_cur + 10) << "never lowered";
  raise_descriptor_limit(~uint64_t{0});
  getrlimit(RLIMIT_NOFILE, &now);
  EXPECT_EQ(now.rlim_cur, before_.rlim_max);
}

}  // namespace
}  // namespace vitrine::process_group
