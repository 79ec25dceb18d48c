// SPDX-License-Identifier: Apache-2.0
// Mutual proofs of two processes, and the connections that carry their messages.
#include "runtime/process_group/connection.h"

#include <chrono>
#include <set>

#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/error.h"
#include "tests/support/expect_contains.h"

namespace vitrine::process_group {
namespace {

constexpr std::chrono::seconds kLongEnough{60};
const Key kKey(std::string(kKeyBytes, 'k'));

std::string text_of(const Key& key) { return {reinterpret_cast<const char*>(key.data()), kKeyBytes}; }

TEST(Handshake, RandomBytesDiffer) {
  std::set<std::string> all;
  for (int i = 0; i < 100; ++i) all.insert(random_bytes());
  EXPECT_EQ(all.size(), 100U);
  for (const std::string& bytes : all) EXPECT_EQ(bytes.size(), kKeyBytes);
}

TEST(Handshake, HexadecimalTextSurvivesARoundTrip) {
  const std::string bytes = random_bytes();
  EXPECT_EQ(from_hex(to_hex(bytes)), bytes);
  EXPECT_EQ(to_hex(std::string("\0\xff", 2)), "00ff");
  for (const char* text : {"", "0", "0g", "00 ff", "abc"}) EXPECT_EQ(from_hex(text), "") << text;
}

TEST(Handshake, TheRunKeyDependsOnBothSecretsAndTheirOrder) {
  std::set<std::string> keys;
  for (const auto& [given, made] : {std::pair("", ""), std::pair("a", ""), std::pair("", "a"), std::pair("a", "b"),
                                    std::pair("ab", ""), std::pair("b", "a")})
    keys.insert(text_of(run_key(given, made)));
  keys.insert(text_of(run_key("a", "b", "run 2")));
  EXPECT_EQ(keys.size(), 7U);
}

TEST(Handshake, BothSidesDeriveTheSameKeysAndDifferentProofs) {
  const Handshake one(kKey, "nonce 1", "nonce 2"), other(kKey, "nonce 1", "nonce 2");
  EXPECT_TRUE(proves(one.member_proof, other.member_proof));
  EXPECT_TRUE(proves(one.server_proof, other.server_proof));
  const std::set<std::string> all{one.member_proof, one.server_proof, text_of(one.to_server), text_of(one.to_member)};
  EXPECT_EQ(all.size(), 4U) << "one side's proof reflected is none of the other's, and no key is a proof";
}

TEST(Handshake, ProofsDependOnKeyAndNonces) {
  const Handshake right(kKey, "nonce 1", "nonce 2");
  const Handshake others[] = {{Key(std::string(kKeyBytes, 'l')), "nonce 1", "nonce 2"},
                              {kKey, "nonce 3", "nonce 2"},
                              {kKey, "nonce 1", "nonce 3"},
                              {kKey, "nonce 2", "nonce 1"},
                              {kKey, "nonce 1n", "once 2"}};
  for (const Handshake& other : others) {
    EXPECT_FALSE(proves(other.member_proof, right.member_proof));
    EXPECT_FALSE(proves(other.server_proof, right.server_proof));
    EXPECT_NE(text_of(other.to_server), text_of(right.to_server));
  }
  EXPECT_FALSE(proves("", right.member_proof));
  EXPECT_FALSE(proves(right.member_proof.substr(1), right.member_proof));
}

TEST(Handshake, KeysHaveAFixedLength) {
  EXPECT_THROW(Key("short"), CommError);
  EXPECT_THROW(Key(std::string(kKeyBytes + 1, 'k')), CommError);
}

/// Two ends of a connection; one of them may be a bare socket.
class ConnectionTest : public ::testing::Test {
 protected:
  ConnectionTest() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    here.emplace(Descriptor(ends[0]));
    there = Descriptor(ends[1]);
  }
  void write_bytes(std::string_view bytes) {
    EXPECT_EQ(::write(there.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  /// What this end sends for a message, with its length.
  std::string sent(std::string_view message) {
    here->send(message);
    std::string bytes(1000, '\0');
    bytes.resize(static_cast<size_t>(::read(there.get(), bytes.data(), bytes.size())));
    return bytes;
  }
  static std::string framed(std::string_view message) {
    const uint64_t size = message.size();
    return std::string(reinterpret_cast<const char*>(&size), sizeof size) + std::string(message);
  }

  std::optional<Connection> here;
  Descriptor there;
};

TEST_F(ConnectionTest, MessagesArriveWholeHoweverTheyAreFragmented) {
  const std::string bytes = framed("first") + framed("") + framed(std::string(1000, 'x'));
  std::vector<std::string> messages;
  for (const char byte : bytes) {
    write_bytes({&byte, 1});
    EXPECT_TRUE(here->receive());
    while (auto message = here->take()) messages.push_back(*message);
  }
  EXPECT_EQ(messages, (std::vector<std::string>{"first", "", std::string(1000, 'x')}));
}

TEST_F(ConnectionTest, SeveralMessagesMayArriveAtOnce) {
  std::string bytes;
  for (int i = 0; i < 100; ++i) bytes += framed(std::to_string(i));
  write_bytes(bytes);
  EXPECT_TRUE(here->receive());
  for (int i = 0; i < 100; ++i) EXPECT_EQ(here->take(), std::to_string(i));
  EXPECT_FALSE(here->take());
}

TEST_F(ConnectionTest, LargeMessagesAreSentInParts) {
  Connection other(std::move(there));
  std::string large(size_t{9} << 20, '\0');
  for (size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 7 + i / 1000);
  here->send(large);
  here->send("after it");
  EXPECT_TRUE(here->has_unsent()) << "9 MiB are more than a socket takes";
  std::vector<std::string> messages;
  const auto give_up = std::chrono::steady_clock::now() + kLongEnough;
  while (messages.size() < 2 && std::chrono::steady_clock::now() < give_up) {
    here->flush();
    other.receive();
    while (auto message = other.take()) messages.push_back(std::move(*message));
  }
  ASSERT_EQ(messages.size(), 2U);
  EXPECT_TRUE(messages[0] == large);
  EXPECT_EQ(messages[1], "after it");
  EXPECT_FALSE(here->has_unsent());
}

TEST_F(ConnectionTest, AnImpossibleSizeIsRefused) {
  write_bytes("GET / HTTP/1.1\r\nHost: node1\r\n\r\n");
  EXPECT_TRUE(here->receive());
  EXPECT_THROW(here->take(), CommError);
}

TEST_F(ConnectionTest, ALimitOfTheCallerIsEnforced) {
  write_bytes(framed(std::string(100, 'x')));
  EXPECT_TRUE(here->receive());
  here->limit(99);
  EXPECT_THROW(here->take(), CommError);
  here->limit(100);
  EXPECT_EQ(here->take()->size(), 100U);
}

TEST_F(ConnectionTest, MessagesBeforeTheEndCanBeTaken) {
  write_bytes(framed("last words") + "\x09");
  there = Descriptor();
  EXPECT_FALSE(here->receive());
  EXPECT_TRUE(here->gone());
  EXPECT_EQ(here->take(), "last words");
  EXPECT_FALSE(here->take()) << "half a message is none";
}

TEST_F(ConnectionTest, ReceivedMessagesAreReadEvenIfSendingFails) {
  write_bytes(framed("last words"));
  there = Descriptor();
  here->send("not received");
  here->send("not received");
  EXPECT_FALSE(here->has_unsent());
  EXPECT_FALSE(here->receive());
  EXPECT_EQ(here->take(), "last words");
}

TEST_F(ConnectionTest, ReadsNoMoreThanTheLimit) {
  here->limit(1000);
  const std::string flood(100'000, '\0');  // empty messages that are never taken
  write_bytes(flood);
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(here->receive());
  int left = 0;
  EXPECT_EQ(ioctl(here->descriptor(), FIONREAD, &left), 0);
  EXPECT_GE(left, 100'000 - 1100) << "what is left in the socket";
}

TEST_F(ConnectionTest, SealedMessagesSurviveARoundTrip) {
  const Handshake keys(Key(std::string(kKeyBytes, 'k')), "a", "b");
  Connection other(std::move(there));
  other.seal(keys.to_member, keys.to_server);
  here->seal(keys.to_server, keys.to_member);
  for (const std::string& message : {std::string("first"), std::string(), std::string(100'000, 'x')}) {
    here->send(message);
    other.receive();
    EXPECT_EQ(other.take(), message);
    other.send(message);
    here->receive();
    EXPECT_EQ(here->take(), message);
  }
}

/// Takes what arrives in these bytes, which are all that a connection with this key receives.
std::optional<std::string> taken(const std::string& bytes, const Key& key = kKey) {
  int ends[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  const Descriptor there(ends[1]);
  Connection here{Descriptor(ends[0])};
  here.seal(key, key);
  EXPECT_EQ(::write(there.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  here.receive();
  std::optional<std::string> last;
  while (auto message = here.take()) last = std::move(message);
  return last;
}

TEST_F(ConnectionTest, SealingHidesTheMessage) {
  here->seal(kKey, kKey);
  const std::string first = sent("NCCL's unique id"), second = sent("NCCL's unique id");
  expect_lacks(first, "unique");
  EXPECT_NE(first, second) << "equal messages look different";
  EXPECT_EQ(taken(first + second), "NCCL's unique id");
}

TEST_F(ConnectionTest, SealingDetectsEveryChangedBit) {
  here->seal(kKey, kKey);
  const std::string bytes = sent("collective 17");
  for (size_t bit = 64; bit < 8 * bytes.size(); ++bit) {
    std::string changed = bytes;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    EXPECT_THROW(taken(changed), CommError) << bit;
  }
}

TEST_F(ConnectionTest, SealingDetectsRepeatedMissingTruncatedAndForeignMessages) {
  here->seal(kKey, kKey);
  const std::string first = sent("first"), second = sent("second");
  EXPECT_EQ(taken(first + second), "second");
  EXPECT_THROW(taken(first + first), CommError) << "repeated";
  EXPECT_THROW(taken(second), CommError) << "the first was left out";
  for (size_t size = sizeof(uint64_t); size < first.size(); ++size)
    EXPECT_THROW(taken(framed(first.substr(sizeof(uint64_t), size - sizeof(uint64_t)))), CommError) << size;
  EXPECT_THROW(taken(first, Key(std::string(kKeyBytes, 'l'))), CommError);
}

}  // namespace
}  // namespace vitrine::process_group
