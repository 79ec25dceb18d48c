// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <span>

#include <vitrine/runtime/exec_context.h>

namespace vitrine {

/// Statistics of each channel of a data set, for pixels scaled to 0..1.
struct Normalization {
  std::array<float, 4> mean{};
  std::array<float, 4> std{1.0F, 1.0F, 1.0F, 1.0F};
};

/// Bilinear resize, then y = (pixel / 255 - mean) / std.
///   images (N, h, w, C) u8, C <= 4      y (N, H, W, C) f32, f16 or bf16 (the f32 result rounded), any H, W
/// ensures   samples like torch.nn.functional.interpolate(mode="bilinear", align_corners=False, antialias=False); the same bits as
///           resize_normalize_on_host on every backend
/// throws    ShapeError, DtypeError, DeviceError
void resize_normalize(ExecContext& ctx, const Normalization& normalization, ConstView images, View y);

/// The same for one image in host memory, on the calling thread.
///   source (h, w, C), C <= 4      target (H, W, C)
/// throws    ShapeError when the length of a span is not that of its shape
void resize_normalize_on_host(const Normalization& normalization, const Shape& source, std::span<const uint8_t> pixels, const Shape& target,
                              std::span<float> y);

}  // namespace vitrine
