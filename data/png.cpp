// SPDX-License-Identifier: Apache-2.0
// PNG through libpng.
#include <csetjmp>
#include <cstring>

#include <fmt/format.h>
#include <png.h>

#include "data/image_file.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

/// libpng reports errors by a call that must not return.
class Decoder {
 public:
  Decoder(std::span<const uint8_t> file, const std::string& path) : left_(file), path_(path) {
    guard([&] {
      png_ = png_create_read_struct(PNG_LIBPNG_VER_STRING, this, fail, [](png_structp, png_const_charp) {});
      if (png_ != nullptr) info_ = png_create_info_struct(png_);
    });
    VITRINE_ASSERT(png_ != nullptr && info_ != nullptr, "libpng fits its headers and has memory");
  }
  ~Decoder() { png_destroy_read_struct(&png_, &info_, nullptr); }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  RgbImage decode() {
    guard([&] {
      png_set_read_fn(png_, this, read);
      png_read_info(png_, info_);
    });
    RgbImage image{png_get_image_width(png_, info_), png_get_image_height(png_, info_), {}};
    check_image_size(image.width, image.height, path_);
    // Pillow cuts grey values of 16 bits off at 255, but takes the upper byte of all other values of 16 bits.
    const bool wide_grey =
        png_get_color_type(png_, info_) == PNG_COLOR_TYPE_GRAY && png_get_bit_depth(png_, info_) == 16;
    guard([&] {
      png_set_expand(png_);
      png_set_strip_alpha(png_);
      if (!wide_grey) {
        png_set_strip_16(png_);
        png_set_gray_to_rgb(png_);
      }
      png_set_interlace_handling(png_);
      png_read_update_info(png_, info_);
    });
    const size_t row_bytes = static_cast<size_t>(image.width) * 3;
    VITRINE_ASSERT(png_get_rowbytes(png_, info_) == static_cast<size_t>(image.width) * (wide_grey ? 2 : 3),
                   "every kind of PNG but wide grey is converted to 8-bit RGB");
    image.pixels.resize(row_bytes * static_cast<size_t>(image.height));
    std::vector<png_bytep> rows;
    for (int64_t y = 0; y < image.height; ++y) rows.push_back(image.pixels.data() + static_cast<size_t>(y) * row_bytes);
    guard([&] {
      png_read_image(png_, rows.data());
      png_read_end(png_, nullptr);
    });
    if (wide_grey) {
      for (const png_bytep row : rows) widen_row(row, static_cast<size_t>(image.width));
    }
    return image;
  }

 private:
  /// Turns big-endian values of 16 bits at the begin of a row into RGB, from the end: a pixel lies after its value.
  static void widen_row(uint8_t* row, size_t width) {
    for (size_t x = width; x-- > 0;) std::memset(row + 3 * x, row[2 * x] != 0 ? 255 : row[2 * x + 1], 3);
  }
  /// Calls libpng; `work` has no objects with destructors. throws DataError for its errors.
  template <class Work>
  void guard(const Work& work) {
    if (setjmp(jump_) != 0) {
      throw DataError(fmt::format("{}: expected a complete PNG file, found a damaged one ({}); remove or replace it",
                                  path_, message_));
    }
    work();
  }
  [[noreturn]] static void fail(png_structp png, png_const_charp message) {
    auto& self = *static_cast<Decoder*>(png_get_error_ptr(png));
    std::strncpy(self.message_, message, sizeof self.message_ - 1);
    std::longjmp(self.jump_, 1);
  }
  static void read(png_structp png, png_bytep out, size_t count) {
    auto& self = *static_cast<Decoder*>(png_get_io_ptr(png));
    if (count > self.left_.size()) png_error(png, "it ends early");
    std::memcpy(out, self.left_.data(), count);
    self.left_ = self.left_.subspan(count);
  }

  std::span<const uint8_t> left_;
  const std::string& path_;
  png_structp png_ = nullptr;
  png_infop info_ = nullptr;
  std::jmp_buf jump_{};
  char message_[256] = "";
};

}  // namespace

RgbImage decode_png(std::span<const uint8_t> file, const std::string& path) { return Decoder(file, path).decode(); }

}  // namespace vitrine
