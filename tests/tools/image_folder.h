// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>

namespace vitrine::test {

/// An image folder with the classes a and b in train and in val, and equal images of 8x8 pixels in each class:
/// a/0000.png is sample 0, b/0000.png sample `count`.
class SmallImages {
 public:
  SmallImages(std::filesystem::path folder, int count) : folder_(std::move(folder)), count_(count) {
    for (const char* part : {"train", "val"}) {
      for (int i = 0; i < 2 * count; ++i) repair(part, i);
    }
  }

  /// Of a sample of train or val.
  std::string path(const std::string& part, int sample) const {
    std::string number = std::to_string(sample % count_);
    number.insert(0, 4 - number.size(), '0');
    return (folder_ / part / (sample < count_ ? "a" : "b") / (number + ".png")).string();
  }
  /// Writes the whole image.
  void repair(const std::string& part, int sample) const {
    using namespace std::string_view_literals;
    constexpr auto kBegin =
        "\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR\0\0\0\x08\0\0\0\x08\x08\x02\0\0\0\x4b\x6d\x29\xdc\0\0\0\x15IDAT\x78\xda\x63"sv;
    constexpr auto kEnd = "\0\0\0\0IEND\xae\x42\x60\x82"sv;
    constexpr auto kRed = "\x3c\x21\x67\xc3\x80\x0d\x30\x31\xe0\0\x83\x53\x02\0\xe7\xe0\x01\x32\x31\x31\xb6\x5b"sv;
    constexpr auto kGreen = "\x14\xd9\x12\xc5\x80\x0d\x30\x31\xe0\0\x83\x53\x02\0\xe7\x0e\x01\x32\x67\xb7\xad\x35"sv;
    std::filesystem::create_directories(std::filesystem::path(path(part, sample)).parent_path());
    std::ofstream(path(part, sample), std::ios::binary) << kBegin << (sample < count_ ? kRed : kGreen) << kEnd;
  }
  /// Cuts the image off. Returns its path.
  std::string damage(const std::string& part, int sample) const {
    std::filesystem::resize_file(path(part, sample), 60);
    return path(part, sample);
  }

 private:
  std::filesystem::path folder_;
  int count_;
};

}  // namespace vitrine::test
