// SPDX-License-Identifier: Apache-2.0
// The steps of an engine on meta devices: the same code that trains, without memory.
#include <utility>

#include <fmt/format.h>

#include "nn/parallel/engine_state.h"
#include "nn/parallel/plan/plan.h"
#include "nn/parallel/settings.h"
#include "runtime/error.h"
#include "runtime/order_checker.h"
#include "runtime/schedule_writer.h"

namespace vitrine {

void run_on_meta(const Model& model, DeviceGroup& meta, const EngineConfig& config, const Workload& workload,
                 const std::function<void()>& on_step) {
  auto owned =
      std::make_unique<Engine::State>(std::make_unique<EngineSetup>(model, meta, config, workload), EngineFacts());
  Engine::State& state = *owned;
  Engine engine(std::move(owned));
  // Meta devices read no memory, but the order checker distinguishes ranges by their addresses: no user's memory lies
  // as high as these.
  const auto user_address = [](int bit) {
    return reinterpret_cast<const void*>(uintptr_t{1} << (sizeof(void*) < 8 ? bit - 32 : bit));
  };
  const void* const images_address = user_address(60);
  const void* const labels_address = user_address(61);
  const void* const samples_address = user_address(62);
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
  state.stager.load_resident_images();
  for (size_t b = 0; b < workload.train_batches.size(); ++b) {
    const int64_t samples = workload.train_batches[b];
    for (int i = 0; i < 2; ++i) {
      if (b == 0 && on_step) on_step();
      const HostBatch batch = training_batch_of(samples);
      const int slot = state.window.free_slot();
      try {
        state.issue(engine, batch, samples, slot);
      } catch (const ShapeError& error) {
        if (b == 0) throw;
        throw ShapeError(error.reason() + Reason({fmt::format(". This is the last batch of an epoch, of {} sample{}; "
                                                              "leave it out with ",
                                                              samples, samples == 1 ? "" : "s"),
                                                  settings::kTrainBatches, ", or use another batch size"}));
      }
      state.window.add(slot, batch, samples);
    }
    if (b == 0 && on_step) on_step();
  }
  state.window.drain();
  for (const int64_t samples : workload.evaluate_batches) {
    state.passes.evaluate(batch_of(samples), state.batches.evaluation(samples), samples);
    state.passes.read_evaluation(nullptr);
  }
  state.stager.begin(Stager::kEnd, 0);
}

void write_schedule(const Model& model, const DeviceGroup& devices, const EngineConfig& config,
                    const Workload& workload, const std::vector<DevicePlan>& plans, std::ostream& out) {
  const std::unique_ptr<DeviceGroup> twin = devices.meta_twin();
  ScheduleWriter writer(*twin, out);
  twin->checker()->mute();  // what is wrong is for the reader of the schedule to find
  EngineConfig planned = config;
  planned.workspace_bytes = plans.front().workspace.bytes;
  for (int i = 0; i < twin->size(); ++i) {
    const DevicePlan& plan = plans[static_cast<size_t>(i)];
    (*twin)[i].pool().reserve(plan.peak_bytes);
    (*twin)[i].pool().follow(plan.placement);
  }
  run_on_meta(model, *twin, planned, workload, {});
  for (int i = 0; i < twin->size(); ++i) writer.state_peak(i, plans[static_cast<size_t>(i)].peak_bytes);
}

}  // namespace vitrine
