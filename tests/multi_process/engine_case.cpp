// SPDX-License-Identifier: Apache-2.0
#include "tests/multi_process/engine_case.h"

#include <algorithm>
#include <fstream>
#include <stdexcept>

#include "runtime/process_group/process_group.h"
#include "tests/parallel/random_model.h"

namespace vitrine::test {

namespace {

constexpr uint32_t kSteps = 5;
constexpr int64_t kEvaluated = 7;

Precision fp16() {
  Precision precision;
  precision.compute = DType::f16;
  precision.loss_scaling.kind = LossScaling::Kind::dynamic;
  // At the default scale the first gradients of such small models are not finite.
  precision.loss_scaling.scale = 1024;
  return precision;
}

Precision fp16_with_an_overflow() {
  Precision precision = fp16();
  precision.loss_scaling.scale = 0x1p30;
  precision.loss_scaling.constants.backoff_factor = 0x1p-20F;
  return precision;
}

Precision reduced_in(DType dtype) {
  Precision precision;
  precision.reduce_dtype = dtype;
  return precision;
}

Precision clipped() {
  Precision precision;
  precision.clip_norm = 0.1;
  return precision;
}

/// This process's rows of a batch, in separate memory.
OwnedBatch rows_of(const Model& model, const OwnedBatch& whole, const std::vector<RowRange>& rows) {
  OwnedBatch part;
  const auto samples = static_cast<int64_t>(whole.memory->labels.size());
  const int64_t bytes = whole.image_shape.numel() / samples;
  for (const RowRange& range : rows) {
    const auto& from = *whole.memory;
    part.memory->bytes.insert(part.memory->bytes.end(), from.bytes.begin() + range.begin * bytes,
                              from.bytes.begin() + range.end * bytes);
    part.memory->labels.insert(part.memory->labels.end(), from.labels.begin() + range.begin,
                               from.labels.begin() + range.end);
  }
  part.image_shape = model.input_shape(row_count(rows));
  part.label_shape = model.label_shape(row_count(rows));
  return part;
}

HostBatch part_of(const Model& model, const OwnedBatch& whole, const BatchPlan& plan, const DeviceGroup& devices) {
  HostBatch batch = rows_of(model, whole, part_of_process(plan, devices.first_rank(), devices.size()).rows).view();
  batch.global_samples = plan.batch_size;
  return batch;
}

std::vector<double> sum_over_processes(const DeviceGroup& devices, const std::vector<double>& values) {
  if (devices.process_count() == 1) return values;
  return devices.process_group()->sum("what the evaluation found", values);
}

/// The states that a checkpoint has, on rank 0; nothing elsewhere. All processes call it.
std::vector<float> states_of(Engine& engine, bool is_rank0, TrainingState& state) {
  if (!is_rank0) {
    engine.checkpointer().share_state();
    return {};
  }
  engine.checkpointer().copy_state(state);
  std::vector<float> values;
  for (const TrainingState::Flat& flat : state.flats)
    values.insert(values.end(), flat.values().begin(), flat.values().end());
  return values;
}

/// Saves the states, trains one more step, and loads them again. Returns them on rank 0. throws runtime_error if they
/// are not the same afterwards, or nothing is sharded.
std::vector<float> save_and_load(Engine& engine, DeviceGroup& devices, const HostBatch& batch) {
  const bool is_rank0 = devices.process() == 0;
  TrainingState state = engine.checkpointer().make_state(), again = engine.checkpointer().make_state();
  const std::vector<float> values = states_of(engine, is_rank0, state);
  const std::vector<float> averages = engine.parameters().averages().values(),
                           gradients = engine.config().update_in_backward ? std::vector<float>()
                                                                          : engine.parameters().gradients();
  engine.train_step(batch);
  engine.checkpointer().load_state(state);
  if (states_of(engine, is_rank0, again) != values)
    throw std::runtime_error("other states were loaded than were saved");
  const std::span<const float> saved = state.flat("ema").values();
  if (is_rank0 && !std::equal(saved.begin(), saved.end(), averages.begin()))
    throw std::runtime_error("averages() differ from those that were saved");
  const PoolStatistics pool = devices[0].pool().statistics();
  const int64_t whole = 3 * static_cast<int64_t>(saved.size_bytes());
  if (devices.world_size() > 1 && pool.peak_by_category[static_cast<size_t>(Category::optimizer)] >= whole)
    throw std::runtime_error("no states are sharded");
  std::vector<float> all = values;
  all.insert(all.end(), gradients.begin(), gradients.end());
  return all;
}

template <class T>
void write(std::ofstream& file, const std::vector<T>& values) {
  const size_t count = values.size();
  file.write(reinterpret_cast<const char*>(&count), sizeof count);
  file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(count * sizeof(T)));
}

template <class T>
void read(std::ifstream& file, std::vector<T>& values) {
  size_t count = 0;
  file.read(reinterpret_cast<char*>(&count), sizeof count);
  values.resize(count);
  file.read(reinterpret_cast<char*>(values.data()), static_cast<std::streamsize>(count * sizeof(T)));
}

}  // namespace

std::vector<EngineCase> engine_cases() {
  // For some numbers of devices, the second device, or both of a process, have no samples.
  // f32 is compared to 1e-5. In 16 bits a sum in another order may round an activation or a gradient differently. Batch
  // norm makes that many, and AdamW's first steps have the same size for small gradients as for large ones, so little
  // is left to compare there: zero1 then has the bits of ddp, which differs as much from one device.
  const std::vector<double> weights = {3, 0, 2, 1, 0, 0, 1, 4};
  return {{"equal", 3, 12},
          {"equal_accumulated", 4, 13, 3},
          {"weights", 5, 12, 1, weights},
          {"weights_accumulated", 6, 11, 3, weights},
          {"fewer_samples_than_devices", 7, 3},
          {"clipped", 8, 12, 1, weights, clipped()},
          {"fp16", 3, 12, 1, {}, fp16(), 0.2, 1e-4},
          {"fp16_weights_accumulated", 9, 14, 3, weights, fp16(), 0.2, 1e-4},
          {"fp16_overflow", 10, 12, 1, {}, fp16_with_an_overflow(), 0.2, 1e-4},
          {"reduced_in_f16", 11, 12, 1, {}, reduced_in(DType::f16), 0.3, 1e-4},
          {"reduced_in_bf16", 12, 13, 3, weights, reduced_in(DType::bf16), 0.3, 1e-3},
          {"batch_norm", 13, 12, 1, weights, {}, 0.2, 1e-5, true},
          {"batch_norm_accumulated", 14, 14, 3, weights, {}, 0.2, 1e-5, true},
          {"zero1", 3, 12, 1, {}, clipped(), 0.3, 1e-5, false, "zero1"},
          {"zero1_fp16_weights_accumulated", 9, 14, 3, weights, fp16(), 0.2, 1e-4, false, "zero1"},
          {"zero1_batch_norm", 13, 12, 1, weights, {}, 0.2, 1e-5, true, "zero1"},
          {"zero1_fp16_batch_norm", 13, 12, 1, weights, fp16(), 0.2, 0.02, true, "zero1", 0, false, 0.4},
          {"zero1_exact", 4, 16, 1, {}, {}, 0.2, 0.0, false, "zero1", 8},
          {"zero2_exact_accumulated", 4, 16, 3, weights, clipped(), 0.2, 0.0, false, "zero2", 8},
          {"zero3_exact", 4, 16, 1, {}, clipped(), 0.2, 0.0, false, "zero3", 8},
          {"zero2", 3, 12, 1, {}, clipped(), 0.3, 1e-5, false, "zero2"},
          {"zero2_fp16_weights_accumulated", 9, 14, 3, weights, fp16(), 0.2, 1e-4, false, "zero2"},
          {"zero2_batch_norm", 13, 12, 1, weights, {}, 0.2, 1e-5, true, "zero2"},
          {"ddp_update_in_backward", 5, 12, 1, weights, {}, 0.3, 1e-5, true, "ddp", 0, true},
          {"zero2_update_in_backward", 3, 12, 1, weights, {}, 0.3, 1e-5, false, "zero2", 0, true},
          {"zero3", 3, 12, 1, {}, clipped(), 0.3, 1e-5, false, "zero3"},
          {"zero3_fp16_weights_accumulated", 9, 14, 3, weights, fp16(), 0.2, 1e-4, false, "zero3"},
          {"zero3_batch_norm", 13, 12, 1, weights, {}, 0.2, 1e-5, true, "zero3"}};
}

EngineResult run_engine_case(const EngineCase& engine_case, DeviceGroup& devices) {
  const Model model = engine_case.batch_norm ? tiny_resnet() : random_model(engine_case.seed);
  const int64_t full = engine_case.batch_size, shorter = std::max<int64_t>(1, full * 2 / 3);
  EngineConfig config = small_config(model, full);
  config.accumulate = engine_case.accumulate;
  config.precision = engine_case.precision;
  config.scheme = scheme_preset(engine_case.mode);
  config.update_in_backward = engine_case.update_in_backward;
  const bool sharded = config.scheme.shard != Sharding::none;
  if (sharded) {
    config.optimizer = make_optimizer_config("adamw", 0.01, {}, false, {});
    config.ema_decay = 0.9;
  }
  Split& split = config.scheme.split;
  split.leaves = engine_case.leaves;
  if (!engine_case.weights.empty()) {
    split.kind = Split::Kind::weights;
    split.weights.assign(engine_case.weights.begin(), engine_case.weights.begin() + devices.world_size());
  }
  Engine engine(model, devices, config, {{full, shorter}, {kEvaluated}});
  EngineResult result;
  for (uint32_t step = 0; step < kSteps; ++step) {
    const int64_t samples = step + 1 == kSteps ? shorter : full;
    const BatchPlan plan = plan_batch(split, samples, config.accumulate, devices.world_size());
    engine.train_step(part_of(model, random_batch(model, samples, engine_case.seed * 100 + step, engine_case.ignored),
                              plan, devices));
  }
  for (const StepResult& totals : engine.take_step_results(true)) result.losses.push_back(totals.mean_loss());
  const BatchPlan plan = plan_batch(split, kEvaluated, 1, devices.world_size());
  const StepResult found = engine.evaluate(part_of(model, random_batch(model, kEvaluated, 77, 0.2), plan, devices));
  result.evaluation = sum_over_processes(
      devices, {found.loss_sum, static_cast<double>(found.valid), static_cast<double>(found.correct)});
  engine.parameters().verify();
  result.parameters = engine.parameters().values(0);
  const BufferValues buffers = engine.parameters().buffers(0);
  result.parameters.insert(result.parameters.end(), buffers.values.begin(), buffers.values.end());
  if (sharded) {
    const BatchPlan whole = plan_batch(split, full, config.accumulate, devices.world_size());
    const std::vector<float> states =
        save_and_load(engine, devices, part_of(model, random_batch(model, full, 78, 0.2), whole, devices));
    result.states = states;
  }
  engine.finish();
  return result;
}

void save_result(const std::string& path, const EngineResult& result) {
  std::ofstream file(path, std::ios::binary);
  write(file, result.parameters);
  write(file, result.states);
  write(file, result.losses);
  write(file, result.evaluation);
}

EngineResult load_result(const std::string& path) {
  EngineResult result;
  std::ifstream file(path, std::ios::binary);
  if (!file) return result;
  read(file, result.parameters);
  read(file, result.states);
  read(file, result.losses);
  read(file, result.evaluation);
  return result;
}

}  // namespace vitrine::test
