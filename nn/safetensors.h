// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/dtype.h"
#include "runtime/shape.h"

/// Private to nn.
namespace vitrine::safetensors {

inline constexpr uint64_t kSizeBytes = 8;                 // the size of the header, at the start of the file
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit
/// What makes other files readable.
inline constexpr const char* kConvertWeights = "docs/examples/convert_weights.py";
inline constexpr std::string_view kMetadata = "__metadata__";

/// A tensor and the range of its bytes in the data section.
struct Entry {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;
  std::string foreign;  // HostTensor::foreign: shape and dtype are not set then
  uint64_t begin = 0, end = 0;
};

/// The name of a dtype in the format, "F32"; empty if it has none.
const char* format_name(DType dtype);

/// Parses a header in time and memory proportional to its size. The entries are in the order of their data, which they
/// cover without gaps or overlaps.   metadata  receives __metadata__, if not null
/// throws  DataError with file, offset and tensor
std::vector<Entry> parse_header(const std::string& path, std::string_view text, uint64_t data_bytes,
                                std::map<std::string, std::string>* metadata = nullptr);

/// throws DataError "read_safetensors: PATH, offset N: ...".
[[noreturn]] void fail(const std::string& path, uint64_t offset, const std::string& what);

}  // namespace vitrine::safetensors
