// SPDX-License-Identifier: Apache-2.0
// In place of jpeg.cpp where Vitrine is built without libjpeg-turbo.
#include <fmt/format.h>

#include "data/image_file.h"
#include "runtime/error.h"

namespace vitrine {

RgbImage decode_jpeg(std::span<const uint8_t> /*file*/, const std::string& path) {
  throw UnsupportedError(
      fmt::format("{}: JPEG is not built in; install libjpeg-dev and configure with -DVITRINE_JPEG=ON", path));
}

}  // namespace vitrine
