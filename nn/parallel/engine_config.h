// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>

#include <vitrine/kernels/image.h>
#include <vitrine/nn/loss_scaler.h>
#include <vitrine/nn/parallel/optimizer.h>
#include <vitrine/nn/parallel/scheme.h>

namespace vitrine {

/// In which precision a model is trained. With f16 or bf16, convolutions, matrix products and the layers between them run on a 16-bit copy of the f32
/// parameters, made by one cast a step; the loss, reductions and the optimizer are f32.
struct Precision {
  DType compute = DType::f32;  // f32, f16 or bf16: of activations and the parameters that layers see
  LossScaling loss_scaling;
  double clip_norm = 0.0;           // of the mean gradient over all devices; 0: not clipped
  DType reduce_dtype = DType::f32;  // in which gradients travel and are summed; the totals stay f32
  bool broadcasts_masters = false;  // under gpu0 reduction: the f32 parameters; else the 16-bit copy, and only device 0 holds masters

  bool mixed() const { return compute != DType::f32; }
  /// The gradient's norm is of interest: losses are scaled, or gradients clipped.
  bool checks() const { return loss_scaling.active() || clip_norm > 0.0; }
};

/// What an engine is asked to do, fixed for its lifetime.
struct EngineConfig {
  Scheme scheme;
  int64_t batch_size = 64;  // global: of one optimizer step, over all devices and micro-batches
  int accumulate = 1;       // micro-batches per optimizer step
  /// Activation checkpointing: of all but the last of so many segments of the model only the input is kept for backward, which computes the rest
  /// again (see segments.h). 1: all is kept.
  int recompute_segments = 1;
  /// The gradient of the outputs is written over them, except where the model's last part still needs them; else it has memory of its own.
  bool loss_gradient_in_place = true;
  OptimizerConfig optimizer;
  Precision precision;
  /// False: the first loss or gradient that is not finite stops training with DivergedError; no device changes its parameters any more, and updates
  /// never make a finite parameter infinite or NaN. A non-finite gradient that loss scaling can explain only skips its step. True: training goes on
  /// with NaN, as in PyTorch (loss scaling and clipping still skip steps with a non-finite gradient).
  bool allow_non_finite = false;
  /// The engine only evaluates: it holds parameters (in the precision that layers compute in) and activations, but no gradients and no optimizer
  /// state. Workload::train_batches must be empty.
  bool forward_only = false;
  uint64_t seed = 0;
  int32_t ignore_index = -100;
  /// Inputs as the batches bring them: u8 images (h, w, C), resized and normalised on the device; or f32 of Model::input_shape(), taken as they are
  /// (the only choice for models whose samples are not images).
  DType image_dtype = DType::u8;
  int64_t image_height = 0, image_width = 0;
  Normalization normalization;
  int64_t workspace_bytes = int64_t{32} << 20;    // arena of each compute stream
  int64_t bucket_bytes = int64_t{25} << 20;       // all-reduce: buckets of the flat gradients ...
  int64_t first_bucket_bytes = int64_t{1} << 20;  // ... of which the first is smaller

  /// What becomes of a step whose loss or gradient is not finite.
  NonFinite non_finite() const {
    if (!allow_non_finite) return NonFinite::stop;
    return precision.checks() ? NonFinite::skip : NonFinite::accept;
  }
};

/// A batch in host memory: images, or other inputs, (B, ...) and labels i32 of Model::label_shape(B). The memory is read until the step's totals have
/// been taken or an error was thrown: when training diverges, the batch is run once more to find the first layer that is not finite. `hold` is kept
/// that long.
/// With several processes each has its rows of the global batch, those that rows_of_processes() names, one range behind the other.
struct HostBatch {
  ConstView images;
  ConstView labels;
  std::shared_ptr<void> hold;
  int64_t global_samples = 0;  // of the global batch; 0: those here are all
};

}  // namespace vitrine
