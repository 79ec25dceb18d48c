// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "nn/parallel/engine_config.h"

namespace vitrine::tools {

/// The flags of what makes a model generalize: augmentation, label smoothing, parameter groups, averages of the
/// weights.
struct RecipeOptions {
  std::string augment;  // "flip,crop:4,cutout:8"; empty: none
  double label_smoothing = 0.0;
  std::vector<std::string> no_decay;  // norms, biases
  std::vector<std::string> groups;    // "PATTERN:lr=0.01,weight-decay=0"
  std::optional<double> ema;
};

/// throws ConfigError for what cannot be read, and where --augment meets --preprocess host.
void check_recipe(const RecipeOptions& options, bool host_preprocess);
Augmentation resolve_augmentation(const RecipeOptions& options);
/// throws ConfigError if --augment needs larger images.
///   stored  the smaller side of the data set's images     input  the smaller side of the model's input
void check_augmentation(const RecipeOptions& options, int64_t stored, int64_t input);
/// lr  the optimizer's learning rate, whose share a group's is
std::vector<ParameterGroup> resolve_parameter_groups(const RecipeOptions& options, double lr);
/// "0.49,0.48,0.45/0.25,0.24,0.26" for as many channels, or "none" for pixels from 0 to 1; the data set's where the
/// text is empty. throws ConfigError.
Normalization resolve_normalization(const std::string& text, const Dataset& train);

/// Puts the recipe into an engine's configuration, whose optimizer is set.
void apply_recipe(const RecipeOptions& options, EngineConfig& config);
/// ", label smoothing 0.1, augmentation flip,crop:4": what follows the optimizer in descriptions. Empty without any.
std::string describe_recipe(const RecipeOptions& options);
/// "model.safetensors" to "model.ema.safetensors": where the averages are saved.
std::string averages_path(const std::string& path);

}  // namespace vitrine::tools
