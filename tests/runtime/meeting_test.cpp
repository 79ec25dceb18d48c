// SPDX-License-Identifier: Apache-2.0
// Where processes meet: what --rendezvous says, and the address that rank 0 leaves for the others.
#include "runtime/world/meeting.h"

#include <fstream>
#include <set>

#include <gtest/gtest.h>

#include "runtime/error.h"
#include "tests/data/temp_folder.h"
#include "tests/support/expect_contains.h"

namespace vitrine::world {
namespace {

TEST(InitMethod, NamesAHostAndItsPort) {
  const struct {
    const char* text;
    const char* host;
    int port;
  } cases[] = {{"tcp://node1:29500", "node1", 29500},
               {"tcp://10.0.0.1:1", "10.0.0.1", 1},
               {"tcp://[fe80::1]:65535", "fe80::1", 65535},
               {"tcp://node1.cluster.example:400", "node1.cluster.example", 400}};
  for (const auto& c : cases) {
    const InitMethod method = parse_init_method(c.text);
    EXPECT_EQ(method.host, c.host) << c.text;
    EXPECT_EQ(method.port, c.port) << c.text;
    EXPECT_EQ(method.path, "") << c.text;
  }
}

TEST(InitMethod, NamesAFile) {
  for (const auto& [text, path] : {std::pair("file:/tmp/meet", "/tmp/meet"), std::pair("file:///tmp/meet", "/tmp/meet"),
                                   std::pair("file:meet", "meet"), std::pair("file:/tmp/a b:c", "/tmp/a b:c")}) {
    const InitMethod method = parse_init_method(text);
    EXPECT_EQ(method.path, path) << text;
    EXPECT_EQ(method.host, "") << text;
    EXPECT_EQ(method.port, 0) << text;
  }
}

TEST(InitMethod, AnythingElseIsRefusedWithTheRemedy) {
  for (const char* text :
       {"", "node1:29500", "http://node1:80", "tcp:node1:80", "tcp://", "tcp://:29500", "tcp://node1", "tcp://node1:", "tcp://node1:0",
        "tcp://node1:65536", "tcp://node1:-1", "tcp://node1:80x", "tcp://node1:8 0", "tcp://node1:99999999999999999999", "file:", "file://", "mpi"}) {
    try {
      parse_init_method(text);
      ADD_FAILURE() << "taken: " << text;
    } catch (const ConfigError& error) {
      expect_contains(error.what(), std::string("--rendezvous ") + text + ":");
      expect_contains(error.what(), "tcp://HOST:PORT");
      expect_contains(error.what(), "file:PATH");
    }
  }
}

TEST(MeetingAddress, IsReadAsItWasWritten) {
  const test::TempFolder folder;
  const std::string path = (folder.path() / "address").string();
  EXPECT_EQ(read_address(path), "");
  for (const std::vector<std::string>& hosts : {std::vector<std::string>{}, {"10.0.0.1", "192.168.1.1"}}) {
    write_address(path, {make_token(), 4711, "node1", hosts});
    const Address address = Address::parse(read_address(path));
    EXPECT_EQ(address.port, 4711);
    EXPECT_EQ(address.host_name, "node1");
    EXPECT_EQ(address.hosts, hosts);
    EXPECT_EQ(address.str(), read_address(path));
  }
}

TEST(MeetingAddress, AnotherTextIsNone) {
  for (const char* text : {"x", "label,pixel0\n7,0\n", "vitrine", "vitrine 12", "vitrine 12 80", "vitrine zz 80 node1", "vitrine 12 port node1",
                           "vitrine 12 0 node1", "vitrine 12 70000 node1", "vitrine 11112222333344445 80 node1", "Vitrine 12 80 node1"}) {
    EXPECT_THROW(Address::parse(text), CommError) << text;
  }
}

TEST(MeetingAddress, AFolderThatIsNotThereIsNamed) {
  try {
    write_address("/no/such/folder/meet", {1, 2, "node1", {}});
    FAIL() << "written";
  } catch (const CommError& error) {
    expect_contains(error.what(), "--rendezvous file:/no/such/folder/meet");
    expect_contains(error.what(), "No such file or directory");
  }
}

TEST(MeetingAddress, TokensDiffer) {
  std::set<uint64_t> tokens;
  for (int i = 0; i < 100; ++i) tokens.insert(make_token());
  EXPECT_EQ(tokens.size(), 100U);
  EXPECT_FALSE(tokens.contains(0));
}

}  // namespace
}  // namespace vitrine::world
