// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "kernels/step_values.h"
#include "nn/parallel/engine.h"
#include "nn/parallel/step/output_exchange.h"
#include "nn/parallel/step/stager.h"
#include "runtime/comm/capabilities.h"
#include "runtime/host_buffer.h"

/// Private to nn/parallel.
namespace vitrine {

/// Why the engine's steps are not replayed as CUDA graphs; empty if they are, or on devices that are no GPUs. With
/// several processes all of them call it, and all replay or none.
///   communicator  of the first device; null if it is alone
std::string why_no_graphs(const EngineSetup& setup, Communicator* communicator);

/// What differs from step to step, in host memory that a GPU's kernels read: the host writes it before it issues a
/// micro-batch, or launches its CUDA graph. Two steps are in flight, and a graph contains addresses: even and odd steps
/// have memory of their own.
class StepInputs {
 public:
  ///   slot  has room for the samples of a micro-batch
  StepInputs(const EngineSetup& setup, const StagingSlot& slot);

  // Of the micro-batch at `position` of a step, i32:
  View values(int64_t step, int64_t position) const { return part(step, position, 0, StepValues::kCount); }
  View samples(int64_t step, int64_t position, int64_t count) const;
  View labels(int64_t step, int64_t position, int64_t count) const;
  /// What the tail of the gradients is when the step begins, f32: no losses, and the vote to stop.
  View tail(int64_t step) const;

 private:
  View part(int64_t step, int64_t position, int64_t begin, int64_t count) const;

  int64_t micro_batches_, most_samples_, words_;
  HostBuffer memory_;
};

/// The work of micro-batches on one GPU, captured as CUDA graphs and replayed. Its first operation reads what differs
/// from step to step (StepInputs), and gathers the images that the device holds.
///
/// A graph contains addresses. The pool's placement repeats them: every use of a section key beyond the second lies as
/// the second does. The first kIssuedUses of a key are issued, and a hash of the blocks of the last of them must be
/// that of the captured work. A replay allocates nothing, so a graph is launched only while the ranges in use at its
/// beginning are those of the capture: then the ranges that it writes are free.
///
/// With several processes, each with one GPU, the collectives of a micro-batch are captured too, and NCCL requires that
/// all ranks issue them, or launch graphs of one capture. What this depends on is the same on all ranks: keys, their
/// uses, and positions. What could differ is agreed on by an exchange of the process group, which no rank passes alone:
/// whether the history of the memory is recorded, when that changes, and whether a graph is kept, when it was captured.
/// From then on a rank whose memory has moved throws, because the others launch the graph.
///
/// When a capture fails, its micro-batch is issued on all ranks, and no further one is captured.
class StepGraphs {
 public:
  ///   replicas  one      state  EngineFacts::cuda_graphs
  StepGraphs(const EngineSetup& setup, ReplicaGroup& replicas, Stager& stager, OutputExchange& outputs,
             std::string& state);

  ///   stop_vote  whether this process votes to stop
  void begin_step(int64_t step, bool stop_vote);
  /// Engine::stage() of the next micro-batch of the step. More of them than EngineConfig::accumulate are issued.
  StagedBatch stage(const HostBatch& batch, const MicroBatch& next);
  /// Begins the work of a micro-batch, once: forward() calls it.
  void read_inputs(const StagedBatch& staged);
  /// Calls `work`, which issues what follows stage() to the replica's compute stream alone, or launches its graph.
  ///   last  of the step      throws  OrderError where ranks replay together and this one's memory has moved; CommError
  void run(const StagedBatch& staged, bool last, const std::function<void()>& work);

  /// Destroys the graphs. requires an idle stream
  void forget() {
    sections_.clear();
    graphs_.clear();
  }
  const GraphCounts& counts() const { return counts_; }

 private:
  /// A micro-batch after stage().
  struct Work {
    std::function<void()> issue;
    std::function<void()> start_again;  // undoes what `issue` has left on the host: the device has done nothing of it
  };
  /// samples and section: shape and branch (the first micro-batch of a step overwrites gradients, the last one
  /// updates). slot: StagedBatch::slot, the memory of StepInputs, and whether images are gathered; two steps in flight
  /// have different ones, so that each has a graph with inputs and events of its own.
  struct Key {
    SectionKey section{};
    int64_t slot = 0;
    bool operator<(const Key& other) const { return std::tie(section, slot) < std::tie(other.section, other.slot); }
  };
  static constexpr int kIssuedUses = 2;
  static constexpr int kMostMoves = 3;
  struct Section {
    int uses = 0;
    int moves = 0;  // captures whose blocks did not lie as those of the use before; after kMostMoves the section is
                    // always issued
    uint64_t blocks = 0;  // Pool::section_hash() at the end of the latest use that was issued or captured
  };
  struct Graph {
    std::unique_ptr<CapturedWork> work;
    std::unique_ptr<CapturedCollectives> collectives;  // null: the rank is alone
    uint64_t in_use = 0;                               // Pool::in_use_hash() at its beginning
  };
  /// Issues the work, and counts it under its reason.
  void issue_section(Section& section, int64_t& reason, const std::function<void()>& issue);
  /// The count of the reason to issue the next use of a section; null: it is captured or replayed.
  int64_t* reason_to_issue(const Section& section, int64_t position);
  /// Calls work.issue, or launches the graph of its key. Returns false if it has launched one without calling it.
  bool issue_or_launch(const Key& key, int64_t position, const Work& work);
  Pool& pool() { return replica_.device.pool(); }
  Stream& stream() { return replica_.compute().stream(); }
  /// Null: the rank is alone.
  CollectiveCapture* collective_capture() { return CollectiveCapture::of(replica_.reducer_context.communicator); }
  /// What `issue` queues on the compute and communication streams; nothing, with a failure(), where CUDA or NCCL
  /// refuses that.
  std::optional<Graph> capture(const std::function<void()>& issue, uint64_t in_use);
  /// False, with a failure(), where CUDA refuses the graph. Then it throws if other ranks have launched theirs.
  bool launch(Graph& graph);
  bool issue_after_failure(Section& section, const Work& work);
  /// Whether all ranks say yes.
  bool all_agree(const std::string& what, bool mine);
  /// Notes whether the memory's history is recorded; waits for the other ranks when that has changed, because it must
  /// change on all of them.
  void agree_on_history();
  /// Whether the blocks of the captured section lie as those of its previous use, on all ranks. If a capture has
  /// failed on one, failure() is set on all.
  bool blocks_repeat(const Key& key, int64_t position, Section& section);

  const EngineSetup& setup_;
  ReplicaGroup& replicas_;
  Replica& replica_;
  Stager& stager_;
  OutputExchange& outputs_;
  std::string& state_;
  const int64_t most_micro_batches_;  // of a step
  StepInputs inputs_;
  int64_t step_ = 0;
  bool gathers_ = false;         // the work of the current micro-batch gathers its images
  bool inputs_pending_ = false;  // it has not read its inputs
  std::map<SectionKey, Section> sections_;
  std::map<Key, Graph> graphs_;
  ProcessGroup* process_group_;
  bool records_history_ = false;  // on all ranks
  std::string failure_;           // why a graph could not be captured or launched: everything is issued since
  GraphCounts counts_;
};

}  // namespace vitrine
