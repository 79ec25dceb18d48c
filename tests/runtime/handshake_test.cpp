// SPDX-License-Identifier: Apache-2.0
// Mutual proofs of two processes, and sealing of their messages.
#include "runtime/process_group/handshake.h"

#include <set>

#include <gtest/gtest.h>

#include "runtime/error.h"
#include "tests/support/expect_contains.h"

namespace vitrine::process_group {
namespace {

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

std::string sealed(Seal& seal, std::string_view message) {
  std::string bytes;
  seal.close(message, bytes);
  return bytes;
}

TEST(Seal, OpensMessagesInTheOrderOfSealing) {
  Seal there(kKey), here(kKey);
  for (const char* message : {"first", "", "first"}) EXPECT_EQ(here.open(sealed(there, message)), message);
}

TEST(Seal, HidesTheMessage) {
  Seal seal(kKey);
  const std::string first = sealed(seal, "NCCL's unique id"), second = sealed(seal, "NCCL's unique id");
  expect_lacks(first, "unique");
  EXPECT_NE(first, second) << "equal messages look different";
}

TEST(Seal, DetectsEveryChangedBit) {
  Seal there(kKey);
  const std::string bytes = sealed(there, "collective 17");
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string changed = bytes;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    Seal here(kKey);
    EXPECT_THROW(here.open(changed), CommError) << bit;
  }
}

TEST(Seal, DetectsRepeatedMissingTruncatedAndForeignMessages) {
  Seal there(kKey);
  const std::string first = sealed(there, "first"), second = sealed(there, "second");
  {
    Seal here(kKey);
    here.open(first);
    EXPECT_THROW(here.open(first), CommError) << "repeated";
  }
  {
    Seal here(kKey);
    EXPECT_THROW(here.open(second), CommError) << "the first was left out";
  }
  for (size_t size = 0; size < first.size(); ++size) {
    Seal here(kKey);
    EXPECT_THROW(here.open(first.substr(0, size)), CommError) << size;
  }
  Seal other(Key(std::string(kKeyBytes, 'l')));
  EXPECT_THROW(other.open(first), CommError);
}

}  // namespace
}  // namespace vitrine::process_group
