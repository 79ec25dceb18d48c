// SPDX-License-Identifier: Apache-2.0
#include "nn/gpt.h"

#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "nn/layers/activations.h"
#include "nn/layers/attention.h"
#include "nn/layers/dropout.h"
#include "nn/layers/embedding.h"
#include "nn/layers/layer_norm.h"
#include "nn/layers/linear.h"
#include "nn/layers/residual.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

using Parts = std::vector<Sequential::Part>;

constexpr float kDeviation = 0.02F;

/// Adds the layers of one block; layers with parameters are named as in transformers.
class BlockBuilder {
 public:
  BlockBuilder(const GptConfig& config, int64_t block) : config_(config), dropout_(1 + 2 * block) {}

  std::unique_ptr<Layer> build() {
    const int64_t width = config_.width;
    Parts attention;
    attention.push_back({"ln_1", std::make_unique<LayerNorm>(width)});
    add_linear(attention, "attn.c_attn", width, 3 * width, kDeviation);
    attention.push_back({"attn", std::make_unique<Attention>(config_.heads)});
    end_branch(attention, "attn.c_proj", width, "attn.resid_dropout");
    Parts mlp;
    mlp.push_back({"ln_2", std::make_unique<LayerNorm>(width)});
    add_linear(mlp, "mlp.c_fc", width, 4 * width, kDeviation);
    mlp.push_back({"mlp.act", std::make_unique<GELU>(GeluForm::tanh)});
    end_branch(mlp, "mlp.c_proj", 4 * width, "mlp.dropout");
    Parts branches;
    for (Parts* const branch : {&attention, &mlp})
      branches.push_back(
          {"", std::make_unique<Residual>(std::make_unique<Sequential>(std::move(*branch)), nullptr, false)});
    return std::make_unique<Sequential>(std::move(branches));
  }

 private:
  static void add_linear(Parts& parts, std::string name, int64_t in, int64_t out, float deviation) {
    parts.push_back({std::move(name), std::make_unique<Linear>(LinearConfig{
                                          .in_features = in,
                                          .out_features = out,
                                          .weight_init = Init{Init::Kind::normal, deviation},
                                          .weight_layout = {.kind = CheckpointLayout::Kind::transposed},
                                      })});
  }
  void end_branch(Parts& parts, std::string name, int64_t in, std::string dropout_name) {
    const auto branches = static_cast<double>(2 * config_.layers);
    add_linear(parts, std::move(name), in, config_.width, kDeviation / static_cast<float>(std::sqrt(branches)));
    parts.push_back({std::move(dropout_name), std::make_unique<Dropout>(config_.dropout, dropout_++)});
  }

  const GptConfig& config_;
  int64_t dropout_;  // the index of the next one
};

}  // namespace

std::vector<Sequential::Part> gpt_parts(const GptConfig& config) {
  if (config.layers < 1 || config.width < 1 || config.heads < 1 || config.width % config.heads != 0) {
    throw ConfigError(
        fmt::format("GPT: {} layers, width {} and {} heads, expected at least 1 of each, and a width that "
                    "the heads divide",
                    config.layers, config.width, config.heads));
  }
  const Init normal{Init::Kind::normal, kDeviation};
  Parts parts;
  parts.push_back({"wte", std::make_unique<Embedding>(config.vocabulary, config.width, normal)});
  parts.push_back({"wpe", std::make_unique<Positions>(config.positions, config.width, normal)});
  parts.push_back({"drop", std::make_unique<Dropout>(config.dropout, 0)});
  for (int64_t block = 0; block < config.layers; ++block)
    parts.push_back({fmt::format("h.{}", block), BlockBuilder(config, block).build()});
  parts.push_back({"ln_f", std::make_unique<LayerNorm>(config.width)});
  parts.push_back({"lm_head", std::make_unique<Linear>(LinearConfig{.in_features = config.width,
                                                                    .out_features = config.vocabulary,
                                                                    .bias = false,
                                                                    .shared_weight = "wte.weight"})});
  return parts;
}

}  // namespace vitrine
