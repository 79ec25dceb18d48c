// SPDX-License-Identifier: Apache-2.0
// Training steps as CUDA graphs: what is captured, when it is replayed, and why not.
#include "nn/parallel/step_graphs.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "kernels/gather_rows.h"
#include "runtime/comm/communicator.h"
#include "runtime/copy.h"
#include "runtime/error.h"
#include "runtime/gpu_features.h"
#include "runtime/philox.h"
#include "runtime/process_group/process_group.h"

namespace vitrine {

namespace {

// Words of an entry of StepInputs: the values, the tail, the samples, the labels.
constexpr int64_t kTail = StepValues::kCount, kSamples = kTail + kTailElements;

/// Why this process captures nothing; empty if it can.
std::string own_reason(const EngineSetup& setup, Communicator* communicator) {
  const EngineConfig& config = setup.config;
  DeviceGroup& devices = setup.devices;
  if (!config.cuda_graph) return "EngineConfig::cuda_graph is off";
  if (const std::string off = why_off(GpuFeature::graphs); !off.empty()) return off;
  if (devices.size() > 1)
    return "several GPUs of one process train together; with one process for each GPU steps can be replayed";
  if (devices.checker() != nullptr) return "the order of operations is checked";
  if (devices.options().trace == TraceLevel::operation) return "every operation is traced";
  if (!devices[0].compute().stream().can_capture()) return "the caller has created the compute stream";
  if (communicator != nullptr && CollectiveCapture::of(communicator) == nullptr)
    return "the caller has created the communicators";
  if (config.exact()) return "exact mode computes leaf by leaf";
  if (const std::string off = why_off(GpuFeature::graph_collectives); communicator != nullptr && !off.empty())
    return "collectives are not captured: " + off;
  if (config.reducer) return "the reducer is custom";
  for (const Sequential::Part& part : setup.model.net->parts()) {
    if (!part.layer->can_be_replayed())
      return fmt::format("layer '{}' cannot be replayed (Layer::can_be_replayed)", part.name);
  }
  return {};
}

/// The first of the ranks' reasons, for each rank: its own as it is, another's with its number.
std::vector<std::string> first_reason(const std::vector<std::string>& reasons) {
  const auto first = std::ranges::find_if(reasons, [](const std::string& reason) { return !reason.empty(); });
  if (first == reasons.end()) return {{}};
  std::vector<std::string> answers(reasons.size(), fmt::format("on rank {}, {}", first - reasons.begin(), *first));
  for (size_t rank = 0; rank < reasons.size(); ++rank) {
    if (!reasons[rank].empty()) answers[rank] = reasons[rank];
  }
  return answers;
}

}  // namespace

std::string why_no_graphs(const EngineSetup& setup, Communicator* communicator) {
  if (!setup.on_gpus() || setup.config.forward_only) return {};
  const std::string mine = own_reason(setup, communicator);
  return setup.peers() != nullptr ? setup.peers()->exchange("why steps are not replayed", mine, first_reason) : mine;
}

StepInputs::StepInputs(const EngineSetup& setup, const StagingSlot& slot)
    : micro_batches_(setup.config.accumulate),
      most_samples_(setup.config.resident_images.count > 0 ? slot.samples.numel() : 0),
      words_(kSamples + most_samples_ + (most_samples_ > 0 ? slot.labels.numel() : 0)),
      memory_(kStepSlots * micro_batches_ * words_ * static_cast<int64_t>(sizeof(int32_t)),
              setup.devices.host_memory()) {}

View StepInputs::part(int64_t step, int64_t position, int64_t begin, int64_t count) const {
  const int64_t entry = step % kStepSlots * micro_batches_ + position;
  return memory_.view({kStepSlots * micro_batches_ * words_}, DType::i32)
      .rows(entry * words_ + begin, entry * words_ + begin + count);
}

View StepInputs::samples(int64_t step, int64_t position, int64_t count) const {
  return part(step, position, kSamples, count);
}

View StepInputs::labels(int64_t step, int64_t position, int64_t count) const {
  return part(step, position, kSamples + most_samples_, count);
}

View StepInputs::tail(int64_t step) const {
  return {part(step, 0, kTail, kTailElements).data, {kTailElements}, DType::f32, DeviceId::host()};
}

StepGraphs::StepGraphs(const EngineSetup& setup, ReplicaGroup& replicas, Stager& stager, OutputExchange& outputs,
                       std::string& state)
    : setup_(setup),
      replicas_(replicas),
      replica_(replicas[0]),
      stager_(stager),
      outputs_(outputs),
      state_(state),
      most_micro_batches_(setup.config.accumulate),
      inputs_(setup, stager.slot(StagedBatch(), replica_)),
      process_group_(setup.peers()) {}

void StepGraphs::begin_step(int64_t step, bool stop_vote) {
  step_ = step;
  inputs_.tail(step).as<float>()[LossTotals::kCount] = stop_vote ? 1.0F : 0.0F;
}

StagedBatch StepGraphs::stage(const HostBatch& batch, const MicroBatch& next) {
  const Scheme& scheme = setup_.config.scheme;
  const int64_t position = stager_.next_position();
  inputs_pending_ = position < most_micro_batches_;
  gathers_ = inputs_pending_ && gathers(setup_.config, batch);
  if (!gathers_) {
    StagedBatch staged = stager_.stage(batch, next, scheme.staging, scheme.loss_at);
    if (!inputs_pending_) return staged;
    replicas_.for_each([&](Replica& r) {
      const PhaseScope phase(r.compute(), Phase::preprocess);
      stager_.wait(staged, r);  // before the work, which a graph may repeat
    });
    staged.awaited = true;
    return staged;
  }
  const StagedBatch staged = stager_.stage_on_compute(batch, next);
  const int64_t samples = next.samples();
  if (samples == 0) return staged;
  const auto note = [](const ConstView& from, const View& to) {
    std::memcpy(to.data, from.data, static_cast<size_t>(to.bytes()));
  };
  const ConstView labels = batch.labels.rows(next.first_row, next.first_row + samples);
  note(batch.samples.rows(next.first_row, next.first_row + samples), inputs_.samples(step_, position, samples));
  note(labels, inputs_.labels(step_, position, labels.numel()));
  stager_.set_targets(staged, replica_, {0, samples});
  return staged;
}

void StepGraphs::read_inputs(const StagedBatch& staged) {
  if (!std::exchange(inputs_pending_, false)) return;
  ExecContext& ctx = replica_.compute();
  const int64_t position = staged.position;
  std::vector<CopiedBlock> blocks{{inputs_.values(step_, position), replica_.scalars.values}};
  if (position == 0) blocks.push_back({inputs_.tail(step_), replica_.reducer_context.tail()});
  const int64_t samples = gathers_ ? replica_.batch.samples : 0;
  const StagingSlot& to = stager_.slot(staged, replica_);
  if (samples > 0) {
    const View labels = to.labels.rows(0, samples);
    blocks.push_back({inputs_.samples(step_, position, samples), to.samples.rows(0, samples)});
    blocks.push_back({inputs_.labels(step_, position, labels.numel()), labels.reshape({labels.numel()})});
  }
  copy_blocks(ctx, blocks);
  if (samples == 0) return;
  const PhaseScope phase(ctx, Phase::stage);
  // One kernel has copied all. The phase counts what it counts where the copy stream brings samples and labels.
  ctx.dispatch(
      {"copy", {}, {}, blocks.back().source.bytes() + blocks[blocks.size() - 2].source.bytes()}, [] {}, [] {});
  gather_rows(ctx, stager_.resident_images(replica_), to.samples.rows(0, samples), to.images.rows(0, samples));
}

void StepGraphs::run(const StagedBatch& staged, bool last, const std::function<void()>& work) {
  Replica& r = replica_;
  const int64_t position = staged.position;
  const bool reads_inputs = inputs_pending_;
  if (reads_inputs) {
    const OptimizerConfig& optimizer = setup_.config.optimizer;
    const bool sgd = optimizer.kind == OptimizerConfig::Kind::sgd;
    const auto epoch = static_cast<uint64_t>(staged.augmented_epoch.value_or(0));
    const StepValues values{optimizer.learning_rate(), sgd ? optimizer.sgd.momentum : optimizer.adam_kernel().beta1,
                            step_, r.batch.first_sample, random_stream(RandomPurpose::augmentation, epoch)};
    std::memcpy(inputs_.values(step_, position).data, &values, sizeof values);
  }
  // A graph of a step's first micro-batch gathers in every step, and then nothing is stale in the others.
  const auto set_stale = [&r](bool stale) {
    if (r.gathered) r.gathered->set_stale(stale);
  };
  set_stale(position == 0);
  const auto start_again = [&, targets = r.batch.targets, had_gradients = r.model.has_gradients] {
    set_stale(position == 0);
    inputs_pending_ = reads_inputs;
    outputs_.forget_scattered();
    r.forget_micro_batch();
    r.batch.targets = targets;
    r.model.has_gradients = had_gradients;
    r.scaler->reset();
    r.reducer->begin_step(step_);
    pool().restart_section();
    state_ = fmt::format("off since step {}: {}", step_ + 1, failure_);
  };
  const Key key{staged.section, staged.slot + 2 * (step_ % kStepSlots) + (gathers_ ? 2 * kStepSlots : 0)};
  if (issue_or_launch(key, position, {work, start_again})) return;
  // What issuing the work would have left on the host.
  r.model.has_gradients = true;
  set_stale(last);
  r.forget_micro_batch();
}

std::string GraphCounts::str() const {
  if (launched + issued() == 0) return {};
  std::string text =
      fmt::format("{} micro-batch{} as {}", launched, launched == 1 ? "" : "es", launched == 1 ? "a graph" : "graphs");
  if (issued() == 0) return text;
  text += fmt::format(", {} issued", issued());
  const char* separator = ": ";
  for (const auto& [count, reason] : {std::pair{first_uses, "first of their shape"},
                                      {recorded, "while the memory was recorded"},
                                      {moved, "because memory had moved"},
                                      {beyond, "beyond the planned number of a step"},
                                      {failed, "after a graph had failed"}}) {
    if (count == 0) continue;
    text += fmt::format("{}{} {}", separator, count, reason);
    separator = ", ";
  }
  return text;
}

int64_t* StepGraphs::reason_to_issue(const Section& section, int64_t position) {
  if (!failure_.empty()) return &counts_.failed;
  // A history of the memory contains what is allocated, so nothing is replayed meanwhile.
  if (records_history_) return &counts_.recorded;
  if (position >= most_micro_batches_) return &counts_.beyond;
  if (section.uses < kIssuedUses) return &counts_.first_uses;
  return section.moves == kMostMoves ? &counts_.moved : nullptr;
}

void StepGraphs::issue_section(Section& section, int64_t& reason, const std::function<void()>& issue) {
  issue();
  ++reason;
  ++section.uses;
  section.blocks = pool().section_hash();
}

bool StepGraphs::all_agree(const std::string& what, bool mine) {
  if (process_group_ == nullptr) return mine;
  const auto all = [](const std::vector<std::string>& parts) {
    return std::vector<std::string>{std::ranges::count(parts, "yes") == std::ssize(parts) ? "yes" : "no"};
  };
  return process_group_->exchange(what, mine ? "yes" : "no", all) == "yes";
}

void StepGraphs::agree_on_history() {
  if (pool().records_history() == records_history_) return;
  records_history_ = !records_history_;
  all_agree(records_history_ ? "the beginning of the memory's history" : "the end of the memory's history", true);
}

bool StepGraphs::blocks_repeat(const Key& key, int64_t position, Section& section) {
  const bool mine = std::exchange(section.blocks, pool().section_hash()) == pool().section_hash();
  if (process_group_ == nullptr) return mine;
  // Each rank says whether its blocks repeat, and why its capture has failed.
  const auto combine = [](const std::vector<std::string>& parts) {
    std::vector<std::string> failures;
    char repeat = '1';
    for (const std::string& part : parts) {
      repeat = std::min(repeat, part[0]);
      failures.push_back(part.substr(1));
    }
    std::vector<std::string> answers = first_reason(failures);
    for (std::string& answer : answers) answer.insert(0, 1, repeat);
    return answers;
  };
  // If another rank launches instead of capturing, this rank waits here, and the failure detector reports it.
  const std::string answer =
      process_group_->exchange(fmt::format("a CUDA graph for micro-batch {} of steps of {} samples, staged in slot {}",
                                           position + 1, key.section[1], key.slot),
                               (mine ? "1" : "0") + failure_, combine);
  failure_ = answer.substr(1);
  return answer[0] == '1';
}

bool StepGraphs::issue_after_failure(Section& section, const Work& work) {
  work.start_again();
  issue_section(section, counts_.failed, work.issue);
  return true;
}

bool StepGraphs::issue_or_launch(const Key& key, int64_t position, const Work& work) {
  Section& section = sections_[key.section];
  const uint64_t in_use = pool().in_use_hash();
  agree_on_history();
  if (int64_t* const reason = reason_to_issue(section, position)) {
    issue_section(section, *reason, work.issue);
    return true;
  }
  const auto found = graphs_.find(key);
  if (found != graphs_.end() && found->second.in_use == in_use) {
    return launch(found->second) ? false : issue_after_failure(section, work);
  }
  if (found != graphs_.end()) {
    // Other blocks occupy memory that the graph writes, or its inputs have moved.
    if (process_group_ != nullptr) {
      throw OrderError(
          fmt::format("memory of {} has moved since this micro-batch was captured as a CUDA graph, which all ranks "
                      "launch together: allocate what "
                      "lives longer than a step before the first step, or turn EngineConfig::cuda_graph off",
                      replica_.device.name()));
    }
    stream().synchronize();
    graphs_.erase(found);
    issue_section(section, counts_.moved, work.issue);
    return true;
  }
  std::optional<Graph> graph = capture(work.issue, in_use);
  // The blocks of this use are where the graph expects them; the previous use shows whether they will be there again.
  const bool repeat = blocks_repeat(key, position, section);
  if (!failure_.empty()) graph.reset();
  if (!graph || !launch(*graph)) return issue_after_failure(section, work);
  if (repeat) {
    graphs_.emplace(key, std::move(*graph));
  } else {
    ++section.moves;
    std::optional<ProcessGroup::Waiting> waiting;
    if (process_group_ != nullptr) waiting.emplace(*process_group_, "the first launch of a CUDA graph");
    stream().synchronize();
  }
  return true;
}

bool StepGraphs::launch(Graph& graph) {
  if (graph.collectives) collective_capture()->begin_launch(*graph.collectives, step_);
  try {
    stream().launch(*graph.work, step_);
  } catch (const CudaError& error) {
    if (process_group_ != nullptr) throw;
    failure_ = fmt::format("a step could not be launched as a CUDA graph: {}", error.what());
    return false;
  }
  ++counts_.launched;
  return true;
}

std::optional<StepGraphs::Graph> StepGraphs::capture(const std::function<void()>& issue, uint64_t in_use) {
  Graph graph;
  graph.in_use = in_use;
  Stream* const communication = &replica_.communication().stream();
  const auto abandon = [&] {
    replica_.scalars.captured_values = {};
    if (collective_capture() != nullptr) collective_capture()->end_capture();
    stream().abandon_capture();
  };
  try {
    stream().begin_capture({&communication, 1});
    replica_.scalars.captured_values = replica_.scalars.values;
    if (collective_capture() != nullptr) collective_capture()->begin_capture();
    issue();
    replica_.scalars.captured_values = {};
    if (collective_capture() != nullptr) graph.collectives = collective_capture()->end_capture();
    graph.work = stream().end_capture();
    return graph;
  } catch (const Error& error) {
    abandon();
    if (error.kind() != ErrorKind::cuda && error.kind() != ErrorKind::comm) throw;
    failure_ = fmt::format("a step could not be captured as a CUDA graph: {}", error.what());
    return std::nullopt;
  } catch (...) {
    abandon();
    throw;
  }
}

}  // namespace vitrine
