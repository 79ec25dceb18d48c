// SPDX-License-Identifier: Apache-2.0
#include "runtime/dlpack.h"

#include <array>
#include <memory>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "runtime/dlpack_abi.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

constexpr std::array<std::pair<DType, DLDataType>, 5> kTypes{{
    {DType::f32, {kDLFloat, 32, 1}},
    {DType::f16, {kDLFloat, 16, 1}},
    {DType::bf16, {kDLBfloat, 16, 1}},
    {DType::i32, {kDLInt, 32, 1}},
    {DType::u8, {kDLUInt, 8, 1}},
}};

DType dtype_of(DLDataType type) {
  for (const auto& [dtype, dl] : kTypes) {
    if (dl.code == type.code && dl.bits == type.bits && type.lanes == 1) return dtype;
  }
  throw DtypeError(fmt::format(
      "from_dlpack: the elements have type code {}, {} bits and {} lanes; expected f32, f16, bf16, i32 or u8",
      type.code, type.bits, type.lanes));
}

void check_device(const ExecContext& ctx, DLDevice device) {
  const bool cpu = ctx.backend() == Backend::cpu && device.device_type == kDLCPU;
  const bool cuda =
      ctx.backend() == Backend::cuda && device.device_type == kDLCUDA && device.device_id == ctx.device().index;
  if (cpu || cuda) return;
  throw DeviceError(
      fmt::format("from_dlpack: the memory is on DLPack device type {} (1: CPU, 2: CUDA), index {}, but the context is "
                  "on {}; copy it there first",
                  device.device_type, device.device_id, ctx.device().str()));
}

Shape shape_of(const DLTensor& tensor) {
  if (tensor.ndim < 0 || tensor.ndim > Shape::kMaxRank) {
    throw ShapeError(
        fmt::format("from_dlpack: the tensor has {} dimensions, expected at most {}", tensor.ndim, Shape::kMaxRank));
  }
  if (tensor.ndim > 0 && tensor.shape == nullptr)
    throw ConfigError("from_dlpack: the tensor has dimensions, but its shape is null");
  const Shape shape(std::span<const int64_t>(tensor.shape, static_cast<size_t>(tensor.ndim)));
  int64_t expected = 1;
  for (int i = tensor.ndim; i-- > 0 && tensor.strides != nullptr;) {
    if (shape[i] > 1 && shape.numel() > 0 && tensor.strides[i] != expected) {
      throw ShapeError(
          fmt::format("from_dlpack: dimension {} of shape {} has stride {}, expected {} (contiguous row-major); copy "
                      "it to contiguous memory first",
                      i, shape.str(), tensor.strides[i], expected));
    }
    expected *= shape[i];
  }
  return shape;
}

/// The object that to_dlpack exports.
struct Exported {
  Tensor tensor;
  std::array<int64_t, Shape::kMaxRank> shape{}, strides{};
  DLManagedTensor managed{};
};

}  // namespace

Tensor from_dlpack(ExecContext& ctx, DLManagedTensor* managed) {
  if (managed == nullptr) throw ConfigError("from_dlpack: the tensor is null");
  const DLTensor& from = managed->dl_tensor;
  check_device(ctx, from.device);
  const DType dtype = dtype_of(from.dtype);
  const Shape shape = shape_of(from);
  if (from.data == nullptr) throw ConfigError("from_dlpack: the tensor's data is null, expected memory of the device");
  return ctx.adopt(static_cast<char*>(from.data) + from.byte_offset, shape, dtype, [managed] {
    if (managed->deleter != nullptr) managed->deleter(managed);
  });
}

DLManagedTensor* to_dlpack(const Tensor& tensor) {
  if (!tensor) throw ConfigError("to_dlpack: the tensor is empty, expected one with memory");
  const View& view = tensor.view();
  if (view.device.backend == Backend::meta)
    throw UnsupportedError(fmt::format("to_dlpack: {} has no memory; use a cpu or cuda device", view.device.str()));
  auto exported = std::make_unique<Exported>();
  exported->tensor = tensor;
  int64_t stride = 1;
  for (int i = view.shape.rank(); i-- > 0;) {
    const auto at = static_cast<size_t>(i);
    exported->shape[at] = view.shape[i];
    exported->strides[at] = stride;
    stride *= view.shape[i];
  }
  DLTensor& to = exported->managed.dl_tensor;
  to.data = view.data;
  to.device = view.device.backend == Backend::cuda ? DLDevice{kDLCUDA, view.device.index} : DLDevice{kDLCPU, 0};
  to.ndim = view.shape.rank();
  for (const auto& [dtype, dl] : kTypes) {
    if (dtype == view.dtype) to.dtype = dl;
  }
  to.shape = exported->shape.data();
  to.strides = exported->strides.data();
  exported->managed.manager_ctx = exported.get();
  exported->managed.deleter = [](DLManagedTensor* self) {
    delete static_cast<Exported*>(self->manager_ctx);
  };  // NOLINT: the ABI owns through a raw pointer
  return &exported.release()->managed;
}

}  // namespace vitrine
