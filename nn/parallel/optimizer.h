// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include <vitrine/kernels/optimizer.h>

namespace vitrine {

/// Which optimizer and its constants; defaults are PyTorch's.
struct OptimizerConfig {
  enum class Kind { sgd, adam, adamw } kind = Kind::adamw;
  SgdConfig sgd;
  AdamConfig adam;  // for adam and adamw

  /// Buffers of the parameters' size that it keeps: 0, 1 or 2.
  int state_count() const;
  double learning_rate() const;
  void set_learning_rate(double lr);
  std::string name() const;
};

/// Values from the command line; those left out get PyTorch's defaults (lr 1e-3; weight decay 0.01 for adamw, else 0; betas 0.9, 0.999; eps 1e-8).
/// throws ConfigError on an unknown name, a value out of range, or one that the optimizer does not have (momentum for adam; nesterov without
/// momentum).
OptimizerConfig make_optimizer_config(std::string_view name, std::optional<double> lr, std::optional<double> momentum, bool nesterov,
                                      std::optional<double> weight_decay);

}  // namespace vitrine
