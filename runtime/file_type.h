// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace vitrine {

/// What a file is, by its first bytes: for messages about a file that is not what a reader expects.
struct FileType {
  /// other: known, but none of those that readers ask for; picture: of another format than jpeg and png
  enum class Format { unknown, other, text, safetensors, torch, pickle, jpeg, png, picture };
  Format format = Format::unknown;
  std::string name = {};    // "a Git LFS pointer"; empty if unknown
  std::string remedy = {};  // what to do whatever was expected; empty if that depends on the reader

  explicit operator bool() const { return format != Format::unknown; }
  /// "a Git LFS pointer; fetch the file itself with git lfs pull". requires a known kind
  ///   otherwise  the remedy of a kind that has none of its own
  std::string describe(std::string_view otherwise) const;
};

/// So many bytes suffice.
inline constexpr size_t kFileTypeBytes = 512;

/// The kind of a file that begins so; `bytes` may be the whole file.
FileType recognize(std::string_view bytes);
FileType recognize(std::span<const unsigned char> bytes);
/// The same of a file on the disk. Unknown if it is not a regular file, or cannot be read.
FileType recognize_file(const std::string& path);

}  // namespace vitrine
