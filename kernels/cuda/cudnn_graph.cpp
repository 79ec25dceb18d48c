// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cudnn_graph.h"

#include <algorithm>
#include <optional>
#include <set>
#include <sstream>
#include <utility>

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/cuda/check.h"
#include "runtime/error.h"
#include "runtime/gpu_features.h"
#include "runtime/settings.h"

namespace vitrine::cuda {

namespace {

// Bound on cached addresses, larger than one step needs, so that changing addresses cannot grow memory without limit.
constexpr size_t kMostPacks = 64;

Reason remedy(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_NOT_INITIALIZED:
    case CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED:
      return {"; the GPU's memory may be full: leave some outside the pools (", settings::kMemoryBytes, ")"};
    case CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED:
    case CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH:
      return "; all libraries of cuDNN must have the same version and be in one folder: see LD_LIBRARY_PATH";
    case CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH:
    case CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER:
      return "; this cuDNN does not support the GPU or driver: install another cuDNN, or configure with "
             "-DVITRINE_CUDNN=OFF";
    default:
      return "";
  }
}

/// True when the status means that cuDNN does not support a graph or engine; any other error is a failure.
bool is_refusal(cudnnStatus_t status) {
  const int category = CUDNN_STATUS_CATEGORY(status);
  return category == CUDNN_STATUS_NOT_SUPPORTED || category == CUDNN_STATUS_BAD_PARAM ||
         status == CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED;
}

cudnnDataType_t data_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return CUDNN_DATA_FLOAT;
    case DType::f16:
      return CUDNN_DATA_HALF;
    case DType::bf16:
      return CUDNN_DATA_BFLOAT16;
    default:
      throw DtypeError(fmt::format("conv2d: {} images are not convolved; use f32, f16 or bf16", dtype_name(dtype)));
  }
}

/// Counts why engines were skipped, for the text of the refusal.
struct Reasons {
  int proposed = 0, not_deterministic = 0, tensor_cores = 0, inaccurate = 0, compiled = 0, too_large = 0,
      not_supported = 0;
  int64_t smallest_workspace = INT64_MAX;
  std::string last_message;

  Reason text(const CudnnRules& rules) const {
    if (proposed == 0)
      return last_message.empty() ? "cuDNN proposes no engine" : "cuDNN proposes no engine: " + last_message;
    Reason result = fmt::format("none of the {} engines that cuDNN proposes serves:", proposed);
    const char* separator = "";
    const auto add = [&](int count, const Reason& why) {
      if (count > 0) result += fmt::format("{} {} ", std::exchange(separator, ","), count) + why;
    };
    add(not_deterministic, "not deterministic");
    add(tensor_cores, {"on tensor cores only (", settings::kTf32, " allows them)"});
    add(inaccurate, "of lower accuracy");
    add(compiled, "compiled at run time");
    add(too_large,
        fmt::format("with a workspace of {} bytes or more, of {} reserved", smallest_workspace, rules.workspace_bytes));
    add(not_supported, fmt::format("not supported ({})", last_message));
    return result;
  }
};

CudnnDescriptor engine_of(const CudnnDescriptor& configuration) {
  auto engines = configuration.get_descriptors(CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1);
  if (engines.empty())
    throw CudaError("conv2d: cuDNN gives a configuration without an engine; install another version of cuDNN");
  return std::move(engines.front());
}

/// A proposal of the heuristics.
class Candidate {
 public:
  explicit Candidate(CudnnDescriptor configuration)
      : configuration_(std::move(configuration)),
        engine_(engine_of(configuration_)),
        notes_(engine_.get<cudnnBackendNumericalNote_t>(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE)),
        behaviors_(engine_.get<cudnnBackendBehaviorNote_t>(CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE)) {}

  bool allowed(const CudnnRules& rules, Reasons& reasons) const {
    if (has(CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)) return ++reasons.not_deterministic, false;
    if (!rules.tensor_cores && has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE)) return ++reasons.tensor_cores, false;
    for (const auto note :
         {CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION,
          CUDNN_NUMERICAL_NOTE_FFT, CUDNN_NUMERICAL_NOTE_WINOGRAD, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_4x4,
          CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13}) {
      if (has(note)) return ++reasons.inaccurate, false;
    }
    if (std::ranges::find(behaviors_, CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION) != behaviors_.end())
      return ++reasons.compiled, false;
    return true;
  }

  /// Returns the plan, or none after recording the reason.
  std::unique_ptr<CudnnPlan> make_plan(const CudnnRules& rules, const CudnnTarget& target, bool fallback,
                                       Reasons& reasons) const {
    CudnnDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    // Early releases of cuDNN 9 need the handle; later ones read the GPU from the configuration.
    if (target.handle != nullptr) plan.set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, target.handle);
    plan.set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configuration_);
    if (const cudnnStatus_t status = plan.try_finalize(); status != CUDNN_STATUS_SUCCESS) {
      // Whatever is wrong with this engine, the next one may serve, unless the GPU itself has failed.
      reasons.last_message = cudnn_message(status);
      if (CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_EXECUTION_FAILED) VITRINE_CUDNN_CHECK(status);
      if (target.handle != nullptr) check_device("cudnnBackendFinalize of an execution plan", __FILE_NAME__, __LINE__);
      ++reasons.not_supported;
      return nullptr;
    }
    const int64_t workspace_bytes = plan.get<int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE).at(0);
    if (workspace_bytes > rules.workspace_bytes) {
      ++reasons.too_large;
      reasons.smallest_workspace = std::min(reasons.smallest_workspace, workspace_bytes);
      return nullptr;
    }
    return std::make_unique<CudnnPlan>(std::move(plan), workspace_bytes,
                                       engine_.get<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX).at(0), fallback,
                                       has(CUDNN_NUMERICAL_NOTE_TENSOR_CORE));
  }

 private:
  bool has(cudnnBackendNumericalNote_t note) const { return std::ranges::find(notes_, note) != notes_.end(); }

  CudnnDescriptor configuration_;
  CudnnDescriptor engine_;
  std::vector<cudnnBackendNumericalNote_t> notes_;
  std::vector<cudnnBackendBehaviorNote_t> behaviors_;
};

/// Returns the proposals of one heuristic mode, best first; none when it does not support the graph.
std::vector<CudnnDescriptor> propose(const CudnnDescriptor& graph, cudnnBackendHeurMode_t mode,
                                     const CudnnTarget& target, Reasons& reasons) {
  CudnnDescriptor heuristics(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristics.set(CUDNN_ATTR_ENGINEHEUR_MODE, mode);
#if CUDNN_VERSION >= 90800
  if (target.device_properties != nullptr) heuristics.set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, *target.device_properties);
#endif
  if (const cudnnStatus_t status = heuristics.try_finalize(); status != CUDNN_STATUS_SUCCESS) {
    if (!is_refusal(status)) VITRINE_CUDNN_CHECK(status);
    reasons.last_message = cudnn_message(status);
    return {};
  }
  const int64_t count = heuristics.count(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR);
  return heuristics.get_descriptors(CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, count);
}

/// The graph of the operations; nothing, with the reason, if cuDNN does not support it.
std::optional<CudnnDescriptor> make_graph(std::span<const cudnnBackendDescriptor_t> operations,
                                          const CudnnTarget& target, Reason& refusal) {
  CudnnDescriptor graph(CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  if (target.handle != nullptr) graph.set(CUDNN_ATTR_OPERATIONGRAPH_HANDLE, target.handle);
  graph.set_descriptors(CUDNN_ATTR_OPERATIONGRAPH_OPS, operations);
  if (const cudnnStatus_t status = graph.try_finalize(); status != CUDNN_STATUS_SUCCESS) {
    if (!is_refusal(status)) VITRINE_CUDNN_CHECK(status);
    refusal = "cuDNN refuses the graph: " + cudnn_message(status);
    return std::nullopt;
  }
  return graph;
}

/// An engine and its knobs as CudnnPlan::text() has them; nothing if it is no such text.
struct EngineText {
  int64_t engine = 0;
  std::vector<std::pair<cudnnBackendKnobType_t, int64_t>> knobs;
};
std::optional<EngineText> parse_engine(const std::string& text) {
  EngineText parsed;
  std::istringstream words(text);
  std::string engine, knobs, list;
  words >> engine >> parsed.engine >> knobs;
  if (words.fail() || engine != "engine" || knobs != "knobs") return std::nullopt;
  words >> list;
  std::istringstream choices(list);
  for (std::string choice; std::getline(choices, choice, ',');) {
    std::istringstream pair(choice);
    int type = 0;
    int64_t value = 0;
    char equal = 0;
    pair >> type >> equal >> value;
    if (pair.fail() || equal != '=' || !pair.eof()) return std::nullopt;
    parsed.knobs.emplace_back(static_cast<cudnnBackendKnobType_t>(type), value);
  }
  return parsed;
}

/// The configuration of the text; nothing, with the reason, if cuDNN refuses it.
std::optional<CudnnDescriptor> configure_engine(const CudnnDescriptor& graph, const std::string& text,
                                                const CudnnTarget& target, Reason& refusal) {
  const std::optional<EngineText> wanted = parse_engine(text);
  if (!wanted) {
    refusal = fmt::format("'{}' is no plan of cuDNN's", text);
    return std::nullopt;
  }
  const auto accepted = [&](CudnnDescriptor& descriptor) {
    const cudnnStatus_t status = descriptor.try_finalize();
    if (status == CUDNN_STATUS_SUCCESS) return true;
    if (!is_refusal(status)) VITRINE_CUDNN_CHECK(status);
    refusal = fmt::format("cuDNN refuses '{}': {}", text, cudnn_message(status));
    return false;
  };
  CudnnDescriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  engine.set(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph);
  engine.set(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, wanted->engine);
#if CUDNN_VERSION >= 90800
  if (target.device_properties != nullptr) engine.set(CUDNN_ATTR_ENGINE_DEVICEPROP, *target.device_properties);
#endif
  if (!accepted(engine)) return std::nullopt;
  std::vector<CudnnDescriptor> knobs;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (const auto& [type, value] : wanted->knobs) {
    CudnnDescriptor& knob = knobs.emplace_back(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    knob.set(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, type);
    knob.set(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, value);
    if (!accepted(knob)) return std::nullopt;
    raw.push_back(knob.get());
  }
  CudnnDescriptor configuration(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  configuration.set(CUDNN_ATTR_ENGINECFG_ENGINE, engine);
  if (!raw.empty()) configuration.set_descriptors(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, raw);
  if (!accepted(configuration)) return std::nullopt;
  return configuration;
}

}  // namespace

std::string cudnn_message(cudnnStatus_t status) {
  std::array<char, 1024> text{};
  cudnn().GetLastErrorString(text.data(), text.size());
  text.back() = '\0';
  return text.front() == '\0' ? cudnn().GetErrorString(status)
                              : fmt::format("{}: {}", cudnn().GetErrorString(status), text.data());
}

void check_cudnn(cudnnStatus_t status, const char* expression, const char* file, int line) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  if (CUDNN_STATUS_CATEGORY(status) == CUDNN_STATUS_EXECUTION_FAILED) check_device(expression, file, line);
  const std::string message = cudnn_message(status);
  int device = -1;
  if (cudaGetDevice(&device) != cudaSuccess) cudaGetLastError();
  throw CudaError(fmt::format("{}: {} (cuda:{}, {}:{})", expression, message, device, file, line) + remedy(status) +
                  gpu_safe_hint());
}

CudnnDescriptor::CudnnDescriptor(cudnnBackendDescriptorType_t type) {
  VITRINE_CUDNN_CHECK(cudnn().BackendCreateDescriptor(type, &descriptor_));
}

CudnnDescriptor::~CudnnDescriptor() {
  if (descriptor_ != nullptr) cudnn().BackendDestroyDescriptor(descriptor_);
}

CudnnDescriptor::CudnnDescriptor(CudnnDescriptor&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, nullptr)) {}

CudnnDescriptor& CudnnDescriptor::operator=(CudnnDescriptor&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

void CudnnDescriptor::set_descriptors(cudnnBackendAttributeName_t name,
                                      std::span<const cudnnBackendDescriptor_t> values) {
  set_raw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, static_cast<int64_t>(values.size()), values.data());
}

void CudnnDescriptor::set_pointers(cudnnBackendAttributeName_t name, std::span<void* const> values) {
  set_raw(name, CUDNN_TYPE_VOID_PTR, static_cast<int64_t>(values.size()), values.data());
}

std::vector<CudnnDescriptor> CudnnDescriptor::get_descriptors(cudnnBackendAttributeName_t name,
                                                              cudnnBackendDescriptorType_t type, int64_t count) const {
  std::vector<CudnnDescriptor> result;
  std::vector<cudnnBackendDescriptor_t> raw;
  for (int64_t i = 0; i < count; ++i) raw.push_back(result.emplace_back(type).get());
  if (count == 0) return result;
  const int64_t filled = get_raw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, raw.data());
  while (static_cast<int64_t>(result.size()) > filled) result.pop_back();
  return result;
}

void CudnnDescriptor::finalize() { VITRINE_CUDNN_CHECK(cudnn().BackendFinalize(descriptor_)); }

void CudnnDescriptor::set_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
                              const void* values) {
  if (const cudnnStatus_t status = cudnn().BackendSetAttribute(descriptor_, name, type, count, values);
      status != CUDNN_STATUS_SUCCESS) {
    check_cudnn(status,
                fmt::format("cudnnBackendSetAttribute({}, type {}, {} values)", static_cast<int>(name),
                            static_cast<int>(type), count)
                    .c_str(),
                __FILE_NAME__, __LINE__);
  }
}

int64_t CudnnDescriptor::get_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t room,
                                 void* values) const {
  int64_t count = 0;
  if (const cudnnStatus_t status = cudnn().BackendGetAttribute(descriptor_, name, type, room, &count, values);
      status != CUDNN_STATUS_SUCCESS) {
    check_cudnn(status,
                fmt::format("cudnnBackendGetAttribute({}, type {}, {} values)", static_cast<int>(name),
                            static_cast<int>(type), room)
                    .c_str(),
                __FILE_NAME__, __LINE__);
  }
  return count;
}

CudnnDescriptor cudnn_tensor(const CudnnTensor& tensor) {
  const auto [n, h, w, c] = tensor.nhwc;
  // cuDNN orders dimensions (N, C, H, W) whatever the memory layout.
  const std::array<int64_t, 4> dimensions{n, c, h, w};
  const std::array<int64_t, 4> strides{h * w * c, 1, w * c, c};
  CudnnDescriptor descriptor(CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  descriptor.set(CUDNN_ATTR_TENSOR_UNIQUE_ID, tensor.id);
  descriptor.set(CUDNN_ATTR_TENSOR_DATA_TYPE, data_type(tensor.dtype));
  descriptor.set(CUDNN_ATTR_TENSOR_DIMENSIONS, std::span<const int64_t>(dimensions));
  descriptor.set(CUDNN_ATTR_TENSOR_STRIDES, std::span<const int64_t>(strides));
  descriptor.set(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, tensor.alignment);
  descriptor.set(CUDNN_ATTR_TENSOR_IS_VIRTUAL, !tensor.in_memory);
  descriptor.finalize();
  return descriptor;
}

CudnnDescriptor cudnn_pointwise(cudnnPointwiseMode_t mode, const CudnnDescriptor& x, const CudnnDescriptor* b,
                                const CudnnDescriptor& y) {
  CudnnDescriptor function(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  function.set(CUDNN_ATTR_POINTWISE_MODE, mode);
  function.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT);
  if (mode == CUDNN_POINTWISE_RELU_FWD) function.set(CUDNN_ATTR_POINTWISE_NAN_PROPAGATION, CUDNN_PROPAGATE_NAN);
  function.finalize();
  CudnnDescriptor operation(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, function);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  if (b != nullptr) operation.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, *b);
  operation.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  operation.finalize();
  return operation;
}

CudnnPlan::CudnnPlan(CudnnDescriptor plan, int64_t workspace_bytes, int64_t engine, bool fallback, bool tensor_cores)
    : plan_(std::move(plan)),
      workspace_bytes_(workspace_bytes),
      engine_(engine),
      fallback_(fallback),
      tensor_cores_(tensor_cores) {}

std::vector<cudnnBackendNumericalNote_t> CudnnPlan::numerical_notes() const {
  const auto configurations =
      plan_.get_descriptors(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, 1);
  if (configurations.empty()) return {};
  return engine_of(configurations.front()).get<cudnnBackendNumericalNote_t>(CUDNN_ATTR_ENGINE_NUMERICAL_NOTE);
}

void CudnnPlan::execute(cudnnHandle_t handle, std::span<const int64_t> ids, std::span<void* const> pointers,
                        void* workspace) {
  std::vector<void*> places(pointers.begin(), pointers.end());
  places.push_back(workspace);
  auto pack = packs_.find(places);
  if (pack == packs_.end()) {
    if (packs_.size() >= kMostPacks) packs_.clear();
    CudnnDescriptor made(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    made.set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, ids);
    made.set_pointers(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, pointers);
    made.set_pointers(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, std::span<void* const>(&workspace, 1));
    made.finalize();
    pack = packs_.emplace(std::move(places), std::move(made)).first;
  }
  VITRINE_CUDNN_CHECK(cudnn().BackendExecute(handle, plan_.get(), pack->second.get()));
}

std::string CudnnPlan::text() const {
  const auto configurations =
      plan_.get_descriptors(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, 1);
  std::vector<std::string> knobs;
  for (const CudnnDescriptor& configuration : configurations) {
    // cuDNN does not say how many there are.
    for (const CudnnDescriptor& choice : configuration.get_descriptors(
             CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, CUDNN_KNOB_TYPE_COUNTS)) {
      knobs.push_back(fmt::format(
          "{}={}", static_cast<int>(choice.get<cudnnBackendKnobType_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE).at(0)),
          choice.get<int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE).at(0)));
    }
  }
  return fmt::format("engine {} knobs {}", engine_, fmt::join(knobs, ","));
}

CudnnChoice choose_cudnn_plan(std::span<const cudnnBackendDescriptor_t> operations, const CudnnRules& rules,
                              const CudnnTarget& target) {
  CudnnChoices choices = find_cudnn_plans(operations, rules, target, 1);
  if (choices.plans.empty()) return {nullptr, std::move(choices.refusal)};
  return {std::move(choices.plans.front()), ""};
}

CudnnChoices find_cudnn_plans(std::span<const cudnnBackendDescriptor_t> operations, const CudnnRules& rules,
                              const CudnnTarget& target, int most) {
  CudnnChoices choices;
  const std::optional<CudnnDescriptor> graph = make_graph(operations, target, choices.refusal);
  if (!graph) return choices;
  Reasons reasons;
  std::set<std::string> known;
  for (const auto mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) {
    for (CudnnDescriptor& configuration : propose(*graph, mode, target, reasons)) {
      ++reasons.proposed;
      const Candidate candidate(std::move(configuration));
      if (!candidate.allowed(rules, reasons)) continue;
      auto plan = candidate.make_plan(rules, target, mode == CUDNN_HEUR_MODE_FALLBACK, reasons);
      // The modes propose some plans both.
      if (plan == nullptr || (most > 1 && !known.insert(plan->text()).second)) continue;
      choices.plans.push_back(std::move(plan));
      if (static_cast<int>(choices.plans.size()) == most) return choices;
    }
  }
  if (choices.plans.empty()) choices.refusal = reasons.text(rules);
  return choices;
}

CudnnChoice restore_cudnn_plan(std::span<const cudnnBackendDescriptor_t> operations, const CudnnRules& rules,
                               const CudnnTarget& target, const std::string& text) {
  Reason refusal;
  const std::optional<CudnnDescriptor> graph = make_graph(operations, target, refusal);
  if (!graph) return {nullptr, refusal};
  std::optional<CudnnDescriptor> configuration = configure_engine(*graph, text, target, refusal);
  if (!configuration) return {nullptr, refusal};
  Reasons reasons;
  reasons.proposed = 1;
  const Candidate candidate(std::move(*configuration));
  if (candidate.allowed(rules, reasons)) {
    if (auto plan = candidate.make_plan(rules, target, false, reasons)) return {std::move(plan), ""};
  }
  return {nullptr, reasons.text(rules)};
}

}  // namespace vitrine::cuda
