// SPDX-License-Identifier: Apache-2.0
#include "runtime/gpu_features.h"

#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "runtime/error.h"
#include "tests/support/error_of.h"

namespace vitrine::test {
namespace {

class GpuFeatures : public ::testing::Test {
 protected:
  void SetUp() override { clear(); }
  void TearDown() override { clear(); }
  static void clear() {
    unsetenv("VITRINE_CUDA_SAFE");
    for (const GpuFeature feature :
         {GpuFeature::overlapping_launches, GpuFeature::graphs, GpuFeature::graph_collectives,
          GpuFeature::fused_epilogues, GpuFeature::cudnn, GpuFeature::peer_access})
      unsetenv(variable_of(feature));
  }
  static void set(GpuFeature feature, const char* value) { setenv(variable_of(feature), value, 1); }
};

TEST_F(GpuFeatures, WhatNoGpuHasRunIsOff) {
  EXPECT_EQ(why_off(GpuFeature::graphs), "no probe has passed; VITRINE_CUDA_GRAPHS=on turns it on");
  EXPECT_EQ(why_off(GpuFeature::fused_epilogues), "");
  EXPECT_EQ(why_off(GpuFeature::cudnn), "");
  EXPECT_EQ(why_off(GpuFeature::overlapping_launches), "no GPU has proven it; VITRINE_OVERLAP_LAUNCHES=on turns it on");
  EXPECT_EQ(why_off(GpuFeature::graph_collectives), "no GPU has proven it; VITRINE_GRAPH_COLLECTIVES=on turns it on");
}

TEST_F(GpuFeatures, VariablesTurnThemOnAndOff) {
  set(GpuFeature::graph_collectives, "on");
  set(GpuFeature::graphs, "off");
  set(GpuFeature::cudnn, "off: the probe of cuda:0 failed");
  EXPECT_EQ(why_off(GpuFeature::graph_collectives), "");
  EXPECT_EQ(why_off(GpuFeature::graphs), "VITRINE_CUDA_GRAPHS is off");
  EXPECT_EQ(why_off(GpuFeature::cudnn), "the probe of cuda:0 failed");
  set(GpuFeature::graphs, "perhaps");
  EXPECT_EQ(error_of<ConfigError>([] { why_off(GpuFeature::graphs); }),
            "VITRINE_CUDA_GRAPHS is 'perhaps'; expected on or off");
}

TEST_F(GpuFeatures, SafeModeTurnsAllButCudnnAndPeerAccessOff) {
  EXPECT_EQ(gpu_safe_hint(), "; VITRINE_CUDA_SAFE=1 avoids what no GPU has run yet");
  setenv("VITRINE_CUDA_SAFE", "1", 1);
  set(GpuFeature::overlapping_launches, "on");
  for (const GpuFeatureState& feature : gpu_features()) {
    const std::string variable = feature.variable;
    const bool stays = variable == "VITRINE_CUDNN" || variable == "VITRINE_PEER_ACCESS";
    EXPECT_EQ(feature.off, stays ? "" : "VITRINE_CUDA_SAFE is 1") << variable;
  }
  EXPECT_EQ(gpu_safe_hint(), "");
  setenv("VITRINE_CUDA_SAFE", "yes", 1);
  EXPECT_EQ(error_of<ConfigError>([] { is_gpu_safe_mode(); }), "VITRINE_CUDA_SAFE is 'yes'; expected 0 or 1");
}

}  // namespace
}  // namespace vitrine::test
