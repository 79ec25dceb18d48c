// SPDX-License-Identifier: Apache-2.0
#include <bit>

#include <fmt/format.h>

#include "nn/atomic_file.h"
#include "nn/weights_file.h"
#include "runtime/error.h"

namespace vitrine {

void write_npy(const std::string& path, std::span<const float> values, int64_t rows, int64_t columns) {
  static_assert(std::endian::native == std::endian::little, "the header declares little-endian data");
  if (rows < 0 || columns < 0 || static_cast<int64_t>(values.size()) != rows * columns) {
    throw DataError(fmt::format("write_npy: {}: values has {} elements, expected those of a matrix ({}, {})", path,
                                values.size(), rows, columns));
  }
  std::string header = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
  // Magic, version and length take 10 bytes; the data begins at a multiple of 64.
  constexpr size_t kPrefixBytes = 10;
  constexpr size_t kAlignment = 64;
  const size_t used = kPrefixBytes + header.size() + 1;
  header.append((kAlignment - used % kAlignment) % kAlignment, ' ');
  header += '\n';
  std::string prefix = "\x93NUMPY";
  prefix += '\x01';
  prefix += '\0';
  prefix += static_cast<char>(header.size() & 0xFF);
  prefix += static_cast<char>(header.size() >> 8);
  AtomicFile file(path);
  file.write(prefix + header);
  file.write(std::as_bytes(values));
  file.commit();
}

}  // namespace vitrine
