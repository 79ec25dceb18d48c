// SPDX-License-Identifier: Apache-2.0
#include "runtime/file_type.h"

#include <string>

#include <gtest/gtest.h>

#include "tests/support/expect_contains.h"

namespace vitrine::test {
namespace {

using namespace std::string_literals;
using Format = FileType::Format;

/// A zip archive up to the name of its first file.
std::string zip(const std::string& first) {
  return "PK\x03\x04"s + std::string(22, '\0') + static_cast<char>(first.size()) + std::string(3, '\0') + first +
         "data";
}

TEST(FileTypes, AreRecognizedByTheFirstBytes) {
  struct Case {
    std::string bytes;
    Format format;
    const char *name, *remedy;
  };
  const Case cases[] = {
      {"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", Format::other, "a Git LFS pointer",
       "git lfs pull"},
      {"<!DOCTYPE html><html>", Format::other, "an HTML page", "the download failed"},
      {"\xEF\xBB\xBF\n  <HTML lang=en>", Format::other, "an HTML page", "the download failed"},
      {"<?xml version='1.0'?><Error>", Format::other, "an XML document", "the download failed"},
      {"\x1f\x8b\x08\x00"s, Format::other, "a gzip file", "gunzip"},
      {"\xFD"
       "7zXZ\0"s,
       Format::other, "an xz file", "xz -d"},
      {"BZh91AY", Format::other, "a bzip2 file", "bunzip2"},
      {"\x28\xB5\x2F\xFD....", Format::other, "a zstd file", "zstd -d"},
      {std::string(257, 'a') + "ustar", Format::other, "a tar archive", "tar -xf"},
      {zip("archive/data.pkl"), Format::torch, "a file of torch.save", ""},
      {zip("x.npy"), Format::other, "an archive of NumPy arrays", ""},
      {zip("[Content_Types].xml"), Format::other, "begins with '[Content_Types].xml'", "unzip"},
      {"\x80\x02}q\x00"s, Format::pickle, "a Python pickle", ""},
      {"\x89HDF\r\n\x1A\n", Format::other, "an HDF5 file", ""},
      {"\x93NUMPY\x01", Format::other, "a NumPy array", ""},
      {"GGUF\x03", Format::other, "a GGUF file", ""},
      {"\xFF\xD8\xFF\xE0", Format::jpeg, "a JPEG image", ""},
      {"\x89PNG\r\n\x1A\n", Format::png, "a PNG image", ""},
      {"RIFF....WEBPVP8 ", Format::picture, "a WebP image", ""},
      {"GIF89a", Format::picture, "a GIF image", ""},
      {"BM......\0\0\0\0\0\0\x28\0\0\0"s, Format::picture, "a BMP image", ""},
      {"II*\0...."s, Format::picture, "a TIFF image", ""},
      {"MM\0*...."s, Format::picture, "a TIFF image", ""},
      {"\0\0\0\x20"
       "ftypavif"s,
       Format::picture, "an AVIF image", ""},
      {"\0\0\0\x20"
       "ftypheic"s,
       Format::picture, "a HEIC image", ""},
      {"\x10\0\0\0\0\0\0\0{\"a\":1}"s, Format::safetensors, "a safetensors file", ""},
      {std::string(600, '\0'), Format::other, "begins with zero bytes", "copy it again"},
      {"", Format::other, "an empty file", "again"},
      {"BM is how this text begins", Format::text, "a text that begins with 'BM is how this text begins'",
       "download it again"},
      {"{\"error\": 1}\n", Format::text, "a text that begins with '{\"error\": 1}'", "download it again"},
      {"\0\0\x08\x03\0\0\0\x01"s, Format::unknown, "", ""},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.bytes.substr(0, 20));
    const FileType kind = recognize(c.bytes);
    EXPECT_EQ(kind.format, c.format);
    expect_contains(kind.name, c.name);
    expect_contains(kind.remedy, c.remedy);
    EXPECT_EQ(static_cast<bool>(kind), c.format != Format::unknown);
    // No prefix of a file is read beyond its end.
    for (size_t size = 0; size < c.bytes.size(); ++size) recognize(c.bytes.substr(0, size));
  }
  EXPECT_EQ((FileType{Format::other, "an apple", ""}.describe("peel it")), "an apple; peel it");
  EXPECT_EQ((FileType{Format::other, "an apple", "eat it"}.describe("peel it")), "an apple; eat it");
  EXPECT_FALSE(recognize_file("/dev/zero"));
  EXPECT_FALSE(recognize_file("/nonexistent"));
}

}  // namespace
}  // namespace vitrine::test
