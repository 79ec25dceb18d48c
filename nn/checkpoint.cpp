// SPDX-License-Identifier: Apache-2.0
#include "nn/checkpoint.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <thread>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <unistd.h>

#include "nn/atomic_file.h"
#include "nn/json_file.h"
#include "runtime/descriptor.h"
#include "runtime/error.h"
#include "runtime/file_type.h"
#include "runtime/hash.h"
#include "runtime/text.h"

namespace vitrine {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr int kFormat = 1;

/// The same name for the same folder within a process, so that what a failed attempt has left is found again.
std::string temporary_for(const fs::path& folder) {
  return (folder.parent_path() /
          fmt::format("{}{}-{}", kCheckpointTemporaryPrefix, folder.filename().string(), getpid()))
      .string();
}

void remove_folder(const std::string& folder) {
  std::error_code error;
  fs::remove_all(folder, error);
  if (error) throw_write_error(folder, "cannot be removed", error.value());
}

/// Puts `temporary` in the place of `folder`.
void take_place(const std::string& temporary, const std::string& folder) {
  if (std::rename(temporary.c_str(), folder.c_str()) == 0) return;
  if (errno != EEXIST && errno != ENOTEMPTY && errno != ENOTDIR)
    throw_write_error(temporary, "cannot be renamed to its final name", errno);
  // The old folder is replaced in one operation where the file system can, so that one of both is always there.
  if (renameat2(AT_FDCWD, temporary.c_str(), AT_FDCWD, folder.c_str(), RENAME_EXCHANGE) != 0) {
    const std::string old = fmt::format("{}-old", temporary);
    if (std::rename(folder.c_str(), old.c_str()) != 0) throw_write_error(folder, "cannot be renamed", errno);
    if (std::rename(temporary.c_str(), folder.c_str()) != 0) {
      const int code = errno;
      std::rename(old.c_str(), folder.c_str());
      throw_write_error(temporary, "cannot be renamed to its final name", code);
    }
    return remove_folder(old);
  }
  remove_folder(temporary);
}

std::string hex(uint64_t hash) { return fmt::format("{:016x}", hash); }

std::string checksum_of(const OrderedJson& json) {
  const std::string text = json.dump();
  return hex(hash_bytes(0, text.data(), static_cast<int64_t>(text.size())));
}

void write_files(const std::string& folder, const std::vector<CheckpointFile>& files, const std::string& state_json,
                 const WriteProgress& progress) {
  OrderedJson json;
  json["format"] = kFormat;
  json["state"] = OrderedJson::parse(state_json);
  json["files"] = OrderedJson::object();
  int64_t before = 0;
  for (const CheckpointFile& file : files) {
    const WriteProgress of_file = progress ? [&, before](int64_t bytes) { progress(before + bytes); } : WriteProgress();
    const FileDigest digest =
        stream_safetensors(fmt::format("{}/{}", folder, file.name), file.tensors, file.metadata, of_file);
    before += digest.bytes;
    json["files"][file.name] = {{"bytes", digest.bytes}, {"xxh3", hex(digest.xxh3)}};
  }
  json["checksum"] = checksum_of(json);
  AtomicFile file(fmt::format("{}/{}", folder, kCheckpointStateFile));
  file.write(json.dump(1) + "\n");
  file.commit();
  flush_folder(folder);
}

FileDigest digest_of(const Descriptor& file) {
  constexpr size_t kReadBytes = size_t{1} << 20;
  std::vector<std::byte> part(kReadBytes);
  StreamingHash hash;
  FileDigest digest;
  for (int64_t count = 0; (count = read_at(file, digest.bytes, part)) > 0; digest.bytes += count)
    hash.add(std::span(part).first(static_cast<size_t>(count)));
  digest.xxh3 = hash.value();
  return digest;
}

void check_file(const std::string& path, int64_t bytes, const std::string& xxh3, bool content) {
  const RegularFile file = open_regular_file(path);
  if (file.bytes != bytes) {
    const FileType kind = recognize_file(path);
    const bool is_other = kind && kind.format != FileType::Format::safetensors;
    throw DataError(fmt::format("{}: it has {} bytes, expected {}{}", path, file.bytes, bytes,
                                is_other ? "; it is " + kind.describe("copy the checkpoint again") : ""));
  }
  if (!content) return;
  const FileDigest found = digest_of(file.descriptor);
  if (found.bytes != bytes || hex(found.xxh3) != xxh3) {
    throw DataError(
        fmt::format("{}: its checksum (XXH3) is {}, expected {}: the file is damaged", path, hex(found.xxh3), xxh3));
  }
}

}  // namespace

void flush_folder(const std::string& folder) {
  const Descriptor descriptor(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!descriptor) throw_write_error(folder, "cannot be opened", errno);
  // Some network file systems cannot flush folders and need not.
  if (fsync(descriptor.get()) != 0 && errno != EINVAL && errno != ENOTSUP)
    throw_write_error(folder, "cannot be flushed to the disk", errno);
}

void write_checkpoint(const std::string& directory, const std::string& name, const std::vector<CheckpointFile>& files,
                      const std::string& state_json, const WriteProgress& progress) {
  const std::string folder = (fs::path(directory) / name).string();
  const std::string temporary = temporary_for(folder);
  remove_folder(temporary);
  std::error_code error;
  if (!fs::create_directory(temporary, error)) throw_write_error(temporary, "cannot be created", error.value());
  try {
    write_files(temporary, files, state_json, progress);
    take_place(temporary, folder);
  } catch (...) {
    fs::remove_all(temporary, error);
    throw;
  }
  flush_folder(directory);
}

bool is_checkpoint(const std::string& folder) {
  std::error_code error;
  return fs::exists(fs::path(folder) / kCheckpointStateFile, error);
}

std::string read_checkpoint(const std::string& folder, bool files) {
  const std::string path = (fs::path(folder) / kCheckpointStateFile).string();
  const std::string text = read_regular_file(path, kLargestJson);
  check_json_text(path, text);
  try {
    OrderedJson json = OrderedJson::parse(text);
    const std::string checksum = json.at("checksum").get<std::string>();
    json.erase("checksum");
    if (const std::string found = checksum_of(json); found != checksum) {
      throw DataError(
          fmt::format("{}: its checksum (XXH3) is {}, expected {}: the file is damaged", path, found, checksum));
    }
    if (const int format = json.at("format").get<int>(); format != kFormat) {
      throw DataError(
          fmt::format("{}: the checkpoint has format {}, this version reads format {}", path, format, kFormat));
    }
    for (const auto& [name, digest] : json.at("files").items()) {
      check_file((fs::path(folder) / name).string(), digest.at("bytes").get<int64_t>(),
                 digest.at("xxh3").get<std::string>(), files);
    }
    return json.at("state").dump();
  } catch (const OrderedJson::exception& problem) {
    throw DataError(fmt::format("{}: it is not the state of a checkpoint: {}", path, describe_json_error(problem)));
  }
}

void remove_checkpoint(const std::string& folder) {
  const fs::path path = fs::path(folder).lexically_normal();
  const std::string temporary = fmt::format("{}-removed", temporary_for(path));
  remove_folder(temporary);
  if (std::rename(path.c_str(), temporary.c_str()) != 0) throw_write_error(folder, "cannot be removed", errno);
  remove_folder(temporary);
}

namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step-";
constexpr const char* kLockFile = ".lock";

[[noreturn]] void refuse(const std::string& path, const std::string& reason) {
  throw DataError(
      fmt::format("{}: no checkpoints can be written there ({}); choose a folder that you may write to", path, reason));
}

std::optional<int64_t> step_of(const std::string& name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  const std::optional<int64_t> step = parse_number<int64_t>(std::string_view(name).substr(kPrefix.size()));
  return step && *step >= 0 && checkpoint_name(*step) == name ? step : std::nullopt;
}

/// Calls `visit` with each entry of a directory.
template <class Visit>
void for_each_entry(const std::string& directory, const Visit& visit) {
  std::error_code error;
  fs::directory_iterator entries(directory, error);
  for (; !error && entries != fs::directory_iterator(); entries.increment(error)) visit(*entries);
  if (error) throw DataError(fmt::format("{}: the folder cannot be read ({})", directory, error.message()));
}

/// Makes a directory and those above it, and flushes the new entries to the disk.
void make_directory(const std::string& path) {
  std::error_code error;
  std::vector<fs::path> above;  // of the directories that are missing
  for (fs::path missing = fs::absolute(path, error).lexically_normal();
       !fs::exists(missing, error) && missing.has_relative_path();) {
    missing = missing.parent_path();
    above.push_back(missing);
  }
  fs::create_directories(path, error);
  if (error) refuse(path, error.message());
  for (const fs::path& parent : above) flush_folder(parent.string());
}

void remove_temporaries(const std::string& directory) {
  std::vector<fs::path> left;
  for_each_entry(directory, [&](const fs::directory_entry& entry) {
    if (entry.path().filename().string().starts_with(kCheckpointTemporaryPrefix)) left.push_back(entry.path());
  });
  for (const fs::path& path : left) {
    std::error_code error;
    fs::remove_all(path, error);
    if (error)
      throw DataError(
          fmt::format("{}: the rest of an interrupted save cannot be removed ({})", path.string(), error.message()));
  }
}

}  // namespace

std::string checkpoint_name(int64_t step) { return fmt::format("{}{:08}", kPrefix, step); }

std::vector<NamedCheckpoint> list_checkpoints(const std::string& directory) {
  std::vector<NamedCheckpoint> found;
  std::error_code error;
  if (!fs::exists(directory, error)) return found;
  for_each_entry(directory, [&](const fs::directory_entry& entry) {
    std::error_code ignored;
    const std::optional<int64_t> step = step_of(entry.path().filename().string());
    if (step && entry.is_directory(ignored)) found.push_back({*step, entry.path().string()});
  });
  std::ranges::sort(found, [](const NamedCheckpoint& a, const NamedCheckpoint& b) { return a.step < b.step; });
  return found;
}

std::optional<WholeCheckpoint> newest_whole_checkpoint(const std::string& directory,
                                                       const std::function<void(const std::string&)>& skipped) {
  const std::vector<NamedCheckpoint> found = list_checkpoints(directory);
  for (auto checkpoint = found.rbegin(); checkpoint != found.rend(); ++checkpoint) {
    try {
      return WholeCheckpoint{checkpoint->path, read_checkpoint(checkpoint->path)};
    } catch (const DataError& error) {
      skipped(error.what());
    }
  }
  return std::nullopt;
}

CheckpointDirectory::CheckpointDirectory(const std::string& path, double patience_seconds) : path_(path) {
  std::error_code error;
  if (fs::exists(path, error) && !fs::is_directory(path, error)) refuse(path, "it is a file");
  if (is_checkpoint(path)) {
    const fs::path parent = fs::canonical(path, error).parent_path();
    throw DataError(
        fmt::format("{}: it is a checkpoint itself, not a folder of checkpoints; name the folder that contains it, {}",
                    path, parent.string()));
  }
  make_directory(path);
  lock_ = Descriptor(open((fs::path(path) / kLockFile).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!lock_) refuse(path, errno == ELOOP ? "its file .lock is a symbolic link" : std::strerror(errno));
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::duration<double>(patience_seconds);
  while (!try_lock()) {
    if (std::chrono::steady_clock::now() >= give_up) {
      throw DataError(fmt::format(
          "{}: another process writes checkpoints there; wait until it has ended, or choose another folder", path));
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  // Their writer has exited, because this process holds the lock now. Without locks it may still be running.
  if (locked_) remove_temporaries(path);
}

bool CheckpointDirectory::try_lock() {
  if (flock(lock_.get(), LOCK_EX | LOCK_NB) == 0) return locked_ = true;
  return errno != EWOULDBLOCK && errno != EINTR;  // the file system has no locks
}

void CheckpointDirectory::point_link(const std::string& link, const std::string& name) {
  const fs::path path = fs::path(path_) / link;
  const fs::path temporary = fs::path(path_) / fmt::format("{}{}-{}", kCheckpointTemporaryPrefix, link, getpid());
  std::error_code error;
  fs::remove(temporary, error);
  fs::create_symlink(name, temporary, error);
  if (!error) fs::rename(temporary, path, error);
  if (!error) return;
  std::error_code ignored;
  fs::remove(temporary, ignored);
  throw DataError(fmt::format("{}: the link to {} cannot be made ({})", path.string(), name, error.message()));
}

}  // namespace vitrine
