// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <bit>
#include <fstream>
#include <limits>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "nn/atomic_file.h"
#include "nn/checkpoint.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian and is copied as it is");

using Json = nlohmann::json;

constexpr uint64_t kSizeBytes = 8;
constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit

struct DtypeName {
  const char* name;
  DType dtype;
};
constexpr std::array kDtypeNames{DtypeName{"F32", DType::f32}, DtypeName{"F16", DType::f16}, DtypeName{"BF16", DType::bf16},
                                 DtypeName{"I32", DType::i32}, DtypeName{"U8", DType::u8}};

[[noreturn]] void fail(const std::string& path, uint64_t offset, const std::string& what) {
  throw DataError(fmt::format("read_safetensors: {}, offset {}: {}", path, offset, what));
}

// Where a tensor's bytes lie in the data section.
struct Entry {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;
  uint64_t begin = 0, end = 0;
};

Json parse_header(const std::string& path, const std::string& text) {
  std::vector<std::set<std::string>> keys;  // of each open object
  const auto refuse_duplicates = [&](int /*depth*/, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second) {
      fail(path, kSizeBytes, fmt::format("the header has the key '{}' twice", value.get<std::string>()));
    }
    return true;
  };
  Json header;
  try {
    header = Json::parse(text, refuse_duplicates);
  } catch (const Json::exception& e) {
    fail(path, kSizeBytes, fmt::format("the header is not JSON: {}", e.what()));
  }
  if (!header.is_object()) fail(path, kSizeBytes, fmt::format("the header is a JSON {}, expected an object", header.type_name()));
  return header;
}

DType parse_dtype(const std::string& path, const std::string& name, const Json& tensor) {
  const auto field = tensor.find("dtype");
  if (field == tensor.end() || !field->is_string()) fail(path, kSizeBytes, fmt::format("tensor '{}' has no dtype", name));
  const auto text = field->get<std::string>();
  for (const DtypeName& known : kDtypeNames) {
    if (text == known.name) return known.dtype;
  }
  fail(path, kSizeBytes, fmt::format("tensor '{}' has dtype {}, expected F32, F16, BF16, I32 or U8; convert it before saving", name, text));
}

// The sizes of a shape, or the two data offsets.
std::vector<uint64_t> parse_numbers(const std::string& path, const std::string& name, const Json& tensor, const char* key) {
  const auto field = tensor.find(key);
  if (field == tensor.end() || !field->is_array()) fail(path, kSizeBytes, fmt::format("tensor '{}' has no list of {}", name, key));
  std::vector<uint64_t> numbers;
  for (const Json& number : *field) {
    constexpr auto kMax = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    if (!number.is_number_unsigned() || number.get<uint64_t>() > kMax) {
      fail(path, kSizeBytes, fmt::format("tensor '{}' has {} in {}, expected whole numbers from 0", name, number.dump(), key));
    }
    numbers.push_back(number.get<uint64_t>());
  }
  return numbers;
}

// Bytes of a tensor of these sizes; false where they do not fit.
bool byte_count(const std::vector<uint64_t>& sizes, DType dtype, uint64_t& bytes) {
  bytes = static_cast<uint64_t>(size_of(dtype));
  for (const uint64_t size : sizes) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) return std::find(sizes.begin(), sizes.end(), 0U) != sizes.end() && (bytes = 0, true);
  }
  return true;
}

Entry parse_entry(const std::string& path, const std::string& name, const Json& tensor, uint64_t data_bytes) {
  if (!tensor.is_object()) fail(path, kSizeBytes, fmt::format("tensor '{}' is described by {}, expected an object", name, tensor.type_name()));
  Entry entry;
  entry.name = name;
  entry.dtype = parse_dtype(path, name, tensor);
  const std::vector<uint64_t> sizes = parse_numbers(path, name, tensor, "shape");
  const std::vector<uint64_t> offsets = parse_numbers(path, name, tensor, "data_offsets");
  if (sizes.size() > Shape::kMaxRank) {
    fail(path, kSizeBytes, fmt::format("tensor '{}' has {} dimensions, expected at most {}", name, sizes.size(), Shape::kMaxRank));
  }
  if (offsets.size() != 2 || offsets[0] > offsets[1] || offsets[1] > data_bytes) {
    fail(path, kSizeBytes,
         fmt::format("tensor '{}' has data_offsets {}, expected two, rising, up to {}", name, tensor["data_offsets"].dump(), data_bytes));
  }
  uint64_t bytes = 0;
  if (!byte_count(sizes, entry.dtype, bytes) || bytes != offsets[1] - offsets[0]) {
    fail(path, kSizeBytes,
         fmt::format("tensor '{}' of shape {} and dtype {} has {} bytes of data, which does not fit", name, tensor["shape"].dump(),
                     dtype_name(entry.dtype), offsets[1] - offsets[0]));
  }
  const std::vector<int64_t> signed_sizes(sizes.begin(), sizes.end());
  entry.shape = Shape(std::span<const int64_t>(signed_sizes));
  entry.begin = offsets[0];
  entry.end = offsets[1];
  return entry;
}

void check_metadata(const std::string& path, const Json& metadata) {
  const auto is_text = [](const Json& value) { return value.is_string(); };
  if (!metadata.is_object() || !std::all_of(metadata.begin(), metadata.end(), is_text)) {
    fail(path, kSizeBytes, "__metadata__ is not an object of strings");
  }
}

// Every byte of the data section belongs to one tensor.
void check_coverage(const std::string& path, std::vector<Entry>& entries, uint64_t data_begin, uint64_t data_bytes) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  uint64_t expected = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != expected) {
      fail(path, data_begin + std::min(entry.begin, expected),
           fmt::format("tensor '{}' begins at {} of the data, expected {}: data {}", entry.name, entry.begin, expected,
                       entry.begin < expected ? "overlaps" : "has a hole"));
    }
    expected = entry.end;
  }
  if (expected != data_bytes) fail(path, data_begin + expected, fmt::format("{} bytes follow the last tensor", data_bytes - expected));
}

std::vector<Entry> read_entries(const std::string& path, std::ifstream& file, uint64_t file_bytes, uint64_t& data_begin) {
  std::array<unsigned char, kSizeBytes> size_bytes{};
  if (file_bytes < kSizeBytes || !file.read(reinterpret_cast<char*>(size_bytes.data()), kSizeBytes)) {
    fail(path, 0, fmt::format("the file has {} bytes, expected 8 bytes of header size first", file_bytes));
  }
  const auto header_bytes = std::bit_cast<uint64_t>(size_bytes);
  if (header_bytes > kMaxHeaderBytes || header_bytes > file_bytes - kSizeBytes) {
    fail(path, 0,
         fmt::format("the header is said to have {} bytes, but {} follow (and {} are allowed)", header_bytes, file_bytes - kSizeBytes,
                     kMaxHeaderBytes));
  }
  std::string text(header_bytes, '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(header_bytes))) fail(path, kSizeBytes, "the header cannot be read");
  data_begin = kSizeBytes + header_bytes;
  const uint64_t data_bytes = file_bytes - data_begin;
  const Json header = parse_header(path, text);
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      check_metadata(path, value);
    } else {
      entries.push_back(parse_entry(path, name, value, data_bytes));
    }
  }
  check_coverage(path, entries, data_begin, data_bytes);
  return entries;
}

}  // namespace

std::map<std::string, HostTensor> read_safetensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw DataError(fmt::format("read_safetensors: {} cannot be opened; check the path", path));
  const auto end = static_cast<std::streamoff>(file.tellg());
  if (end < 0) throw DataError(fmt::format("read_safetensors: {} is not a regular file", path));
  file.seekg(0);
  uint64_t data_begin = 0;
  const std::vector<Entry> entries = read_entries(path, file, static_cast<uint64_t>(end), data_begin);
  std::map<std::string, HostTensor> tensors;
  for (const Entry& entry : entries) {
    HostTensor tensor{.shape = entry.shape, .dtype = entry.dtype, .data = std::vector<std::byte>(entry.end - entry.begin)};
    file.seekg(static_cast<std::streamoff>(data_begin + entry.begin));
    if (!file.read(reinterpret_cast<char*>(tensor.data.data()), static_cast<std::streamsize>(tensor.data.size()))) {
      fail(path, data_begin + entry.begin, fmt::format("the data of tensor '{}' cannot be read", entry.name));
    }
    tensors.emplace(entry.name, std::move(tensor));
  }
  return tensors;
}

void write_safetensors(const std::string& path, const std::map<std::string, HostTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    if (name == "__metadata__") throw DataError("write_safetensors: a tensor cannot be named __metadata__");
    if (static_cast<int64_t>(tensor.data.size()) != tensor.shape.numel() * size_of(tensor.dtype)) {
      throw DataError(fmt::format("write_safetensors: tensor '{}' has shape {} and dtype {} but {} bytes of data", name, tensor.shape.str(),
                                  dtype_name(tensor.dtype), tensor.data.size()));
    }
    const auto* known = std::find_if(kDtypeNames.begin(), kDtypeNames.end(), [&](const DtypeName& d) { return d.dtype == tensor.dtype; });
    std::vector<int64_t> sizes;
    for (int i = 0; i < tensor.shape.rank(); ++i) sizes.push_back(tensor.shape[i]);
    header[name] = {{"dtype", known->name}, {"shape", sizes}, {"data_offsets", {offset, offset + tensor.data.size()}}};
    offset += tensor.data.size();
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const Json::exception& e) {
    throw DataError(fmt::format("write_safetensors: {}: a name or metadata is not UTF-8: {}", path, e.what()));
  }
  text.append((kSizeBytes - text.size() % kSizeBytes) % kSizeBytes, ' ');  // data begins aligned
  const auto size_bytes = std::bit_cast<std::array<std::byte, kSizeBytes>>(static_cast<uint64_t>(text.size()));
  AtomicFile file(path);
  file.write(size_bytes);
  file.write(text);
  for (const auto& [name, tensor] : tensors) file.write(tensor.data);
  file.commit();
}

}  // namespace vitrine
