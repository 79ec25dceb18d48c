// SPDX-License-Identifier: Apache-2.0
// In place of png.cpp where Vitrine is built without libpng.
#include <fmt/format.h>

#include "data/image_file.h"
#include "runtime/error.h"

namespace vitrine {

RgbImage decode_png(std::span<const uint8_t> /*file*/, const std::string& path) {
  throw UnsupportedError(
      fmt::format("{}: PNG is not built in; install libpng-dev and configure with -DVITRINE_PNG=ON", path));
}

}  // namespace vitrine
