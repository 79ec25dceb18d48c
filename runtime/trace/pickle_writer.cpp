// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/pickle_writer.h"

namespace vitrine {

void PickleWriter::put_integer(uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) out_.put(static_cast<char>(static_cast<unsigned char>(value >> (8 * i))));
}

void PickleWriter::text(std::string_view value) {
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

void PickleWriter::number(int64_t value) {
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

void PickleWriter::pair(int64_t first, int64_t second) {
  number(first);
  number(second);
  put("\x86");
}

}  // namespace vitrine
