// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <bit>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "nn/atomic_file.h"
#include "nn/json_file.h"
#include "nn/safetensors_header.h"
#include "nn/weights_file.h"
#include "runtime/descriptor.h"
#include "runtime/error.h"
#include "runtime/file_type.h"
#include "runtime/hash.h"
#include "runtime/memory/available.h"
#include "runtime/printable.h"

namespace vitrine {
namespace {

using namespace safetensors;  // NOLINT: its private functions

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and is copied unchanged");

/// A safetensors file whose header has been read.
class OpenFile {
 public:
  explicit OpenFile(std::string path) : path_(std::move(path)), file_(open_regular_file(path_)) {
    entries_ = read_header(static_cast<uint64_t>(file_.bytes));
  }

  const std::string& path() const { return path_; }
  const std::vector<Entry>& entries() const { return entries_; }

  std::vector<std::byte> read(const Entry& entry) {
    std::vector<std::byte> data(entry.end - entry.begin);
    if (!read_all(data_begin_ + entry.begin, data))
      fail(path_, data_begin_ + entry.begin,
           fmt::format("the data of tensor '{}' cannot be read", excerpt(entry.name)));
    return data;
  }

 private:
  std::vector<Entry> read_header(uint64_t file_bytes) {
    std::array<std::byte, kSizeBytes> size_bytes{};
    const bool has_size = read_all(0, size_bytes);
    const auto header_bytes = std::bit_cast<uint64_t>(size_bytes);
    const bool fits = has_size && header_bytes <= kMaxHeaderBytes && header_bytes <= file_bytes - kSizeBytes;
    std::string text(fits ? header_bytes : 0, '\0');
    if (fits && !read_all(kSizeBytes, std::as_writable_bytes(std::span(text))))
      fail(path_, kSizeBytes, "the header cannot be read");
    if (!text.starts_with('{')) throw_if_other_kind();
    if (!has_size) {
      fail(
          path_, 0,
          fmt::format("it is no safetensors file: it has {} bytes, expected 8 bytes of header size first", file_bytes));
    }
    if (!fits) {
      fail(path_, 0,
           fmt::format("it is no safetensors file, or damaged: the header size is {} bytes, but {} bytes follow (and "
                       "at most {} are allowed)",
                       header_bytes, file_bytes - kSizeBytes, kMaxHeaderBytes));
    }
    data_begin_ = kSizeBytes + header_bytes;
    return parse_header(path_, text, file_bytes - data_begin_);
  }

  void throw_if_other_kind() const {
    const FileType kind = recognize_file(path_);
    if (!kind || kind.format == FileType::Format::safetensors) return;
    const bool is_torch = kind.format == FileType::Format::torch || kind.format == FileType::Format::pickle;
    throw DataError(fmt::format(
        "{}: expected a safetensors file, found {}", path_,
        kind.describe(is_torch ? fmt::format("convert it with {}", kConvertWeights) : "name a safetensors file")));
  }

  /// Whether the file had these bytes.
  bool read_all(uint64_t offset, std::span<std::byte> out) const {
    return read_at(file_.descriptor, static_cast<int64_t>(offset), out) == static_cast<int64_t>(out.size());
  }

  std::string path_;
  RegularFile file_;
  uint64_t data_begin_ = 0;
  std::vector<Entry> entries_;
};

/// The files of a model: the path itself or, of an index of Hugging Face, the files in its folder that it names.
///   {"metadata": {...}, "weight_map": {"conv1.weight": "model-00001-of-00002.safetensors", ...}}
std::vector<std::string> shards_of(const std::string& path) {
  if (!path.ends_with(".json")) return {path};
  const std::string text = read_regular_file(path, kLargestJson);
  check_json_text(path, text);
  std::set<std::string> names;
  try {
    const nlohmann::json index = nlohmann::json::parse(text);
    for (const auto& [tensor, file] : index.at("weight_map").get<std::map<std::string, std::string>>())
      names.insert(file);
  } catch (const nlohmann::json::exception&) {
    throw DataError(
        path + ": expected an index of safetensors files, {\"weight_map\": {\"TENSOR\": \"FILE.safetensors\", ...}}");
  }
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::vector<std::string> shards;
  for (const std::string& name : names) {
    if (name.empty() || name.find('/') != std::string::npos) {
      throw DataError(
          fmt::format("{}: it names the file '{}', expected a name in its own folder", path, excerpt(name)));
    }
    std::error_code ignored;
    shards.push_back((folder / name).string());
    if (!std::filesystem::exists(shards.back(), ignored))
      throw DataError(fmt::format("{}: it names {}, which is missing; download all of its files", path, excerpt(name)));
  }
  return shards;
}

int64_t bytes_of(const TensorSource& tensor) { return tensor.shape.numel() * size_of(tensor.dtype); }

/// The header, padded so that the data is aligned.
std::string make_header(const std::string& path, std::span<const TensorSource> tensors,
                        const std::map<std::string, std::string>& metadata) {
  nlohmann::json header = nlohmann::json::object();
  if (!metadata.empty()) header[std::string(kMetadata)] = metadata;
  int64_t offset = 0;
  for (const TensorSource& tensor : tensors) {
    if (tensor.name == kMetadata) throw DataError("write_safetensors: a tensor cannot be named __metadata__");
    if (header.contains(tensor.name))
      throw DataError(fmt::format("write_safetensors: two tensors are named '{}'", tensor.name));
    std::vector<int64_t> sizes;
    for (int i = 0; i < tensor.shape.rank(); ++i) sizes.push_back(tensor.shape[i]);
    header[tensor.name] = {
        {"dtype", format_name(tensor.dtype)}, {"shape", sizes}, {"data_offsets", {offset, offset + bytes_of(tensor)}}};
    offset += bytes_of(tensor);
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const nlohmann::json::exception& e) {
    throw DataError(fmt::format("write_safetensors: {}: a name or metadata is not UTF-8: {}", path, e.what()));
  }
  text.append((kSizeBytes - text.size() % kSizeBytes) % kSizeBytes, ' ');
  return text;
}

}  // namespace

std::map<std::string, HostTensor> read_safetensors(const std::string& path, const HeaderCheck& check) {
  std::vector<OpenFile> files;
  for (std::string& shard : shards_of(path)) files.emplace_back(std::move(shard));
  std::map<std::string, HostTensor> tensors;
  uint64_t bytes = 0;
  for (const OpenFile& file : files) {
    for (const Entry& entry : file.entries()) {
      HostTensor tensor{.shape = entry.shape, .dtype = entry.dtype, .data = {}, .foreign = entry.foreign};
      if (!tensors.emplace(entry.name, std::move(tensor)).second)
        throw DataError(fmt::format("{}: tensor '{}' is in two files of {}", file.path(), excerpt(entry.name), path));
      if (entry.foreign.empty()) bytes += entry.end - entry.begin;
    }
  }
  if (check) check(tensors);
  require_memory(static_cast<int64_t>(bytes), path + ": its tensors", "free memory, or use a machine with more");
  for (OpenFile& file : files) {
    for (const Entry& entry : file.entries()) {
      if (entry.foreign.empty()) tensors.at(entry.name).data = file.read(entry);
    }
  }
  return tensors;
}

FileDigest stream_safetensors(const std::string& path, std::span<const TensorSource> tensors,
                              const std::map<std::string, std::string>& metadata, const WriteProgress& progress) {
  const std::string text = make_header(path, tensors, metadata);
  const auto size_bytes = std::bit_cast<std::array<std::byte, kSizeBytes>>(static_cast<uint64_t>(text.size()));
  AtomicFile file(path, progress);
  StreamingHash hash;
  FileDigest digest;
  const auto write = [&](std::span<const std::byte> bytes) {
    file.write(bytes);
    hash.add(bytes);
    digest.bytes += static_cast<int64_t>(bytes.size());
  };
  write(size_bytes);
  write(std::as_bytes(std::span(text)));
  for (const TensorSource& tensor : tensors) {
    const std::span<const std::byte> bytes = tensor.bytes();
    if (static_cast<int64_t>(bytes.size()) != bytes_of(tensor)) {
      throw DataError(fmt::format("write_safetensors: tensor '{}' has shape {} and dtype {}, but {} bytes of data",
                                  tensor.name, tensor.shape.str(), dtype_name(tensor.dtype), bytes.size()));
    }
    write(bytes);
  }
  file.commit();
  digest.xxh3 = hash.value();
  return digest;
}

void write_safetensors(const std::string& path, const std::map<std::string, HostTensor>& tensors,
                       const std::map<std::string, std::string>& metadata, const WriteProgress& progress) {
  std::vector<TensorSource> sources;
  for (const auto& [name, tensor] : tensors) {
    VITRINE_ASSERT(tensor.foreign.empty(), "a tensor that was not read cannot be written");
    sources.push_back(
        {name, tensor.shape, tensor.dtype, [&data = tensor.data] { return std::span<const std::byte>(data); }});
  }
  // Larger elements come first, so that all are aligned: readers map the data.
  std::stable_sort(sources.begin(), sources.end(),
                   [](const TensorSource& a, const TensorSource& b) { return size_of(a.dtype) > size_of(b.dtype); });
  stream_safetensors(path, sources, metadata, progress);
}

}  // namespace vitrine
