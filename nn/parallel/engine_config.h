// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <vitrine/kernels/image.h>
#include <vitrine/kernels/tuned_plans.h>
#include <vitrine/nn/loss_scaler.h>
#include <vitrine/nn/parallel/optimizer.h>
#include <vitrine/nn/parallel/scheme.h>
#include <vitrine/runtime/host_batch.h>

namespace vitrine {

class Engine;
class Reducer;
class WorkspaceRecord;
struct ReducerContext;

/// Issues the work of one optimizer step by calling the engine's parts (see Engine).
using TrainingStep = std::function<void(Engine& engine, const HostBatch& batch)>;

/// Makes the Reducer of one replica (see nn/parallel/reduce/reducer.h).
using ReducerFactory = std::function<std::unique_ptr<Reducer>(const ReducerContext& replica)>;

/// The samples over which layers such as BatchNorm2d take their statistics in training.
enum class BatchStatistics : uint8_t {
  /// The whole micro-batch, whatever the split: every scheme computes the single-device gradient. Two small all-reduces
  /// for each layer in forward,
  /// one in backward.
  exact,
  /// Each device its own samples, as PyTorch's dp and ddp do. The running statistics are those of rank 0, which are
  /// broadcast after every step;
  /// PyTorch's ddp broadcasts them before the next forward pass, which gives the same values.
  local,
};

/// The precision in which a model is trained. With f16 or bf16, convolutions, matrix products and the layers between
/// them work on a 16-bit copy of the f32 parameters, which the optimizer writes; the loss, reductions and the optimizer
/// work in f32. So do statistics, weight and bias of batch norm, as under PyTorch's autocast.
struct Precision {
  DType compute = DType::f32;  // f32, f16 or bf16: activations and the parameters that layers see
  LossScaling loss_scaling;
  double clip_norm = 0.0;           // largest norm of the mean gradient over all devices; 0: no clipping
  DType reduce_dtype = DType::f32;  // data type used to reduce gradients; the totals stay f32

  bool mixed() const { return compute != DType::f32; }
  /// Whether the norm of the gradient is needed: losses are scaled, or gradients clipped.
  bool checks() const { return loss_scaling.active() || clip_norm > 0.0; }
};

/// The training images of a data set, in its order, for the devices to hold.
struct ResidentImages {
  int64_t count = 0;  // at most 2^31 - 1; 0: none
  /// Writes the images [first, first + n) to `images`, (n, h, w, C) u8 in host memory. Called while the engine is
  /// constructed, once for each image; what it throws, the constructor throws. Not
  /// called by plans.
  std::function<void(int64_t first, View images)> read;
};

/// Timed choice among the plans that cuDNN and cuBLASLt have for the convolutions and products of the workload, while
/// the engine is constructed. One GPU of rank 0 times them, in the memory that is planned for it, and the GPUs of all
/// processes use its choice. The plans are those that are allowed without it, too: deterministic, and within the
/// workspace. Two searches may end differently, and then results differ by rounding; with the plans of an earlier
/// search they have the same bits.
struct Autotune {
  bool enabled = false;
  /// Plans of an earlier search (EngineFacts::tuned_plans, rank 0's), which are used instead of being timed. Those for
  /// other GPUs, libraries or workspaces are timed again, with a warning in AutotuneReport. Null: none.
  std::shared_ptr<const TunedPlans> known;
  /// No plan is timed after that; the operations that are left run by the libraries' choice, which is recorded like the
  /// others. The other processes wait up to five times ProcessGroupOptions::timeout_ms.
  double most_seconds = 20;
};

/// What an engine with Autotune did.
struct AutotuneReport {
  int timed = 0, reused = 0;          // kinds of operations whose plans were timed now, or known
  int failed_candidates = 0;          // plans that the libraries proposed but could not run
  double seconds = 0;                 // of the search
  std::vector<std::string> warnings;  // known plans that are not used, and operations that were not timed
};

/// What an engine does, fixed for its lifetime but for the learning rate and momentum (Engine::set_learning_rate()),
/// and workspace_bytes, which the engine fills in where the plan sizes it.
struct EngineConfig {
  Scheme scheme;
  int64_t batch_size = 64;  // samples per optimizer step, over all devices and micro-batches
  int accumulate = 1;       // micro-batches per optimizer step
  /// Activation checkpointing: the model is cut into this many segments. All but the last keep only their input for
  /// backward, which computes the rest again (see segments.h). 1: everything is kept.
  int recompute_segments = 1;
  /// Activation checkpointing by name, instead of recompute_segments: segments that keep only their input, as "PART" or
  /// "FIRST-LAST" (find_segments() in segments.h). All other parts are kept. RecomputeSearch (recompute_search.h) finds
  /// those that cost least time.
  std::vector<std::string> recompute;
  BatchStatistics batch_statistics = BatchStatistics::exact;
  /// Exact mode (Split::leaves above 0): every leaf of the batch is computed alone, on a team of leaf_threads threads
  /// of a CPU device, and results are added along one tree over leaf numbers: parameters get the same bits on any
  /// devices, under any scheme. Batch norm takes its statistics over groups of batch_norm_leaves consecutive leaves; 0:
  /// over all of the step. A micro-batch holds whole groups.
  int leaf_threads = 1;
  int batch_norm_leaves = 0;
  /// The gradient of the outputs overwrites them, unless the model's last part still needs them. False: it gets memory
  /// of its own.
  bool loss_gradient_in_place = true;
  /// The parameters of a bucket are updated during backward, as soon as its gradients are final and reduced, and the
  /// memory of these gradients is freed: a device holds the gradients of one or two buckets (bucket_bytes). The loss is
  /// reduced and the step decided before backward, so the norm of the gradient is not measured. Updates have the same
  /// bits. A gradient that is not finite stops training when other parameters have been updated: training can only
  /// continue from a checkpoint.   source  Lv et al., "LOMO", ACL 2024
  bool update_in_backward = false;
  OptimizerConfig optimizer;
  std::vector<ParameterGroup> parameter_groups;
  /// Above 0 and below 1: after each step the average of the parameters becomes ema_decay * average + (1 - ema_decay) *
  /// parameters, the first step's parameters to begin with, as torch.optim.swa_utils.AveragedModel does with
  /// get_ema_multi_avg_fn(). Replicas that run the optimizer hold the average in f32; Engine::AverageScope evaluates
  /// it. 0: there is none.
  double ema_decay = 0.0;
  Precision precision;
  /// False: the first loss or gradient that is not finite stops training with DivergedError; no device changes its
  /// parameters any more, and an update never makes a finite parameter infinite or NaN. A non-finite gradient that loss
  /// scaling can explain only skips its step. True: training goes on with NaN, as in PyTorch (loss scaling and clipping
  /// still skip steps with a non-finite gradient).
  bool allow_non_finite = false;
  /// The engine only evaluates: it holds parameters (in the precision that layers compute in, and in f32 if some stay
  /// f32), saved buffers and activations, but no gradients and no optimizer state. Workload::train_batches must be
  /// empty.
  bool forward_only = false;
  uint64_t seed = 0;
  int32_t ignore_index = -100;
  /// Label smoothing of the training loss, in 0..1, as in torch.nn.CrossEntropyLoss; evaluate() takes the loss without
  /// it.
  float label_smoothing = 0.0F;
  /// Inputs as batches contain them: u8 images (h, w, C), which are resized and normalized on the device; or f32 of
  /// Model::input_shape(), which are used unchanged. Samples that are not images have Model::sample_dtype().
  DType image_dtype = DType::u8;
  int64_t image_height = 0, image_width = 0;
  /// Whether u8 images become the form that the model's first layer wants, such as blocks of pixels with more channels
  /// (conv2d_input_form). Parameters and their gradients keep their shapes, and sums may be rounded in another order.
  /// EngineFacts::input_form is the form. f32 inputs are used unchanged.
  InputPacking input_packing = InputPacking::automatic;
  Normalization normalization;
  /// Images that stay on the devices, in memory that plans count: a training batch without images (HostBatch::images)
  /// names its own by HostBatch::samples, and the devices gather them. Each device holds all of them, because an
  /// epoch's order gives it any; with Staging::device0 only device 0 does. The results have the same bits as with
  /// images from the host. Requires u8 images.
  ResidentImages resident_images;
  /// Random changes of the images that are trained on, never of those that are evaluated: drawn from (seed,
  /// HostBatch::epoch, HostBatch::samples), so that every scheme and split trains on the same images. Requires u8
  /// images, and HostBatch::samples in each training batch.
  Augmentation augmentation;
  /// Arena of each compute stream, in which convolutions and products have their scratch. None: the plan sizes it (see
  /// WorkspacePlan).
  std::optional<int64_t> workspace_bytes = {};
  /// Plans only, for CPU devices of another machine: its libraries' answers. What it lacks, the plan assumes, and says
  /// so (WorkspacePlan::unknown). Null: this machine's libraries are asked.
  std::shared_ptr<const WorkspaceRecord> workspace_record = nullptr;
  int64_t bucket_bytes = int64_t{25} << 20;       // all-reduce: size of a bucket of the flat gradients ...
  int64_t first_bucket_bytes = int64_t{1} << 20;  // ... and of the first one
  /// A process with one GPU captures the work of each micro-batch, with its collectives, as a CUDA graph after two
  /// steps of its shape and replays it from then on, with the same bits: one launch instead of dozens. Steps are not
  /// replayed where a process has several GPUs, the order is checked or every operation traced, on the caller's streams
  /// or communicators, with a custom reducer, and when a layer does not allow it (Layer::can_be_replayed);
  /// EngineFacts::cuda_graphs says why. With several processes all replay or none.
  bool cuda_graph = true;
  /// Only for GPUs.
  Autotune autotune;
  /// Replaces default_step(), for a custom loss or order. Planning calls it too, on meta devices with a batch
  /// whose memory must not be read, so that plans contain its allocations: it only issues work, and what it allocates
  /// depends on shapes alone.
  TrainingStep step;
  /// Replaces the reduction of the scheme, which must be ReducerKind::allreduce. Planning calls it too, on meta
  /// devices.
  ReducerFactory reducer;

  /// Whether each of several replicas holds its part only.
  bool shards(Sharding what, int world_size) const { return scheme.shards(what) && world_size > 1; }
  /// The same of the f32 parameters: where layers read a 16-bit copy, they are sharded with the optimizer's states.
  bool shards_masters(int world_size) const {
    return shards(Sharding::parameters, world_size) ||
           (shards(Sharding::optimizer, world_size) && precision.mixed() && !forward_only);
  }
  /// Gradients have memory bucket by bucket, while backward writes and reduces them.
  bool has_gradient_buckets(int world_size) const {
    return shards(Sharding::gradients, world_size) || update_in_backward;
  }
  bool exact() const { return scheme.split.leaves > 0; }
  /// Leaves that share batch statistics, in exact mode.
  int leaf_group() const { return batch_norm_leaves > 0 ? batch_norm_leaves : scheme.split.leaves; }
  /// Whether training changes images at random.
  bool augments() const { return augmentation.any() && !forward_only; }
  /// Whether training batches bring the index of each sample to the devices.
  bool stages_sample_indices() const { return augments() || resident_images.count > 0; }
  /// What happens to a step whose loss or gradient is not finite.
  NonFinite non_finite() const {
    if (!allow_non_finite) return NonFinite::stop;
    return precision.checks() ? NonFinite::skip : NonFinite::accept;
  }
};

/// Sizes of the batches that a run will have: what has to be planned for.
struct Workload {
  std::vector<int64_t> train_batches = {};     // distinct sizes, the full one first
  std::vector<int64_t> evaluate_batches = {};  // distinct sizes of evaluation batches
  /// The workload under another batch size or number of micro-batches, for advice when memory is short. Null: one full
  /// batch, and evaluation batches of a micro-batch if there are any.
  std::function<Workload(const EngineConfig&)> under = nullptr;
  /// Asked before each plan of a search (nn/parallel/plan/plan_search.h), also of the one for advice when memory is
  /// short: true ends the search with SearchStopped. Null: searches run to completion.
  std::function<bool()> stop = nullptr;
};

}  // namespace vitrine
