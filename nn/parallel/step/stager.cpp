// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/step/stager.h"

#include <algorithm>
#include <utility>

#include "kernels/cast.h"
#include "kernels/gather_rows.h"
#include "kernels/image.h"
#include "runtime/copy.h"
#include "runtime/host_buffer.h"

namespace vitrine {
namespace {

// Host memory through which images reach the devices that hold them.
constexpr int64_t kLoadBytes = int64_t{16} << 20;

/// Copies rows of a micro-batch to the start of a tensor. first_row: where the micro-batch begins in `from`.
void copy_rows(ExecContext& ctx, const ConstView& from, int64_t first_row, const RowRange& rows, const Tensor& to) {
  if (rows.size() == 0) return;
  copy(ctx, from.rows(first_row + rows.begin, first_row + rows.end), to.view().rows(0, rows.size()));
}

}  // namespace

Stager::Stager(const EngineSetup& setup, const PlannedBatches& batches, ReplicaGroup& replicas)
    : setup_(setup),
      replicas_(replicas),
      input_form_(vitrine::input_form(setup.model, setup.devices, setup.config)),
      inputs_(static_cast<size_t>(replicas.size())) {
  const EngineConfig& config = setup.config;
  const Scheme& scheme = config.scheme;
  for (auto& r : replicas_) {
    const bool holds_all = scheme.staging == Staging::device0 && r->ordinal() == 0;
    const bool scatters = scheme.staging == Staging::device0 && r->ordinal() != 0;  // takes its images from device 0
    int64_t images = holds_all ? batches.largest_micro_batch() : batches.largest_slice(r->ordinal());
    int64_t labels = images;
    if (scheme.loss_at == LossAt::gathered)
      labels = r->ordinal() == scheme.output_device ? batches.largest_micro_batch() : 0;
    images = std::max(images, batches.largest_evaluation());
    labels = std::max(labels, batches.largest_evaluation());
    ExecContext& ctx = r->copy();
    const PhaseScope phase(ctx, Phase::setup);
    const auto allocate_images = [&](int64_t count, Category category, const char* name) {
      return ctx.allocate(staged_shape(setup.model, config, count), config.image_dtype, category, name);
    };
    DeviceInput& input = input_of(*r);
    if (config.resident_images.count > 0 && !scatters)
      input.resident_images = allocate_images(config.resident_images.count, Category::dataset, "training images");
    for (StagingSlot& s : input.slots) {
      s.images = allocate_images(images, Category::staging, "images");
      s.labels = ctx.allocate(setup.model.label_shape(labels), DType::i32, Category::staging, "labels");
      if (config.stages_sample_indices())
        s.samples = ctx.allocate({images}, DType::i32, Category::staging, "sample indices");
    }
  }
  make_events();
  replicas_.on_recovery([this] { make_events(); });
}

void Stager::make_events() {
  for (auto& r : replicas_) {
    for (StagingSlot& s : input_of(*r).slots) {
      s.staged = r->compute().stream().make_event();
      s.used = r->compute().stream().make_event();
    }
  }
}

void Stager::load_resident_images() {
  const ResidentImages& resident = setup_.config.resident_images;
  if (resident.count == 0) return;
  const auto shape = [&](int64_t count) { return staged_shape(setup_.model, setup_.config, count); };
  const int64_t most = std::clamp<int64_t>(kLoadBytes / shape(1).numel(), 1, resident.count);
  const HostBuffer part(most * shape(1).numel(), setup_.devices.host_memory());
  for (int64_t first = 0; first < resident.count; first += most) {
    const int64_t count = std::min(most, resident.count - first);
    const View images = part.view(shape(count), DType::u8);
    if (replicas_[0].device.id().backend != Backend::meta) resident.read(first, images);
    replicas_.for_each([&](Replica& r) {
      const Tensor& held = input_of(r).resident_images;
      if (!held) return;
      const PhaseScope setup(r.copy(), Phase::setup);
      copy(r.copy(), images, held.view().rows(first, first + count));
    });
    replicas_.for_each([](Replica& r) { r.copy().stream().synchronize(); });  // before the buffer is filled again
  }
}

void Stager::begin_section(const SectionKey& section) {
  for (auto& r : replicas_) r->device.pool().begin_section(section);
}

void Stager::begin(SectionKind kind, int64_t samples) {
  kind_ = kind;
  batch_samples_ = samples;
  next_position_ = 0;
  begin_section({kind, samples, 0});
}

StagedBatch Stager::begin_micro_batch(const HostBatch& batch, const MicroBatch& next, bool releases_slots) {
  const int64_t micro_batch_samples = next.global_samples > 0 ? next.global_samples : next.samples();
  int64_t first_sample = next.position;
  for (auto& r : replicas_) {
    for (StagingSlot& s : input_of(*r).slots) {
      if (releases_slots && std::exchange(s.in_use, false)) r->compute().record(*s.used);
    }
    r->forget_micro_batch();
    r->batch.samples = next.sizes[static_cast<size_t>(r->ordinal())];
    r->batch.first_sample = first_sample;
    r->batch.micro_batch_samples = micro_batch_samples;
    first_sample += r->batch.samples;
    if (setup_.config.exact()) begin_leaves(*r, next);
  }
  // Training micro-batches alternate between the slots even if evaluations come in between: one process may evaluate
  // alone, and all ranks must launch graphs that read the same slot.
  const bool training = kind_ == kTraining;
  slot_ = 1 - (training ? training_slot_ : slot_);
  if (training) training_slot_ = slot_;
  for (auto& r : replicas_) slot(slot_, *r).in_use = true;
  StagedBatch staged{.section = {kind_, batch_samples_, next_position_ + 1}, .position = next_position_, .slot = slot_};
  if (training && setup_.config.augments()) staged.augmented_epoch = batch.epoch;
  begin_section(staged.section);
  ++next_position_;
  return staged;
}

void Stager::begin_leaves(Replica& r, const MicroBatch& next) {
  const int leaves = setup_.config.scheme.split.leaves, group_size = setup_.config.leaf_group();
  const auto first_sample = [&](int64_t leaf) { return leaf_begin(batch_samples_, leaves, leaf); };
  Leaves& of_batch = r.batch.leaves;
  const RowRange& own = next.leaves[static_cast<size_t>(r.ordinal())];
  for (int64_t i = own.begin; i < own.end; ++i) {
    const RowRange rows{first_sample(i) - first_sample(own.begin), first_sample(i + 1) - first_sample(own.begin)};
    const int64_t group = (i - next.all_leaves.begin) / group_size;
    if (rows.size() > 0) of_batch.own.push_back({rows, static_cast<int>(i), static_cast<int>(group)});
  }
  if (kind_ != kTraining) return;
  for (int64_t i = next.all_leaves.begin; i < next.all_leaves.end; i += group_size)
    of_batch.group_samples.push_back(first_sample(i + group_size) - first_sample(i));
  of_batch.sums = r.exact;
  r.exact->begin_micro_batch(next.index, of_batch);
}

StagedBatch Stager::stage(const HostBatch& batch, const MicroBatch& next, Staging staging, LossAt loss_at) {
  const StagedBatch staged = begin_micro_batch(batch, next, true);
  const bool through_device0 = staging == Staging::device0;
  const RowRange all{0, next.samples()};
  int64_t before = 0;  // samples of earlier devices
  replicas_.for_each([&](Replica& r) {
    const RowRange mine{before, before + r.batch.samples};
    before = mine.end;
    const bool scatters = through_device0 && r.ordinal() != 0;
    const PhaseScope phase(r.copy(), scatters ? Phase::scatter : Phase::stage);
    wait_for_slot(staged, r);
    if (scatters) {
      stage_from_device0(staged, r, mine, loss_at);
    } else {
      stage_from_host(staged, r, batch, next.first_row, through_device0 ? all : mine, loss_at);
    }
    if (loss_at == LossAt::parallel) {
      set_targets(staged, r, mine);
    } else if (r.ordinal() == setup_.config.scheme.output_device) {
      copy_rows(r.copy(), batch.labels, next.first_row, all, slot(staged, r).labels);
      set_targets(staged, r, all);
    }
    r.copy().record(*slot(staged, r).staged);
  });
  return staged;
}

StagedBatch Stager::stage_on_compute(const HostBatch& batch, const MicroBatch& next) {
  StagedBatch staged = begin_micro_batch(batch, next, false);
  staged.awaited = true;
  return staged;
}

void Stager::wait_for_slot(const StagedBatch& staged, Replica& r) {
  ExecContext& ctx = r.copy();
  ctx.wait(*slot(staged, r).used, "compute");
  if (setup_.config.scheme.staging != Staging::device0 || r.ordinal() != 0) return;
  // Copies of an earlier micro-batch to the other devices may still read this slot.
  for (int other = 1; other < replicas_.size(); ++other) ctx.wait(*slot(staged, replicas_[other]).staged, "scatter");
}

void Stager::stage_from_host(const StagedBatch& staged, Replica& r, const HostBatch& batch, int64_t first_row,
                             const RowRange& rows, LossAt loss_at) {
  ExecContext& ctx = r.copy();
  const StagingSlot& to = slot(staged, r);
  const bool from_dataset = kind_ == kTraining && gathers(setup_.config, batch);
  if (staged.augmented_epoch || from_dataset) copy_rows(ctx, batch.samples, first_row, rows, to.samples);
  if (!from_dataset) {
    copy_rows(ctx, batch.images, first_row, rows, to.images);
  } else if (rows.size() > 0) {
    gather_rows(ctx, resident_images(r), to.samples.rows(0, rows.size()), to.images.rows(0, rows.size()));
  }
  if (loss_at == LossAt::parallel) copy_rows(ctx, batch.labels, first_row, rows, to.labels);
}

void Stager::stage_from_device0(const StagedBatch& staged, Replica& r, const RowRange& rows, LossAt loss_at) {
  ExecContext& ctx = r.copy();
  const StagingSlot &from = slot(staged, replicas_[0]), &to = slot(staged, r);
  ctx.wait(*from.staged, "stage on device 0");
  if (staged.augmented_epoch) copy_rows(ctx, from.samples, 0, rows, to.samples);
  copy_rows(ctx, from.images, 0, rows, to.images);
  if (loss_at == LossAt::parallel) copy_rows(ctx, from.labels, 0, rows, to.labels);
}

void Stager::set_targets(const StagedBatch& staged, Replica& r, const RowRange& rows) {
  if (rows.size() == 0) return;
  r.batch.targets =
      slot(staged, r).labels.rows(0, rows.size()).reshape({rows.size() * setup_.model.targets_per_sample});
}

void Stager::prepare_input(const StagedBatch& staged, Replica& r) {
  ExecContext& ctx = r.compute();
  if (r.batch.samples == 0) {
    if (r.batch.targets && !staged.awaited) wait(staged, r);
    return;
  }
  const PhaseScope phase(ctx, Phase::preprocess);
  if (!staged.awaited) wait(staged, r);
  const StagingSlot& from = slot(staged, r);
  const EngineConfig& config = setup_.config;
  const int64_t samples = r.batch.samples;
  const Tensor images = from.images.rows(0, samples);
  const DType dtype = config.precision.compute;
  if (config.image_dtype == dtype || config.image_dtype == DType::i32) {
    r.batch.input = images;
    return;
  }
  r.batch.input = ctx.allocate(input_form_ ? input_form_.packed_shape(samples) : setup_.model.input_shape(samples),
                               dtype, Category::activations, "input");
  if (config.image_dtype == DType::f32) {
    cast(ctx, images, r.batch.input);
  } else if (staged.augmented_epoch) {
    augment_normalize(ctx, config.augmentation, {config.seed, *staged.augmented_epoch}, config.normalization, images,
                      from.samples.rows(0, samples), r.batch.input, input_form_, r.scalars.captured_values);
  } else {
    resize_normalize(ctx, config.normalization, images, r.batch.input, input_form_);
  }
}

}  // namespace vitrine
