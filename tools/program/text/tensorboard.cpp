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

// Field numbers of the messages, and values of their enumerations.
constexpr protozero::pbf_tag_type kEventWallTime = 1, kEventStep = 2, kEventFileVersion = 3, kEventSummary = 5,
                                  kEventSessionLog = 7, kSessionStatus = 1, kSummaryValue = 1;
constexpr protozero::pbf_tag_type kValueTag = 1, kValueSimple = 2, kValueTensor = 8, kValueMetadata = 9,
                                  kMetadataPluginData = 1, kPluginName = 1;
constexpr protozero::pbf_tag_type kTensorDtype = 1, kTensorShape = 2, kTensorStringValue = 8, kShapeDimension = 2,
                                  kDimensionSize = 1;
constexpr int32_t kSessionStart = 1, kDtypeString = 7;

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
  for (int number = 0; path_.empty() || std::filesystem::exists(path_, error); ++number)
    path_ = fmt::format("{}.{}", stem, number);
  file_.open(path_, std::ios::binary);
  if (!file_)
    throw DataError(
        fmt::format("--tensorboard {}: no file can be created there ({}); name a folder that you may write to", folder,
                    std::strerror(errno)));
  std::string version;
  protozero::pbf_writer writer(version);
  writer.add_double(kEventWallTime, wall_seconds());
  writer.add_string(kEventFileVersion, "brain.Event:2");
  write_record(version);
  flush();
}

void TensorboardWriter::start_at(int64_t step) {
  std::string bytes;
  {
    protozero::pbf_writer writer(bytes);
    writer.add_double(kEventWallTime, wall_seconds());
    writer.add_int64(kEventStep, step);
    protozero::pbf_writer log(writer, kEventSessionLog);
    log.add_enum(kSessionStatus, kSessionStart);
  }
  write_record(bytes);
}

void TensorboardWriter::add_scalar(const std::string& tag, double number, int64_t step) {
  std::string bytes;
  {
    protozero::pbf_writer writer(bytes);
    protozero::pbf_writer entry(writer, kSummaryValue);
    entry.add_string(kValueTag, tag);
    entry.add_float(kValueSimple, static_cast<float>(number));
  }
  write_event(bytes, step);
}

void TensorboardWriter::add_text(const std::string& tag, const std::string& markdown, int64_t step) {
  std::string bytes;
  {
    protozero::pbf_writer writer(bytes);
    protozero::pbf_writer entry(writer, kSummaryValue);
    entry.add_string(kValueTag, tag + "/text_summary");
    {
      protozero::pbf_writer data(entry, kValueTensor);
      data.add_int32(kTensorDtype, kDtypeString);
      {
        protozero::pbf_writer shape(data, kTensorShape);
        protozero::pbf_writer dimension(shape, kShapeDimension);
        dimension.add_int64(kDimensionSize, 1);
      }
      data.add_string(kTensorStringValue, markdown);
    }
    protozero::pbf_writer description(entry, kValueMetadata);
    protozero::pbf_writer plugin(description, kMetadataPluginData);
    plugin.add_string(kPluginName, "text");
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
  writer.add_double(kEventWallTime, wall_seconds());
  writer.add_int64(kEventStep, step);
  writer.add_message(kEventSummary, summary_bytes);
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
