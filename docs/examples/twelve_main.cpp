// SPDX-License-Identifier: Apache-2.0
// What README.md's twelve lines need: batches of 256 random vectors, and main().
#include <cstdio>
#include <exception>
#include <memory>
#include <vector>

#include <vitrine/runtime/host_batch.h>
#include <vitrine/runtime/philox.h>

using namespace vitrine;

HostBatch make_batch(int step);
void train();

HostBatch make_batch(int step) {
  constexpr int64_t kSamples = 256, kFeatures = 20, kClasses = 3;
  struct Arrays {
    std::vector<float> x;
    std::vector<int32_t> labels;
  };
  const auto arrays = std::make_shared<Arrays>();
  PhiloxSequence random(static_cast<uint64_t>(step), 0);
  for (int64_t i = 0; i < kSamples; ++i) {
    for (int64_t f = 0; f < kFeatures; ++f) arrays->x.push_back(random.next_normal());
    arrays->labels.push_back(static_cast<int32_t>(i % kClasses));
  }
  HostBatch batch;
  batch.images = ConstView(arrays->x.data(), {kSamples, kFeatures}, DType::f32, DeviceId::host());
  batch.labels = ConstView(arrays->labels.data(), {kSamples}, DType::i32, DeviceId::host());
  batch.hold = arrays;
  return batch;
}

int main() try {
  train();
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
