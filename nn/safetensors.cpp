// SPDX-License-Identifier: Apache-2.0
#include "nn/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "nn/atomic_file.h"
#include "nn/json_file.h"
#include "nn/weights_file.h"
#include "runtime/descriptor.h"
#include "runtime/error.h"
#include "runtime/file_type.h"
#include "runtime/hash.h"
#include "runtime/memory/available.h"
#include "runtime/text.h"

namespace vitrine::safetensors {
namespace {

using Json = nlohmann::json;

// The limit of serde_json, which the reference reader uses.
constexpr int kMostNested = 128;

struct DtypeName {
  const char* name;
  DType dtype;
};
constexpr std::array kDtypeNames{DtypeName{"F32", DType::f32},   DtypeName{"F16", DType::f16},
                                 DtypeName{"BF16", DType::bf16}, DtypeName{"I32", DType::i32},
                                 DtypeName{"U8", DType::u8},     DtypeName{"I64", DType::i64}};

/// A value as messages show it.
std::string kind_or_text(const Json& value) {
  if (value.is_object() || value.is_array()) return value.is_object() ? "an object" : "an array";
  return excerpt(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

/// Turns each tensor into an entry as soon as the parser has read it, so that only the entries are stored.
class HeaderReader {
 public:
  HeaderReader(const std::string& path, uint64_t data_bytes) : path_(path), data_bytes_(data_bytes) {}

  /// The parser's callback; false: the parser drops the value.
  bool take(int depth, Json::parse_event_t event, const Json& value) {
    using Event = Json::parse_event_t;
    switch (event) {
      case Event::key:
        return take_key(depth, value.get_ref<const std::string&>());
      case Event::object_start:
      case Event::array_start:
        return begin(depth, event == Event::object_start ? Json::object() : Json::array());
      case Event::object_end:
        if (depth == 1) end_member(value);
        return depth != 1;
      case Event::array_end:
        return true;
      case Event::value:
        if (depth < 2) refuse_member(depth, value);
        return depth == 2 || keep_item();
    }
    return true;
  }

  std::vector<Entry> take_entries() { return std::move(entries_); }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

 private:
  static constexpr std::array<std::string_view, 3> kFields{"dtype", "shape", "data_offsets"};

  [[noreturn]] void problem(const std::string& what) const { fail(path_, kSizeBytes, what); }
  [[noreturn]] void problem_of_tensor(const std::string& what) const {
    problem(fmt::format("tensor '{}' {}", excerpt(name_), what));
  }
  bool in_metadata() const { return name_ == kMetadata; }

  /// Fields that the format does not define may have any value, also twice.
  bool take_key(int depth, const std::string& key) {
    const bool is_name = depth == 1;
    if (!is_name && !in_metadata() && std::ranges::find(kFields, key) == kFields.end()) return keeps_ = false;
    if (depth > 2) return false;
    if (!(is_name ? names_ : keys_).insert(key).second) {
      if (!is_name && !in_metadata()) problem_of_tensor(fmt::format("has the key '{}' twice", key));
      problem(fmt::format("the {} has the key '{}' twice", is_name ? "header" : "metadata", excerpt(key)));
    }
    if (is_name) name_ = key;
    items_ = 0;
    return keeps_ = true;
  }

  /// Of lists, only as many items are kept as show what is wrong.
  bool keep_item() { return ++items_ <= Shape::kMaxRank + 1; }

  bool begin(int depth, const Json& kind) {
    if (depth >= kMostNested) problem(fmt::format("the header is nested deeper than {} levels", kMostNested));
    if (depth < 2 && !kind.is_object()) refuse_member(depth, kind);
    if (depth == 1) keys_.clear();
    return depth < 2 || (keeps_ && (depth == 2 || (depth == 3 && keep_item())));
  }

  /// Refuses a header, or a member of it, that is no object.
  [[noreturn]] void refuse_member(int depth, const Json& value) const {
    if (depth == 0) problem(fmt::format("the header is the JSON value {}, expected an object", kind_or_text(value)));
    if (in_metadata()) problem("__metadata__ is not an object of strings");
    problem_of_tensor(fmt::format("is described by {}, expected an object", kind_or_text(value)));
  }

  void end_member(const Json& member) {
    if (!in_metadata()) return add_entry(member);
    if (!std::ranges::all_of(member, [](const Json& value) { return value.is_string(); }))
      problem("__metadata__ is not an object of strings");
    metadata_ = member.get<std::map<std::string, std::string>>();
  }

  const std::string& dtype_of(const Json& tensor) const {
    if (!tensor.contains("dtype")) problem_of_tensor("has no dtype");
    const Json& dtype = tensor["dtype"];
    if (!dtype.is_string()) problem_of_tensor(fmt::format("has dtype {}, expected a string", kind_or_text(dtype)));
    return dtype.get_ref<const std::string&>();
  }

  std::vector<int64_t> numbers_of(const Json& tensor, std::string_view field) const {
    const auto list = tensor.find(field);
    if (list == tensor.end()) problem_of_tensor(fmt::format("has no list of {}", field));
    if (!list->is_array()) problem_of_tensor(fmt::format("has {} {}, expected a list", field, kind_or_text(*list)));
    for (const Json& number : *list) {
      if (!number.is_number_unsigned() || number.get<uint64_t>() > std::numeric_limits<int64_t>::max())
        problem_of_tensor(fmt::format("has {} in {}, expected non-negative integers", kind_or_text(number), field));
    }
    return list->get<std::vector<int64_t>>();
  }

  void add_entry(const Json& tensor) {
    const std::string& dtype = dtype_of(tensor);
    const std::vector<int64_t> shape = numbers_of(tensor, "shape"), offsets = numbers_of(tensor, "data_offsets");
    const auto data_bytes = static_cast<uint64_t>(data_bytes_);
    if (offsets.size() != 2 || offsets[0] > offsets[1] || static_cast<uint64_t>(offsets[1]) > data_bytes) {
      const bool is_short = offsets.size() == 2 && offsets[0] <= offsets[1];
      problem_of_tensor(fmt::format("has data_offsets [{}], expected two ascending offsets up to {}{}",
                                    fmt::join(offsets, ", "), data_bytes,
                                    is_short ? "; the file may have been cut off: copy it again" : ""));
    }
    Entry entry{name_, {}, {}, {}, static_cast<uint64_t>(offsets[0]), static_cast<uint64_t>(offsets[1])};
    const auto* known = std::ranges::find_if(kDtypeNames, [&](const DtypeName& d) { return dtype == d.name; });
    if (known == kDtypeNames.end()) {
      entry.foreign = fmt::format("dtype {}", excerpt(dtype));
    } else if (shape.size() > Shape::kMaxRank) {
      entry.foreign = fmt::format("more than {} dimensions", Shape::kMaxRank);
    } else {
      entry.dtype = known->dtype;
      entry.shape = shape_of(shape, entry);
    }
    entries_.push_back(std::move(entry));
  }

  Shape shape_of(const std::vector<int64_t>& shape, const Entry& entry) const {
    int64_t bytes = size_of(entry.dtype);
    bool fits = true;
    for (const int64_t size : shape) fits = fits && !__builtin_mul_overflow(bytes, size, &bytes);
    if (!fits || static_cast<uint64_t>(bytes) != entry.end - entry.begin) {
      problem_of_tensor(fmt::format("of shape [{}] and dtype {} has {} bytes of data, which does not fit",
                                    fmt::join(shape, ", "), dtype_name(entry.dtype), entry.end - entry.begin));
    }
    return Shape(std::span<const int64_t>(shape));
  }

  const std::string& path_;
  const uint64_t data_bytes_;
  std::map<std::string, std::string> metadata_;
  std::vector<Entry> entries_;
  std::set<std::string> names_, keys_;  // of the header, and of the member being read
  std::string name_;                    // of that member
  bool keeps_ = true;                   // its present field is one that the format defines
  size_t items_ = 0;                    // of that field's list
};

/// Checks that every byte of the data section belongs to exactly one tensor.
void check_coverage(const std::string& path, const std::vector<Entry>& entries, uint64_t data_begin,
                    uint64_t data_bytes) {
  uint64_t expected = 0;
  for (const Entry& entry : entries) {
    if (entry.begin != expected) {
      fail(path, data_begin + std::min(entry.begin, expected),
           fmt::format("tensor '{}' begins at {} of the data, expected {}: data {}", excerpt(entry.name), entry.begin,
                       expected, entry.begin < expected ? "overlaps" : "has a hole"));
    }
    expected = entry.end;
  }
  if (expected != data_bytes)
    fail(path, data_begin + expected, fmt::format("{} bytes follow the last tensor", data_bytes - expected));
}

}  // namespace

const char* format_name(DType dtype) {
  const auto* known = std::ranges::find_if(kDtypeNames, [&](const DtypeName& d) { return d.dtype == dtype; });
  return known == kDtypeNames.end() ? "" : known->name;
}

std::vector<Entry> parse_header(const std::string& path, std::string_view text, uint64_t data_bytes,
                                std::map<std::string, std::string>* metadata) {
  // JSON allows a byte order mark and blanks here, the format does not.
  if (!text.empty() && text[0] != '{' &&
      (text[0] == '\xEF' || std::string_view(" \t\r\n").find(text[0]) != std::string_view::npos)) {
    fail(path, kSizeBytes,
         fmt::format("the header begins with byte 0x{:02x}, expected '{{'", static_cast<uint8_t>(text[0])));
  }
  HeaderReader reader(path, data_bytes);
  try {
    // Nothing is left: the reader takes all members out.
    [[maybe_unused]] const Json left = Json::parse(
        text.begin(), text.end(),
        [&](int depth, Json::parse_event_t event, Json& value) { return reader.take(depth, event, value); });
  } catch (const Json::exception& error) {
    const auto* const place = dynamic_cast<const Json::parse_error*>(&error);
    fail(path, kSizeBytes + (place != nullptr && place->byte > 0 ? place->byte - 1 : 0),
         fmt::format("the header is not JSON: {}", describe_json_error(error)));
  }
  if (metadata != nullptr) *metadata = reader.metadata();
  std::vector<Entry> entries = reader.take_entries();
  std::ranges::sort(
      entries, [](const Entry& a, const Entry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  check_coverage(path, entries, kSizeBytes + text.size(), data_bytes);
  return entries;
}

void fail(const std::string& path, uint64_t offset, const std::string& what) {
  throw DataError(fmt::format("{}, offset {}: {}", path, offset, what));
}

}  // namespace vitrine::safetensors

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
  const std::map<std::string, std::string>& metadata() const { return metadata_; }

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
    return parse_header(path_, text, file_bytes - data_begin_, &metadata_);
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
  std::map<std::string, std::string> metadata_;
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

std::string read_metadata(const std::string& path, const std::string& key) {
  const OpenFile file(shards_of(path).front());
  const auto found = file.metadata().find(key);
  return found == file.metadata().end() ? std::string() : found->second;
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
