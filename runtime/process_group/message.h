// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/process_group/collective_record.h"
#include "runtime/reason.h"

/// Messages between the processes of a process group. Private to runtime/process_group.
namespace vitrine::process_group {

/// First value of a hello: "VIT" and the protocol's version as a digit.
inline constexpr uint32_t kMagic = 0x56495437;
/// The version in such a number; nothing if the number is not Vitrine's.
std::optional<int> protocol_version(uint32_t magic);

/// The numbers of the kinds are part of the protocol; hello and refused have the same number in every version.
enum class MessageKind : uint8_t {
  hello,      // member -> server: the protocol's version and a nonce
  refused,    // server -> member: why it may not join, and whether it may try again
  accepted,   // server -> member: it has joined
  welcome,    // server -> member: all processes have joined
  beat,       // both ways: alive, what it has done so far, and from the server its progress
  devices,    // member -> server: the names of its devices
  progress,   // member -> server: collectives that a device began and finished
  waiting,    // member -> server: it has waited too long, for this; empty: it no longer waits
  gather,     // member -> server: its part of a gathering
  gathered,   // server -> member: rank 0's answer to a gathering
  error,      // member -> server: it fails, for this reason
  verdict,    // server -> member: the process group has failed, for this reason
  bye,        // member -> server: it ends regularly; from the server after all members have sent it
  challenge,  // server -> member: the server's nonce
  proof,      // both ways: the sender knows the secret; all later messages are sealed
  join,       // member -> server: its identity
};

/// A nonce, a proof or a key.
inline constexpr size_t kKeyBytes = 32;

struct Hello {
  uint32_t magic = 0;  // see protocol_version()
  std::string nonce;   // kKeyBytes; empty for other versions, which may put something else here
};
struct Refused {
  std::string reason;
};
struct Accepted {};
struct Welcome {
  std::string name;
};
struct Activity {
  int64_t processor_ns = 0;  // of the process, without the process group's thread
  int64_t transfers = 0;     // between processes; 0 if they are not counted
};
struct Beat {
  Activity activity;
  std::string position;
};
struct Devices {
  std::vector<std::string> names;
};
struct Progress {
  int device = 0;
  uint64_t finished = 0;
  std::vector<CollectiveRecord> begun;
};
struct Overdue {
  std::string what;
  int64_t waited_ms = 0;
  bool first_step = false;  // the first step is not done yet
  int64_t silent_ms = 0;    // how long nothing has arrived from the server, if that ends the process
};
struct Gather {
  uint64_t sequence = 0;
  std::string what, part;  // the part is arbitrary bytes
};
struct Gathered {
  std::string answer;  // arbitrary bytes
};
struct Failed {
  Reason reason;
};
struct Verdict {
  Reason reason;
};
struct Bye {};
struct Challenge {
  std::string nonce;
};
struct Proof {
  std::string code;
};
struct Join {
  int rank = 0, size = 0;
  std::string name;
};
using Message = std::variant<Hello, Refused, Accepted, Welcome, Beat, Devices, Progress, Overdue, Gather, Gathered,
                             Failed, Verdict, Bye, Challenge, Proof, Join>;

/// Decodes a message from a peer. Checks every length before it allocates memory, and makes text for display printable.
/// throws CommError for bytes that are not a message, end early, or continue after its end.
Message decode(std::string_view bytes);

/// Combines lambdas into one function object, for std::visit.
template <class... Functions>
struct Cases : Functions... {
  using Functions::operator()...;
};
template <class... Functions>
Cases(Functions...) -> Cases<Functions...>;

/// Appends values in the machine's byte order; all processes run the same program.
class Writer {
 public:
  explicit Writer(MessageKind kind) { number(kind); }
  template <class Number>
  Writer& number(Number value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  /// Bytes whose number both sides know.
  Writer& raw(std::string_view value);
  Writer& text(std::string_view value);
  Writer& record(const CollectiveRecord& value);
  Writer& reason(const Reason& value);
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

/// Reads the values back. throws CommError at the end of the bytes.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  template <class Number>
  Number number() {
    Number value{};
    take(sizeof value).copy(reinterpret_cast<char*>(&value), sizeof value);
    return value;
  }
  /// A non-negative number.
  template <class Number>
  Number amount() {
    const auto value = number<Number>();
    if (value < 0) refuse("a negative number");
    return value;
  }
  /// 0 or 1.
  bool flag();
  /// The number of following values of at least `least_bytes` each; checks that they fit.
  size_t count(size_t least_bytes);
  std::string raw(size_t bytes) { return std::string(take(bytes)); }
  /// Arbitrary bytes.
  std::string text();
  /// Text for display: see printable().
  std::string shown();
  CollectiveRecord record();
  /// Its texts are made safe for display.
  Reason reason();
  bool at_end() const { return bytes_.empty(); }
  void skip() { bytes_ = {}; }
  /// throws CommError if bytes are left.
  void finish() const;

 private:
  [[noreturn]] static void refuse(const char* what);
  std::string_view take(size_t bytes);
  std::string_view bytes_;
};

}  // namespace vitrine::process_group
