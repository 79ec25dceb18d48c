// SPDX-License-Identifier: Apache-2.0
// The training step: one optimizer step of any data-parallel scheme. To write your own, copy default_step() into
// EngineConfig::step and change it.
#include <utility>

#include "nn/parallel/engine_state.h"
#include "nn/parallel/reduce/shard.h"

namespace vitrine {

void default_step(Engine& engine, const HostBatch& batch) {
  for (const MicroBatch& micro_batch : engine.micro_batches()) {
    engine.stage(batch, micro_batch);  // copies on the copy streams, while the previous micro-batch is computed
    engine.replay_or_issue([&] {
      engine.forward();
      engine.loss();
      engine.backward_and_reduce(micro_batch.last);
      if (!micro_batch.last) return;
      engine.finish_reduction();
      engine.decide_step();
      if (const double max_norm = engine.config().precision.clip_norm; max_norm > 0.0) engine.clip_gradients(max_norm);
      engine.update_parameters();
      engine.distribute_parameters();
    });
  }
}

void Engine::backward_and_reduce(bool last) {
  State& s = in_step("backward_and_reduce");
  s.replicas.for_each_at_once([&](Replica& r) {
    const bool in_buckets = r.reducer_context.has_gradient_buckets();
    const bool reduces = s.reduction_on && (last || in_buckets);
    if (in_buckets) r.reducer->begin_backward(!std::exchange(r.model.has_gradients, true), last);
    if (s.setup->config.update_in_backward) {  // by add()
      s.passes.decide(r);
      s.passes.begin_updates(r);
    }
    // Layers finish their gradients from the end of the model to its start, which is the order in which they lie in
    // memory. While backward continues on the compute stream, add() sums what is finished on the communication stream
    // (AllReduceReducer::reduce(), Overlap).
    const auto gradients_ready = [&](int first_parameter) {
      if (reduces) r.reducer->add(finished_elements(s.setup->layout, first_parameter));
    };
    if (r.batch.samples > 0) return s.passes.run_backward(r, gradients_ready);
    s.passes.run_backward_empty(r, reduces, gradients_ready);
  });
}

void Engine::finish_reduction() {
  State& s = in_step("finish_reduction");
  s.replicas.for_each_at_once([&](Replica& r) {
    const PhaseScope phase(r.compute(), Phase::reduce);
    s.passes.zero_unwritten_gradients(r);
    if (s.reduction_on) r.reducer->finish();
  });
}

void Engine::decide_step() {
  State& s = in_step("decide_step");
  if (s.setup->config.update_in_backward) return;
  s.replicas.for_each_updating([&](Replica& r) { s.passes.decide(r); });
}

void Engine::clip_gradients(double max_norm) {
  in_step("clip_gradients").replicas.for_each_updating([&](Replica& r) {
    r.scaler->clip_gradients(r.compute(), max_norm);
  });
}

void Engine::update_parameters() {
  State& s = in_step("update_parameters");
  if (s.setup->config.update_in_backward) return;
  s.replicas.for_each_updating([&](Replica& r) { s.passes.run_optimizer(r); });
}

void Engine::distribute_parameters() {
  in_step("distribute_parameters").replicas.for_each_at_once([](Replica& r) { r.reducer->distribute(); });
}

}  // namespace vitrine
