// SPDX-License-Identifier: Apache-2.0
#include "data/input_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <zlib.h>

#include "data/readers.h"
#include "runtime/descriptor.h"
#include "runtime/error.h"
#include "runtime/file_type.h"
#include "runtime/memory/available.h"

namespace vitrine {
namespace {

// Maximum expansion of deflate.
constexpr int64_t kDeflateRatio = 1032;
// Size of read_all()'s allocations.
constexpr int64_t kFirstPart = int64_t{1} << 20, kGrowth = 2;

gzFile handle(void* file) { return static_cast<gzFile>(file); }

}  // namespace

void InputFile::Close::operator()(void* file) const noexcept { gzclose_r(handle(file)); }

InputFile::InputFile(std::filesystem::path path, Packing packing) : path_(std::move(path)), packing_(packing) {
  RegularFile file = open_regular_file(path_.string());
  file_bytes_ = file.bytes;
  file_.reset(gzdopen(file.descriptor.get(), "rb"));
  if (!file_) throw OutOfMemory(fmt::format("{}: no memory to read it", path_.string()));
  file.descriptor.release();  // gzclose_r() closes it
  gzbuffer(handle(file_.get()), 1 << 17);
  const bool is_gzip = gzdirect(handle(file_.get())) == 0;
  if (packing_ == Packing::none && is_gzip)
    fail(0, "an unpacked file", "a gzip stream; rename it to end in .gz or unpack it with gunzip");
  if (packing_ == Packing::none || is_gzip) return;
  expect_unknown_kind("a gzip stream");
  fail(0, "a gzip stream (bytes 1f 8b)", "something else");
}

int64_t InputFile::read_some(uint8_t* out, int64_t size) {
  constexpr int64_t kPart = int64_t{1} << 28;
  int64_t done = 0;
  while (done < size) {
    const int got = gzread(handle(file_.get()), out + done, static_cast<unsigned>(std::min(kPart, size - done)));
    int code = Z_OK;
    const char* text = gzerror(handle(file_.get()), &code);
    if (got < 0 || (code != Z_OK && code != Z_STREAM_END && code != Z_BUF_ERROR)) {
      throw DataError(fmt::format("{}: near offset {}: cannot read it: {}; download the file again", path_.string(),
                                  offset_ + done, code == Z_ERRNO ? std::strerror(errno) : text));
    }
    if (got == 0) break;
    done += got;
  }
  return done;
}

void InputFile::read(std::span<uint8_t> out, const std::string& what) {
  const int64_t size = static_cast<int64_t>(out.size());
  const int64_t done = read_some(out.data(), size);
  if (done < size) fail_short(size, done, what);
  offset_ += size;
}

std::vector<uint8_t> InputFile::read_all(int64_t bytes, const std::string& what) {
  expect_room(bytes, what);
  require_memory(bytes, fmt::format("{}: {}", path_.string(), what), kUseLessMemory);
  std::vector<uint8_t> data;
  for (int64_t done = 0; done < bytes;) {
    const int64_t wanted = std::min(bytes, std::max(kFirstPart, kGrowth * done));
    data.resize(static_cast<size_t>(wanted));
    done += read_some(data.data() + done, wanted - done);
    if (done < wanted) fail_short(bytes, done, what);
  }
  offset_ += bytes;
  expect_end();
  return data;
}

void InputFile::fail_short(int64_t bytes, int64_t found, const std::string& what) const {
  int code = Z_OK;
  gzerror(handle(file_.get()), &code);
  const char* end = code == Z_BUF_ERROR ? "the gzip stream is truncated" : "the file ends";
  fail(offset_, fmt::format("{} bytes of {}", bytes, what),
       fmt::format("{} ({} after {} bytes)", found, end, offset_ + found));
}

uint32_t InputFile::read_big_endian(const std::string& what) {
  std::array<uint8_t, 4> bytes{};
  read(bytes, what);
  return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

void InputFile::expect_end() {
  uint8_t byte = 0;
  if (read_some(&byte, 1) != 0) fail(offset_, "the end of the file", "more bytes");
  // Only this read detects that a gzip stream lacks its checksum.
  int code = Z_OK;
  gzerror(handle(file_.get()), &code);
  if (code == Z_BUF_ERROR) fail(offset_, "the end of the gzip stream with its checksum", "a truncated stream");
}

void InputFile::expect_room(int64_t bytes, const std::string& what) const {
  const int64_t most = (packing_ == Packing::gzip ? kDeflateRatio * file_bytes_ : file_bytes_) - offset_;
  if (bytes > most)
    fail(offset_, fmt::format("{} bytes of {}", bytes, what),
         fmt::format("a file of {} bytes, which is too short", file_bytes_));
}

void InputFile::expect_just(int64_t bytes, const std::string& what) const {
  VITRINE_ASSERT(packing_ == Packing::none, "the size of a packed file is known after unpacking");
  expect_room(bytes, what);
  if (file_bytes_ > offset_ + bytes) fail(offset_ + bytes, "the end of the file", "more bytes");
}

void InputFile::expect_unknown_kind(const std::string& expected) const {
  const FileType kind =
      packing_ == Packing::gzip && gzdirect(handle(file_.get())) == 0 ? FileType() : recognize_file(path_.string());
  if (!kind) return;
  throw DataError(fmt::format("{}: expected {}, found {}", path_.string(), expected,
                              kind.describe("the file has another format: download the data set again")));
}

void InputFile::fail(int64_t offset, const std::string& expected, const std::string& found) const {
  throw DataError(fmt::format("{}: at offset {}: expected {}, found {}; the file is damaged or has another format",
                              path_.string(), offset, expected, found));
}

namespace {

/// A plain file with positioned reads.
class OpenFile {
 public:
  explicit OpenFile(std::filesystem::path path)
      : path_(std::move(path)), file_(open_regular_file(path_.string()).descriptor) {}

  void read(int64_t offset, std::span<uint8_t> out) const {
    const int64_t got = read_at(file_, offset, std::as_writable_bytes(out));
    if (got < 0) {
      throw DataError(
          fmt::format("{}: at offset {}: cannot read it: {}", path_.string(), offset, std::strerror(errno)));
    }
    if (got < static_cast<int64_t>(out.size())) {
      throw DataError(
          fmt::format("{}: at offset {}: expected {} bytes, found {}; the file became shorter after it was opened",
                      path_.string(), offset, out.size(), got));
    }
  }

 private:
  std::filesystem::path path_;
  Descriptor file_;
};

class FileSamples final : public Samples {
 public:
  FileSamples(const std::vector<RecordFile>& files, std::vector<uint8_t> labels, int64_t bytes_per_image,
              std::function<void(std::span<const uint8_t>, std::span<uint8_t>)> decode)
      : labels_(std::move(labels)), bytes_per_image_(bytes_per_image), decode_(std::move(decode)) {
    int64_t first = 0;
    for (const RecordFile& file : files) {
      parts_.push_back({OpenFile(file.path), first, file.begin, file.stride});
      first += file.count;
    }
    VITRINE_ASSERT(first == size() && !parts_.empty(), "every image has a label");
  }

  int64_t size() const override { return static_cast<int64_t>(labels_.size()); }
  int32_t label(int64_t i) const override { return labels_[static_cast<size_t>(i)]; }
  int64_t held_bytes() const override { return size(); }

  void read_image(int64_t i, std::span<uint8_t> out) const override {
    const auto next = std::upper_bound(parts_.begin(), parts_.end(), i,
                                       [](int64_t sample, const Part& part) { return sample < part.first; });
    const Part& part = *std::prev(next);
    const int64_t offset = part.begin + (i - part.first) * part.stride;
    if (!decode_) return part.file.read(offset, out);
    thread_local std::vector<uint8_t> stored;
    stored.resize(static_cast<size_t>(bytes_per_image_));
    part.file.read(offset, stored);
    decode_(stored, out);
  }

 private:
  struct Part {
    OpenFile file;
    int64_t first, begin, stride;
  };
  std::vector<Part> parts_;
  const std::vector<uint8_t> labels_;
  const int64_t bytes_per_image_;
  const std::function<void(std::span<const uint8_t>, std::span<uint8_t>)> decode_;
};

}  // namespace

std::shared_ptr<const Samples> samples_in_files(
    const std::vector<RecordFile>& files, std::vector<uint8_t> labels, int64_t bytes_per_image,
    std::function<void(std::span<const uint8_t>, std::span<uint8_t>)> decode) {
  return std::make_shared<FileSamples>(files, std::move(labels), bytes_per_image, std::move(decode));
}

std::vector<uint8_t> read_record_bytes(const RecordFile& file) {
  const OpenFile open(file.path);
  std::vector<uint8_t> bytes(static_cast<size_t>(file.count));
  for (int64_t i = 0; i < file.count; ++i)
    open.read(file.begin + i * file.stride, std::span(bytes).subspan(static_cast<size_t>(i), 1));
  return bytes;
}

}  // namespace vitrine
