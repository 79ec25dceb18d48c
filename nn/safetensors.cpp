// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <bit>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "nn/atomic_file.h"
#include "nn/safetensors_header.h"
#include "nn/weights_file.h"
#include "runtime/descriptor.h"
#include "runtime/error.h"
#include "runtime/hash.h"
#include "runtime/memory/available.h"
#include "runtime/printable.h"

namespace vitrine {
namespace {

using namespace safetensors;  // NOLINT: its private functions

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and is copied unchanged");

/// Whether the file had these bytes.
bool read_all(const RegularFile& file, uint64_t offset, std::span<std::byte> out) {
  return read_at(file.descriptor, static_cast<int64_t>(offset), out) == static_cast<int64_t>(out.size());
}

std::vector<Entry> read_entries(const std::string& path, const RegularFile& file, uint64_t& data_begin) {
  const auto file_bytes = static_cast<uint64_t>(file.bytes);
  std::array<std::byte, kSizeBytes> size_bytes{};
  if (!read_all(file, 0, size_bytes)) {
    fail(path, 0,
         fmt::format("it is no safetensors file: it has {} bytes, expected 8 bytes of header size first", file_bytes));
  }
  const auto header_bytes = std::bit_cast<uint64_t>(size_bytes);
  const bool no_size = header_bytes > kMaxHeaderBytes || header_bytes > file_bytes - kSizeBytes;
  // torch.save writes a zip file, and before PyTorch 1.6 a pickle, whose first byte a size may have, too.
  const std::string_view magic(reinterpret_cast<const char*>(size_bytes.data()), kSizeBytes);
  if (magic.starts_with("PK\x03\x04") || (no_size && magic.starts_with("\x80"))) {
    throw DataError(
        fmt::format("{}: it is a file of torch.save, a PyTorch pickle, expected safetensors; convert it with "
                    "docs/examples/convert_weights.py",
                    path));
  }
  if (no_size) {
    fail(path, 0,
         fmt::format("it is no safetensors file, or damaged: the header size is {} bytes, but {} bytes follow (and at "
                     "most {} are allowed)",
                     header_bytes, file_bytes - kSizeBytes, kMaxHeaderBytes));
  }
  std::string text(header_bytes, '\0');
  if (!read_all(file, kSizeBytes, std::as_writable_bytes(std::span(text))))
    fail(path, kSizeBytes, "the header cannot be read");
  data_begin = kSizeBytes + header_bytes;
  return parse_header(path, text, file_bytes - data_begin);
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
  const RegularFile file = open_regular_file(path);
  uint64_t data_begin = 0;
  const std::vector<Entry> entries = read_entries(path, file, data_begin);
  std::map<std::string, HostTensor> tensors;
  for (const Entry& entry : entries)
    tensors.emplace(entry.name, HostTensor{.shape = entry.shape, .dtype = entry.dtype, .data = {}});
  if (check) check(tensors);
  require_memory(file.bytes - static_cast<int64_t>(data_begin), path + ": its tensors",
                 "free memory, or use a machine with more");
  for (const Entry& entry : entries) {
    std::vector<std::byte>& data = tensors.at(entry.name).data;
    data.resize(entry.end - entry.begin);
    if (!read_all(file, data_begin + entry.begin, data)) {
      fail(path, data_begin + entry.begin, fmt::format("the data of tensor '{}' cannot be read", excerpt(entry.name)));
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
    sources.push_back(
        {name, tensor.shape, tensor.dtype, [&data = tensor.data] { return std::span<const std::byte>(data); }});
  }
  // Larger elements come first, so that all are aligned: readers map the data.
  std::stable_sort(sources.begin(), sources.end(),
                   [](const TensorSource& a, const TensorSource& b) { return size_of(a.dtype) > size_of(b.dtype); });
  stream_safetensors(path, sources, metadata, progress);
}

}  // namespace vitrine
