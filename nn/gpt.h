// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <vitrine/nn/sequential.h>

namespace vitrine {

/// A GPT-2 with transformers' names and initialization.   source  Radford et al. 2019
struct GptConfig {
  int64_t layers = 0, width = 0, heads = 0;
  int64_t positions = 0;   // the most tokens of a sequence
  int64_t vocabulary = 0;  // tokens that the model knows
  float dropout = 0.0F;    // of embeddings and residual branches; attention has none
};

/// Its parts: wte, wpe, drop, h.0 (ln_1, attn.c_attn, attn, attn.c_proj, ln_2, mlp.c_fc, mlp.act, mlp.c_proj), ...,
/// ln_f, and lm_head, which shares the weight of wte. Input (N, T) i32, output (N, T, vocabulary). Weights are normal
/// with deviation 0.02, those of the projections at the end of residual branches with 0.02 / sqrt(2 * layers); biases
/// are 0. throws ConfigError when a size is below 1 or heads do not divide the width.
std::vector<Sequential::Part> gpt_parts(const GptConfig& config);

}  // namespace vitrine
