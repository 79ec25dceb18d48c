// SPDX-License-Identifier: Apache-2.0
// Stand-in for cuDNN: handles, variant packs and execution. Checks what the real one checks, and also cases in which
// that would compute garbage.
#include <atomic>
#include <cstring>

#include "tests/standins/cudnn_objects.h"
#include "tests/standins/sanitizers.h"

namespace standins = vitrine::standins;
using standins::Call;
using standins::Convolution;
using standins::ConvolutionEngine;
using standins::cudnn::Graph;
using standins::cudnn::refuse;
using standins::cudnn::Shared;

namespace {

constexpr uintptr_t kWorkspaceAlignment = 256;

std::atomic<size_t> cudnn_version{CUDNN_VERSION};

/// The real library leaves it to chance what happens otherwise.
cudnnStatus_t check_current(const standins::Device& device, const char* call) {
  if (standins::current_index() == device.index) return CUDNN_STATUS_SUCCESS;
  return refuse(CUDNN_STATUS_BAD_PARAM, "%s: the handle is of device %d, but device %d is current", call, device.index,
                standins::current_index());
}

/// A tensor of an execution.
struct Operand {
  const char* name;
  const void* data;
  int64_t bytes;
};

bool overlap(const Operand& a, const Operand& b) {
  const auto begin_a = reinterpret_cast<uintptr_t>(a.data), begin_b = reinterpret_cast<uintptr_t>(b.data);
  return begin_a < begin_b + static_cast<uintptr_t>(b.bytes) && begin_b < begin_a + static_cast<uintptr_t>(a.bytes);
}

struct Execution {
  Convolution convolution;
  std::vector<Operand> operands;  // the result first
  void* scratch = nullptr;
  int64_t scratch_bytes = 0;
  int64_t simulated_ns = 0;
};

/// The operand's data from the pack.
cudnnStatus_t find_data(const standins::cudnn::Object& pack, const Graph& graph, int64_t id, const void*& data) {
  const auto found = pack.pointers.find(id);
  if (found == pack.pointers.end())
    return refuse(CUDNN_STATUS_BAD_PARAM, "the variant pack lacks tensor %ld of the plan", id);
  data = found->second;
  if (data == nullptr) return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "tensor %ld has no data", id);
  const int64_t alignment = graph.alignments.at(id);
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(alignment) == 0) return CUDNN_STATUS_SUCCESS;
  return refuse(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER,
                "tensor %ld at %p is not aligned to %ld bytes, as the plan assumes", id, data, alignment);
}

cudnnStatus_t find_operands(const standins::cudnn::Object& pack, const Graph& graph, Execution& run) {
  Convolution& c = run.convolution;
  std::vector<std::pair<int64_t, const void**>> places{{graph.x, &c.x}, {graph.w, &c.w}, {graph.y, &c.y}};
  if (graph.bias) places.emplace_back(*graph.bias, &c.bias_data);
  for (const auto& [id, data] : places) {
    if (const cudnnStatus_t status = find_data(pack, graph, id, *data); status != CUDNN_STATUS_SUCCESS) return status;
  }
  for (const auto& [id, pointer] : pack.pointers) {
    if (!graph.alignments.contains(id))
      return refuse(CUDNN_STATUS_BAD_PARAM, "the variant pack has tensor %ld, which the plan does not know", id);
  }
  run.operands = {{"x", c.x, c.x_bytes()}, {"w", c.w, c.w_bytes()}, {"y", c.y, c.y_bytes()}};
  const size_t result = c.pass == Convolution::Pass::backward_data     ? 0
                        : c.pass == Convolution::Pass::backward_weight ? 1
                                                                       : 2;
  std::swap(run.operands[0], run.operands[result]);
  if (c.bias) run.operands.push_back({"the bias", c.bias_data, c.bias_bytes()});
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t find_scratch(const standins::cudnn::Object& pack, Execution& run) {
  if (run.scratch_bytes == 0) return CUDNN_STATUS_SUCCESS;
  run.scratch = pack.value<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
  if (run.scratch == nullptr)
    return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "the plan needs a workspace of %ld bytes, and has none",
                  run.scratch_bytes);
  if (reinterpret_cast<uintptr_t>(run.scratch) % kWorkspaceAlignment != 0)
    return refuse(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER, "the workspace at %p is not aligned to %zu bytes",
                  run.scratch, kWorkspaceAlignment);
  return CUDNN_STATUS_SUCCESS;
}

/// The result and the workspace must not be part of anything else.
cudnnStatus_t check_overlaps(const Execution& run) {
  const Operand scratch{"the workspace", run.scratch, run.scratch_bytes};
  for (size_t i = 0; i < run.operands.size(); ++i) {
    const Operand& operand = run.operands[i];
    if (overlap(scratch, operand)) return refuse(CUDNN_STATUS_BAD_PARAM, "the workspace overlaps %s", operand.name);
    if (i > 0 && overlap(run.operands[0], operand))
      return refuse(CUDNN_STATUS_BAD_PARAM, "the result, %s, overlaps %s", run.operands[0].name, operand.name);
  }
  return CUDNN_STATUS_SUCCESS;
}

/// On the stream's worker.
void perform(const Execution& run) {
  for (size_t i = 1; i < run.operands.size(); ++i) standins::tell_read(run.operands[i].data, run.operands[i].bytes);
  if (run.convolution.beta != 0) standins::tell_read(run.operands[0].data, run.operands[0].bytes);
  standins::tell_write(run.operands[0].data, run.operands[0].bytes);
  if (run.scratch_bytes > 0) {
    standins::tell_write(run.scratch, run.scratch_bytes);
    std::memset(run.scratch, 0xFF, static_cast<size_t>(run.scratch_bytes));
  }
  standins::convolve(run.convolution);
}

}  // namespace

void vitrine::standins::set_cudnn_version(size_t wanted) { cudnn_version = wanted; }
void vitrine::standins::clear_cudnn() {
  set_convolution_engines({});
  cudnn_version = CUDNN_VERSION;
}

bool vitrine::standins::cudnn::is_live(cudnnHandle_t handle) {
  const std::shared_lock lock(state().mutex);
  return state().cudnn_handles.contains(handle);
}

cudnnStatus_t vitrine::standins::cudnn::finalize_variant_pack(Object& pack) {
  const auto ids = pack.values<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = pack.values<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  if (ids.size() != pointers.size())
    return refuse(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT, "a variant pack has %zu ids and %zu pointers", ids.size(),
                  pointers.size());
  for (size_t i = 0; i < ids.size(); ++i) {
    if (!pack.pointers.emplace(ids[i], pointers[i]).second)
      return refuse(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES, "a variant pack has two pointers for tensor %ld",
                    ids[i]);
  }
  return CUDNN_STATUS_SUCCESS;
}

size_t cudnnGetVersion() { return cudnn_version; }
size_t cudnnGetCudartVersion() { return standins::state().machine.cudnn_of_cuda_77 ? 77000 : CUDART_VERSION; }

const char* cudnnGetErrorString(cudnnStatus_t status) {
#define VITRINE_STATUS(name) \
  case name:                 \
    return #name
  switch (status) {
    VITRINE_STATUS(CUDNN_STATUS_SUCCESS);
    VITRINE_STATUS(CUDNN_STATUS_NOT_INITIALIZED);
    VITRINE_STATUS(CUDNN_STATUS_BAD_PARAM);
    VITRINE_STATUS(CUDNN_STATUS_BAD_PARAM_NULL_POINTER);
    VITRINE_STATUS(CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER);
    VITRINE_STATUS(CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED);
    VITRINE_STATUS(CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT);
    VITRINE_STATUS(CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH);
    VITRINE_STATUS(CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES);
    VITRINE_STATUS(CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE);
    VITRINE_STATUS(CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE);
    VITRINE_STATUS(CUDNN_STATUS_NOT_SUPPORTED);
    VITRINE_STATUS(CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN);
    VITRINE_STATUS(CUDNN_STATUS_NOT_SUPPORTED_SHAPE);
    VITRINE_STATUS(CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE);
    VITRINE_STATUS(CUDNN_STATUS_NOT_SUPPORTED_LAYOUT);
    VITRINE_STATUS(CUDNN_STATUS_NOT_SUPPORTED_PADDING);
    VITRINE_STATUS(CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH);
    VITRINE_STATUS(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED);
    VITRINE_STATUS(CUDNN_STATUS_EXECUTION_FAILED);
    VITRINE_STATUS(CUDNN_STATUS_EXECUTION_FAILED_CUDART);
    default:
      return "CUDNN_STATUS_INTERNAL_ERROR";
  }
#undef VITRINE_STATUS
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  standins::count_call(Call::other);
  cudaError_t code = cudaSuccess;
  standins::Device* const device = standins::current_device(code);
  if (device == nullptr) return refuse(CUDNN_STATUS_NOT_INITIALIZED, "cudnnCreate: no device can be used");
  if (standins::capture_forbids("cudnnCreate"))
    return refuse(CUDNN_STATUS_NOT_INITIALIZED, "cudnnCreate: a stream is being captured");
  const std::unique_lock lock(standins::state().mutex);
  if (device->used_bytes + standins::kHandleBytes > standins::state().machine.capacity_bytes)
    return refuse(CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED, "cudnnCreate: the memory of device %d is full",
                  device->index);
  device->used_bytes += standins::kHandleBytes;
  *handle = new cudnnContext{device, nullptr};
  standins::state().cudnn_handles.insert(*handle);
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  standins::count_call(Call::other);
  const std::unique_lock lock(standins::state().mutex);
  if (!standins::state().cudnn_handles.contains(handle))
    return refuse(CUDNN_STATUS_NOT_INITIALIZED, "cudnnDestroy: the handle does not exist");
  if (const cudnnStatus_t status = check_current(*handle->device, "cudnnDestroy"); status != CUDNN_STATUS_SUCCESS)
    return status;
  standins::state().cudnn_handles.erase(handle);
  handle->device->used_bytes -= standins::kHandleBytes;
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  standins::count_call(Call::other);
  if (!standins::cudnn::is_live(handle))
    return refuse(CUDNN_STATUS_NOT_INITIALIZED, "cudnnSetStream: the handle does not exist");
  if (!standins::is_live(stream, "cudnnSetStream"))
    return refuse(CUDNN_STATUS_BAD_PARAM, "cudnnSetStream: no stream is given");
  if (&stream->device != handle->device)
    return refuse(CUDNN_STATUS_BAD_PARAM, "cudnnSetStream: the handle is of device %d, the stream of device %d",
                  handle->device->index, stream->device.index);
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan_descriptor,
                                  cudnnBackendDescriptor_t pack_descriptor) {
  if (standins::note_call(Call::convolution)) return CUDNN_STATUS_EXECUTION_FAILED;
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  const Shared plan =
      standins::cudnn::finalized_object(plan_descriptor, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, "the plan", status);
  if (plan == nullptr) return status;
  const Shared pack = standins::cudnn::finalized_object(pack_descriptor, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR,
                                                        "the variant pack", status);
  if (pack == nullptr) return status;
  const ConvolutionEngine& engine = plan->engine;
  Execution run{
      plan->graph->convolution, {}, nullptr, engine.workspace_bytes, static_cast<int64_t>(engine.simulated_ms * 1e6)};
  run.convolution.tf32 = engine.tensor_cores && run.convolution.x_type == CUDA_R_32F;
  run.convolution.more_parts = engine.index;
  for (const auto& [type, value] : engine.knobs) run.convolution.more_parts += value;
  if (status = find_operands(*pack, *plan->graph, run); status != CUDNN_STATUS_SUCCESS) return status;
  if (status = find_scratch(*pack, run); status != CUDNN_STATUS_SUCCESS) return status;
  if (status = check_overlaps(run); status != CUDNN_STATUS_SUCCESS) return status;
  if (!standins::cudnn::is_live(handle))
    return refuse(CUDNN_STATUS_BAD_PARAM_NULL_POINTER, "cudnnBackendExecute: the handle does not exist");
  if (status = check_current(*handle->device, "cudnnBackendExecute"); status != CUDNN_STATUS_SUCCESS) return status;
  if (handle->device->index != *plan->device)
    return refuse(CUDNN_STATUS_BAD_PARAM, "the plan is for device %d, the handle of device %d", *plan->device,
                  handle->device->index);
  if (!standins::is_live(handle->stream, "cudnnBackendExecute"))
    return refuse(CUDNN_STATUS_BAD_PARAM, "the handle has no stream");
  if (engine.fault == ConvolutionEngine::Fault::at_execution)
    return refuse(CUDNN_STATUS_EXECUTION_FAILED, "engine %ld fails", engine.index);
  standins::Device& device = *handle->device;
  bool touches = standins::may_touch(device, run.scratch, run.scratch_bytes, "cuDNN's workspace");
  for (const Operand& operand : run.operands)
    touches = standins::may_touch(device, operand.data, operand.bytes, operand.name) && touches;
  const auto work = [run, &device] {
    perform(run);
    device.simulated_ns.fetch_add(run.simulated_ns, std::memory_order_relaxed);
  };
  // Another shape may be another kernel.
  standins::load_function(handle->stream,
                          2 + static_cast<uint64_t>(run.convolution.x_bytes() * 31 + run.convolution.w_bytes() * 1009 +
                                                    static_cast<int>(run.convolution.pass)));
  if (standins::queue_work(handle->stream, touches, work) == cudaSuccess) return CUDNN_STATUS_SUCCESS;
  return refuse(CUDNN_STATUS_EXECUTION_FAILED_CUDART, "the device or the capture has failed");
}
