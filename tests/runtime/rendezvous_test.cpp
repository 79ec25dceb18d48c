// SPDX-License-Identifier: Apache-2.0
// How processes find each other: values of ProcessGroupOptions::rendezvous, and the address file of rank 0.
#include "runtime/process_group/rendezvous.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/error.h"
#include "runtime/process_group/connection.h"
#include "tests/data/temp_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine::process_group {
namespace {

/// Whoever may have written it.
std::string address_in(const std::string& path) {
  std::string problem;
  return read_address(path, false, problem);
}

TEST(Rendezvous, ParsesAHostAndItsPort) {
  const struct {
    const char* text;
    const char* host;
    int port;
  } cases[] = {{"tcp://node1:29500", "node1", 29500},
               {"tcp://10.0.0.1:1", "10.0.0.1", 1},
               {"tcp://[fe80::1]:65535", "fe80::1", 65535},
               {"tcp://node1.cluster.example:400", "node1.cluster.example", 400}};
  for (const auto& c : cases) {
    const Rendezvous method = parse_rendezvous(c.text);
    EXPECT_EQ(method.host, c.host) << c.text;
    EXPECT_EQ(method.port, c.port) << c.text;
    EXPECT_EQ(method.address_file, "") << c.text;
  }
}

TEST(Rendezvous, ParsesAFile) {
  for (const auto& [text, path] : {std::pair("file:/tmp/meet", "/tmp/meet"), std::pair("file:///tmp/meet", "/tmp/meet"),
                                   std::pair("file:meet", "meet"), std::pair("file:/tmp/a b:c", "/tmp/a b:c")}) {
    const Rendezvous method = parse_rendezvous(text);
    EXPECT_EQ(method.address_file, path) << text;
    EXPECT_EQ(method.host, "") << text;
    EXPECT_EQ(method.port, 0) << text;
  }
}

TEST(Rendezvous, RefusesAnythingElseWithTheRemedy) {
  for (const char* text :
       {"", "node1:29500", "http://node1:80", "tcp:node1:80", "tcp://", "tcp://:29500", "tcp://node1",
        "tcp://node1:", "tcp://node1:0", "tcp://node1:65536", "tcp://node1:-1", "tcp://node1:80x", "tcp://node1:8 0",
        "tcp://node1:99999999999999999999", "file:", "file://", "mpi"}) {
    const std::string message = error_of<ConfigError>([&] { parse_rendezvous(text); });
    expect_contains(message, std::string("ProcessGroupOptions::rendezvous") + (*text == '\0' ? "" : " ") + text + ":",
                    "tcp://HOST:PORT", "file:PATH");
  }
}

TEST(RendezvousAddress, SurvivesARoundTrip) {
  const test::TempFolder folder;
  const std::string path = (folder.path() / "address").string();
  EXPECT_EQ(address_in(path), "");
  for (const std::vector<std::string>& hosts : {std::vector<std::string>{}, {"10.0.0.1", "192.168.1.1"}}) {
    const std::string key = random_bytes();
    write_address(path, {key, 4711, "node1", hosts});
    const Address address = Address::parse(address_in(path));
    EXPECT_EQ(address.key, key);
    EXPECT_EQ(address.port, 4711);
    EXPECT_EQ(address.host_name, "node1");
    EXPECT_EQ(address.hosts, hosts);
    EXPECT_EQ(address.str(), address_in(path));
  }
}

TEST(RendezvousAddress, RejectsOtherText) {
  for (const char* text : {"x", "label,pixel0\n7,0\n", "vitrine", "vitrine 12", "vitrine 12 80", "vitrine 12 80 node1",
                           "vitrine zz11222233334444 80 node1", "vitrine 1111222233334444 port node1",
                           "vitrine 1111222233334444 0 node1", "vitrine 1111222233334444 70000 node1",
                           "vitrine 11112222333344445 80 node1", "Vitrine 1111222233334444 80 node1"}) {
    EXPECT_THROW(Address::parse(text), CommError) << text;
  }
}

TEST(RendezvousAddress, NamesAMissingFolder) {
  const std::string text = error_of<CommError>([&] {
    write_address("/no/such/folder/meet", {random_bytes(), 2, "node1", {}});
  });
  expect_contains(text, "ProcessGroupOptions::rendezvous file:/no/such/folder/meet", "No such file or directory");
}

TEST(RendezvousAddress, NeedsAWholeKey) {
  EXPECT_THROW(Address::parse("vitrine 1111222233334444 80 node1"), CommError);
}

TEST(RendezvousAddress, ShowsOtherTextWithoutControlCharacters) {
  expect_contains(error_of<CommError>([&] { Address::parse("\x1b[2J"); }), "'\\x1b[2J' is not the address");
}

TEST(RendezvousAddress, IsReadableByThisUserOnly) {
  const test::TempFolder folder;
  const std::string path = (folder.path() / "address").string();
  const mode_t before = umask(0);
  write_address(path, {random_bytes(), 4711, "node1", {}});
  umask(before);
  struct stat status {};
  ASSERT_EQ(stat(path.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600U);
  std::string problem;
  EXPECT_EQ(read_address(path, true, problem), address_in(path));
  EXPECT_EQ(problem, "");
  chmod(path.c_str(), 0644);
  EXPECT_EQ(read_address(path, true, problem), "") << "another user may have planted it";
  expect_contains(problem, "its mode is 0644");
  EXPECT_EQ(read_address(path + "x", true, problem), "");
  EXPECT_EQ(problem, "the file does not exist");
}

TEST(RendezvousAddress, IsARegularFile) {
  const test::TempFolder folder;
  const std::string path = (folder.path() / "address").string();
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  for (const std::string& other : {path, folder.path().string(), std::string("/dev/null")}) {
    expect_contains(error_of<CommError>([&] { address_in(other); }),
                    "ProcessGroupOptions::rendezvous file:" + other + ": it is not a regular file");
  }
}

TEST(RendezvousPlan, OffLoopbackNeedsASecret) {
  for (const char* init : {"tcp://10.0.0.1:29500", "tcp://node1:29500", "tcp://0.0.0.0:29500"}) {
    const std::string text = error_of<ConfigError>([&] { plan_rendezvous({.rendezvous = init}); });
    expect_contains(
        text, std::string("ProcessGroupOptions::rendezvous ") + init + ": a rendezvous over a network needs a secret",
        "VITRINE_SECRET_FILE");
    EXPECT_EQ(plan_rendezvous({.rendezvous = init, .secret = "0123456789abcdef"}).address_file, "");
    EXPECT_EQ(plan_rendezvous({.rendezvous = init, .one_machine = true}).host, "127.0.0.1") << "all on one machine";
    EXPECT_THROW(plan_rendezvous({.rendezvous = init, .secret = "12345"}), ConfigError)
        << "a job's number is no secret";
  }
}

TEST(RendezvousPlan, OnLoopbackTheKeyIsInAPrivateFile) {
  const Rendezvous plan = plan_rendezvous({.rendezvous = "tcp://127.0.0.1:29500"});
  const std::string folder = plan.address_file.substr(0, plan.address_file.rfind('/'));
  struct stat status {};
  ASSERT_EQ(stat(folder.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0700U);
  EXPECT_EQ(status.st_uid, geteuid());
  EXPECT_NE(plan.address_file, plan_rendezvous({.rendezvous = "tcp://127.0.0.1:29501"}).address_file);
}

}  // namespace
}  // namespace vitrine::process_group
