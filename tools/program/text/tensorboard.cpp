// SPDX-License-Identifier: Apache-2.0
#include "tools/program/text/tensorboard.h"

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <system_error>

#include <boost/crc.hpp>
#include <fmt/format.h>
#include <protozero/pbf_writer.hpp>
#include <unistd.h>

#include "runtime/error.h"

namespace vitrine::tools {

namespace {

// Field numbers of the messages.
namespace event {
constexpr protozero::pbf_tag_type kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7;
}
namespace summary {
constexpr protozero::pbf_tag_type kValue = 1;
}
namespace session {
constexpr protozero::pbf_tag_type kStatus = 1;
constexpr int32_t kStart = 1;
}  // namespace session
namespace value {
constexpr protozero::pbf_tag_type kTag = 1, kSimpleValue = 2, kImage = 4, kTensor = 8, kMetadata = 9;
}
namespace image {
constexpr protozero::pbf_tag_type kHeight = 1, kWidth = 2, kColorspace = 3, kEncoded = 4;
constexpr int32_t kRgb = 3;
}  // namespace image
namespace metadata {
constexpr protozero::pbf_tag_type kPluginData = 1, kPluginName = 1;
}
namespace tensor {
constexpr protozero::pbf_tag_type kDtype = 1, kShape = 2, kStringValue = 8;
constexpr protozero::pbf_tag_type kDimension = 2, kSize = 1;
constexpr int32_t kString = 7;  // DT_STRING
}  // namespace tensor

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

/// CRC-32C, rotated and offset as in TensorFlow's records.
uint32_t masked_crc(const char* bytes, size_t count) {
  boost::crc_optimal<32, 0x1EDC6F41, 0xFFFFFFFF, 0xFFFFFFFF, true, true> crc;
  crc.process_bytes(bytes, count);
  const uint32_t sum = crc.checksum();
  return ((sum >> 15) | (sum << 17)) + 0xa282ead8U;
}

template <class Integer>
std::string little_endian(Integer number) {
  std::string bytes;
  for (size_t i = 0; i < sizeof number; ++i) bytes += static_cast<char>(number >> (8 * i) & 0xff);
  return bytes;
}

}  // namespace

TensorboardWriter::TensorboardWriter(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error)
    throw DataError(fmt::format("--tensorboard {}: the folder cannot be created ({}); name one that you may write to",
                                folder, error.message()));
  char host[256] = "localhost";
  gethostname(host, sizeof host - 1);
  const std::string stem =
      fmt::format("{}/events.out.tfevents.{}.{}.{}", folder, static_cast<int64_t>(wall_seconds()), host, getpid());
  for (int number = 0; path_.empty() || std::filesystem::exists(path_); ++number)
    path_ = fmt::format("{}.{}", stem, number);
  file_.open(path_, std::ios::binary);
  if (!file_)
    throw DataError(
        fmt::format("--tensorboard {}: no file can be created there ({}); name a folder that you may write to", folder,
                    std::strerror(errno)));
  std::string version;
  protozero::pbf_writer writer(version);
  writer.add_double(event::kWallTime, wall_seconds());
  writer.add_string(event::kFileVersion, "brain.Event:2");
  write_record(version);
  flush();
}

void TensorboardWriter::start_at(int64_t step) {
  std::string bytes;
  {
    protozero::pbf_writer writer(bytes);
    writer.add_double(event::kWallTime, wall_seconds());
    writer.add_int64(event::kStep, step);
    protozero::pbf_writer log(writer, event::kSessionLog);
    log.add_enum(session::kStatus, session::kStart);
  }
  write_record(bytes);
}

void TensorboardWriter::add_scalar(const std::string& tag, double number, int64_t step) {
  std::string bytes;
  {
    protozero::pbf_writer writer(bytes);
    protozero::pbf_writer entry(writer, summary::kValue);
    entry.add_string(value::kTag, tag);
    entry.add_float(value::kSimpleValue, static_cast<float>(number));
  }
  write_event(bytes, step);
}

void TensorboardWriter::add_text(const std::string& tag, const std::string& markdown, int64_t step) {
  std::string bytes;
  {
    protozero::pbf_writer writer(bytes);
    protozero::pbf_writer entry(writer, summary::kValue);
    entry.add_string(value::kTag, tag + "/text_summary");
    {
      protozero::pbf_writer data(entry, value::kTensor);
      data.add_int32(tensor::kDtype, tensor::kString);
      {
        protozero::pbf_writer shape(data, tensor::kShape);
        protozero::pbf_writer dimension(shape, tensor::kDimension);
        dimension.add_int64(tensor::kSize, 1);
      }
      data.add_string(tensor::kStringValue, markdown);
    }
    protozero::pbf_writer description(entry, value::kMetadata);
    protozero::pbf_writer plugin(description, metadata::kPluginData);
    plugin.add_string(metadata::kPluginName, "text");
  }
  write_event(bytes, step);
}

void TensorboardWriter::add_image(const std::string& tag, const std::string& png, int width, int height, int64_t step) {
  std::string bytes;
  {
    protozero::pbf_writer writer(bytes);
    protozero::pbf_writer entry(writer, summary::kValue);
    entry.add_string(value::kTag, tag);
    protozero::pbf_writer picture(entry, value::kImage);
    picture.add_int32(image::kHeight, height);
    picture.add_int32(image::kWidth, width);
    picture.add_int32(image::kColorspace, image::kRgb);
    picture.add_bytes(image::kEncoded, png);
  }
  write_event(bytes, step);
}

void TensorboardWriter::flush() {
  file_.flush();
  require_written();
}

void TensorboardWriter::require_written() const {
  if (file_) return;
  const std::string folder = std::filesystem::path(path_).parent_path().string();
  throw DataError(
      fmt::format("--tensorboard {}: {} cannot be written ({}); free space there, or name a folder on another disk",
                  folder, path_, std::strerror(errno)));
}

void TensorboardWriter::write_event(const std::string& summary_bytes, int64_t step) {
  std::string bytes;
  protozero::pbf_writer writer(bytes);
  writer.add_double(event::kWallTime, wall_seconds());
  writer.add_int64(event::kStep, step);
  writer.add_message(event::kSummary, summary_bytes);
  write_record(bytes);
}

void TensorboardWriter::write_record(const std::string& bytes) {
  const std::string length = little_endian(static_cast<uint64_t>(bytes.size()));
  const std::string record = length + little_endian(masked_crc(length.data(), length.size())) + bytes +
                             little_endian(masked_crc(bytes.data(), bytes.size()));
  file_.write(record.data(), static_cast<std::streamsize>(record.size()));
  require_written();
}

}  // namespace vitrine::tools
