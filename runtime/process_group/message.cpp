// SPDX-License-Identifier: Apache-2.0
#include "runtime/process_group/message.h"

#include <fmt/format.h>

#include "runtime/error.h"
#include "runtime/printable.h"

namespace vitrine {

std::string CollectiveRecord::str() const {
  return fmt::format("collective {}{} ({}{}{}, {} bytes, phase {}, step {}{})", sequence,
                     group == 0 ? std::string() : fmt::format(" of group {}", group), operation,
                     label.empty() ? "" : " of ", label, bytes, phase, step, in_graph ? ", in a CUDA graph" : "");
}

namespace process_group {
namespace {

constexpr size_t kLengthBytes = sizeof(uint64_t);
// A record without texts.
constexpr size_t kLeastRecordBytes = 2 * sizeof(uint64_t) + 3 * kLengthBytes + 2 * sizeof(int64_t) + sizeof(int) + 2;
// A part of a reason: its kind, no setting, and an empty text.
constexpr size_t kLeastPartBytes = 1 + 2 * kLengthBytes;

Hello read_hello(Reader& reader) {
  Hello hello;
  hello.magic = reader.number<uint32_t>();
  if (hello.magic == kMagic) {
    hello.nonce = reader.raw(kKeyBytes);
  } else {
    reader.skip();  // another version may put something else there
  }
  return hello;
}

Devices read_devices(Reader& reader) {
  Devices devices;
  devices.names.resize(reader.count(kLengthBytes));
  for (std::string& name : devices.names) name = reader.shown();
  return devices;
}

Progress read_progress(Reader& reader) {
  Progress progress;
  progress.device = reader.amount<int>();
  progress.finished = reader.number<uint64_t>();
  progress.begun.resize(reader.count(kLeastRecordBytes));
  for (CollectiveRecord& record : progress.begun) record = reader.record();
  return progress;
}

/// Braces read their values from left to right.
Message read_message(Reader& reader) {
  switch (reader.number<MessageKind>()) {
    case MessageKind::hello:
      return read_hello(reader);
    case MessageKind::refused:
      return Refused{reader.shown()};
    case MessageKind::accepted:
      return Accepted{};
    case MessageKind::welcome:
      return Welcome{reader.shown()};
    case MessageKind::beat:
      return Beat{{reader.amount<int64_t>(), reader.amount<int64_t>()}, reader.shown()};
    case MessageKind::devices:
      return read_devices(reader);
    case MessageKind::progress:
      return read_progress(reader);
    case MessageKind::waiting:
      return Overdue{reader.shown(), reader.amount<int64_t>(), reader.flag(), reader.amount<int64_t>()};
    case MessageKind::gather:
      return Gather{reader.number<uint64_t>(), reader.shown(), reader.text()};
    case MessageKind::gathered:
      return Gathered{reader.text()};
    case MessageKind::error:
      return Failed{reader.reason()};
    case MessageKind::verdict:
      return Verdict{reader.reason()};
    case MessageKind::bye:
      return Bye{};
    case MessageKind::challenge:
      return Challenge{reader.raw(kKeyBytes)};
    case MessageKind::proof:
      return Proof{reader.raw(kKeyBytes)};
    case MessageKind::join:
      return Join{reader.number<int>(), reader.number<int>(), reader.shown()};
  }
  throw CommError("a message between processes has an unknown kind");
}

}  // namespace

std::optional<int> protocol_version(uint32_t magic) {
  const uint32_t digit = (magic & 0xff) - '0';
  if (magic >> 8 != kMagic >> 8 || digit > 9) return std::nullopt;
  return static_cast<int>(digit);
}

Message decode(std::string_view bytes) {
  Reader reader(bytes);
  Message message = read_message(reader);
  reader.finish();
  return message;
}

Writer& Writer::raw(std::string_view value) {
  bytes_.append(value);
  return *this;
}

Writer& Writer::text(std::string_view value) {
  number(static_cast<uint64_t>(value.size()));
  bytes_.append(value);
  return *this;
}

Writer& Writer::record(const CollectiveRecord& value) {
  return number(value.sequence)
      .number(value.signature)
      .text(value.operation)
      .text(value.label)
      .text(value.phase)
      .number(value.step)
      .number(value.bytes)
      .number(value.group)
      .number(static_cast<uint8_t>(value.end_is_reported))
      .number(static_cast<uint8_t>(value.in_graph));
}

Writer& Writer::reason(const Reason& value) {
  number(static_cast<uint64_t>(value.parts().size()));
  for (const Reason::Part& part : value.parts()) number(part.kind).text(part.setting).text(part.text);
  return *this;
}

std::string_view Reader::take(size_t bytes) {
  if (bytes > bytes_.size())
    throw CommError("a message between processes ends early; do all of them run the same version?");
  const std::string_view taken = bytes_.substr(0, bytes);
  bytes_.remove_prefix(bytes);
  return taken;
}

void Reader::refuse(const char* what) {
  throw CommError(fmt::format("a message between processes is invalid: it contains {}", what));
}

bool Reader::flag() {
  const auto value = number<uint8_t>();
  if (value > 1) refuse("a number other than 0 or 1");
  return value == 1;
}

size_t Reader::count(size_t least_bytes) {
  const auto value = number<uint64_t>();
  if (value > bytes_.size() / least_bytes) refuse("a count that exceeds its length");
  return static_cast<size_t>(value);
}

std::string Reader::text() { return std::string(take(number<uint64_t>())); }
std::string Reader::shown() { return printable(take(number<uint64_t>())); }

void Reader::finish() const {
  if (!at_end()) refuse("more bytes");
}

CollectiveRecord Reader::record() {
  return {.sequence = number<uint64_t>(),
          .signature = number<uint64_t>(),
          .operation = shown(),
          .label = shown(),
          .phase = shown(),
          .step = number<int64_t>(),
          .bytes = amount<int64_t>(),
          .group = amount<int>(),
          .end_is_reported = flag(),
          .in_graph = flag()};
}

Reason Reader::reason() {
  Reason reason;
  for (size_t parts = count(kLeastPartBytes); parts > 0; --parts) {
    const auto kind = number<uint8_t>();
    if (kind > static_cast<uint8_t>(Reason::Part::Kind::proposed)) refuse("an unknown kind of text");
    const std::string setting = shown();
    const std::string text = printable_lines(take(number<uint64_t>()));
    if (setting.empty() != (kind == static_cast<uint8_t>(Reason::Part::Kind::text)))
      refuse("a text with a setting, or a setting without a name");
    reason.append({static_cast<Reason::Part::Kind>(kind), Setting(setting.c_str()), text});
  }
  return reason;
}

}  // namespace process_group
}  // namespace vitrine
