// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/process_group/process_group.h"
#include "runtime/reason.h"

/// Messages between the processes of a process group. Private to runtime/process_group.
namespace vitrine::process_group {

/// First value of a hello: "VIT" and the protocol's version as a digit.
inline constexpr uint32_t kMagic = 0x56495438;
/// The version in such a number; nothing if the number is not Vitrine's.
std::optional<int> protocol_version(uint32_t magic);

/// Bytes that a message carries unread. Every other text is for display.
struct Bytes {
  std::string bytes;
};

/// Member -> server: the protocol's version and a nonce.
struct Hello {
  uint32_t magic = kMagic;  // see protocol_version()
  Bytes nonce = {};         // empty for other versions, which may put something else here
};
/// Server -> member: why it may not join.
struct Refused {
  std::string reason;
};
/// Server -> member: its nonce.
struct Challenge {
  Bytes nonce;
};
/// Both ways: the sender knows the run's key. All later messages are sealed.
struct Proof {
  Bytes code;
};
/// Member -> server: its identity.
struct Join {
  int rank = 0, size = 0;
  std::string name;
};
/// Server -> member: it has joined.
struct Accepted {};
/// Server -> member: all processes have joined.
struct Welcome {
  std::string name;
};
struct Activity {
  int64_t processor_ns = 0;  // of the process, without the process group's thread
  int64_t transfers = 0;     // between processes; 0 if they are not counted
};
/// Both ways: alive, what it has done so far, and from the server its progress.
struct Beat {
  Activity activity;
  std::string position;
};
/// Member -> server.
struct Devices {
  std::vector<std::string> names;
};
/// Member -> server: collectives that a device began since its last message, and the number of those it finished.
struct Progress {
  int device = 0;
  uint64_t finished = 0;
  std::vector<CollectiveRecord> begun = {};
};
/// Member -> server: it has waited too long, for this; empty: it no longer waits.
struct Overdue {
  std::string what;
  int64_t waited_ms = 0;
  bool first_step = false;  // the first step is not done yet
  int64_t silent_ms = 0;    // how long nothing has arrived from the server, if that ends the process
};
/// Member -> server: its part of a gathering.
struct Gather {
  uint64_t sequence = 0;
  std::string what;
  Bytes part;
};
/// Server -> member: rank 0's answer to a gathering.
struct Gathered {
  Bytes answer;
};
/// Member -> server: it fails.
struct Failed {
  Reason reason;
};
/// Server -> member: the process group has failed.
struct Verdict {
  Reason reason;
};
/// Member -> server: it ends regularly. From the server after all members have sent it.
struct Bye {};
/// A part of a gathering: see require_agreement().
struct Fields {
  std::vector<std::string> names, values;
};

/// A message's index is its kind, a part of the protocol; Hello and Refused have the same one in every version.
using Message = std::variant<Hello, Refused, Challenge, Proof, Join, Accepted, Welcome, Beat, Devices, Progress,
                             Overdue, Gather, Gathered, Failed, Verdict, Bye, Fields>;

/// The bytes of a message. Numbers are in the machine's byte order; all processes run the same program.
std::string encode(Message message);
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

}  // namespace vitrine::process_group
