// SPDX-License-Identifier: Apache-2.0
#include "runtime/world/message.h"

#include <fmt/format.h>

#include "runtime/error.h"

namespace vitrine {

std::string CollectiveRecord::str() const {
  return fmt::format("collective {}{} ({}{}{}, {} bytes, phase {}, step {})", sequence,
                     group == 0 ? std::string() : fmt::format(" of group {}", group), operation, label.empty() ? "" : " of ", label, bytes, phase,
                     step);
}

namespace world {

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
      .number(static_cast<uint8_t>(value.end_is_told));
}

std::string_view Reader::take(size_t bytes) {
  if (bytes > bytes_.size()) throw CommError("a message between processes ends early; do all of them run the same version?");
  const std::string_view taken = bytes_.substr(0, bytes);
  bytes_.remove_prefix(bytes);
  return taken;
}

std::string Reader::text() { return std::string(take(number<uint64_t>())); }

CollectiveRecord Reader::record() {
  CollectiveRecord record;
  record.sequence = number<uint64_t>();
  record.signature = number<uint64_t>();
  record.operation = text();
  record.label = text();
  record.phase = text();
  record.step = number<int64_t>();
  record.bytes = number<int64_t>();
  record.group = number<int>();
  record.end_is_told = number<uint8_t>() != 0;
  return record;
}

}  // namespace world
}  // namespace vitrine
