// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/pickle_writer.h"

namespace vitrine {

void PickleWriter::put_integer(uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out_.put(static_cast<char>(static_cast<unsigned char>(value >> (8 * i))));
}

void PickleWriter::put_text(std::string_view value) {
  if (const auto known = known_.find(value); known != known_.end()) {
    put("j");
    return put_integer(known->second, 4);
  }
  put("X");
  put_integer(value.size(), 4);
  put(value);
  const auto index = static_cast<uint32_t>(known_.size());
  known_.emplace(value, index);
  put("r");
  put_integer(index, 4);
}

void PickleWriter::put_number(int64_t value) {
  const auto bits = static_cast<uint64_t>(value);
  if (value >= 0 && value < 1 << 8) {
    put("K");
    put_integer(bits, 1);
  } else if (value >= 0 && value < 1 << 16) {
    put("M");
    put_integer(bits, 2);
  } else if (value >= INT32_MIN && value <= INT32_MAX) {
    put("J");
    put_integer(bits, 4);
  } else {
    put("\x8a\x08");
    put_integer(bits, 8);
  }
}

void PickleWriter::put_value(const nlohmann::ordered_json& value) {
  if (value.is_object()) {
    put("}(");
    for (const auto& [key, member] : value.items()) {
      put_text(key);
      put_value(member);
    }
    put("u");
  } else if (value.is_array() && value.size() == 2 && value[0].is_number() && value[1].is_number()) {
    put_value(value[0]);
    put_value(value[1]);
    put("\x86");
  } else if (value.is_array()) {
    constexpr int kBatch = 1000;  // readers keep a batch on their stack
    put("](");
    int in_batch = 0;
    for (const auto& item : value) {
      if (in_batch++ == kBatch) put("e("), in_batch = 1;
      put_value(item);
    }
    put("e");
  } else if (value.is_boolean()) {
    put(value.get<bool>() ? "\x88" : "\x89");
  } else if (value.is_number()) {
    put_number(value.get<int64_t>());
  } else {
    put_text(value.get_ref<const std::string&>());
  }
}

void PickleWriter::write(const nlohmann::ordered_json& value) {
  put("\x80\x02");
  put_value(value);
  put(".");
}

}  // namespace vitrine
