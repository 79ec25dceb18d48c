// SPDX-License-Identifier: Apache-2.0
// Stand-in for cuDNN: descriptors and their attributes. Refuses what the real library refuses: attributes of other
// descriptors, types and counts, required attributes that are missing, descriptors that are used before they are
// finalized or changed afterwards.
#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>

#include "tests/standins/cudnn_objects.h"

namespace vitrine::standins {
namespace cudnn {
namespace {

enum class Use : uint8_t { required, optional, result };

/// An attribute that descriptors of a type have.
struct Rule {
  cudnnBackendAttributeName_t name;
  cudnnBackendAttributeType_t type;
  int64_t least, most;  // values
  Use use;
  std::vector<cudnnBackendDescriptorType_t> objects = {};  // types of descriptors
};
using Rules = std::vector<Rule>;

constexpr int64_t kMany = 1 << 20;

Rule one(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, Use use = Use::required) {
  return {name, type, 1, 1, use};
}
Rule object(cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type, Use use = Use::required) {
  return {name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, use, {type}};
}

/// The operands' names differ between the three passes.
Rules convolution_rules(cudnnBackendAttributeName_t x, cudnnBackendAttributeName_t w, cudnnBackendAttributeName_t y,
                        cudnnBackendAttributeName_t geometry, cudnnBackendAttributeName_t alpha,
                        cudnnBackendAttributeName_t beta) {
  return {object(x, CUDNN_BACKEND_TENSOR_DESCRIPTOR),
          object(w, CUDNN_BACKEND_TENSOR_DESCRIPTOR),
          object(y, CUDNN_BACKEND_TENSOR_DESCRIPTOR),
          object(geometry, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR),
          one(alpha, CUDNN_TYPE_FLOAT),
          one(beta, CUDNN_TYPE_FLOAT)};
}

std::unordered_map<int, Rules> make_rules() {
  const auto pair = [](cudnnBackendAttributeName_t name) { return Rule{name, CUDNN_TYPE_INT64, 2, 2, Use::required}; };
  std::unordered_map<int, Rules> all;
  all[CUDNN_BACKEND_TENSOR_DESCRIPTOR] = {one(CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64),
                                          one(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE),
                                          {CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 3, 8, Use::required},
                                          {CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 3, 8, Use::required},
                                          one(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64),
                                          one(CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, Use::optional)};
  all[CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR] = {one(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64),
                                               one(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE),
                                               one(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE),
                                               pair(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS),
                                               pair(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS),
                                               pair(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES),
                                               pair(CUDNN_ATTR_CONVOLUTION_DILATIONS)};
  all[CUDNN_BACKEND_POINTWISE_DESCRIPTOR] = {
      one(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE),
      one(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE),
      one(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_TYPE_NAN_PROPOGATION, Use::optional)};
  all[CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR] =
      convolution_rules(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA);
  all[CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR] = convolution_rules(
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA);
  all[CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR] = convolution_rules(
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA);
  all[CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR] = {
      object(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, CUDNN_BACKEND_POINTWISE_DESCRIPTOR),
      object(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_BACKEND_TENSOR_DESCRIPTOR),
      object(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_BACKEND_TENSOR_DESCRIPTOR, Use::optional),
      object(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_BACKEND_TENSOR_DESCRIPTOR)};
  all[CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR] = {
      one(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, Use::optional),
      {CUDNN_ATTR_OPERATIONGRAPH_OPS,
       CUDNN_TYPE_BACKEND_DESCRIPTOR,
       1,
       kMany,
       Use::required,
       {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
        CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
        CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR}}};
  all[CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR] = {one(CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32)};
  all[CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR] = {
      object(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR),
      one(CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE),
      object(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, Use::optional),
      {CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 0, kMany, Use::result}};
  all[CUDNN_BACKEND_ENGINE_DESCRIPTOR] = {
      object(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR),
      one(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64),
      object(CUDNN_ATTR_ENGINE_DEVICEPROP, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, Use::optional),
      {CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, 0, kMany, Use::result},
      {CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, 0, kMany, Use::result}};
  all[CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR] = {one(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE),
                                               one(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64)};
  all[CUDNN_BACKEND_ENGINECFG_DESCRIPTOR] = {object(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR),
                                             {CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                                              CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                              1,
                                              CUDNN_KNOB_TYPE_COUNTS,
                                              Use::optional,
                                              {CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR}}};
  all[CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR] = {
      one(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, Use::optional),
      object(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR),
      one(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, Use::result)};
  all[CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR] = {
      {CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 1, kMany, Use::required},
      {CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 1, kMany, Use::required},
      one(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR)};
  return all;
}

const Rules* rules_of(cudnnBackendDescriptorType_t type) {
  static const auto* const all = new std::unordered_map<int, Rules>(make_rules());
  const auto found = all->find(type);
  return found == all->end() ? nullptr : &found->second;
}

size_t bytes_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    default:
      return 4;
  }
}

/// The live descriptors.
struct Descriptors {
  std::mutex mutex;
  std::unordered_map<cudnnBackendDescriptor_t, std::shared_ptr<Object>> live;
};
Descriptors& descriptors() {
  static auto* const all =
      new Descriptors;  // lives until the process ends: destructors of statics may still destroy descriptors
  return *all;
}

std::shared_ptr<Object> live_object(cudnnBackendDescriptor_t descriptor) {
  const std::lock_guard lock(descriptors().mutex);
  const auto found = descriptors().live.find(descriptor);
  return found == descriptors().live.end() ? nullptr : found->second;
}

cudnnStatus_t no_descriptor(const char* call, cudnnBackendDescriptor_t descriptor) {
  if (descriptor == nullptr) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "%s: no descriptor is given", call);
  return refuse(CUDNN_STATUS_BAD_PARAM, "%s: %p is no descriptor, or a destroyed one", call, descriptor);
}

/// The rule of the attribute, or null with the error in `status`.
const Rule* rule_of(const Object& object, cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                    const char* call, cudnnStatus_t& status) {
  for (const Rule& rule : *rules_of(object.type)) {
    if (rule.name != name) continue;
    if (rule.type == type) return &rule;
    status = refuse(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE, "%s: attribute %d has type %d, not %d", call, name,
                    rule.type, type);
    return nullptr;
  }
  status = refuse(CUDNN_STATUS_BAD_PARAM, "%s: the stand-in's descriptors of type %d have no attribute %d", call,
                  object.type, name);
  return nullptr;
}

cudnnStatus_t read_objects(const Rule& rule, int64_t count, const void* values, std::vector<Shared>& objects) {
  for (int64_t i = 0; i < count; ++i) {
    cudnnBackendDescriptor_t descriptor = static_cast<const cudnnBackendDescriptor_t*>(values)[i];
    const std::shared_ptr<Object> object = live_object(descriptor);
    if (object == nullptr) return no_descriptor("cudnnBackendSetAttribute", descriptor);
    if (std::find(rule.objects.begin(), rule.objects.end(), object->type) == rule.objects.end())
      return refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "attribute %d takes no descriptor of type %d", rule.name,
                    object->type);
    if (!object->finalized)
      return refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "attribute %d: a descriptor of type %d is not finalized",
                    rule.name, object->type);
    objects.push_back(object);
  }
  return CUDNN_STATUS_SUCCESS;
}

/// Makes the caller's descriptors refer to the objects.
cudnnStatus_t write_objects(const std::vector<Shared>& objects, int64_t count, void* values) {
  const std::lock_guard lock(descriptors().mutex);
  for (int64_t i = 0; i < count; ++i) {
    const Shared& object = objects[static_cast<size_t>(i)];
    const auto place = descriptors().live.find(static_cast<cudnnBackendDescriptor_t*>(values)[i]);
    if (place == descriptors().live.end())
      return refuse(CUDNN_STATUS_BAD_PARAM, "cudnnBackendGetAttribute: the array of results holds no descriptor at %ld",
                    i);
    if (place->second->type != object->type || place->second->finalized)
      return refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE,
                    "cudnnBackendGetAttribute: the results need fresh descriptors of type %d", object->type);
    place->second = std::const_pointer_cast<Object>(object);  // finalized, so nothing changes it
  }
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finalize(Object& object) {
  for (const Rule& rule : *rules_of(object.type)) {
    if (rule.use == Use::required && !object.has(rule.name))
      return refuse(CUDNN_STATUS_BAD_PARAM, "a descriptor of type %d lacks its attribute %d", object.type, rule.name);
  }
  // The graph checks convolutions and operations together.
  const std::pair<cudnnBackendDescriptorType_t, std::function<cudnnStatus_t(Object&)>> finalizers[] = {
      {CUDNN_BACKEND_TENSOR_DESCRIPTOR, finalize_tensor},
      {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, finalize_graph},
      {CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, finalize_device_properties},
      {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, finalize_heuristics},
      {CUDNN_BACKEND_ENGINE_DESCRIPTOR, finalize_engine},
      {CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, finalize_knob_choice},
      {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, finalize_configuration},
      {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, finalize_plan},
      {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, finalize_variant_pack}};
  for (const auto& [type, finalizer] : finalizers)
    if (type == object.type) return finalizer(object);
  return CUDNN_STATUS_SUCCESS;
}

thread_local std::string last_message;

}  // namespace

cudnnStatus_t refuse(cudnnStatus_t status, const char* format, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  last_message = text;
  return status;
}

Shared finalized_object(cudnnBackendDescriptor_t descriptor, cudnnBackendDescriptorType_t type, const char* what,
                        cudnnStatus_t& status) {
  const std::shared_ptr<Object> object = live_object(descriptor);
  if (object == nullptr) {
    status = no_descriptor(what, descriptor);
  } else if (object->type != type) {
    status = refuse(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE, "%s is a descriptor of type %d, not %d", what, object->type,
                    type);
  } else if (!object->finalized) {
    status = refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED, "%s is not finalized", what);
  } else {
    return object;
  }
  return nullptr;
}

}  // namespace cudnn

int64_t live_cudnn_descriptors() {
  const std::lock_guard lock(cudnn::descriptors().mutex);
  return static_cast<int64_t>(cudnn::descriptors().live.size());
}

}  // namespace vitrine::standins

namespace cudnn = vitrine::standins::cudnn;

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* descriptor) {
  if (descriptor == nullptr)
    return cudnn::refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER,
                         "cudnnBackendCreateDescriptor: no place for the descriptor");
  if (cudnn::rules_of(type) == nullptr)
    return cudnn::refuse(CUDNN_STATUS_NOT_SUPPORTED, "the stand-in has no descriptors of type %d", type);
  auto object = std::make_shared<cudnn::Object>();
  object->type = type;
  *descriptor = new char;  // an address that no other descriptor has
  const std::lock_guard lock(cudnn::descriptors().mutex);
  cudnn::descriptors().live.emplace(*descriptor, std::move(object));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t descriptor) {
  const std::lock_guard lock(cudnn::descriptors().mutex);
  if (cudnn::descriptors().live.erase(descriptor) == 0)
    return cudnn::no_descriptor("cudnnBackendDestroyDescriptor", descriptor);
  delete static_cast<char*>(descriptor);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  const std::shared_ptr<cudnn::Object> object = cudnn::live_object(descriptor);
  if (object == nullptr) return cudnn::no_descriptor("cudnnBackendSetAttribute", descriptor);
  if (object->finalized)
    return cudnn::refuse(CUDNN_STATUS_BAD_PARAM,
                         "cudnnBackendSetAttribute: a descriptor of type %d is finalized and cannot change",
                         object->type);
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  const cudnn::Rule* const rule = cudnn::rule_of(*object, name, type, "cudnnBackendSetAttribute", status);
  if (rule == nullptr) return status;
  if (rule->use == cudnn::Use::result)
    return cudnn::refuse(CUDNN_STATUS_BAD_PARAM, "attribute %d is a result and cannot be set", name);
  if (count < rule->least || count > rule->most)
    return cudnn::refuse(CUDNN_STATUS_BAD_PARAM, "attribute %d takes %ld to %ld values, not %ld", name, rule->least,
                         rule->most, count);
  if (values == nullptr)
    return cudnn::refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "attribute %d: no values are given", name);
  cudnn::Attribute attribute{type, count, {}, {}};
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    status = cudnn::read_objects(*rule, count, values, attribute.objects);
    if (status != CUDNN_STATUS_SUCCESS) return status;
  } else {
    const auto* const begin = static_cast<const std::byte*>(values);
    attribute.bytes.assign(begin, begin + static_cast<size_t>(count) * cudnn::bytes_of(type));
  }
  object->attributes[name] = std::move(attribute);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t descriptor, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t room, int64_t* count, void* values) {
  const std::shared_ptr<cudnn::Object> object = cudnn::live_object(descriptor);
  if (object == nullptr) return cudnn::no_descriptor("cudnnBackendGetAttribute", descriptor);
  if (!object->finalized)
    return cudnn::refuse(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED,
                         "cudnnBackendGetAttribute: a descriptor of type %d is not finalized", object->type);
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  const cudnn::Rule* const rule = cudnn::rule_of(*object, name, type, "cudnnBackendGetAttribute", status);
  if (rule == nullptr) return status;
  if (room < 0 || (room > 0 && values == nullptr))
    return cudnn::refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "attribute %d: no place for its values", name);
  const auto found = object->attributes.find(name);
  const int64_t there = found == object->attributes.end() ? 0 : found->second.count;
  // Without room the number of values; but for the choices of knobs, which cuDNN does not count.
  const int64_t written = room == 0 ? there : std::min(room, there);
  if (count != nullptr) *count = room == 0 && name == CUDNN_ATTR_ENGINECFG_KNOB_CHOICES ? 0 : written;
  if (room == 0 || written == 0) return CUDNN_STATUS_SUCCESS;
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) return cudnn::write_objects(found->second.objects, written, values);
  std::memcpy(values, found->second.bytes.data(), static_cast<size_t>(written) * cudnn::bytes_of(type));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t descriptor) {
  const std::shared_ptr<cudnn::Object> object = cudnn::live_object(descriptor);
  if (object == nullptr) return cudnn::no_descriptor("cudnnBackendFinalize", descriptor);
  if (object->type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR && vitrine::standins::state().machine.cudnn_aborts) {
    std::fputs("Invalid handle. Cannot load symbol cublasLtGetVersion\n", stderr);
    std::abort();
  }
  if (object->finalized)
    return cudnn::refuse(CUDNN_STATUS_BAD_PARAM, "cudnnBackendFinalize: a descriptor of type %d is finalized already",
                         object->type);
  const cudnnStatus_t status = cudnn::finalize(*object);
  object->finalized = status == CUDNN_STATUS_SUCCESS;
  return status;
}

void cudnnGetLastErrorString(char* message, size_t room) {
  if (message == nullptr || room == 0) return;
  std::snprintf(message, room, "%s", cudnn::last_message.c_str());
  cudnn::last_message.clear();
}
