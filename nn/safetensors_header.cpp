// SPDX-License-Identifier: Apache-2.0
#include "nn/safetensors_header.h"

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "nn/json_file.h"
#include "runtime/error.h"
#include "runtime/printable.h"

namespace vitrine::safetensors {
namespace {

using Json = nlohmann::json;

// The limit of serde_json, which the reference reader uses.
constexpr size_t kMostNested = 128;

struct DtypeName {
  const char* name;
  DType dtype;
};
constexpr std::array kDtypeNames{DtypeName{"F32", DType::f32},   DtypeName{"F16", DType::f16},
                                 DtypeName{"BF16", DType::bf16}, DtypeName{"I32", DType::i32},
                                 DtypeName{"U8", DType::u8},     DtypeName{"I64", DType::i64}};

/// A list of numbers in the header: all are counted, but no more are stored than a valid list has.
struct Numbers {
  size_t count = 0;
  std::array<uint64_t, Shape::kMaxRank> values{};
  bool given = false;

  std::span<const uint64_t> kept() const { return std::span(values).first(std::min(count, values.size())); }
  std::string str() const {
    return fmt::format("[{}{}]", fmt::join(kept(), ", "), count > values.size() ? ", ..." : "");
  }
};

/// Parses the JSON of the header as a stream, so that only the entries are stored.
class HeaderReader final : public nlohmann::json_sax<Json> {
 public:
  HeaderReader(const std::string& path, uint64_t data_bytes) : path_(path), data_bytes_(data_bytes) {}

  std::vector<Entry> take_entries() {
    refuse_duplicates(metadata_keys_, "the metadata has the key");
    std::vector<std::string_view> names(entries_.size());
    std::transform(entries_.begin(), entries_.end(), names.begin(),
                   [](const Entry& entry) { return std::string_view(entry.name); });
    refuse_duplicates(names, "the header has the key");
    return std::move(entries_);
  }

  bool null() override { return take_other("null"); }
  bool boolean(bool value) override { return take_other(value ? "true" : "false"); }
  bool number_integer(int64_t value) override { return take_other(fmt::format("{}", value)); }
  bool number_float(double /*value*/, const std::string& text) override { return take_other(text); }
  bool binary(Json::binary_t& /*value*/) override { return take_other("binary data"); }

  bool number_unsigned(uint64_t value) override {
    if (place_ != Place::list || value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      return take_other(fmt::format("{}", value));
    Numbers& list = *list_;
    if (list.count < list.values.size()) list.values[list.count] = value;
    ++list.count;
    return true;
  }

  bool string(std::string& value) override {
    if (place_ == Place::metadata || place_ == Place::skipped) return true;
    if (place_ != Place::tensor || key_ != "dtype") return take_other("\"" + value + "\"");
    dtype_ = std::move(value);
    return true;
  }

  bool key(std::string& value) override {
    switch (place_) {
      case Place::header:
        if (value == kMetadata && std::exchange(metadata_seen_, true))
          problem(fmt::format("the header has the key '{}' twice", kMetadata));
        break;
      case Place::tensor:
        for (size_t i = 0; i < kFields.size(); ++i) {
          if (value == kFields[i] && std::exchange(seen_[i], true))
            problem(fmt::format("tensor '{}' has the key '{}' twice", excerpt(name_), value));
        }
        break;
      case Place::metadata:
        metadata_keys_.push_back(std::move(value));
        return true;
      default:
        return true;
    }
    key_ = std::move(value);
    return true;
  }

  bool start_object(size_t /*elements*/) override {
    enter();
    if (place_ == Place::nothing) {
      place_ = Place::header;
    } else if (place_ == Place::header && key_ == kMetadata) {
      place_ = Place::metadata;
    } else if (place_ == Place::header) {
      name_ = std::exchange(key_, {});
      dtype_.clear();
      seen_ = {};
      shape_ = offsets_ = {};
      place_ = Place::tensor;
    } else if (place_ == Place::tensor && !is_field()) {
      skip();
    } else if (place_ != Place::skipped) {
      take_other("an object");
    }
    return true;
  }

  bool end_object() override {
    leave();
    if (place_ == Place::tensor) add_entry();
    if (place_ == Place::tensor || place_ == Place::metadata) place_ = Place::header;
    return end_skipping();
  }

  bool start_array(size_t /*elements*/) override {
    enter();
    if (place_ == Place::tensor && (key_ == "shape" || key_ == "data_offsets")) {
      list_ = key_ == "shape" ? &shape_ : &offsets_;
      list_->given = true;
      place_ = Place::list;
    } else if (place_ == Place::tensor && !is_field()) {
      skip();
    } else if (place_ != Place::skipped) {
      take_other("an array");
    }
    return true;
  }

  bool end_array() override {
    leave();
    if (place_ == Place::list) place_ = Place::tensor;
    return end_skipping();
  }

  bool parse_error(size_t position, const std::string& /*token*/, const Json::exception& error) override {
    fail(path_, kSizeBytes + (position > 0 ? position - 1 : 0),
         fmt::format("the header is not JSON: {}", describe_json_error(error)));
  }

 private:
  enum class Place { nothing, header, metadata, tensor, list, skipped };
  static constexpr std::array<std::string_view, 3> kFields{"dtype", "shape", "data_offsets"};

  [[noreturn]] void problem(const std::string& what) const { fail(path_, kSizeBytes, what); }
  bool is_field() const { return std::find(kFields.begin(), kFields.end(), key_) != kFields.end(); }

  /// Reports a value of the wrong kind for its place. Fields that the format does not define may have any value.
  bool take_other(const std::string& value) {
    switch (place_) {
      case Place::nothing:
        problem(fmt::format("the header is the JSON value {}, expected an object", excerpt(value)));
      case Place::header:
        if (key_ == kMetadata) problem("__metadata__ is not an object of strings");
        problem(fmt::format("tensor '{}' is described by {}, expected an object", excerpt(key_), excerpt(value)));
      case Place::metadata:
        problem("__metadata__ is not an object of strings");
      case Place::list:
        problem(fmt::format("tensor '{}' has {} in {}, expected non-negative integers", excerpt(name_), excerpt(value),
                            key_));
      case Place::tensor:
        if (key_ == "dtype")
          problem(fmt::format("tensor '{}' has dtype {}, expected a string", excerpt(name_), excerpt(value)));
        if (is_field())
          problem(fmt::format("tensor '{}' has {} {}, expected a list", excerpt(name_), key_, excerpt(value)));
        return true;
      case Place::skipped:
        return true;
    }
    return true;
  }

  void enter() {
    if (++depth_ > kMostNested) problem(fmt::format("the header is nested deeper than {} levels", kMostNested));
  }
  void leave() { --depth_; }
  void skip() {
    place_ = Place::skipped;
    skipped_at_ = depth_;
  }
  bool end_skipping() {
    if (place_ == Place::skipped && depth_ < skipped_at_) place_ = Place::tensor;
    return true;
  }

  DType parse_dtype() const {
    if (!seen_[0]) problem(fmt::format("tensor '{}' has no dtype", excerpt(name_)));
    const auto* known =
        std::find_if(kDtypeNames.begin(), kDtypeNames.end(), [&](const DtypeName& d) { return dtype_ == d.name; });
    if (known == kDtypeNames.end()) {
      problem(fmt::format("tensor '{}' has dtype {}, expected F32, F16, BF16, I32, I64 or U8; convert it before saving",
                          excerpt(name_), excerpt(dtype_)));
    }
    return known->dtype;
  }

  void add_entry() {
    const DType dtype = parse_dtype();
    for (const auto& [list, field] : {std::pair(&shape_, kFields[1]), std::pair(&offsets_, kFields[2])}) {
      if (!list->given) problem(fmt::format("tensor '{}' has no list of {}", excerpt(name_), field));
    }
    if (shape_.count > Shape::kMaxRank) {
      problem(fmt::format("tensor '{}' has {} dimensions, expected at most {}", excerpt(name_), shape_.count,
                          Shape::kMaxRank));
    }
    const uint64_t begin = offsets_.values[0], end = offsets_.values[1];
    if (offsets_.count != 2 || begin > end || end > data_bytes_) {
      problem(fmt::format("tensor '{}' has data_offsets {}, expected two ascending offsets up to {}", excerpt(name_),
                          offsets_.str(), data_bytes_));
    }
    auto bytes = static_cast<uint64_t>(size_of(dtype));
    bool fits = true;
    for (const uint64_t size : shape_.kept()) fits = fits && !__builtin_mul_overflow(bytes, size, &bytes);
    if (!fits || bytes != end - begin) {
      problem(fmt::format("tensor '{}' of shape {} and dtype {} has {} bytes of data, which does not fit",
                          excerpt(name_), shape_.str(), dtype_name(dtype), end - begin));
    }
    const std::vector<int64_t> sizes(shape_.kept().begin(), shape_.kept().end());
    entries_.push_back({std::move(name_), Shape(std::span<const int64_t>(sizes)), dtype, begin, end});
  }

  template <typename Text>
  void refuse_duplicates(std::vector<Text>& keys, const char* what) const {
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice != keys.end()) problem(fmt::format("{} '{}' twice", what, excerpt(*twice)));
  }

  const std::string& path_;
  const uint64_t data_bytes_;
  std::vector<Entry> entries_;
  std::vector<std::string> metadata_keys_;
  bool metadata_seen_ = false;

  Place place_ = Place::nothing;
  size_t depth_ = 0, skipped_at_ = 0;
  std::string key_;

  // The tensor being read.
  std::string name_, dtype_;
  std::array<bool, kFields.size()> seen_{};
  Numbers shape_, offsets_;
  Numbers* list_ = nullptr;
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
  const auto* known =
      std::find_if(kDtypeNames.begin(), kDtypeNames.end(), [&](const DtypeName& d) { return d.dtype == dtype; });
  return known == kDtypeNames.end() ? "" : known->name;
}

std::vector<Entry> parse_header(const std::string& path, std::string_view text, uint64_t data_bytes) {
  // JSON allows a byte order mark and blanks here, the format does not.
  if (!text.empty() && text[0] != '{' &&
      (text[0] == '\xEF' || std::string_view(" \t\r\n").find(text[0]) != std::string_view::npos)) {
    fail(path, kSizeBytes,
         fmt::format("the header begins with byte 0x{:02x}, expected '{{'", static_cast<uint8_t>(text[0])));
  }
  HeaderReader reader(path, data_bytes);
  Json::sax_parse(text.begin(), text.end(), &reader);
  std::vector<Entry> entries = reader.take_entries();
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return std::pair(a.begin, a.end) < std::pair(b.begin, b.end); });
  check_coverage(path, entries, kSizeBytes + text.size(), data_bytes);
  return entries;
}

void fail(const std::string& path, uint64_t offset, const std::string& what) {
  throw DataError(fmt::format("{}, offset {}: {}", path, offset, what));
}

}  // namespace vitrine::safetensors
