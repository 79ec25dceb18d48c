// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <vitrine/nn/parameter_store.h>
#include <vitrine/runtime/error.h>

namespace vitrine {

/// Called while a file is written, with the bytes so far, each time that more of it is on the disk.
using WriteProgress = std::function<void(int64_t bytes)>;

/// A tensor of a safetensors file, in host memory.
struct HostTensor {
  Shape shape;
  DType dtype = DType::f32;
  std::vector<std::byte> data;
  /// Why it is not read, for a dtype or shape that no tensor here can have: "dtype F8_E4M3". Shape, dtype and data say
  /// nothing then. Empty for all others.
  std::string foreign = {};
};

/// Receives names, shapes and dtypes of a file's tensors, without data, before data is read. Throws to refuse the file.
using HeaderCheck = std::function<void(const std::map<std::string, HostTensor>& without_data)>;

/// Reads all tensors of a safetensors file, in time and memory proportional to the file.
///   path    the file, or an index of Hugging Face (.json) that names several in its folder
///   check   called once the headers are read; files that it refuses cost no memory for their data
/// throws  DataError with file, offset, expected and actual value: bad header, overlapping or missing data, truncation,
///         a file of another kind; OutOfMemory if the data exceed the host memory that is available; what `check`
///         throws
/// source  the safetensors format description (header size u64 little-endian, JSON header, data)
std::map<std::string, HostTensor> read_safetensors(const std::string& path, const HeaderCheck& check = {});
/// What a key of such a file's metadata says; of an index, of the first file that it names. Empty if it is not there.
/// throws  DataError
std::string read_metadata(const std::string& path, const std::string& key);
/// Writes a file that appears under its name when it is complete.   throws  DataError
void write_safetensors(const std::string& path, const std::map<std::string, HostTensor>& tensors,
                       const std::map<std::string, std::string>& metadata, const WriteProgress& progress = {});

/// A tensor whose bytes are produced when it is written, so that a file needs no second copy of all its tensors.
struct TensorSource {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;
  /// Returns the tensor's bytes. They need to stay valid only until the next source is asked.
  std::function<std::span<const std::byte>()> bytes;
};
/// Size and XXH3 hash of a file as it was written.
struct FileDigest {
  int64_t bytes = 0;
  uint64_t xxh3 = 0;
  bool operator==(const FileDigest&) const = default;
};
/// Writes tensors that are produced one after the other, in their order, to a file that appears under its name when it
/// is complete.
///   throws  DataError, also for two tensors of one name
FileDigest stream_safetensors(const std::string& path, std::span<const TensorSource> tensors,
                              const std::map<std::string, std::string>& metadata, const WriteProgress& progress = {});

/// Weights that are not finite.
class NonFiniteWeights : public DataError {
 public:
  using DataError::DataError;
};

struct LoadOptions {
  bool allow_non_finite = false;
  /// Parameters that the file does not have keep their values, also the last layer's if they have another shape there:
  /// for fine-tuning with another head.
  bool partial = false;
};

/// What a file gave to a model.
struct LoadedWeights {
  int64_t parameters = 0, buffers = 0;  // tensors loaded
  std::vector<std::string> not_loaded;  // "fc.weight: shape (1000, 512) in the file, expected (10, 512)"
  std::vector<std::string> unused;      // tensors of the file that the model does not have: "mask: dtype BOOL"
  std::set<std::string> prefixes;       // without which names in the file are the model's
};

/// Reads a weights file, tensors of f32, f16 or bf16 with PyTorch's names and layouts, into host memory with the layout
/// `layout`, and the model's saved buffers: tensors of the same dtypes, and counters as one number of any dtype. A
/// counter that is missing is 0, as in PyTorch's oldest files. Tensors that the model does not have may be of any dtype
/// and rank. Nothing is changed when it throws.
/// A name that is the model's only without prefixes of PyTorch's wrappers, such as "_orig_mod.module.", stands for that
/// parameter or buffer, unless the file also has it under the model's name.
///   path     a file, or an index, as for read_safetensors()
///   buffers  receive the file's values; what a partial load does not find is initial
/// throws  DataError that lists missing parameters (with `partial`, if no parameter is loaded), or gives both shapes or
///         dtypes of the first one that does not fit; or if two names become one; NonFiniteWeights with the first value
///         that is not finite and its index in the file's tensor, unless allow_non_finite
LoadedWeights load_parameters(const std::string& path, const FlatLayout& layout, std::span<float> flat,
                              const BufferLayout& buffer_layout, BufferValues& buffers,
                              const LoadOptions& options = {});
/// Writes such a file.   throws  DataError
void save_parameters(const std::string& path, const FlatLayout& layout, std::span<const float> flat,
                     const BufferLayout& buffer_layout, const BufferValues& buffers,
                     const std::map<std::string, std::string>& metadata, const WriteProgress& progress = {});

/// f32 values with the layout `layout` as tensors of their parameters' names, with ".SUFFIX" after each unless `suffix`
/// is empty, in PyTorch's layouts: "features.0.weight.exp_avg" for an optimizer's state.
///   scratch  reordered_elements(layout), overwritten by sources; both spans must outlive the sources
std::vector<TensorSource> tensor_sources(const FlatLayout& layout, std::span<const float> flat,
                                         const std::string& suffix, std::span<float> scratch);
/// Reads them back from the tensors of the file `path`; padding becomes zero. Tensors of other names are ignored.
/// throws  DataError for a missing tensor, and for another shape or dtype
void read_tensors(const std::string& path, const std::map<std::string, HostTensor>& tensors, const FlatLayout& layout,
                  const std::string& suffix, std::span<float> flat);
/// Elements of the largest parameter whose elements have another order in a file; 0: there is none.
int64_t reordered_elements(const FlatLayout& layout);

/// Writes a (rows, columns) f32 matrix as a NumPy .npy file, version 1.0.   throws  DataError
void write_npy(const std::string& path, std::span<const float> values, int64_t rows, int64_t columns);

}  // namespace vitrine
