// SPDX-License-Identifier: Apache-2.0
#include "tools/program/text/tensorboard.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <optional>
#include <vector>

#include <gtest/gtest.h>
#include <protozero/pbf_reader.hpp>
#include <sys/resource.h>
#include <unistd.h>

#include "runtime/error.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"
#include "tests/support/temp_folder.h"
#include "tools/program/run/run_log.h"

namespace vitrine::tools {
namespace {

namespace fs = std::filesystem;

class Tensorboard : public ::testing::Test {
 protected:
  std::string folder() const { return folder_.str(); }

 private:
  const test::TempFolder folder_;
};

/// CRC-32C bit by bit, then masked as in TensorFlow's records.
uint32_t masked_crc(const std::string& bytes) {
  uint32_t crc = 0xFFFFFFFF;
  for (const char byte : bytes) {
    crc ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = (crc & 1) != 0 ? crc >> 1 ^ 0x82F63B78U : crc >> 1;
  }
  return std::rotr(~crc, 15) + 0xA282EAD8U;
}

template <class T>
T take(const std::string& bytes, size_t& at) {
  T value{};
  EXPECT_LE(at + sizeof value, bytes.size());
  std::memcpy(&value, bytes.data() + at, sizeof value);
  at += sizeof value;
  return value;
}

struct Event {
  int64_t step = 0;
  std::string version, tag, text;
  int64_t session_status = 0;
  std::optional<float> scalar;
};

Event parse_event(const std::string& bytes) {
  Event event;
  protozero::pbf_reader reader(bytes);
  while (reader.next()) {
    if (reader.tag() == 2) {
      event.step = reader.get_int64();
    } else if (reader.tag() == 3) {
      event.version = reader.get_string();
    } else if (reader.tag() == 7) {
      protozero::pbf_reader log = reader.get_message();
      while (log.next(1)) event.session_status = log.get_enum();
    } else if (reader.tag() == 5) {
      protozero::pbf_reader summary = reader.get_message();
      while (summary.next(1)) {
        protozero::pbf_reader value = summary.get_message();
        while (value.next()) {
          if (value.tag() == 1) {
            event.tag = value.get_string();
          } else if (value.tag() == 2) {
            event.scalar = value.get_float();
          } else if (value.tag() == 8) {
            protozero::pbf_reader tensor = value.get_message();
            while (tensor.next()) tensor.tag() == 8 ? event.text = tensor.get_string(), void() : tensor.skip();
          } else {
            value.skip();
          }
        }
      }
    } else {
      reader.skip();
    }
  }
  return event;
}

std::vector<Event> read_events(const std::string& path) {
  const std::string bytes = test::content(path);
  std::vector<Event> events;
  for (size_t at = 0; at < bytes.size();) {
    const std::string length_bytes = bytes.substr(at, 8);
    const auto length = static_cast<size_t>(take<uint64_t>(bytes, at));
    EXPECT_EQ(take<uint32_t>(bytes, at), masked_crc(length_bytes));
    const std::string event = bytes.substr(at, length);
    at += length;
    EXPECT_EQ(take<uint32_t>(bytes, at), masked_crc(event));
    events.push_back(parse_event(event));
  }
  return events;
}

TEST_F(Tensorboard, WritesRecordsWithTheirChecksums) {
  TensorboardWriter writer(folder());
  writer.add_scalar("train/loss", 2.5, 7);
  writer.add_text("configuration", "| a | b |", 0);
  writer.flush();
  const std::vector<Event> events = read_events(writer.path());
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_EQ(events[1].tag, "train/loss");
  EXPECT_EQ(events[1].step, 7);
  EXPECT_EQ(events[1].scalar, 2.5F);
  EXPECT_EQ(events[2].tag, "configuration/text_summary");
  EXPECT_EQ(events[2].text, "| a | b |");
}

TEST_F(Tensorboard, ARunThatContinuesDropsWhatFollowed) {
  TensorboardWriter writer(folder());
  writer.start_at(31);
  writer.flush();
  const std::vector<Event> events = read_events(writer.path());
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[1].step, 31);
  EXPECT_EQ(events[1].session_status, 1);  // START: TensorBoard drops events of this step and later ones
}

TEST_F(Tensorboard, KeepsTheFilesOfEarlierRuns) {
  const TensorboardWriter first(folder()), second(folder());
  EXPECT_NE(first.path(), second.path());
  EXPECT_TRUE(fs::exists(first.path()));
}

TEST_F(Tensorboard, NamesAFolderThatCannotBeCreated) {
  expect_contains(error_of<DataError>([&] { const TensorboardWriter writer("/proc/no/such/folder"); }),
                  "--tensorboard /proc/no/such/folder");
}

/// Limits the size of files for its lifetime. Writes beyond the limit fail as those to a full disk do, with another
/// reason.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : signal_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limited{bytes, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limited), 0);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, signal_);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  void (*signal_)(int);
  rlimit before_{};
};

TEST_F(Tensorboard, ALogInCsvWritesNanWithoutASign) {
  RunLog::Target target;
  target.file = folder() + "/log.csv";
  RunLog log(target);
  log.add_step({1, 1, std::copysign(std::numeric_limits<double>::quiet_NaN(), -1.0), 0.1, std::nullopt});
  log.close_file();
  expect_contains(test::content(target.file), ",nan,0.1,");
}

TEST_F(Tensorboard, AFullDiskStopsNeitherTrainingNorTheLogAndIsReportedAtOnceAndAtTheEnd) {
  RunLog::Target target;
  target.tensorboard = folder();
  target.file = folder() + "/log.csv";
  target.facts = {{"model", "mlp"}};
  RunLog log(target);
  testing::internal::CaptureStderr();
  {
    const FileSizeLimit limit(20'000);
    for (int64_t step = 1; step <= 300; ++step) EXPECT_NO_THROW(log.add_step({step, 1, 2.5, 0.1, std::nullopt}));
    EpochRecord epoch;
    epoch.last_step = 300;
    EXPECT_NO_THROW(log.add_epoch(epoch, {}, ""));
  }
  expect_contains(testing::internal::GetCapturedStderr(), "vitrine: warning: --tensorboard " + folder(),
                  "Training goes on without it");
  EXPECT_NO_THROW(log.add_step({301, 1, 2.5, 0.1, std::nullopt})) << "space is free again";
  EXPECT_NO_THROW(log.close_file());
  std::ifstream rows(folder() + "/log.csv");
  EXPECT_EQ(std::count(std::istreambuf_iterator<char>(rows), {}, '\n'), 1 + 301 + 1) << "the log goes on";
  fs::remove(folder() + "/log.csv");
  const std::string message = error_of<DataError>([&] { log.close_tensorboard(); });
  const std::string expected = "--tensorboard " + folder() + ": " + folder() + "/events.out.tfevents.";
  EXPECT_EQ(message.rfind(expected, 0), 0U) << message;
  expect_contains(message, "cannot be written (File too large)");
  for (const auto& file : fs::directory_iterator(folder()))
    EXPECT_EQ(fs::file_size(file.path()), 20'000U) << "nothing is written after the error";
}

}  // namespace
}  // namespace vitrine::tools
