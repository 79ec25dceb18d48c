// SPDX-License-Identifier: Apache-2.0
// Messages between the processes of a process group, and the connections that carry them.
#include "runtime/process_group/message.h"

#include <chrono>

#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/error.h"
#include "runtime/process_group/connection.h"
#include "runtime/settings.h"
#include "tests/runtime/upper_settings.h"
#include "tests/support/expect_contains.h"

namespace vitrine::process_group {
namespace {

constexpr std::chrono::seconds kLongEnough{60};

TEST(Message, ValuesSurviveARoundTrip) {
  CollectiveRecord record;
  record.sequence = 17;
  record.signature = ~uint64_t{0};
  record.operation = "all_reduce";
  record.label = "";
  record.phase = "reduce";
  record.step = -1;
  record.bytes = int64_t{1} << 40;
  record.group = 3;
  record.end_is_reported = false;
  record.in_graph = true;
  const std::string bytes =
      Writer(MessageKind::progress).number(42).text(std::string("a\0b", 3)).record(record).number(uint8_t{255}).bytes();
  Reader reader(bytes);
  EXPECT_EQ(reader.number<MessageKind>(), MessageKind::progress);
  EXPECT_EQ(reader.number<int>(), 42);
  EXPECT_EQ(reader.text(), std::string("a\0b", 3));
  const CollectiveRecord read = reader.record();
  EXPECT_EQ(read.str(), record.str());
  EXPECT_EQ(read.signature, record.signature);
  EXPECT_EQ(read.group, 3);
  EXPECT_FALSE(read.end_is_reported);
  EXPECT_TRUE(read.in_graph);
  EXPECT_EQ(reader.number<uint8_t>(), 255);
  EXPECT_THROW(reader.number<uint8_t>(), CommError);
}

TEST(Message, AReasonKeepsItsSettings) {
  const Reason sent(
      {"cpu:1: layer '\x1b[2J' needs more: ", propose(test::kWorkspaceBytes, "8MiB"), "; or ", settings::kTf32});
  const Message read = decode(Writer(MessageKind::verdict).reason(sent).bytes());
  const Reason& reason = std::get<Verdict>(read).reason;
  EXPECT_EQ(reason,
            "cpu:1: layer '\\x1b[2J' needs more: EngineConfig::workspace_bytes 8MiB; or DeviceGroupOptions::tf32");
  EXPECT_EQ(reason.parts(Reason::Part::Kind::proposed), sent.parts(Reason::Part::Kind::proposed));
  EXPECT_EQ(reason.parts().size(), 4U);
}

TEST(Message, AReasonHasSettingsWithNamesOnly) {
  const auto of_one_part = [](Reason::Part::Kind kind, const char* setting) {
    return Writer(MessageKind::error).number(uint64_t{1}).number(kind).text(setting).text("8MiB").bytes();
  };
  using Kind = Reason::Part::Kind;
  EXPECT_EQ(std::get<Failed>(decode(of_one_part(Kind::proposed, "MyLayer::width\x1b"))).reason,
            "MyLayer::width\\x1b 8MiB");
  EXPECT_EQ(std::get<Failed>(decode(of_one_part(Kind::text, ""))).reason, "8MiB");
  EXPECT_THROW(decode(of_one_part(Kind::proposed, "")), CommError);
  EXPECT_THROW(decode(of_one_part(Kind::text, "MyLayer::width")), CommError);
}

TEST(Message, EveryTruncationIsDetected) {
  CollectiveRecord record;
  record.operation = "barrier";
  const std::string bytes = Writer(MessageKind::progress).text("label").record(record).bytes();
  for (size_t size = 0; size < bytes.size(); ++size) {
    Reader reader(std::string_view(bytes).substr(0, size));
    const auto read = [&] {
      reader.number<MessageKind>();
      reader.text();
      reader.record();
    };
    EXPECT_THROW(read(), CommError) << size;
  }
}

TEST(Message, DescribesACollectiveWithAllItsFields) {
  CollectiveRecord record{
      .sequence = 17, .operation = "all_reduce", .label = "bucket 3", .phase = "reduce", .step = 5, .bytes = 1048576};
  EXPECT_EQ(record.str(), "collective 17 (all_reduce of bucket 3, 1048576 bytes, phase reduce, step 5)");
  record.label.clear();
  record.group = 2;
  EXPECT_EQ(record.str(), "collective 17 of group 2 (all_reduce, 1048576 bytes, phase reduce, step 5)");
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
    ASSERT_EQ(::write(there.get(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
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

}  // namespace
}  // namespace vitrine::process_group
