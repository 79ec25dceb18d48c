// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/world/collective_record.h"

/// What the processes of a world tell each other. Private to runtime/world.
namespace vitrine::world {

/// What a hello begins with: "VIT2".
inline constexpr uint32_t kMagic = 0x56495432;

enum class MessageKind : uint8_t {
  hello,     // member -> hub: who it is
  refused,   // hub -> member: why it may not join, and whether it may later
  accepted,  // hub -> member: it has joined
  welcome,   // hub -> member: all are here
  beat,      // both ways: alive; from the hub with where it stands
  devices,   // member -> hub: the names of its devices
  progress,  // member -> hub: collectives that a device began and finished
  waiting,   // member -> hub: it has waited too long, for this; nothing: it waits no more
  gather,    // member -> hub: its part of a gathering
  gathered,  // hub -> member: all parts
  error,     // member -> hub: it fails, for this reason
  verdict,   // hub -> member: the world has failed, for this reason
  bye,       // member -> hub: it ends as it should; from the hub once all have said so
};

/// Puts values behind each other, in the machine's byte order: all processes run the same program.
class Writer {
 public:
  explicit Writer(MessageKind kind) { number(kind); }
  template <class Number>
  Writer& number(Number value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  Writer& text(std::string_view value);
  Writer& record(const CollectiveRecord& value);
  const std::string& bytes() const { return bytes_; }

 private:
  std::string bytes_;
};

/// Takes them out again. throws CommError at the end of the bytes.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  template <class Number>
  Number number() {
    Number value{};
    take(sizeof value).copy(reinterpret_cast<char*>(&value), sizeof value);
    return value;
  }
  std::string text();
  CollectiveRecord record();

 private:
  std::string_view take(size_t bytes);
  std::string_view bytes_;
};

}  // namespace vitrine::world
