// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/kernels/batch_norm.h>
#include <vitrine/nn/layer.h>

namespace vitrine {

/// Batch normalization of images x (N, H, W, C) over N, H and W, then ReLU if merged: torch.nn.BatchNorm2d. In training
/// it uses the mean and biased variance of the micro-batch, over all devices where Pass::batch_sum is set, and updates
/// the running statistics with the unbiased variance; in evaluation it uses those. Parameters: weight, bias (C), which
/// stay f32. Buffers: running_mean, running_var (C), and the statistics of the micro-batch. Counter:
/// num_batches_tracked. Keeps x, and y if ReLU is merged. forward throws ShapeError in training when there is one value
/// for each channel, as PyTorch does.   source  Ioffe & Szegedy 2015
class BatchNorm2d final : public Layer {
 public:
  /// throws ConfigError when channels is below 1, eps is not above 0 or momentum is outside [0, 1].
  explicit BatchNorm2d(int64_t channels, const BatchNormConfig& config = {});

  std::string describe() const override;
  std::vector<ParamSpec> parameters() const override;
  std::vector<BufferSpec> buffers() const override;
  std::vector<std::string> counters() const override { return {"num_batches_tracked"}; }
  Shape output_shape(const Shape& x) const override;
  bool handles_leaves() const override { return true; }
  bool can_be_replayed() const override { return true; }
  OutputNeed output_need() const override { return config_.relu ? OutputNeed::sign : OutputNeed::nothing; }
  bool backward_in_place() const override { return true; }
  Saved forward(const ForwardCall& call) const override;
  void backward(const BackwardCall& call) const override;
  void forward_empty(const EmptyCall& call) const override;
  void backward_empty(const EmptyCall& call) const override;

 private:
  /// Values of a channel in the whole micro-batch. throws ShapeError below 2.
  int64_t rows_of_batch(const Shape& x, const Pass& pass) const;
  /// Adds up the moments of this device's `rows` over all devices, and writes the layer's buffers.
  void finish_statistics(ExecContext& ctx, int64_t rows, int64_t rows_of_batch, const Tensor& moments, const Pass& pass,
                         BufferViews buffers) const;

  /// The same for Pass::leaves: statistics (groups, 2, C), of each group over its leaves on all devices.
  ///   x  empty: this device has no leaf
  View leaf_statistics(ExecContext& ctx, const Tensor& x, const Shape& shape, const Pass& pass, BufferViews buffers,
                       Saved& saved) const;
  void backward_by_leaf(const BackwardCall& call) const;

  int64_t channels_;
  BatchNormConfig config_;
};

}  // namespace vitrine
