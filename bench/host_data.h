// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <random>

#include "kernels/image.h"
#include "nn/parallel/engine_config.h"
#include "runtime/host_buffer.h"

namespace vitrine::bench {

inline constexpr int64_t kImage = 32;  // width and height of the data set's images

/// Random images and labels of 10 classes in host memory, the same in every run.
struct HostData {
  int64_t samples;
  HostBuffer images, labels;

  HostData(int64_t count, HostMemory kind)
      : samples(count), images(count * kImage * kImage * 3, kind), labels(count * size_of(DType::i32), kind) {
    std::mt19937 random(1);
    const HostBatch all = batch();
    auto* pixels = static_cast<uint8_t*>(const_cast<void*>(all.images.data));
    auto* classes = static_cast<int32_t*>(const_cast<void*>(all.labels.data));
    for (int64_t i = 0; i < all.images.numel(); ++i) pixels[i] = static_cast<uint8_t>(random());
    for (int64_t i = 0; i < count; ++i) classes[i] = static_cast<int32_t>(random() % 10);
  }
  HostBatch batch() const {
    return {images.view({samples, kImage, kImage, 3}, DType::u8), labels.view({samples}, DType::i32), {}};
  }
};

inline Normalization half_normalization() {
  Normalization n;
  n.mean.fill(0.5F);
  n.std.fill(0.25F);
  return n;
}

/// AdamW steps of a scheme on such data.
inline EngineConfig step_config(const char* mode, int64_t batch_size) {
  EngineConfig config;
  config.scheme = scheme_preset(mode);
  config.batch_size = batch_size;
  config.optimizer = make_optimizer_config("adamw", {}, {}, false, {});
  config.image_height = config.image_width = kImage;
  config.normalization = half_normalization();
  return config;
}

}  // namespace vitrine::bench
