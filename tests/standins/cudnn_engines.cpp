// SPDX-License-Identifier: Apache-2.0
// Stand-in for cuDNN: the engines that a test wants, the heuristics that propose them, and plans.
#include <algorithm>
#include <mutex>

#include "tests/standins/cudnn_objects.h"

namespace vitrine::standins {
namespace {

std::mutex engines_mutex;
std::vector<ConvolutionEngine> engines;

std::vector<ConvolutionEngine> known_engines() {
  const std::lock_guard lock(engines_mutex);
  return engines;
}

}  // namespace

bool has_cudnn() { return true; }
void set_convolution_engines(const std::vector<ConvolutionEngine>& wanted) {
  const std::lock_guard lock(engines_mutex);
  engines = wanted;
}

namespace cudnn {
namespace {

cudnnStatus_t no_engines() {
  return refuse(CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH,
                "the stand-in has no engines for the imitated GPUs; see set_convolution_engines()");
}

/// Whether there are engines for the graph at all: as in cuDNN, not for ReLU without a bias, for f32 gradients of
/// 16-bit images, or for bf16 on old GPUs.
bool is_served(const Graph& graph) {
  const Convolution& c = graph.convolution;
  const int compute_major = state().machine.compute_major;
  return c.x_type == c.y_type && c.w_type == c.x_type && (!c.relu || c.bias) &&
         (c.x_type != CUDA_R_16BF || compute_major >= 8);
}

/// f32 on tensor cores means TF32, which GPUs have from compute capability 8.0 on.
bool serves(const ConvolutionEngine& engine, const Graph& graph) {
  return is_served(graph) &&
         (!engine.tensor_cores || graph.convolution.x_type != CUDA_R_32F || state().machine.compute_major >= 8);
}

void put_notes(Object& object) {
  std::vector<cudnnBackendNumericalNote_t> numerical;
  if (object.engine.tensor_cores) numerical.push_back(CUDNN_NUMERICAL_NOTE_TENSOR_CORE);
  if (!object.engine.deterministic) numerical.push_back(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
  if (object.engine.winograd) numerical.push_back(CUDNN_NUMERICAL_NOTE_WINOGRAD);
  std::vector<cudnnBackendBehaviorNote_t> behavior;
  if (object.engine.compiled) behavior.push_back(CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION);
  object.put(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, numerical);
  object.put(CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, behavior);
}

/// A finalized object of the engine for the graph of `of`.
std::shared_ptr<Object> made(cudnnBackendDescriptorType_t type, const Object& of, const ConvolutionEngine& engine) {
  auto object = std::make_shared<Object>();
  object->type = type;
  object->finalized = true;
  object->graph = of.graph;
  object->device = of.device;
  object->engine = engine;
  return object;
}

Shared proposal(const Object& heuristics, const ConvolutionEngine& engine) {
  const auto configuration = made(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, heuristics, engine);
  const auto used = made(CUDNN_BACKEND_ENGINE_DESCRIPTOR, heuristics, engine);
  used->put(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, std::vector<int64_t>{engine.index});
  put_notes(*used);
  configuration->put(CUDNN_ATTR_ENGINECFG_ENGINE, {used});
  std::vector<Shared> choices;
  for (const auto& [type, value] : engine.knobs) {
    const auto choice = made(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, heuristics, engine);
    choice->put(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, std::vector<int32_t>{type});
    choice->put(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, std::vector<int64_t>{value});
    choices.push_back(choice);
  }
  configuration->put(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, std::move(choices));
  return configuration;
}

/// The device of an object's graph, or of its device properties.
cudnnStatus_t find_device(Object& object, const Object& graph, cudnnBackendAttributeName_t properties) {
  object.graph = graph.graph;
  object.device = graph.device;
  if (object.has(properties)) object.device = object.object(properties).device;
  if (object.device) return CUDNN_STATUS_SUCCESS;
  return refuse(CUDNN_STATUS_BAD_PARAM, "neither the graph has a handle, nor are there properties of a device");
}

}  // namespace

bool has_engines() {
  const std::lock_guard lock(engines_mutex);
  return !engines.empty();
}

cudnnStatus_t finalize_graph(Object& object) {
  if (object.has(CUDNN_ATTR_OPERATIONGRAPH_HANDLE)) {
    auto* const handle = object.value<cudnnHandle_t>(CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
    if (!is_live(handle)) return refuse(CUDNN_STATUS_BAD_PARAM, "the graph's handle does not exist");
    object.device = handle->device->index;
  }
  if (!has_engines()) return no_engines();
  auto graph = std::make_shared<Graph>();
  const cudnnStatus_t status = make_graph(object.objects(CUDNN_ATTR_OPERATIONGRAPH_OPS), *graph);
  object.graph = std::move(graph);
  return status;
}

cudnnStatus_t finalize_device_properties(Object& properties) {
  const auto device = properties.value<int32_t>(CUDNN_ATTR_DEVICEPROP_DEVICE_ID);
  if (device < 0 || device >= static_cast<int32_t>(state().devices.size()))
    return refuse(CUDNN_STATUS_BAD_PARAM, "there is no device %d", device);
  if (!has_engines()) return no_engines();
  properties.device = device;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finalize_heuristics(Object& heuristics) {
  const cudnnStatus_t status = find_device(heuristics, heuristics.object(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH),
                                           CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  const bool fallback =
      heuristics.value<cudnnBackendHeurMode_t>(CUDNN_ATTR_ENGINEHEUR_MODE) == CUDNN_HEUR_MODE_FALLBACK;
  std::vector<Shared> proposals;
  for (const ConvolutionEngine& engine : known_engines()) {
    const bool proposed = fallback ? engine.proposed != ConvolutionEngine::Proposed::first
                                   : engine.proposed != ConvolutionEngine::Proposed::fallback;
    if (proposed && serves(engine, *heuristics.graph)) proposals.push_back(proposal(heuristics, engine));
  }
  heuristics.put(CUDNN_ATTR_ENGINEHEUR_RESULTS, std::move(proposals));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finalize_engine(Object& object) {
  const cudnnStatus_t status =
      find_device(object, object.object(CUDNN_ATTR_ENGINE_OPERATION_GRAPH), CUDNN_ATTR_ENGINE_DEVICEPROP);
  if (status != CUDNN_STATUS_SUCCESS) return status;
  const auto index = object.value<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX);
  for (const ConvolutionEngine& engine : known_engines()) {
    if (engine.index != index || !serves(engine, *object.graph)) continue;
    object.engine = engine;
    put_notes(object);
    return CUDNN_STATUS_SUCCESS;
  }
  return refuse(CUDNN_STATUS_NOT_SUPPORTED, "no engine %ld serves the graph", index);
}

cudnnStatus_t finalize_knob_choice(const Object& choice) {
  const auto type = choice.value<int32_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE);
  if (type < 0 || type >= CUDNN_KNOB_TYPE_COUNTS)
    return refuse(CUDNN_STATUS_BAD_PARAM, "there is no type %d of knobs", type);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t finalize_configuration(Object& configuration) {
  const Object& used = configuration.object(CUDNN_ATTR_ENGINECFG_ENGINE);
  configuration.graph = used.graph;
  configuration.device = used.device;
  std::vector<std::pair<int, int64_t>> knobs;
  for (const Shared& choice : configuration.objects(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES)) {
    knobs.emplace_back(choice->value<int32_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE),
                       choice->value<int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE));
  }
  for (const ConvolutionEngine& engine : known_engines()) {
    if (engine.index != used.engine.index || !serves(engine, *used.graph) ||
        !std::ranges::is_permutation(engine.knobs, knobs))
      continue;
    configuration.engine = engine;
    return CUDNN_STATUS_SUCCESS;
  }
  return refuse(CUDNN_STATUS_NOT_SUPPORTED, "engine %ld does not take these choices of knobs", used.engine.index);
}

cudnnStatus_t finalize_plan(Object& plan) {
  const Object& configuration = plan.object(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  plan.graph = configuration.graph;
  plan.device = configuration.device;
  plan.engine = configuration.engine;
  if (plan.has(CUDNN_ATTR_EXECUTION_PLAN_HANDLE)) {
    auto* const handle = plan.value<cudnnHandle_t>(CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
    if (!is_live(handle)) return refuse(CUDNN_STATUS_BAD_PARAM, "the plan's handle does not exist");
    if (handle->device->index != *plan.device)
      return refuse(CUDNN_STATUS_BAD_PARAM, "the plan's handle is of device %d, its graph of device %d",
                    handle->device->index, *plan.device);
  }
  if (plan.engine.fault == ConvolutionEngine::Fault::at_finalization)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "engine %ld makes no plan", plan.engine.index);
  if (plan.graph->least_alignment() < plan.engine.least_alignment)
    return refuse(CUDNN_STATUS_NOT_SUPPORTED, "engine %ld takes tensors aligned to %ld bytes", plan.engine.index,
                  plan.engine.least_alignment);
  plan.put(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64,
           std::vector<int64_t>{plan.engine.workspace_bytes});
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace cudnn
}  // namespace vitrine::standins
