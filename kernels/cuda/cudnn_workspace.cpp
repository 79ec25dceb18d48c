// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "kernels/cuda/cudnn_conv2d_plan.h"
#include "kernels/recorded_operations.h"
#include "kernels/workspace.h"
#include "runtime/error.h"
#include "runtime/gpu_info.h"

namespace vitrine::cuda {
namespace {

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max() / 2;
constexpr int kFirstWithoutHandle = 90800;  // the version of cuDNN from which on plans need no handle

/// A graph, and the bytes that it leaves to other uses at the end of the arena.
struct Request {
  CudnnConv2d graph;
  int64_t piece_bytes = 0;
};

/// The graphs that kernels/conv2d_cuda.cpp tries, in its order.
std::vector<Request> requests_of(const RecordedConv2d& c, bool tf32) {
  CudnnConv2d graph;
  graph.pass = c.pass;
  graph.dtype = c.dtype;
  graph.x = sizes_of(c.x);
  graph.w = sizes_of(c.w);
  graph.y = sizes_of(c.y);
  graph.stride = c.config.stride;
  graph.pad = c.config.pad;
  graph.tf32 = tf32;
  if (c.pass == Conv2dPass::forward) {
    graph.relu = c.config.relu;
    graph.bias = c.bias || c.config.relu;
    return {{graph, graph.bias && !c.bias ? cudnn_arena_piece(c.w[0] * size_of(c.dtype)) : 0}};
  }
  if (c.pass == Conv2dPass::backward_data) return {{graph}};
  graph.accumulate = c.accumulate;
  if (c.dtype == DType::f32) return {{graph}};
  CudnnConv2d rounded = graph;
  rounded.accumulate = false;
  rounded.dw_dtype = c.dtype;
  return {{graph}, {rounded, cudnn_arena_piece(c.w.numel() * size_of(c.dtype))}};
}

int64_t bytes_within(const std::vector<Request>& requests, const CudnnTarget& target, int64_t allowed_bytes) {
  for (Request request : requests) {
    request.graph.workspace_bytes = allowed_bytes / kCudnnArenaAlignment * kCudnnArenaAlignment - request.piece_bytes;
    if (request.graph.workspace_bytes < 0) continue;
    const CudnnChoice choice = choose_conv2d_plan(request.graph, target);
    if (choice.plan != nullptr) return cudnn_arena_piece(choice.plan->workspace_bytes()) + request.piece_bytes;
  }
  return -1;
}

/// What cuDNN's heuristics need to know about a GPU of this machine, or why they do not get it.
struct GpuProperties {
  std::optional<CudnnDescriptor> descriptor;
  Reason unknown;
};

GpuProperties properties_of(const DeviceId& gpu) {
  if (gpu.index >= cuda_device_count()) return {std::nullopt, fmt::format("{} is not in this machine", gpu.str())};
  if (const std::string none = why_no_cudnn(); !none.empty()) return {std::nullopt, none};
  const auto version = static_cast<int>(cudnn().GetVersion());
#if CUDNN_VERSION >= 90800
  if (version >= kFirstWithoutHandle) {
    try {
      CudnnDescriptor properties(CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
      properties.set(CUDNN_ATTR_DEVICEPROP_DEVICE_ID, static_cast<int32_t>(gpu.index));
      properties.finalize();
      return {std::move(properties), ""};
    } catch (const CudaError& error) {
      return {std::nullopt, error.reason()};
    }
  }
#endif
  return {std::nullopt, fmt::format("cuDNN {}.{}.{} makes no plans before it runs; that needs {}.{} or later",
                                    version / 10000, version / 100 % 100, version % 100, kFirstWithoutHandle / 10000,
                                    kFirstWithoutHandle / 100 % 100)};
}

}  // namespace

CudnnConv2dNeed cudnn_conv2d_need(const RecordedConv2d& convolution, bool tf32, const CudnnTarget& target,
                                  int64_t allowed_bytes) {
  const std::vector<Request> requests = requests_of(convolution, tf32);
  CudnnConv2dNeed need;
  need.best_bytes = bytes_within(requests, target, kUnlimited);
  need.bytes = need.best_bytes <= allowed_bytes ? need.best_bytes : bytes_within(requests, target, allowed_bytes);
  return need;
}

WorkspaceNeed workspace_need(const RecordedOperations& operations, const WorkspaceTarget& target,
                             int64_t allowed_bytes) {
  WorkspaceNeed need;
  GpuProperties gpu = properties_of(target.device);
  need.unknown = gpu.unknown;
  if (!gpu.descriptor) return need;
  try {
    for (const auto& [key, convolution] : operations.convolutions) {
      const CudnnConv2dNeed bytes =
          cudnn_conv2d_need(convolution, target.tf32, {nullptr, &*gpu.descriptor}, allowed_bytes);
      need.best_bytes = std::max(need.best_bytes, bytes.bytes);
      if (bytes.best_bytes > allowed_bytes) need.shortages.push_back({convolution.str(), bytes.best_bytes});
    }
  } catch (const CudaError& error) {
    need = {};
    need.unknown = error.reason();
  }
  return need;
}

}  // namespace vitrine::cuda
