// SPDX-License-Identifier: Apache-2.0
// A bug of memory: outputs that are gathered on device 0 and kept.
#include <array>
#include <vector>

#include "nn/parallel/engine.h"
#include "tools/program/learn/experiment.h"
#include "tools/program/learn/problem.h"

namespace vitrine::tools::lab {

namespace {

constexpr int kDevices = 2;
constexpr int64_t kSamplesOfMicroBatch = 32, kClasses = 2048;

/// A step of dp, whose loss is taken from the outputs gathered on device 0.
TrainingStep gathering_step(bool keeps_outputs) {
  return [keeps_outputs](Engine& engine, const HostBatch& batch) {
    ExecContext& ctx = engine.devices()[0].compute();
    std::vector<Tensor> outputs;  // for the accuracy of the whole step, say
    for (const MicroBatch& micro_batch : engine.micro_batches()) {
      engine.stage(batch, micro_batch);
      engine.forward();
      {
        const Tensor logits = engine.outputs().gather(0);
        const Tensor gradient = ctx.allocate(logits.shape(), DType::f32, Category::activations, "gradient of outputs");
        const float weight = 1.0F / static_cast<float>(engine.outputs().nominal_targets());
        gathered_loss(engine, batch, micro_batch, std::vector<float>(kDevices, weight), logits, gradient);
        if (keeps_outputs) outputs.push_back(logits);
      }
      engine.backward_and_reduce(micro_batch.last);
    }
    finish_step(engine);
  };
}

/// The measured peak of device 0 in steps of that many micro-batches.
double peak_bytes(int micro_batches, bool keeps_outputs) {
  const Model model = make_perceptron({16}, 16, kClasses);
  EngineConfig config = small_config(micro_batches * kSamplesOfMicroBatch);
  config.scheme = scheme_preset("dp");
  config.accumulate = micro_batches;
  config.step = gathering_step(keeps_outputs);
  DeviceGroup group(cpu_devices(kDevices));
  Engine engine(model, group, config, {{config.batch_size}, {}});
  const HostBatch batch = batch_of(model, draw_samples(model, config.batch_size, 1));
  for (int step = 0; step < 2; ++step) engine.train_step(batch);
  engine.take_step_results(true);
  engine.finish();
  return static_cast<double>(group[0].pool().statistics().peak_bytes);
}

double measure_kept_outputs(size_t setting, bool planted) {
  constexpr std::array<int, 3> kMicroBatches = {2, 4, 8};
  const double one = peak_bytes(1, false);
  return (peak_bytes(kMicroBatches[setting], planted) - one) / one;
}

}  // namespace

Experiment kept_outputs() {
  return {.name = "kept-outputs",
          .question = "How long do outputs that were gathered on device 0 stay there?",
          .bug =
              "The outputs of each micro-batch are gathered on device 0 for the loss, and a list that outlives the "
              "micro-batch keeps them, for example for the accuracy of the step. Device 0 holds one more copy with "
              "every micro-batch, until it runs out of memory.",
          .measures = "(peak of device 0 - peak with one micro-batch) / peak with one micro-batch",
          .axis = "micro-batches",
          .settings = {"2", "4", "8"},
          .wrongness = measure_kept_outputs,
          .harm = 0.5,
          .noise = 0.0,
          .notice =
              "Print torch.cuda.memory_allocated(0) at the same place of several iterations: it must not grow. Search "
              "for lists and sums that take outputs or losses (outputs.append(out), total += loss): take loss.item() "
              "or out.argmax(1).cpu() instead, which also lets go of the graph.",
          .link = "https://github.com/TRI-ML/packnet-sfm/issues/47"};
}

}  // namespace vitrine::tools::lab
