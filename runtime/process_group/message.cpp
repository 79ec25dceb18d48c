// SPDX-License-Identifier: Apache-2.0
#include "runtime/process_group/message.h"

#include <concepts>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "runtime/error.h"
#include "runtime/text.h"

namespace vitrine {

std::string CollectiveRecord::str() const {
  return fmt::format("collective {}{} ({}{}{}, {} bytes, phase {}, step {}{})", sequence,
                     group == 0 ? std::string() : fmt::format(" of group {}", group), operation,
                     label.empty() ? "" : " of ", label, bytes, phase, step, in_graph ? ", in a CUDA graph" : "");
}

namespace process_group {
namespace {

// The values of each message, in the order in which they are sent.
auto values_of(Hello& m) { return std::tie(m.magic, m.nonce); }
auto values_of(Refused& m) { return std::tie(m.reason); }
auto values_of(Challenge& m) { return std::tie(m.nonce); }
auto values_of(Proof& m) { return std::tie(m.code); }
auto values_of(Join& m) { return std::tie(m.rank, m.size, m.name); }
auto values_of(Accepted& /*m*/) { return std::tuple(); }
auto values_of(Welcome& m) { return std::tie(m.name); }
auto values_of(Beat& m) { return std::tie(m.activity.processor_ns, m.activity.transfers, m.position); }
auto values_of(Devices& m) { return std::tie(m.names); }
auto values_of(Progress& m) { return std::tie(m.device, m.finished, m.begun); }
auto values_of(Overdue& m) { return std::tie(m.what, m.waited_ms, m.first_step, m.silent_ms); }
auto values_of(Gather& m) { return std::tie(m.sequence, m.what, m.part); }
auto values_of(Gathered& m) { return std::tie(m.answer); }
auto values_of(Failed& m) { return std::tie(m.reason); }
auto values_of(Verdict& m) { return std::tie(m.reason); }
auto values_of(Bye& /*m*/) { return std::tuple(); }
auto values_of(Fields& m) { return std::tie(m.names, m.values); }
auto values_of(CollectiveRecord& r) {
  return std::tie(r.sequence, r.signature, r.operation, r.label, r.phase, r.step, r.bytes, r.group, r.end_is_reported,
                  r.in_graph);
}

class Writer {
 public:
  template <class Composite>
  requires requires(Composite& value) { values_of(value); }
  void add(Composite& value) {
    std::apply([this](auto&... values) { (add(values), ...); }, values_of(value));
  }
  template <class Number>
  requires std::integral<Number>
  void add(const Number& value) { bytes.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void add(const std::string& value) {
    add(uint64_t{value.size()});
    bytes.append(value);
  }
  void add(const Bytes& value) { add(value.bytes); }
  template <class Value>
  void add(std::vector<Value>& values) {
    add(uint64_t{values.size()});
    for (Value& value : values) add(value);
  }
  void add(const Reason& value) {
    add(uint64_t{value.parts().size()});
    for (const Reason::Part& part : value.parts()) {
      add(static_cast<uint8_t>(part.kind));
      add(part.setting);
      add(part.text);
    }
  }

  std::string bytes;
};

/// Reads the values back. throws CommError for values that are invalid or incomplete.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}
  template <class Composite>
  void read(Composite& value) {
    std::apply([this](auto&... values) { (read(values), ...); }, values_of(value));
  }
  void read(Hello& hello) {
    read(hello.magic);
    if (hello.magic == kMagic) return read(hello.nonce);
    bytes_ = {};  // another version may put something else there
  }
  template <class Number>
  requires std::integral<Number>
  void read(Number& value) {
    take(sizeof value).copy(reinterpret_cast<char*>(&value), sizeof value);
    if (std::cmp_less(value, 0)) refuse("a negative number");
  }
  void read(bool& value) {
    const auto byte = next<uint8_t>();
    if (byte > 1) refuse("a number other than 0 or 1");
    value = byte == 1;
  }
  void read(std::string& value) { value = printable(take(next<uint64_t>())); }
  void read(Bytes& value) { value.bytes = take(next<uint64_t>()); }
  template <class Value>
  void read(std::vector<Value>& values) {
    // Grows with the values that are there, not with the number that is claimed.
    for (uint64_t count = next_count(); count > 0; --count) read(values.emplace_back());
  }
  void read(Reason& reason) {
    for (uint64_t count = next_count(); count > 0; --count) {
      const auto kind = next<uint8_t>();
      if (kind > static_cast<uint8_t>(Reason::Part::Kind::proposed)) refuse("an unknown kind of text");
      const auto setting = next<std::string>();
      const std::string text = printable_lines(take(next<uint64_t>()));
      if (setting.empty() != (kind == static_cast<uint8_t>(Reason::Part::Kind::text)))
        refuse("a text with a setting, or a setting without a name");
      reason.append({static_cast<Reason::Part::Kind>(kind), Setting(setting.c_str()), text});
    }
  }
  template <class Value>
  Value next() {
    Value value{};
    read(value);
    return value;
  }
  /// throws CommError if bytes are left.
  void finish() const {
    if (!bytes_.empty()) refuse("more bytes");
  }

 private:
  [[noreturn]] static void refuse(const char* what) {
    throw CommError(fmt::format("a message between processes is invalid: it contains {}", what));
  }
  std::string_view take(uint64_t size) {
    if (size > bytes_.size())
      throw CommError("a message between processes ends early; do all of them run the same version?");
    const std::string_view taken = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return taken;
  }
  uint64_t next_count() {
    const auto count = next<uint64_t>();
    if (count > bytes_.size()) refuse("a count that exceeds its length");
    return count;
  }

  std::string_view bytes_;
};

/// Reads the message of this kind.
template <size_t index = 0>
Message read_message(size_t kind, Reader& reader) {
  if constexpr (index == std::variant_size_v<Message>) {
    throw CommError("a message between processes has an unknown kind");
  } else {
    if (kind != index) return read_message<index + 1>(kind, reader);
    return reader.next<std::variant_alternative_t<index, Message>>();
  }
}

}  // namespace

std::optional<int> protocol_version(uint32_t magic) {
  const uint32_t digit = (magic & 0xff) - '0';
  if (magic >> 8 != kMagic >> 8 || digit > 9) return std::nullopt;
  return static_cast<int>(digit);
}

std::string encode(Message message) {
  Writer writer;
  writer.add(static_cast<uint8_t>(message.index()));
  std::visit([&](auto& alternative) { writer.add(alternative); }, message);
  return std::move(writer.bytes);
}

Message decode(std::string_view bytes) {
  Reader reader(bytes);
  const auto kind = reader.next<uint8_t>();
  Message message = read_message(kind, reader);
  reader.finish();
  return message;
}

}  // namespace process_group
}  // namespace vitrine
