// SPDX-License-Identifier: Apache-2.0
#include "runtime/gpu_features.h"

#include <array>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>

#include "runtime/error.h"

namespace vitrine {
namespace {

constexpr const char* kSafe = "VITRINE_CUDA_SAFE";

// Why a feature is off while its variable is not set; null: it is on.
constexpr const char *kOn = nullptr, *kUnproven = "no GPU has proven it", *kProbed = "no probe has passed";

struct Row {
  const char *variable, *use, *off_by_default;
  bool in_safe_mode;
};
/// In the order of GpuFeature.
constexpr std::array<Row, 6> kFeatures{{
    {"VITRINE_OVERLAP_LAUNCHES", "programmatic launch: a kernel starts before the one before it ends", kUnproven,
     false},
    {"VITRINE_CUDA_GRAPHS", "training steps as CUDA graphs", kProbed, false},
    {"VITRINE_GRAPH_COLLECTIVES", "NCCL's collectives in CUDA graphs", kUnproven, false},
    {"VITRINE_FUSED_EPILOGUES", "bias and ReLU in products of cuBLASLt and cuDNN", kOn, false},
    {"VITRINE_CUDNN", "convolution by cuDNN", kOn, true},
    {"VITRINE_PEER_ACCESS", "GPUs read and write each other's memory", kOn, true},
}};

const Row& row_of(GpuFeature feature) { return kFeatures[static_cast<size_t>(feature)]; }

}  // namespace

void fix_order_of_sums() {
  setenv("NCCL_ALGO", "Ring", 0);
  setenv("NCCL_PROTO", "Simple", 0);
  setenv("NCCL_GRAPH_REGISTER", "0", 0);
}

bool is_gpu_safe_mode() {
  const char* const value = std::getenv(kSafe);
  const std::string_view text = value == nullptr || *value == '\0' ? "0" : value;
  if (text != "0" && text != "1") throw ConfigError(fmt::format("{} is '{}'; expected 0 or 1", kSafe, text));
  return text == "1";
}

std::string gpu_safe_hint() {
  return is_gpu_safe_mode() ? std::string() : fmt::format("; {}=1 avoids what no GPU has run yet", kSafe);
}

const char* variable_of(GpuFeature feature) { return row_of(feature).variable; }

std::string why_off(GpuFeature feature) {
  const Row& row = row_of(feature);
  if (!row.in_safe_mode && is_gpu_safe_mode()) return fmt::format("{} is 1", kSafe);
  const char* const value = std::getenv(row.variable);
  const std::string_view text = value == nullptr ? "" : value;
  constexpr std::string_view kReason = "off: ";
  if (text == "on") return {};
  if (text == "off") return fmt::format("{} is off", row.variable);
  if (text.starts_with(kReason)) return std::string(text.substr(kReason.size()));
  if (!text.empty()) throw ConfigError(fmt::format("{} is '{}'; expected on or off", row.variable, text));
  return row.off_by_default == kOn ? std::string()
                                   : fmt::format("{}; {}=on turns it on", row.off_by_default, row.variable);
}

std::vector<GpuFeatureState> gpu_features() {
  std::vector<GpuFeatureState> states;
  for (size_t i = 0; i < kFeatures.size(); ++i)
    states.push_back({kFeatures[i].variable, kFeatures[i].use, why_off(static_cast<GpuFeature>(i))});
  return states;
}

}  // namespace vitrine
