// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <bit>
#include <fstream>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "nn/atomic_file.h"
#include "nn/checkpoint.h"
#include "nn/safetensors_header.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

using namespace safetensors;  // NOLINT: its private functions

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and is copied unchanged");

std::vector<Entry> read_entries(const std::string& path, std::ifstream& file, uint64_t file_bytes, uint64_t& data_begin) {
  std::array<unsigned char, kSizeBytes> size_bytes{};
  if (file_bytes < kSizeBytes || !file.read(reinterpret_cast<char*>(size_bytes.data()), kSizeBytes)) {
    fail(path, 0, fmt::format("the file has {} bytes, expected 8 bytes of header size first", file_bytes));
  }
  const auto header_bytes = std::bit_cast<uint64_t>(size_bytes);
  if (header_bytes > kMaxHeaderBytes || header_bytes > file_bytes - kSizeBytes) {
    fail(path, 0,
         fmt::format("the header size is {} bytes, but {} bytes follow (and at most {} are allowed)", header_bytes, file_bytes - kSizeBytes,
                     kMaxHeaderBytes));
  }
  std::string text(header_bytes, '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(header_bytes))) fail(path, kSizeBytes, "the header cannot be read");
  data_begin = kSizeBytes + header_bytes;
  return parse_header(path, text, file_bytes - data_begin);
}

}  // namespace

std::map<std::string, HostTensor> read_safetensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw DataError(fmt::format("read_safetensors: {} cannot be opened; check the path", path));
  const auto end = static_cast<std::streamoff>(file.tellg());
  if (end < 0) throw DataError(fmt::format("read_safetensors: {} is not a regular file", path));
  file.seekg(0);
  uint64_t data_begin = 0;
  std::vector<Entry> entries = read_entries(path, file, static_cast<uint64_t>(end), data_begin);
  std::map<std::string, HostTensor> tensors;
  for (Entry& entry : entries) {
    HostTensor tensor{.shape = entry.shape, .dtype = entry.dtype, .data = std::vector<std::byte>(entry.end - entry.begin)};
    file.seekg(static_cast<std::streamoff>(data_begin + entry.begin));
    if (!file.read(reinterpret_cast<char*>(tensor.data.data()), static_cast<std::streamsize>(tensor.data.size()))) {
      fail(path, data_begin + entry.begin, fmt::format("the data of tensor '{}' cannot be read", excerpt(entry.name)));
    }
    tensors.emplace(std::move(entry.name), std::move(tensor));
  }
  return tensors;
}

void write_safetensors(const std::string& path, const std::map<std::string, HostTensor>& tensors, const std::map<std::string, std::string>& metadata,
                       const WriteProgress& progress) {
  using Json = nlohmann::json;
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  // Larger elements come first, so that all are aligned: readers map the data.
  std::vector<const std::pair<const std::string, HostTensor>*> order;
  for (const auto& entry : tensors) order.push_back(&entry);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) { return size_of(a->second.dtype) > size_of(b->second.dtype); });
  uint64_t offset = 0;
  for (const auto* entry : order) {
    const auto& [name, tensor] = *entry;
    if (name == kMetadata) throw DataError("write_safetensors: a tensor cannot be named __metadata__");
    if (static_cast<int64_t>(tensor.data.size()) != tensor.shape.numel() * size_of(tensor.dtype)) {
      throw DataError(fmt::format("write_safetensors: tensor '{}' has shape {} and dtype {}, but {} bytes of data", name, tensor.shape.str(),
                                  dtype_name(tensor.dtype), tensor.data.size()));
    }
    std::vector<int64_t> sizes;
    for (int i = 0; i < tensor.shape.rank(); ++i) sizes.push_back(tensor.shape[i]);
    header[name] = {{"dtype", format_name(tensor.dtype)}, {"shape", sizes}, {"data_offsets", {offset, offset + tensor.data.size()}}};
    offset += tensor.data.size();
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception& e) {
    throw DataError(fmt::format("write_safetensors: {}: a name or metadata is not UTF-8: {}", path, e.what()));
  }
  text.append((kSizeBytes - text.size() % kSizeBytes) % kSizeBytes, ' ');  // aligns the data
  const auto size_bytes = std::bit_cast<std::array<std::byte, kSizeBytes>>(static_cast<uint64_t>(text.size()));
  AtomicFile file(path, progress);
  file.write(size_bytes);
  file.write(text);
  for (const auto* entry : order) file.write(entry->second.data);
  file.commit();
}

}  // namespace vitrine
