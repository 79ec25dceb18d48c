// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "nn/parallel/buckets.h"
#include "nn/parallel/replica.h"
#include "nn/parallel/replica_threads.h"
#include "runtime/comm/communicator.h"
#include "runtime/error.h"

/// Private to nn/parallel.
namespace vitrine {

/// count values of f32, f16 or bf16 in host memory, as f32.
void widen_on_host(DType dtype, const void* values, int64_t count, float* wide);

/// The same values in a 16-bit dtype.
std::vector<std::byte> narrow_on_host(DType dtype, std::span<const float> wide);

/// The host reads what streams have written there. throws OrderError where the order is checked and the host has not waited for them.
void note_host_read(DeviceGroup& devices, const char* operation, const ConstView& memory);

/// The error of a communicator, which may be the echo of another failure.
bool is_comm_error(const std::exception_ptr& error);

struct DataParallel::State {
  State(const Model& model, DeviceGroup& devices, const EngineConfig& config);

  int size() const { return static_cast<int>(replicas.size()); }
  Replica& replica(int i) { return *replicas[static_cast<size_t>(i)]; }
  Replica& output_replica() { return replica(config.scheme.output_device); }
  Communicator& communicator(const Replica& r) { return *(*communicators)[static_cast<size_t>(r.ordinal)]; }
  bool reduces() const { return devices.world_size() > 1; }
  bool updates(int ordinal) const { return !config.forward_only && (config.scheme.reduce == Reduce::allreduce || ordinal == 0); }
  /// throws ConfigError in an engine that only evaluates.
  void require_training(const char* operation) const;

  /// Calls `work` for every replica; an exception gets the device's name put before it.
  template <class Work>
  void for_each(const Work& work) {
    for (auto& r : replicas) {
      try {
        work(*r);
      } catch (...) {
        rethrow_with_prefix(std::current_exception(), r->device.name() + ": ");
      }
    }
  }

  /// The same on the replicas' own threads, all at once, where there are such threads; else in order. For work that looks at no other replica.
  /// When it fails on one, the others' collectives are aborted; the root cause is thrown.
  void for_each_at_once(const std::function<void(Replica&)>& work);

  /// With several processes: tells the others that this one fails, unless they know or soon find another cause.
  void report_failure(const std::exception_ptr& error);
  bool on_gpus() const { return devices[0].id().backend == Backend::cuda; }

  /// True when a GPU is lost or the communicators are broken: work under way will not end by itself. A fault that a kernel raised is neither.
  bool is_stuck() const;

  void open_communicators();
  void close_communicators() noexcept;
  /// Lets go of the micro-batch under way, whose slots may then be filled again.
  void next_micro_batch();
  void stage(Replica& r, const HostBatch& batch, int64_t first, int64_t at, int64_t total);
  void prepare_input(Replica& r);
  void loss_of(Replica& r, const Tensor& logits, const View& gradients, const View& totals);
  void backward_of(Replica& r, bool reduce_now);
  /// Gradients that no sample has written are zero.
  void ensure_gradients(Replica& r);
  /// Starts the all-reduce of every bucket that lies within the first `finished` elements.
  void issue_buckets(Replica& r, int64_t finished);
  void reduce_bucket(Replica& r, const Bucket& bucket);
  void reduce_on_device0(Replica& r);
  /// What came of 16 bits goes to the flat gradients, after it was measured if asked for.
  void unpack_gradients(Replica& r);
  std::vector<float> read_flat(Replica& r, const View& flat);
  bool reduces_packed() const { return config.precision.reduce_dtype != DType::f32; }
  /// Gradients of a batch's outputs go to the devices whose outputs they are.
  void hand_out_gradients(const Tensor& gradients, int device);
  /// Gives up the gradients that were handed out, as soon as all devices have taken their rows.
  void release_handed_out();
  int64_t nominal_targets() const { return config.batch_size * model.targets_per_sample; }
  bool broadcasts_half() const { return config.precision.mixed() && !config.precision.broadcasts_masters; }
  /// Values in host memory to the replica's parameters, or to its 16-bit copy where it has no others.
  void set_replica(Replica& r, std::span<const float> flat);
  void find_non_finite_before(Replica& r, const Tensor& input);
  /// The 16-bit copy is made anew from the masters, where a replica has both.
  void cast_parameters(Replica& r);

  const Model& model;
  DeviceGroup& devices;
  EngineConfig config;
  FlatLayout layout;
  std::vector<Bucket> buckets;    // spans not yet taken point to their names
  std::vector<int64_t> finished;  // see finished_elements()
  std::vector<std::unique_ptr<Replica>> replicas;
  std::unique_ptr<ReplicaThreads> threads;  // several GPUs only
  std::shared_ptr<std::vector<std::unique_ptr<Communicator>>> communicators;
  /// Those that were aborted: spans not yet taken point to their names.
  std::vector<std::shared_ptr<std::vector<std::unique_ptr<Communicator>>>> retired;

  bool votes_to_stop = false;
  int64_t step = 0;
  int64_t micro_batch = 0;
  bool training = true;
  bool watches = false;  // for what is not finite
  bool measures_reduction = false;
  bool reduction_on = true;
  std::vector<int64_t> sizes;
  std::vector<int> cuts;        // segments of activation checkpointing
  bool gradient_over_output;    // or apart
  std::vector<Tensor> outputs;  // logits_shape() of the device's samples
  Tensor gathered;              // of all of them, where the output device has written its own into it
  std::vector<Tensor> output_gradients;
  Tensor handed_out;  // all gradients, on the output device, until all devices have taken theirs
  int handed_out_device = 0;
};

}  // namespace vitrine
