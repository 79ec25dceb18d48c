// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include <cudnn.h>

#include "tests/standins/controls.h"
#include "tests/standins/convolution.h"
#include "tests/standins/machine.h"

/// What the descriptors of the stand-in for cuDNN refer to. Private to it.
struct cudnnContext {
  vitrine::standins::Device* device = nullptr;
  cudaStream_t stream = nullptr;
};

namespace vitrine::standins::cudnn {

/// Keeps the text for cudnnGetLastErrorString() and returns the status.
[[gnu::format(printf, 2, 3)]] cudnnStatus_t refuse(cudnnStatus_t status, const char* format, ...);

struct Object;
using Shared = std::shared_ptr<const Object>;

struct Attribute {
  cudnnBackendAttributeType_t type = CUDNN_TYPE_INT64;
  int64_t count = 0;
  std::vector<std::byte> bytes;  // of plain values
  std::vector<Shared> objects;   // of descriptors
};

/// A convolution and what follows it.
struct Graph {
  Convolution convolution;  // without its data
  int64_t x = 0, w = 0, y = 0;
  std::optional<int64_t> bias;
  std::map<int64_t, int64_t> alignments;  // of the tensors in memory, by id
  int64_t least_alignment() const;
};

/// A finalized object does not change any more, so that others share it, as cuDNN's keep what they were made of.
struct Object {
  cudnnBackendDescriptorType_t type = CUDNN_BACKEND_TENSOR_DESCRIPTOR;
  bool finalized = false;
  std::map<int, Attribute> attributes;
  // Of a finalized graph, and of what is made of it:
  std::shared_ptr<const Graph> graph;
  std::optional<int> device;  // of the handle or the device properties
  ConvolutionEngine engine;   // of an engine and what is made of it
  // Of a finalized variant pack:
  std::map<int64_t, void*> pointers;

  bool has(cudnnBackendAttributeName_t name) const { return attributes.contains(name); }
  /// All values of an attribute; none if it is not set.
  template <class T>
  std::vector<T> values(cudnnBackendAttributeName_t name) const {
    const auto found = attributes.find(name);
    if (found == attributes.end()) return {};
    std::vector<T> all(static_cast<size_t>(found->second.count));
    if (!all.empty()) std::memcpy(all.data(), found->second.bytes.data(), found->second.bytes.size());
    return all;
  }
  /// The first value, or T{}.
  template <class T>
  T value(cudnnBackendAttributeName_t name) const {
    const std::vector<T> all = values<T>(name);
    return all.empty() ? T{} : all.front();
  }
  std::vector<Shared> objects(cudnnBackendAttributeName_t name) const {
    const auto found = attributes.find(name);
    return found == attributes.end() ? std::vector<Shared>() : found->second.objects;
  }
  /// The only object of a required attribute.
  const Object& object(cudnnBackendAttributeName_t name) const { return *attributes.at(name).objects.front(); }
  /// For attributes that the library sets.
  template <class T>
  void put(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t value_type, const std::vector<T>& all) {
    Attribute attribute{
        value_type, static_cast<int64_t>(all.size()), std::vector<std::byte>(all.size() * sizeof(T)), {}};
    if (!all.empty()) std::memcpy(attribute.bytes.data(), all.data(), attribute.bytes.size());
    attributes[name] = std::move(attribute);
  }
  void put(cudnnBackendAttributeName_t name, std::vector<Shared> all) {
    const auto count = static_cast<int64_t>(all.size());
    attributes[name] = {CUDNN_TYPE_BACKEND_DESCRIPTOR, count, {}, std::move(all)};
  }
};

/// The finalized object of a live descriptor of the type, or null with the error in `status`. `what` names it in the
/// text.
Shared finalized_object(cudnnBackendDescriptor_t descriptor, cudnnBackendDescriptorType_t type, const char* what,
                        cudnnStatus_t& status);

/// Whether `handle` exists.
bool is_live(cudnnHandle_t handle);

/// Check an object whose required attributes are set, and compute what it will be asked for.
cudnnStatus_t finalize_tensor(const Object& tensor);
cudnnStatus_t finalize_graph(Object& graph);
cudnnStatus_t finalize_device_properties(Object& properties);
cudnnStatus_t finalize_heuristics(Object& heuristics);
cudnnStatus_t finalize_engine(Object& engine);
cudnnStatus_t finalize_knob_choice(const Object& choice);
cudnnStatus_t finalize_configuration(Object& configuration);
cudnnStatus_t finalize_plan(Object& plan);
cudnnStatus_t finalize_variant_pack(Object& pack);

/// The convolution of the operations, of which the first is the convolution; or what is wrong with them, or not
/// supported.
cudnnStatus_t make_graph(const std::vector<Shared>& operations, Graph& graph);

/// Whether there are engines in this process: set_convolution_engines().
bool has_engines();

}  // namespace vitrine::standins::cudnn
