// SPDX-License-Identifier: Apache-2.0
// Mutations of valid messages of every kind: each is decoded or refused with a CommError, and never takes more memory
// than its size justifies. This program contains a copy of the decoder that counts executed lines;
// decoder_coverage.cmake prints them.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <random>

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "runtime/error.h"
#include "runtime/process_group/connection.h"
#include "runtime/process_group/message.h"
#include "tests/runtime/upper_settings.h"

namespace {

std::atomic<size_t> g_allocated_bytes{0};  // total since the start of the program

}  // namespace

// Not inlined: the compiler would take free() for the wrong partner of a new expression.
[[gnu::noinline]] void* operator new(size_t bytes) {
  g_allocated_bytes += bytes;
  if (void* const memory = std::malloc(bytes == 0 ? 1 : bytes)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void* operator new(size_t bytes, const std::nothrow_t& /*tag*/) noexcept {
  g_allocated_bytes += bytes;
  return std::malloc(bytes == 0 ? 1 : bytes);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t /*bytes*/) noexcept { std::free(memory); }

namespace vitrine::process_group {
namespace {

constexpr int kMutations = 120'000;

CollectiveRecord record(const char* label) {
  CollectiveRecord r;
  r.sequence = 17;
  r.signature = 0x1234567890abcdef;
  r.operation = "all_reduce";
  r.label = label;
  r.phase = "reduce";
  r.step = 3;
  r.bytes = 1 << 20;
  return r;
}

/// At least one valid message of every kind, in the order of their numbers.
std::vector<std::string> valid_messages() {
  const std::string nonce(kKeyBytes, 'n');
  const Message all[] = {
      Hello{kMagic, {nonce}},
      Refused{"another process has rank 1"},
      Challenge{{nonce}},
      Proof{{nonce}},
      Join{1, 2, "rank 1 (pid 78 on node2)"},
      Accepted{},
      Welcome{"rank 0 (pid 77 on node1)"},
      Beat{{5, 6}, "it had begun no collective"},
      Devices{{"cuda:0", "cuda:1", ""}},
      Progress{1, 5, {record("bucket 1"), record("")}},
      Overdue{"the exchange of the votes", 2500, true, 0},
      Gather{4, "the votes", {std::string("\0\1\2", 3)}},
      Gathered{{std::string("0\0\1", 3) + std::string(100, 'x')}},
      Failed{"cpu:0: out of memory\n  1 GiB, \xe6\x9d\xb1 \xf0\x9f\x9a\x80"},
      Verdict{"rank 2 died"},
      Bye{},
      Fields{{"--batch-size", "--model"}, {"64", "mlp"}},
      // Further forms of some kinds.
      Failed{{"conv2d: reserve more with ", propose(test::kWorkspaceBytes, "8MiB"), " or ", test::kSplit}},
      Hello{0x56495432, {"rank 1"}},
      Overdue{"", 0, false, 2600},
  };
  std::vector<std::string> bytes;
  for (const Message& message : all) bytes.push_back(encode(message));
  return bytes;
}

/// A message of this kind with these numbers, whatever it should contain.
template <class Kind, class... Numbers>
std::string with_numbers(Numbers... numbers) {
  std::string bytes = encode(Kind{}).substr(0, 1);
  (bytes.append(reinterpret_cast<const char*>(&numbers), sizeof numbers), ...);
  return bytes;
}

class Mutator {
 public:
  explicit Mutator(uint64_t seed) : random_(seed) {}
  size_t below(size_t bound) { return static_cast<size_t>(random_() % bound); }

  std::string operator()(std::string bytes, const std::vector<std::string>& others) {
    for (size_t changes = 1 + below(3); changes > 0; --changes) change(bytes, others[below(others.size())]);
    return bytes;
  }

 private:
  void change(std::string& bytes, const std::string& other) {
    const size_t at = below(bytes.size() + 1);
    const uint64_t extremes[] = {
        0,           1, 255, 1U << 20, 0x7fffffff, 0xffffffff, uint64_t{1} << 32, uint64_t{1} << 60, uint64_t{1} << 63,
        ~uint64_t{0}};
    switch (below(7)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << below(8)));
        return;
      case 1:
        if (at < bytes.size()) bytes[at] = static_cast<char>(random_());
        return;
      case 2:
        bytes.resize(at);
        return;
      case 3:
        bytes.insert(at, std::string(1 + below(20), static_cast<char>(random_())));
        return;
      case 4:
        bytes.erase(at, below(20));
        return;
      case 5:  // a length or a count, where one may be
        if (at + 8 <= bytes.size()) std::memcpy(bytes.data() + at, &extremes[below(std::size(extremes))], 8);
        return;
      default:
        bytes = bytes.substr(0, at) + other.substr(below(other.size()));
    }
  }

  std::mt19937_64 random_;
};

/// Decodes; false if it is refused. Anything but a message or a CommError fails the test.
bool reads(const std::string& bytes) {
  const size_t before = g_allocated_bytes;
  std::optional<Message> read;
  try {
    read = decode(bytes);
  } catch (const CommError&) {
  } catch (const std::exception& error) {
    ADD_FAILURE() << "refused with something else: " << error.what();
  }
  // A string or record is larger in memory than as bytes, and vectors grow by copying; an escaped byte takes four, and
  // text grows by doubling.
  EXPECT_LE(g_allocated_bytes - before, 2048 + 40 * bytes.size()) << "for a message of " << bytes.size() << " bytes";
  if (!read) return false;
  // The displayed text is bounded too.
  if (const auto* const progress = std::get_if<Progress>(&*read)) {
    for (const CollectiveRecord& r : progress->begun) EXPECT_LE(r.str().size(), 256 + 4 * bytes.size());
  }
  if (const auto* const hello = std::get_if<Hello>(&*read)) {
    EXPECT_EQ(hello->magic == kMagic, protocol_version(hello->magic) == protocol_version(kMagic));
  }
  return true;
}

TEST(Decoder, ReadsEveryKind) {
  const std::vector<std::string> messages = valid_messages();
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message message = decode(messages[i]);
    if (i >= std::variant_size_v<Message>) continue;  // further forms
    EXPECT_EQ(message.index(), i) << "the valid messages are in the order of their kinds";
  }
  EXPECT_GE(messages.size(), std::variant_size_v<Message>) << "a kind has no valid message to mutate";
}

TEST(Decoder, RefusesTruncatedMessagesAndTrailingBytes) {
  const std::vector<std::string> messages = valid_messages();
  for (size_t i = 0; i < std::variant_size_v<Message>; ++i) {
    EXPECT_FALSE(reads(messages[i] + "x")) << "kind " << i;
    for (size_t size = 0; size < messages[i].size(); ++size) {
      EXPECT_FALSE(reads(messages[i].substr(0, size))) << "kind " << i << ", " << size << " bytes";
    }
  }
}

TEST(Decoder, AllocatesNoMemoryForClaimedSizes) {
  // A count of 2^60 values, and one of as many as a count of bytes would allow.
  for (const uint64_t count : {uint64_t{1} << 60, ~uint64_t{0}, uint64_t{20'000'000}}) {
    EXPECT_FALSE(reads(with_numbers<Devices>(count, uint64_t{0})));
    EXPECT_FALSE(reads(with_numbers<Progress>(0, uint64_t{0}, count)));
    EXPECT_FALSE(reads(with_numbers<Gather>(uint64_t{0}, count)));
    EXPECT_FALSE(reads(with_numbers<Failed>(count, uint64_t{0})));
  }
}

TEST(Decoder, RefusesInvalidNumbers) {
  EXPECT_FALSE(reads(encode(Progress{-1, 0, {}})));
  EXPECT_FALSE(reads(encode(Overdue{"x", -1, false, 0})));
  const auto text = [](const std::string& words) {
    return with_numbers<Hello>(uint64_t{words.size()}).substr(1) + words;
  };
  const auto part = [&](uint8_t kind, const char* setting) {
    return with_numbers<Failed>(uint64_t{1}, kind) + text(setting) + text("why");
  };
  EXPECT_TRUE(reads(part(0, "")));
  EXPECT_TRUE(reads(part(3, "MyLayer::width")));
  EXPECT_FALSE(reads(part(3, "")));
  EXPECT_FALSE(reads(part(0, "MyLayer::width")));
  EXPECT_FALSE(reads(part(4, "MyLayer::width")));
  for (int kind = static_cast<int>(std::variant_size_v<Message>); kind < 256; ++kind)
    EXPECT_FALSE(reads(std::string(1, static_cast<char>(kind))));
}

TEST(Decoder, SurvivesMutationsOfEveryKind) {
  const std::vector<std::string> messages = valid_messages();
  Mutator mutate(20261121);
  int read = 0;
  for (int i = 0; i < kMutations; ++i) {
    if (reads(mutate(messages[static_cast<size_t>(i) % messages.size()], messages))) ++read;
    ASSERT_FALSE(HasFailure()) << "mutation " << i;
  }
  std::printf("%d mutations of %zu messages: %d read, %d refused\n", kMutations, messages.size(), read,
              kMutations - read);
  EXPECT_GT(read, kMutations / 20) << "so few that the readers of single kinds are hardly tried";
  EXPECT_GT(kMutations - read, kMutations / 20);
}

/// Bytes of a connection: frames of messages, plain or sealed, with mutations.
void mutate_stream(bool sealed) {
  const std::vector<std::string> messages = valid_messages();
  const Handshake keys(Key(std::string(kKeyBytes, 'k')), "member", "server");
  Mutator mutate(sealed ? 7 : 8);
  int whole = 0, refused = 0;
  for (int round = 0; round < 4000; ++round) {
    int ends[2] = {-1, -1};
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    Connection sender{Descriptor(ends[0])};
    const Descriptor wire(ends[1]);
    if (sealed) sender.seal(keys.to_server, keys.to_member);
    for (size_t m = 0; m < 3; ++m) sender.send(messages[mutate.below(messages.size())]);
    std::string stream(65536, '\0');
    stream.resize(static_cast<size_t>(::read(wire.get(), stream.data(), stream.size())));
    stream = mutate(stream, {stream});
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    Connection connection{Descriptor(ends[0])};
    connection.limit(4096);
    if (sealed) connection.seal(keys.to_member, keys.to_server);
    {
      const Descriptor other(ends[1]);
      ASSERT_EQ(::write(other.get(), stream.data(), stream.size()), static_cast<ssize_t>(stream.size()));
    }
    try {
      connection.receive();
      while (const auto bytes = connection.take()) {
        decode(*bytes);
        ++whole;
      }
    } catch (const CommError&) {
      ++refused;
    }
  }
  EXPECT_GT(whole, 1000);
  EXPECT_GT(refused, 1000);
}

TEST(Decoder, SurvivesMutatedStreams) { mutate_stream(false); }
TEST(Decoder, SurvivesMutatedSealedStreams) { mutate_stream(true); }

}  // namespace
}  // namespace vitrine::process_group
