// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace vitrine::tools {

/// A PNG file of an RGB image with 8 bits per channel. pixels (height, width, 3).
/// source  the PNG specification (ISO/IEC 15948): signature, IHDR, IDAT, IEND
std::string encode_png(int width, int height, std::span<const uint8_t> pixels);

}  // namespace vitrine::tools
