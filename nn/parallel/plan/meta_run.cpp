// SPDX-License-Identifier: Apache-2.0
// The steps of an engine on meta devices: the same code that trains, without memory.
#include "nn/parallel/engine_state.h"
#include "nn/parallel/plan/plan.h"

namespace vitrine {

void run_on_meta(const Model& model, DeviceGroup& meta, const EngineConfig& config, const Workload& workload,
                 const std::function<void()>& on_step) {
  Engine engine(std::make_unique<EngineSetup>(model, meta, config, workload));
  Engine::State& state = *engine.state_;
  // Meta devices read no memory, but the order checker distinguishes ranges by their addresses: no user's memory lies
  // as high as these.
  const void* const images_address = reinterpret_cast<const void*>(uintptr_t{1} << 60);
  const void* const labels_address = reinterpret_cast<const void*>(uintptr_t{1} << 61);
  const void* const samples_address = reinterpret_cast<const void*>(uintptr_t{1} << 62);
  // A process's part has at most as many samples as the global batch.
  const auto batch_of = [&](int64_t samples) {
    HostBatch batch{
        ConstView(images_address, staged_shape(model, config, samples), config.image_dtype, DeviceId::host()),
        ConstView(labels_address, model.label_shape(samples), DType::i32, DeviceId::host()),
        {}};
    batch.samples = ConstView(samples_address, {samples}, DType::i32, DeviceId::host());
    return batch;
  };
  const auto training_batch_of = [&](int64_t samples) {
    HostBatch batch = batch_of(samples);
    if (config.resident_images.count > 0) batch.images = {};
    return batch;
  };
  for (size_t b = 0; b < workload.train_batches.size(); ++b) {
    const int64_t samples = workload.train_batches[b];
    for (int i = 0; i < 2; ++i) {
      if (b == 0 && on_step) on_step();
      engine.issue(training_batch_of(samples), samples, i);
    }
    if (b == 0 && on_step) on_step();
  }
  for (const int64_t samples : workload.evaluate_batches) {
    state.evaluation.issue(batch_of(samples), state.batches.evaluation(samples), samples);
    state.evaluation.read(nullptr);
  }
  state.stager.begin(Stager::kEnd, 0);
}

}  // namespace vitrine
