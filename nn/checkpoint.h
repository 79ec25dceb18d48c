// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include <vitrine/nn/parameter_store.h>

namespace vitrine {

/// A tensor of a safetensors file, in host memory.
struct HostTensor {
  Shape shape;
  DType dtype = DType::f32;
  std::vector<std::byte> data;
};

/// throws DataError with file, offset, expected and found: bad header, overlapping or missing data, unknown dtype, truncation.
/// source  the safetensors format description (header size u64 little-endian, JSON header, data)
std::map<std::string, HostTensor> read_safetensors(const std::string& path);
/// Writes to a temporary file beside `path` first, then renames. throws DataError.
void write_safetensors(const std::string& path, const std::map<std::string, HostTensor>& tensors, const std::map<std::string, std::string>& metadata);

/// Reads a checkpoint with PyTorch's names and layouts into host memory laid out as `layout`. f32 tensors.
/// throws DataError naming every missing and unexpected parameter, and the first of wrong shape (with both shapes).
void load_parameters(const std::string& path, const FlatLayout& layout, std::span<float> flat);
/// Writes such a file.
void save_parameters(const std::string& path, const FlatLayout& layout, std::span<const float> flat,
                     const std::map<std::string, std::string>& metadata);

/// Writes a (rows, columns) f32 matrix as NumPy .npy, version 1.0. throws DataError.
void write_npy(const std::string& path, std::span<const float> values, int64_t rows, int64_t columns);

}  // namespace vitrine
