// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/dtype.h"
#include "runtime/shape.h"

/// Private to nn/safetensors.cpp.
namespace vitrine::safetensors {

inline constexpr uint64_t kSizeBytes = 8;                 // the header's size, at the file's begin
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
inline constexpr std::string_view kMetadata = "__metadata__";

/// A tensor, and where its bytes lie in the data section.
struct Entry {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;
  uint64_t begin = 0, end = 0;
};

/// "F32"; empty for a name of no dtype of ours.
const char* format_name(DType dtype);

/// The entries of a header, in the order of their data, which they cover without holes or overlaps. Takes time and memory in proportion to the
/// header. throws DataError naming file, offset and tensor.
std::vector<Entry> parse_header(const std::string& path, std::string_view text, uint64_t data_bytes);

/// throws DataError "read_safetensors: PATH, offset N: ...".
[[noreturn]] void fail(const std::string& path, uint64_t offset, const std::string& what);
/// Text of the file for a message: control characters escaped, its middle left out where it is long.
std::string excerpt(std::string_view text, size_t most_bytes = 80);

}  // namespace vitrine::safetensors
