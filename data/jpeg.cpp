// SPDX-License-Identifier: Apache-2.0
// JPEG through libjpeg-turbo (libjpeg's interface).
#include <csetjmp>
#include <cstddef>
#include <cstdio>  // jpeglib.h needs it

#include <fmt/format.h>
#include <jerror.h>
#include <jpeglib.h>

#include "data/image_file.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

constexpr int kMostScans = 100;  // encoders write about ten

/// libjpeg reports errors by a call that must not return; warnings about damaged data count as errors.
class Decoder {
 public:
  Decoder(std::span<const uint8_t> file, const std::string& path) : path_(path) {
    info_.err = jpeg_std_error(&errors_);
    info_.client_data = this;
    errors_.error_exit = [](j_common_ptr common) { fail(common); };
    errors_.emit_message = [](j_common_ptr common, int level) {
      const int code = common->err->msg_code;
      if (level < 0 && code != JWRN_EXTRANEOUS_DATA && code != JWRN_JFIF_MAJOR && code != JWRN_ADOBE_XFORM)
        fail(common);
    };
    guard([&] {
      jpeg_create_decompress(&info_);
      progress_.progress_monitor = limit_scans;
      info_.progress = &progress_;
      jpeg_mem_src(&info_, file.data(), static_cast<unsigned long>(file.size()));
      jpeg_read_header(&info_, TRUE);
    });
  }
  ~Decoder() { jpeg_destroy_decompress(&info_); }
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;

  RgbImage decode() {
    check_image_size(info_.image_width, info_.image_height, path_);
    const bool cmyk = info_.jpeg_color_space == JCS_CMYK || info_.jpeg_color_space == JCS_YCCK;
    info_.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
    guard([&] { jpeg_start_decompress(&info_); });
    RgbImage image{info_.output_width, info_.output_height, {}};
    const size_t row_bytes = static_cast<size_t>(image.width) * static_cast<size_t>(info_.output_components);
    std::vector<uint8_t> stored(row_bytes * static_cast<size_t>(image.height));
    guard([&] {
      while (info_.output_scanline < info_.output_height) {
        JSAMPROW row = stored.data() + info_.output_scanline * row_bytes;
        jpeg_read_scanlines(&info_, &row, 1);
      }
      jpeg_finish_decompress(&info_);
    });
    image.pixels = cmyk ? from_cmyk(stored) : std::move(stored);
    return image;
  }

 private:
  /// Calls libjpeg; `work` has no objects with destructors. throws DataError for its errors.
  template <class Work>
  void guard(const Work& work) {
    if (setjmp(jump_) != 0) {
      const int scans = info_.input_scan_number;
      jpeg_destroy_decompress(&info_);  // also when the constructor fails; a second call does nothing
      if (scans > kMostScans) {
        throw DataError(fmt::format("{}: expected a JPEG file of at most {} scans, found more; convert or remove it",
                                    path_, kMostScans));
      }
      if (is_other_process()) {
        throw DataError(fmt::format(
            "{}: expected a baseline or progressive JPEG file of 8 bits, found another process, lossless for example "
            "({}); convert it to baseline JPEG or PNG, or remove it",
            path_, message_));
      }
      throw DataError(fmt::format("{}: expected a complete JPEG file, found a damaged one ({}); remove or replace it",
                                  path_, message_));
    }
    work();
  }
  /// Whether the last error is about a JPEG file that libjpeg does not decode, although it may be whole.
  bool is_other_process() const {
    const int code = errors_.msg_code;
    return code == JERR_SOF_UNSUPPORTED || code == JERR_ARITH_NOTIMPL || code == JERR_BAD_PRECISION;
  }
  [[noreturn]] static void fail(j_common_ptr common) {
    auto& self = *static_cast<Decoder*>(common->client_data);
    common->err->format_message(common, self.message_);
    std::longjmp(self.jump_, 1);
  }
  /// Each scan of a progressive file, which may be a few bytes, goes over the whole image.
  static void limit_scans(j_common_ptr common) {
    auto& self = *static_cast<Decoder*>(common->client_data);
    if (self.info_.input_scan_number > kMostScans) std::longjmp(self.jump_, 1);
  }

  /// Files with Adobe's marker, which is nearly all, store inverted values.
  std::vector<uint8_t> from_cmyk(const std::vector<uint8_t>& stored) const {
    const bool inverted = info_.saw_Adobe_marker != FALSE;
    std::vector<uint8_t> rgb;
    rgb.reserve(stored.size() / 4 * 3);
    for (size_t i = 0; i + 4 <= stored.size(); i += 4) {
      const int light = inverted ? stored[i + 3] : 255 - stored[i + 3];
      for (size_t c = 0; c < 3; ++c) {
        const int kept = inverted ? stored[i + c] : 255 - stored[i + c];
        rgb.push_back(static_cast<uint8_t>((kept * light + 127) / 255));
      }
    }
    return rgb;
  }

  const std::string& path_;
  jpeg_decompress_struct info_{};
  jpeg_error_mgr errors_{};
  jpeg_progress_mgr progress_{};
  std::jmp_buf jump_{};
  char message_[JMSG_LENGTH_MAX] = "";
};

}  // namespace

RgbImage decode_jpeg(std::span<const uint8_t> file, const std::string& path) { return Decoder(file, path).decode(); }

}  // namespace vitrine
