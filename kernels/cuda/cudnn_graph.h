// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <cudnn.h>

#include "runtime/cuda/shared_library.h"
#include "runtime/dtype.h"
#include "runtime/reason.h"

/// A thin layer over the C graph API of cuDNN: owning descriptors, attributes whose type follows from the value, and
/// the choice of a plan among the engines that cuDNN's heuristics propose.
namespace vitrine::cuda {

// The functions of cuDNN that we call, without their prefix.
#define VITRINE_CUDNN_FUNCTIONS(use, prefix)                                                                 \
  use(prefix, BackendCreateDescriptor) use(prefix, BackendDestroyDescriptor) use(prefix, BackendExecute)     \
      use(prefix, BackendFinalize) use(prefix, BackendGetAttribute) use(prefix, BackendSetAttribute)         \
          use(prefix, Create) use(prefix, Destroy) use(prefix, GetCudartVersion) use(prefix, GetErrorString) \
              use(prefix, GetLastErrorString) use(prefix, GetVersion) use(prefix, SetStream)

struct Cudnn {
  VITRINE_CUDNN_FUNCTIONS(VITRINE_LIBRARY_MEMBER, cudnn)
};

/// cuDNN, loaded by the first call. throws CudaError with the loader's reason and the remedy
const Cudnn& cudnn();
/// Why cuDNN is not used: it or the cuBLASLt that it needs cannot be loaded, or it is turned off (GpuFeature::cudnn);
/// empty if it is. Ask before the first call of cuDNN.
std::string why_no_cudnn();

/// throws CudaError with expression, status name, text, device, file and line unless `status` is CUDNN_STATUS_SUCCESS.
void check_cudnn(cudnnStatus_t status, const char* expression, const char* file, int line);
#define VITRINE_CUDNN_CHECK(expression) ::vitrine::cuda::check_cudnn((expression), #expression, __FILE_NAME__, __LINE__)

/// Text for the last call of this thread, which returned `status`: "CUDNN_STATUS_NOT_SUPPORTED: why".
std::string cudnn_message(cudnnStatus_t status);

/// The attribute type of a value; defined for types that cuDNN supports.
constexpr cudnnBackendAttributeType_t cudnn_attribute_type(const int64_t*) { return CUDNN_TYPE_INT64; }
constexpr cudnnBackendAttributeType_t cudnn_attribute_type(const int32_t*) { return CUDNN_TYPE_INT32; }
constexpr cudnnBackendAttributeType_t cudnn_attribute_type(const float*) { return CUDNN_TYPE_FLOAT; }
constexpr cudnnBackendAttributeType_t cudnn_attribute_type(const bool*) { return CUDNN_TYPE_BOOLEAN; }
constexpr cudnnBackendAttributeType_t cudnn_attribute_type(const char*) { return CUDNN_TYPE_CHAR; }
constexpr cudnnBackendAttributeType_t cudnn_attribute_type(const cudnnHandle_t*) { return CUDNN_TYPE_HANDLE; }
constexpr cudnnBackendAttributeType_t cudnn_attribute_type(const cudnnDataType_t*) { return CUDNN_TYPE_DATA_TYPE; }
constexpr cudnnBackendAttributeType_t cudnn_attribute_type(const cudnnConvolutionMode_t*) {
  return CUDNN_TYPE_CONVOLUTION_MODE;
}
constexpr cudnnBackendAttributeType_t cudnn_attribute_type(const cudnnPointwiseMode_t*) {
  return CUDNN_TYPE_POINTWISE_MODE;
}
constexpr cudnnBackendAttributeType_t cudnn_attribute_type(const cudnnNanPropagation_t*) {
  return CUDNN_TYPE_NAN_PROPOGATION;
}
constexpr cudnnBackendAttributeType_t cudnn_attribute_type(const cudnnBackendHeurMode_t*) {
  return CUDNN_TYPE_HEUR_MODE;
}
constexpr cudnnBackendAttributeType_t cudnn_attribute_type(const cudnnBackendKnobType_t*) {
  return CUDNN_TYPE_KNOB_TYPE;
}
constexpr cudnnBackendAttributeType_t cudnn_attribute_type(const cudnnBackendNumericalNote_t*) {
  return CUDNN_TYPE_NUMERICAL_NOTE;
}
constexpr cudnnBackendAttributeType_t cudnn_attribute_type(const cudnnBackendBehaviorNote_t*) {
  return CUDNN_TYPE_BEHAVIOR_NOTE;
}

/// Owns a descriptor. Set its attributes, then finalize it. The functions throw CudaError.
class CudnnDescriptor {
 public:
  explicit CudnnDescriptor(cudnnBackendDescriptorType_t type);
  ~CudnnDescriptor();
  CudnnDescriptor(CudnnDescriptor&& other) noexcept;
  CudnnDescriptor& operator=(CudnnDescriptor&& other) noexcept;

  cudnnBackendDescriptor_t get() const { return descriptor_; }

  template <class T>
  void set(cudnnBackendAttributeName_t name, std::span<const T> values) {
    set_raw(name, cudnn_attribute_type(values.data()), static_cast<int64_t>(values.size()), values.data());
  }
  template <class T>
  void set(cudnnBackendAttributeName_t name, const T& value) {
    set(name, std::span<const T>(&value, 1));
  }
  void set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value) {
    set_raw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.descriptor_);
  }
  void set_descriptors(cudnnBackendAttributeName_t name, std::span<const cudnnBackendDescriptor_t> values);
  void set_pointers(cudnnBackendAttributeName_t name, std::span<void* const> values);

  /// All values of an attribute of a finalized descriptor.
  template <class T>
  std::vector<T> get(cudnnBackendAttributeName_t name) const {
    std::vector<T> values(
        static_cast<size_t>(get_raw(name, cudnn_attribute_type(static_cast<const T*>(nullptr)), 0, nullptr)));
    if (values.empty()) return values;
    const int64_t count =
        get_raw(name, cudnn_attribute_type(values.data()), static_cast<int64_t>(values.size()), values.data());
    values.resize(static_cast<size_t>(count));
    return values;
  }
  /// Returns up to `count` descriptors of a type; those that cuDNN did not fill are omitted.
  std::vector<CudnnDescriptor> get_descriptors(cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type,
                                               int64_t count) const;
  /// Number of values of the attribute.
  int64_t count(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type) const {
    return get_raw(name, type, 0, nullptr);
  }

  void finalize();
  /// The same for calls that cuDNN may refuse.
  cudnnStatus_t try_finalize() { return cudnn().BackendFinalize(descriptor_); }

 private:
  void set_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, const void* values);
  int64_t get_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t room, void* values) const;

  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

/// A tensor with layout (N, H, W, C); filters are (K, R, S, C), a bias is (1, 1, 1, K).
struct CudnnTensor {
  int64_t id = 0;  // unique in its graph
  std::array<int64_t, 4> nhwc{};
  DType dtype = DType::f32;
  int64_t alignment = 16;  // bytes
  bool in_memory = true;   // false: passed from one operation of the graph to the next
};
CudnnDescriptor cudnn_tensor(const CudnnTensor& tensor);

/// y = x + b (broadcast), or y = max(x, 0) if b is absent; computes in f32. NaN stays NaN.
CudnnDescriptor cudnn_pointwise(cudnnPointwiseMode_t mode, const CudnnDescriptor& x, const CudnnDescriptor* b,
                                const CudnnDescriptor& y);

/// The GPU that plans run on: the handle's, or without a handle the one that the device properties describe. Plans
/// without a handle can be found, not run.
struct CudnnTarget {
  cudnnHandle_t handle = nullptr;
  const CudnnDescriptor* device_properties = nullptr;
};

/// Which plans are allowed. Never allowed: engines that are not deterministic, that round their inputs or sums below
/// f32, that lose accuracy by transforming their inputs (FFT, Winograd), or that are compiled at run time.
struct CudnnRules {
  bool tensor_cores = false;  // for f32 they mean TF32
  int64_t workspace_bytes = 0;
};

/// An executable graph.
class CudnnPlan {
 public:
  CudnnPlan(CudnnDescriptor plan, int64_t workspace_bytes, int64_t engine, bool fallback, bool tensor_cores);
  int64_t workspace_bytes() const { return workspace_bytes_; }
  /// cuDNN's index of the engine among those for this kind of graph.
  int64_t engine() const { return engine_; }
  /// True for a plan of the fallback heuristic, which cuDNN offers where no allowed engine of its first choice serves.
  bool fallback() const { return fallback_; }
  bool tensor_cores() const { return tensor_cores_; }
  /// The engine and its knobs, from which the same version of cuDNN makes the same plan again: "engine 38 knobs
  /// 2=1,3=0,18=9".
  std::string text() const;
  /// cuDNN's notes on its arithmetic.
  std::vector<cudnnBackendNumericalNote_t> numerical_notes() const;
  /// Queues the graph on the handle's stream: pointers[i] is the tensor ids[i], with the same ids in every call.
  /// Descriptors of pointers are kept: a training step uses the same places again.
  void execute(cudnnHandle_t handle, std::span<const int64_t> ids, std::span<void* const> pointers, void* workspace);

 private:
  CudnnDescriptor plan_;
  int64_t workspace_bytes_;
  int64_t engine_;
  bool fallback_, tensor_cores_;
  std::map<std::vector<void*>, CudnnDescriptor> packs_;  // by pointers and workspace
};

/// A plan, or why there is none.
struct CudnnChoice {
  std::unique_ptr<CudnnPlan> plan;
  Reason refusal;
};

/// The first allowed plan in the order of cuDNN's heuristics (mode A, then fallback).   throws  CudaError when cuDNN
/// fails, except for graphs that it does not support
CudnnChoice choose_cudnn_plan(std::span<const cudnnBackendDescriptor_t> operations, const CudnnRules& rules,
                              const CudnnTarget& target);

/// Up to `most` allowed plans in that order, each once, or why there is none.   throws  CudaError as above
struct CudnnChoices {
  std::vector<std::unique_ptr<CudnnPlan>> plans;
  Reason refusal;
};
CudnnChoices find_cudnn_plans(std::span<const cudnnBackendDescriptor_t> operations, const CudnnRules& rules,
                              const CudnnTarget& target, int most);

/// The plan of CudnnPlan::text(), if cuDNN still makes it and the rules allow it; otherwise why not.   throws
/// CudaError as above
CudnnChoice restore_cudnn_plan(std::span<const cudnnBackendDescriptor_t> operations, const CudnnRules& rules,
                               const CudnnTarget& target, const std::string& text);

}  // namespace vitrine::cuda
