// SPDX-License-Identifier: Apache-2.0
#include "runtime/file_type.h"

#include <algorithm>
#include <cctype>
#include <cstdint>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include "runtime/descriptor.h"
#include "runtime/text.h"

namespace vitrine {
namespace {

using Format = FileType::Format;
using namespace std::string_view_literals;

constexpr const char* kDownload = "the download failed: download the file again";

/// A kind that begins with `magic` at `offset`.
struct Magic {
  size_t offset;
  std::string_view magic;
  Format format;
  const char *name, *remedy;
};

constexpr Magic kMagics[] = {
    {0, "version https://git-lfs.github.com/spec/"sv, Format::other, "a Git LFS pointer",
     "fetch the file itself with git lfs pull"},
    {0, "\x1f\x8b"sv, Format::other, "a gzip file", "unpack it with gunzip"},
    {0,
     "\xFD"
     "7zXZ\0"sv,
     Format::other, "an xz file", "unpack it with xz -d"},
    {0, "BZh"sv, Format::other, "a bzip2 file", "unpack it with bunzip2"},
    {0, "\x28\xB5\x2F\xFD"sv, Format::other, "a zstd file", "unpack it with zstd -d"},
    {0, "7z\xBC\xAF\x27\x1C"sv, Format::other, "a 7z archive", "unpack it"},
    {257, "ustar"sv, Format::other, "a tar archive", "unpack it with tar -xf"},
    {0, "\x89HDF\r\n\x1A\n"sv, Format::other, "an HDF5 file", ""},
    {0, "\x93NUMPY"sv, Format::other, "a NumPy array", ""},
    {0, "GGUF"sv, Format::other, "a GGUF file", ""},
    {0, "%PDF-"sv, Format::other, "a PDF file", ""},
    {0, "\xFF\xD8\xFF"sv, Format::jpeg, "a JPEG image", ""},
    {0, "\x89PNG\r\n\x1A\n"sv, Format::png, "a PNG image", ""},
    {0, "GIF8"sv, Format::picture, "a GIF image", ""},
    {8, "WEBPVP8"sv, Format::picture, "a WebP image", ""},
    {0, "II*\0"sv, Format::picture, "a TIFF image", ""},
    {0, "MM\0*"sv, Format::picture, "a TIFF image", ""},
    {4, "ftypavi"sv, Format::picture, "an AVIF image", ""},
    {4, "ftyphei"sv, Format::picture, "a HEIC image", ""},
    {4, "ftyphev"sv, Format::picture, "a HEIC image", ""},
    {4, "ftypmif1"sv, Format::picture, "a HEIF image", ""},
    {4, "ftypmsf1"sv, Format::picture, "a HEIF image", ""},
    {0, "\0\0\0\x0CJXL "sv, Format::picture, "a JPEG XL image", ""},
    {0, "\xFF\x0A"sv, Format::picture, "a JPEG XL image", ""},
    {0, "\0\0\0\x0CjP  "sv, Format::picture, "a JPEG 2000 image", ""},
    {0, "P5\n"sv, Format::picture, "a PGM image", ""},
    {0, "P6\n"sv, Format::picture, "a PPM image", ""},
};

uint64_t little_endian(std::string_view bytes, size_t offset, size_t count) {
  uint64_t value = 0;
  for (size_t i = 0; i < count; ++i) value |= uint64_t{static_cast<unsigned char>(bytes[offset + i])} << (8 * i);
  return value;
}

/// Two letters are not enough: the size of a known header follows.
bool is_bmp(std::string_view bytes) {
  if (!bytes.starts_with("BM") || bytes.size() < 18) return false;
  const uint64_t header = little_endian(bytes, 14, 4);
  return header == 12 || header == 40 || header == 52 || header == 56 || header == 108 || header == 124;
}

/// A safetensors file begins with the size of its header, and an object.
bool is_safetensors(std::string_view bytes) {
  return bytes.size() > 8 && bytes[8] == '{' && little_endian(bytes, 0, 8) <= 100'000'000;
}

/// torch.save writes data.pkl first, in a folder of the archive's name.
FileType zip_kind(std::string_view bytes) {
  constexpr size_t kName = 30;  // after the header of the first file
  std::string_view first;
  if (bytes.size() > kName) first = bytes.substr(kName, little_endian(bytes, 26, 2));
  if (first.ends_with("/data.pkl")) return {Format::torch, "a file of torch.save (a PyTorch pickle)"};
  if (first.ends_with(".npy")) return {Format::other, "an archive of NumPy arrays (.npz)"};
  return {Format::other, fmt::format("a zip archive that begins with '{}'", excerpt(first)), "unpack it with unzip"};
}

/// Of a web page, which may begin with blanks and a byte order mark.
FileType markup_kind(std::string_view bytes) {
  if (bytes.starts_with("\xEF\xBB\xBF")) bytes.remove_prefix(3);
  while (!bytes.empty() && std::isspace(static_cast<unsigned char>(bytes.front())) != 0) bytes.remove_prefix(1);
  std::string begin(bytes.substr(0, kFileTypeBytes));
  std::ranges::transform(begin, begin.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  if (begin.starts_with("<svg")) return {Format::picture, "an SVG image"};
  for (const char* page : {"<!doctype html", "<html", "<head", "<body"}) {
    if (begin.starts_with(page)) return {Format::other, "an HTML page", kDownload};
  }
  if (begin.starts_with("<?xml")) return {Format::other, "an XML document", kDownload};
  return {};
}

/// Of a text, which a server sends in place of a file: "Entry not found", {"error": ...}.
FileType text_kind(std::string_view bytes) {
  const std::string_view begin = bytes.substr(0, kFileTypeBytes);
  const auto is_text = [](unsigned char c) { return (c >= ' ' && c < 0x7f) || c == '\t' || c == '\r' || c == '\n'; };
  if (!std::ranges::all_of(begin, is_text)) return {};
  const std::string_view line = begin.substr(0, std::min(begin.find_first_of("\r\n"), size_t{60}));
  return {Format::text, fmt::format("a text that begins with '{}'", excerpt(line)),
          "if it was downloaded, download it again"};
}

}  // namespace

std::string FileType::describe(std::string_view otherwise) const {
  return fmt::format("{}; {}", name, remedy.empty() ? otherwise : remedy);
}

FileType recognize(std::string_view bytes) {
  if (bytes.empty()) return {Format::other, "an empty file", "copy or download it again"};
  if (is_safetensors(bytes)) return {Format::safetensors, "a safetensors file"};
  const auto* const known = std::ranges::find_if(kMagics, [&](const Magic& kind) {
    return bytes.size() >= kind.offset && bytes.substr(kind.offset).starts_with(kind.magic);
  });
  if (known != std::end(kMagics)) return {known->format, known->name, known->remedy};
  if (bytes.starts_with("PK\x03\x04")) return zip_kind(bytes);
  if (is_bmp(bytes)) return {Format::picture, "a BMP image"};
  // PROTO, and a protocol from 2 to 5.
  if (bytes.size() > 1 && bytes[0] == '\x80' && bytes[1] >= 2 && bytes[1] <= 5)
    return {Format::pickle, "a Python pickle"};
  if (bytes.size() >= 16 && std::ranges::all_of(bytes.substr(0, kFileTypeBytes), [](char c) { return c == '\0'; }))
    return {Format::other, "a file that begins with zero bytes", "it was not copied completely: copy it again"};
  const FileType markup = markup_kind(bytes);
  return markup ? markup : text_kind(bytes);
}

FileType recognize(std::span<const unsigned char> bytes) {
  return recognize(std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
}

FileType recognize_file(const std::string& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  std::string bytes;
  if (!file || fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode) ||
      !read_content(file, kFileTypeBytes, bytes))
    return {};
  return recognize(bytes);
}

}  // namespace vitrine
