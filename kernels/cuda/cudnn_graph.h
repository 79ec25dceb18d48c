// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <cudnn.h>

#include "runtime/dtype.h"

/// A thin layer over cuDNN's graph API in C, of which the toolkit ships only the headers: descriptors that own, attributes whose type follows from
/// the value, and the choice of a plan among the engines that cuDNN's heuristics propose.
namespace vitrine::cuda {

/// throws CudaError with expression, status name, text, device and place unless `status` is CUDNN_STATUS_SUCCESS.
void check_cudnn(cudnnStatus_t status, const char* expression, const char* file, int line);
#define VITRINE_CUDNN_CHECK(expression) ::vitrine::cuda::check_cudnn((expression), #expression, __FILE__, __LINE__)

/// "CUDNN_STATUS_NOT_SUPPORTED: why" of this thread's last call, which returned `status`.
std::string cudnn_message(cudnnStatus_t status);

/// Tells the attribute type of a value; only types that cuDNN knows have one.
constexpr cudnnBackendAttributeType_t cudnn_attribute_type(const int64_t*) { return CUDNN_TYPE_INT64; }
constexpr cudnnBackendAttributeType_t cudnn_attribute_type(const float*) { return CUDNN_TYPE_FLOAT; }
constexpr cudnnBackendAttributeType_t cudnn_attribute_type(const bool*) { return CUDNN_TYPE_BOOLEAN; }
constexpr cudnnBackendAttributeType_t cudnn_attribute_type(const char*) { return CUDNN_TYPE_CHAR; }
constexpr cudnnBackendAttributeType_t cudnn_attribute_type(const cudnnHandle_t*) { return CUDNN_TYPE_HANDLE; }
constexpr cudnnBackendAttributeType_t cudnn_attribute_type(const cudnnDataType_t*) { return CUDNN_TYPE_DATA_TYPE; }
constexpr cudnnBackendAttributeType_t cudnn_attribute_type(const cudnnConvolutionMode_t*) { return CUDNN_TYPE_CONVOLUTION_MODE; }
constexpr cudnnBackendAttributeType_t cudnn_attribute_type(const cudnnPointwiseMode_t*) { return CUDNN_TYPE_POINTWISE_MODE; }
constexpr cudnnBackendAttributeType_t cudnn_attribute_type(const cudnnBackendHeurMode_t*) { return CUDNN_TYPE_HEUR_MODE; }
constexpr cudnnBackendAttributeType_t cudnn_attribute_type(const cudnnBackendNumericalNote_t*) { return CUDNN_TYPE_NUMERICAL_NOTE; }
constexpr cudnnBackendAttributeType_t cudnn_attribute_type(const cudnnBackendBehaviorNote_t*) { return CUDNN_TYPE_BEHAVIOR_NOTE; }

/// Owns one descriptor. Attributes are set, then it is finalized; the functions throw CudaError.
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
  void set(cudnnBackendAttributeName_t name, const CudnnDescriptor& value) { set_raw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value.descriptor_); }
  void set_descriptors(cudnnBackendAttributeName_t name, std::span<const cudnnBackendDescriptor_t> values);
  void set_pointers(cudnnBackendAttributeName_t name, std::span<void* const> values);

  /// Of a finalized descriptor: the attribute's values, as many as there are.
  template <class T>
  std::vector<T> get(cudnnBackendAttributeName_t name) const {
    std::vector<T> values(static_cast<size_t>(get_raw(name, cudnn_attribute_type(static_cast<const T*>(nullptr)), 0, nullptr)));
    if (values.empty()) return values;
    const int64_t count = get_raw(name, cudnn_attribute_type(values.data()), static_cast<int64_t>(values.size()), values.data());
    values.resize(static_cast<size_t>(count));
    return values;
  }
  /// Fills `count` new descriptors of a type. Those that cuDNN did not fill are left out.
  std::vector<CudnnDescriptor> get_descriptors(cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type, int64_t count) const;
  /// How many values the attribute has.
  int64_t count(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type) const { return get_raw(name, type, 0, nullptr); }

  void finalize();
  /// The same for what cuDNN may refuse.
  cudnnStatus_t try_finalize() { return cudnnBackendFinalize(descriptor_); }

 private:
  void set_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count, const void* values);
  int64_t get_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t room, void* values) const;

  cudnnBackendDescriptor_t descriptor_ = nullptr;
};

/// A tensor whose bytes lie (N, H, W, C); filters count as (K, R, S, C), a bias as (1, 1, 1, K).
struct CudnnTensor {
  int64_t id = 0;  // unique in its graph
  std::array<int64_t, 4> nhwc{};
  DType dtype = DType::f32;
  int64_t alignment = 16;  // bytes
  bool in_memory = true;   // false: only handed from one operation of the graph to the next
};
CudnnDescriptor cudnn_tensor(const CudnnTensor& tensor);

/// y = x + b (broadcast), or y = max(x, 0) where b is absent; computes in f32.
CudnnDescriptor cudnn_pointwise(cudnnPointwiseMode_t mode, const CudnnDescriptor& x, const CudnnDescriptor* b, const CudnnDescriptor& y);

/// Where plans are to run: the handle's GPU. Without a handle, the GPU that a descriptor of device properties tells of: plans can be sought, not run.
struct CudnnTarget {
  cudnnHandle_t handle = nullptr;
  const CudnnDescriptor* device_properties = nullptr;
};

/// Which plans may be taken. Always left out: engines that are not deterministic, that round their inputs or sums below f32, that transform their
/// inputs at a cost in accuracy (FFT, Winograd), or that are compiled at run time.
struct CudnnRules {
  bool tensor_cores = false;  // for f32 they mean TF32
  int64_t workspace_bytes = 0;
};

/// A graph that can be run.
class CudnnPlan {
 public:
  CudnnPlan(CudnnDescriptor plan, int64_t workspace_bytes, int64_t engine);
  int64_t workspace_bytes() const { return workspace_bytes_; }
  /// cuDNN's number of the engine among those for graphs like this one.
  int64_t engine() const { return engine_; }
  /// What cuDNN says of its arithmetic.
  std::vector<cudnnBackendNumericalNote_t> numerical_notes() const;
  /// Queues the graph on the handle's stream: pointers[i] is the tensor ids[i].
  void execute(cudnnHandle_t handle, std::span<const int64_t> ids, std::span<void* const> pointers, void* workspace) const;

 private:
  CudnnDescriptor plan_;
  int64_t workspace_bytes_;
  int64_t engine_;
};

/// A plan, or why there is none.
struct CudnnChoice {
  std::unique_ptr<CudnnPlan> plan;
  std::string refusal;
};

/// The first plan in the order of cuDNN's heuristics (mode A, then fallback) that the rules allow. throws CudaError when cuDNN fails otherwise than
/// by not supporting something.
CudnnChoice choose_cudnn_plan(std::span<const cudnnBackendDescriptor_t> operations, const CudnnRules& rules, const CudnnTarget& target);

}  // namespace vitrine::cuda
