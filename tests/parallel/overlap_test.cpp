// SPDX-License-Identifier: Apache-2.0
// Buckets are reduced while backward runs: shown by the trace.
#include <algorithm>
#include <chrono>
#include <map>
#include <thread>

#include <gtest/gtest.h>

#include "nn/layers/flatten.h"
#include "nn/layers/linear.h"
#include "tests/parallel/planted_layer.h"
#include "tests/parallel/random_model.h"

namespace vitrine::test {
namespace {

constexpr int kDevices = 2;
constexpr int64_t kSteps = 4;
constexpr int64_t kBatch = 6;

/// The identity, whose backward is slow but sleeps: a busy machine does not change what overlaps.
class Slow final : public Identity {
 private:
  void begin(ExecContext& ctx, bool backward) const override {
    if (backward) ctx.dispatch({"slow", {}, {}}, [] { std::this_thread::sleep_for(std::chrono::milliseconds(100)); });
  }
};

/// Three parameters with a slow part between them.
Model slow_model() {
  std::vector<Sequential::Part> parts;
  parts.push_back({"flatten", std::make_unique<Flatten>()});
  for (const char* name : {"fc1", "fc2", "fc3"}) {
    if (parts.size() > 1) parts.push_back({std::string("before ") + name, std::make_unique<Slow>()});
    parts.push_back(
        {name, std::make_unique<Linear>(LinearConfig{.in_features = 16, .out_features = 16, .bias = false})});
  }
  return image_model("slow", 4, 1, 16, std::move(parts));
}

/// The trace of two devices over a few steps.
struct Traced {
  DeviceGroup group;
  Model model = slow_model();
  std::unique_ptr<Engine> engine;  // spans point to names that it owns
  std::vector<std::vector<SpanRecord>> compute, communication;

  explicit Traced(const char* mode, TraceLevel level = TraceLevel::phase) : group(options(level)) {
    EngineConfig config = small_config(model, kBatch);
    config.scheme = scheme_preset(mode);
    config.scheme.staging = Staging::host;
    config.scheme.loss_at = LossAt::parallel;
    config.first_bucket_bytes = config.bucket_bytes = 16 * 16 * 4;
    engine = std::make_unique<Engine>(model, group, config, Workload{{kBatch}, {}});
    for (uint32_t step = 0; step < kSteps; ++step) engine->train_step(random_batch(model, kBatch, step, 0.0).view());
    engine->take_step_results(true);
    group.synchronize();
    for (int d = 0; d < kDevices; ++d) {
      compute.push_back(group[d].compute().stream().take_spans());
      communication.push_back(group[d].communication().stream().take_spans());
    }
  }

 private:
  static DeviceGroupOptions options(TraceLevel level) {
    DeviceGroupOptions options = test_group(kDevices);
    options.trace = level;
    return options;
  }
};

/// The reductions of a step by their names.
std::map<std::string, SpanRecord> reductions(const std::vector<SpanRecord>& communication, int64_t step) {
  std::map<std::string, SpanRecord> found;
  for (const SpanRecord& span : communication) {
    if (span.info.phase != Phase::reduce || span.depth > 0 || span.info.step != step) continue;
    EXPECT_TRUE(found.emplace(span.info.layer, span).second)
        << span.info.layer << " was reduced twice in step " << step;
  }
  return found;
}

/// When the wait for the device's own backward ended inside `bucket`.
int64_t begin_of(const SpanRecord& bucket, const std::vector<SpanRecord>& communication) {
  const auto wait = std::ranges::find_if(communication, [&](const SpanRecord& span) {
    return std::string(span.info.cause) == "backward" && span.begin_ns >= bucket.begin_ns &&
           span.end_ns <= bucket.end_ns;
  });
  if (wait == communication.end()) ADD_FAILURE() << bucket.info.layer << " did not wait for its gradients";
  return wait == communication.end() ? 0 : wait->end_ns;
}

TEST(Overlap, EveryBucketButTheLastBeginsBeforeBackwardEnds) {
  const Traced traced("ddp");
  for (size_t d = 0; d < kDevices; ++d) {
    for (int64_t step = 1; step < kSteps; ++step) {
      const auto backward = std::ranges::find_if(traced.compute[d], [&](const SpanRecord& span) {
        return span.info.phase == Phase::backward && span.info.step == step;
      });
      ASSERT_NE(backward, traced.compute[d].end());
      const auto buckets = reductions(traced.communication[d], step);
      ASSERT_EQ(buckets.size(), 3U);
      for (const char* name : {"bucket 0", "bucket 1"}) {
        EXPECT_LT(begin_of(buckets.at(name), traced.communication[d]), backward->end_ns)
            << name << ", device " << d << ", step " << step;
      }
      EXPECT_EQ(buckets.count("bucket 2"), 1U);
    }
  }
}

TEST(Overlap, CollectivesHaveTheNameOfTheirBucket) {
  const Traced traced("ddp", TraceLevel::operation);
  for (const auto& spans : traced.communication) {
    int64_t collectives = 0;
    for (const SpanRecord& span : spans) {
      EXPECT_NE(span.info.phase, Phase::setup);
      if (std::string(span.info.operation) != "all_reduce" || span.info.phase != Phase::reduce) continue;
      EXPECT_EQ(std::string(span.info.layer), "bucket " + std::to_string(collectives++ % 3));
    }
    EXPECT_EQ(collectives, 3 * kSteps);
  }
}

TEST(Overlap, EveryLayerWaitsForItsOwnUpdatedParametersOnly) {
  for (const char* mode : {"zero1", "zero2"}) {
    const Traced traced(mode, TraceLevel::operation);
    for (size_t d = 0; d < kDevices; ++d) {
      for (int64_t step = 0; step < kSteps; ++step) {
        std::string seen;  // before each layer's product the wait for its bucket; nothing is updated before step 0
        for (const SpanRecord& span : traced.compute[d]) {
          if (span.info.step != step) continue;
          const std::string layer = span.info.layer;
          if (span.info.phase == Phase::forward && layer.starts_with("fc") && *span.info.operation != '\0')
            seen += layer + " ";
          if (span.info.phase == Phase::wait && std::string(span.info.cause) == "broadcast" && layer.starts_with("fc"))
            seen += "wait ";
        }
        EXPECT_EQ(seen, step == 0 ? "fc1 fc2 fc3 " : "wait fc1 wait fc2 wait fc3 ") << mode << ", step " << step;
        const auto gathers = std::ranges::count_if(traced.communication[d], [&](const SpanRecord& span) {
          return span.info.step == step && std::string(span.info.operation) == "all_gather" &&
                 span.info.phase == Phase::broadcast;
        });
        EXPECT_EQ(gathers, step == 0 ? 0 : 3) << mode << ", step " << step;
      }
    }
  }
}

TEST(Overlap, OnDevice0GradientsAreReducedAtOnce) {
  const Traced traced("dp");
  for (const auto& spans : traced.communication) {
    for (int64_t step = 0; step < kSteps; ++step) {
      const auto buckets = reductions(spans, step);
      ASSERT_EQ(buckets.size(), 1U);
      EXPECT_EQ(buckets.begin()->first, "gradients");
    }
  }
}

}  // namespace
}  // namespace vitrine::test
