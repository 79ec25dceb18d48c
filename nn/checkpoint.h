// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <vitrine/nn/parameter_store.h>
#include <vitrine/runtime/error.h>

namespace vitrine {

/// Called while a file is written, each time that more of it is on the disk: with its bytes so far.
using WriteProgress = std::function<void(int64_t bytes)>;

/// A tensor of a safetensors file, in host memory.
struct HostTensor {
  Shape shape;
  DType dtype = DType::f32;
  std::vector<std::byte> data;
};

/// throws DataError with file, offset, expected and found: bad header, overlapping or missing data, unknown dtype, truncation. Takes time and memory
/// in proportion to the file. source  the safetensors format description (header size u64 little-endian, JSON header, data)
std::map<std::string, HostTensor> read_safetensors(const std::string& path);
/// The file appears under its name when it is complete. throws DataError.
void write_safetensors(const std::string& path, const std::map<std::string, HostTensor>& tensors, const std::map<std::string, std::string>& metadata,
                       const WriteProgress& progress = {});

/// Of weights that are not finite, and are refused.
class NonFiniteWeights : public DataError {
 public:
  using DataError::DataError;
};

/// Reads a checkpoint with PyTorch's names and layouts into host memory laid out as `layout`. f32 tensors.
/// throws DataError naming missing and unexpected parameters, and the first of wrong shape (with both shapes); NonFiniteWeights naming the first
/// value that is not finite, with its index in the file's tensor, unless they are allowed.
void load_parameters(const std::string& path, const FlatLayout& layout, std::span<float> flat, bool allow_non_finite = false);
/// Writes such a file.
void save_parameters(const std::string& path, const FlatLayout& layout, std::span<const float> flat,
                     const std::map<std::string, std::string>& metadata, const WriteProgress& progress = {});

/// Writes a (rows, columns) f32 matrix as NumPy .npy, version 1.0. throws DataError.
void write_npy(const std::string& path, std::span<const float> values, int64_t rows, int64_t columns);

}  // namespace vitrine
