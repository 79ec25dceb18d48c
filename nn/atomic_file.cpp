// SPDX-License-Identifier: Apache-2.0
#include "nn/atomic_file.h"

#include <cerrno>
#include <cstring>

#include <fmt/format.h>
#include <unistd.h>

#include "runtime/error.h"

namespace vitrine {

AtomicFile::AtomicFile(const std::string& path) : path_(path), temporary_(fmt::format("{}.{}.tmp", path, ::getpid())) {
  file_ = std::fopen(temporary_.c_str(), "wb");
  if (file_ == nullptr) fail("cannot be created");
}

AtomicFile::~AtomicFile() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  std::remove(temporary_.c_str());
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  if (!bytes.empty() && std::fwrite(bytes.data(), 1, bytes.size(), file_) != bytes.size()) fail("cannot be written");
}

void AtomicFile::write(const std::string& text) { write(std::as_bytes(std::span(text))); }

void AtomicFile::commit() {
  if (std::fflush(file_) != 0 || ::fsync(::fileno(file_)) != 0) fail("cannot be written");
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) fail("cannot be renamed to its final name");
  std::fclose(file_);
  file_ = nullptr;
}

void AtomicFile::fail(const char* what) const {
  const int code = errno;
  throw DataError(fmt::format("{}: {} ({}); check the folder, its permissions and free space", temporary_, what, std::strerror(code)));
}

}  // namespace vitrine
