// SPDX-License-Identifier: Apache-2.0
#include "tools/program/text/png.h"

#include <zlib.h>

#include "runtime/error.h"

namespace vitrine::tools {

namespace {

std::string big_endian(uint32_t number) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(number >> shift & 0xFF);
  return bytes;
}

/// Length, type, data, and the checksum of type and data.
std::string chunk(const std::string& type, const std::string& data) {
  const std::string body = type + data;
  const uLong sum = crc32(0, reinterpret_cast<const Bytef*>(body.data()), static_cast<uInt>(body.size()));
  return big_endian(static_cast<uint32_t>(data.size())) + body + big_endian(static_cast<uint32_t>(sum));
}

}  // namespace

std::string encode_png(int width, int height, std::span<const uint8_t> pixels) {
  const size_t row = static_cast<size_t>(width) * 3;
  VITRINE_ASSERT(pixels.size() == row * static_cast<size_t>(height), "an image has three bytes for each pixel");
  std::string filtered;
  for (size_t y = 0; y < static_cast<size_t>(height); ++y) {
    filtered += '\0';  // no filter
    filtered.append(reinterpret_cast<const char*>(pixels.data() + y * row), row);
  }
  uLongf length = compressBound(static_cast<uLong>(filtered.size()));
  std::string packed(length, '\0');
  const int status = compress(reinterpret_cast<Bytef*>(packed.data()), &length,
                              reinterpret_cast<const Bytef*>(filtered.data()), static_cast<uLong>(filtered.size()));
  VITRINE_ASSERT(status == Z_OK, "compressBound bytes are enough");
  packed.resize(length);
  std::string header = big_endian(static_cast<uint32_t>(width));
  header += big_endian(static_cast<uint32_t>(height));
  header += std::string("\x08\x02\0\0\0", 5);  // 8 bits, RGB, deflate, adaptive filters, not interlaced
  std::string file("\x89PNG\r\n\x1a\n");
  file += chunk("IHDR", header) + chunk("IDAT", packed) + chunk("IEND", "");
  return file;
}

}  // namespace vitrine::tools
