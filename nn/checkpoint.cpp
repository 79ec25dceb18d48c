// SPDX-License-Identifier: Apache-2.0
#include "nn/checkpoint.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "nn/atomic_file.h"
#include "nn/json_file.h"
#include "runtime/descriptor.h"
#include "runtime/error.h"
#include "runtime/file_type.h"
#include "runtime/hash.h"

namespace vitrine {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

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

std::string checksum_of(const Json& json) {
  const std::string text = json.dump();
  return hex(hash_bytes(0, text.data(), static_cast<int64_t>(text.size())));
}

void write_files(const std::string& folder, const std::vector<CheckpointFile>& files, const std::string& state_json,
                 const WriteProgress& progress) {
  Json json;
  json["format"] = kFormat;
  json["state"] = Json::parse(state_json);
  json["files"] = Json::object();
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
    Json json = Json::parse(text);
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
  } catch (const Json::exception& problem) {
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

}  // namespace vitrine
