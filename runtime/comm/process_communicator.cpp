// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/process_communicator.h"

#include <cstring>
#include <numeric>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

#include "runtime/comm/call.h"
#include "runtime/comm/checked_communicator.h"
#include "runtime/comm/fused.h"
#include "runtime/copy.h"
#include "runtime/error.h"
#include "runtime/note_reads.h"

namespace vitrine {
namespace {

using comm::Call;
using comm::Operation;
using comm::ProcessState;

class ProcessCommunicator final : public CheckedCommunicator {
 public:
  ProcessCommunicator(std::shared_ptr<ProcessState> group, int device)
      : CheckedCommunicator(group->first_rank(group->process) + device,
                            group->first_rank(static_cast<int>(group->counts.size())), device),
        group_(std::move(group)),
        device_(device) {}

  std::string description() const override {
    if (!group_->exchange) return fmt::format("meta, {} ranks", size());
    return fmt::format("{}, {} ranks", group_->exchange->description(), size());
  }
  void abort(const Reason& reason) override {
    if (group_->process_group) group_->process_group->fail(reason);
    const Reason verdict = failure();
    group_->end(verdict.empty() ? reason : verdict);
  }
  Reason failure() override { return group_->process_group ? group_->process_group->failure() : Reason(); }

 private:
  /// A collective in progress: where it runs, its arguments, and the tag of its messages.
  struct Job {
    ExecContext& ctx;
    const Call& call;
    uint64_t tag;
    /// Flat view of this rank's memory, in elements.
    View view(const void* data, int64_t elements) const {
      return View{const_cast<void*>(data), Shape{elements}, call.dtype, ctx.device()};
    }
    int64_t element() const { return size_of(call.dtype); }
  };

  bool receives_contributions() const override { return group_->plans_gpus; }
  void queue(ExecContext& ctx, const OpInfo& info, Call call) override;
  void carry_out(const Job& job);
  void run_all_reduce(const Job& job);
  void run_reduce(const Job& job);
  void run_broadcast(const Job& job);
  void run_reduce_scatter(const Job& job);
  void run_all_gather(const Job& job);
  void run_scatter(const Job& job);
  void run_gather(const Job& job);
  void run_all_to_all(const Job& job);
  void run_send_receive(const Job& job);
  void run_tree_sum(const Job& job);
  void run_barrier(const Job& job);

  /// Sums over this process's devices into `partial` (partial_dtype()) of the first one.
  void sum_here(const Job& job, const View& input, const View& partial);
  /// Memory for the first device's sums if they need more precision than the result; otherwise empty.
  Tensor partial_scratch(const Job& job, const View& result);
  /// The first device sums the partials over the processes into `result`.
  void sum_over_processes(const Job& job, const View& partial, const View& result, std::optional<int> root);
  DType partial_dtype(const Job& job) const { return group_->partial_dtype(job.call.dtype); }
  Tensor scratch(const Job& job, int64_t elements) { return scratch(job, elements, job.call.dtype); }
  Tensor scratch(const Job& job, int64_t elements, DType dtype) {
    return job.ctx.allocate({elements}, dtype, Category::communication, "exchange");
  }

  LocalCommunicator& local() { return *group_->locals[static_cast<size_t>(device_)]; }
  bool leads() const { return device_ == 0; }
  bool has_one_device() const { return local_size() == 1; }
  int local_size() const { return group_->counts[static_cast<size_t>(group_->process)]; }
  /// Index of the root among this process's devices, or -1.
  int local_root(int root) const {
    return group_->process_of(root) == group_->process ? root - group_->first_rank(group_->process) : -1;
  }
  /// Elements of a rank's part: equal, unless scatter or gather has counts.
  static int64_t part_elements(const Call& call, int rank) {
    return call.counts.empty() ? call.count : call.counts[static_cast<size_t>(rank)] * call.count;
  }
  /// Elements of the parts of this process's ranks.
  std::vector<int64_t> local_parts(const Call& call) const;
  /// Elements of each process's parts together.
  std::vector<int64_t> process_parts(const Call& call) const;
  /// Parts of this process's ranks, all empty but one.
  std::vector<int64_t> parts_of_one(int local_rank, int64_t elements) const;

  /// Queues the first device's part of the exchange, to run once all processes have arrived.
  template <class Work>
  void queue_exchange(const Job& job, const ConstView& reads, const View& writes, Work work,
                      std::span<const ConstView> more_reads = {}) {
    CpuStream* const traced = job.ctx.backend() == Backend::cpu && job.ctx.trace_level() != TraceLevel::off
                                  ? static_cast<CpuStream*>(&job.ctx.stream())
                                  : nullptr;
    note_reads(job.ctx, comm::operation_name(job.call.operation), more_reads);
    job.ctx.dispatch({comm::operation_name(job.call.operation), {reads}, {writes}},
                     [group = group_, operation = job.call.operation, tag = job.tag, traced, work = std::move(work)] {
                       group->exchange_with_peers(operation, tag, traced, work);
                     });
  }

  /// Calls exchange(inputs, outputs) for the first device, with those of all of this process's devices side by side.
  template <class Exchange>
  void exchange_all(const Job& job, const View& input, const View& output, const Exchange& exchange) {
    if (has_one_device()) return exchange(input, output);
    const std::vector<int64_t> each(static_cast<size_t>(local_size()), input.numel());
    const Tensor inputs = leads() ? scratch(job, input.numel() * local_size()) : Tensor();
    const Tensor outputs = leads() ? scratch(job, input.numel() * local_size()) : Tensor();
    local().gather(job.ctx, input, each, inputs.view(), 0);
    if (leads()) exchange(inputs.view(), outputs.view());
    local().scatter(job.ctx, outputs.view(), each, output, 0);
  }

  std::shared_ptr<ProcessState> group_;
  int device_;
  uint64_t issued_ = 0;
};

std::vector<int64_t> ProcessCommunicator::local_parts(const Call& call) const {
  const int first = group_->first_rank(group_->process);
  std::vector<int64_t> parts;
  for (int device = 0; device < local_size(); ++device) parts.push_back(part_elements(call, first + device));
  return parts;
}

std::vector<int64_t> ProcessCommunicator::process_parts(const Call& call) const {
  std::vector<int64_t> sums;
  auto at = call.counts.begin();
  for (const int count : group_->counts) {
    sums.push_back((call.counts.empty() ? count : std::accumulate(at, at + count, int64_t{0})) * call.count);
    if (!call.counts.empty()) at += count;
  }
  return sums;
}

std::vector<int64_t> ProcessCommunicator::parts_of_one(int local_rank, int64_t elements) const {
  std::vector<int64_t> counts(static_cast<size_t>(local_size()), 0);
  counts[static_cast<size_t>(local_rank)] = elements;
  return counts;
}

void ProcessCommunicator::queue(ExecContext& ctx, const OpInfo& info, Call call) {
  if (group_->plans_gpus) return ctx.dispatch(info, [] {});
  if (!call.knows_elements) {
    throw ShapeError(fmt::format(
        "{}: rank {} passed no view; with several processes every rank must pass one, which may have 0 rows", info.name,
        rank()));
  }
  CollectiveRecord record = comm::record_of(ctx, call, issued_++);
  record.group = group_->number;
  const uint64_t tag = record.signature ^ record.sequence;
  const auto waiting = std::make_shared<std::optional<ProcessGroup::Waiting>>();
  ctx.dispatch({info.name, {}, {}, info.bytes_moved, info.buffer_bytes},
               [process_group = group_->process_group, device = device_, record = std::move(record), waiting] {
                 waiting->emplace(*process_group, record.str());
                 process_group->begin_collective(device, record);
               });
  carry_out({ctx, call, tag});
  ctx.dispatch({info.name, {}, {}}, [process_group = group_->process_group, device = device_, waiting] {
    waiting->reset();
    process_group->finish_collective(device);
  });
}

void ProcessCommunicator::carry_out(const Job& job) {
  switch (job.call.operation) {
    case Operation::all_reduce:
      return run_all_reduce(job);
    case Operation::reduce:
      return run_reduce(job);
    case Operation::broadcast:
      return run_broadcast(job);
    case Operation::reduce_scatter:
      return run_reduce_scatter(job);
    case Operation::all_gather:
      return run_all_gather(job);
    case Operation::scatter:
      return run_scatter(job);
    case Operation::gather:
      return run_gather(job);
    case Operation::all_to_all:
      return run_all_to_all(job);
    case Operation::send_receive:
      return run_send_receive(job);
    case Operation::tree_all_reduce:
    case Operation::tree_reduce_scatter:
      return run_tree_sum(job);
    case Operation::barrier:
      return run_barrier(job);
  }
}

void ProcessCommunicator::sum_here(const Job& job, const View& input, const View& partial) {
  const bool widens = partial_dtype(job) != input.dtype;
  // An average is divided at the end.
  const ReduceOp op = job.call.combination.op == ReduceOp::average ? ReduceOp::sum : job.call.combination.op;
  if (!has_one_device() && widens) return local().reduce_unrounded(job.ctx, input, leads() ? partial : View(), 0, op);
  if (!has_one_device()) return local().reduce(job.ctx, input, leads() ? partial : View(), 0, op);
  if (widens) {
    job.ctx.dispatch({"widen", {input}, {partial}}, [input, partial] {
      const void* const from = input.data;
      void* const to = partial.data;
      comm::combine_to_all(input.dtype, partial.dtype, {}, {&from, 1}, {&to, 1}, 0, input.numel());
    });
  } else if (input.data != partial.data) {
    copy(job.ctx, input, partial);
  }
}

Tensor ProcessCommunicator::partial_scratch(const Job& job, const View& result) {
  return leads() && partial_dtype(job) != result.dtype ? scratch(job, result.numel(), partial_dtype(job)) : Tensor();
}

void ProcessCommunicator::sum_over_processes(const Job& job, const View& partial, const View& result,
                                             std::optional<int> root) {
  if (!leads()) return;
  const auto processes = static_cast<int>(group_->counts.size());
  const Tensor space =
      scratch(job, comm::sum_scratch_elements(partial.dtype, result.numel(), processes), partial.dtype);
  const comm::SumBuffers buffers{partial.dtype,     partial.data,  result.dtype,        result.data,
                                 space.view().data, space.numel(), job.call.combination};
  queue_exchange(job, partial, result,
                 [buffers, count = result.numel(), root, tag = job.tag](comm::ProcessExchange& exchange) {
                   exchange.sum(buffers, count, root, tag);
                 });
}

void ProcessCommunicator::run_all_reduce(const Job& job) {
  const View output = job.view(job.call.output, job.call.count);
  const Tensor unrounded = partial_scratch(job, output);
  const View partial = unrounded ? unrounded.view() : output;
  sum_here(job, job.view(job.call.input, job.call.count), partial);
  sum_over_processes(job, partial, output, std::nullopt);
  if (!has_one_device()) local().broadcast(job.ctx, output, 0);
}

void ProcessCommunicator::run_reduce(const Job& job) {
  const int64_t count = job.call.count;
  const int root = local_root(job.call.root);
  // Only the root may use its output for the sum: elsewhere there is none, and the input must stay unchanged.
  const Tensor space = leads() && root != 0 ? scratch(job, count, job.call.dtype) : Tensor();
  const View result = root == 0 ? job.view(job.call.output, count) : space.view();
  const Tensor unrounded = partial_scratch(job, result);
  const View partial = unrounded ? unrounded.view() : result;
  sum_here(job, job.view(job.call.input, count), partial);
  sum_over_processes(job, partial, result, group_->process_of(job.call.root));
  if (root <= 0) return;
  local().scatter(job.ctx, leads() ? result : View(), parts_of_one(root, count),
                  job.view(job.call.output, device_ == root ? count : 0), 0);
}

void ProcessCommunicator::run_broadcast(const Job& job) {
  const int root = local_root(job.call.root);
  const View output = job.view(job.call.output, job.call.count);
  if (root >= 0) {
    const View input = job.view(job.call.input, job.call.count);
    if (!has_one_device()) {
      local().broadcast(job.ctx, device_ == root ? input : View(), output, root);
    } else if (input.data != output.data) {
      copy(job.ctx, input, output);
    }
  }
  if (leads()) {
    queue_exchange(job, View(), output,
                   [output, root = group_->process_of(job.call.root), tag = job.tag](comm::ProcessExchange& exchange) {
                     exchange.broadcast(output.data, output.bytes(), root, tag);
                   });
  }
  if (root < 0 && !has_one_device()) local().broadcast(job.ctx, output, 0);
}

void ProcessCommunicator::run_reduce_scatter(const Job& job) {
  const int64_t total = job.call.count * size();
  const View input = job.view(job.call.input, total), output = job.view(job.call.output, job.call.count);
  // Direct sums leave their partials as they are.
  const bool sums_input = has_one_device() && partial_dtype(job) == job.call.dtype &&
                          group_->counts.size() <= size_t{comm::ProcessExchange::kLargestDirect};
  const Tensor whole = leads() && !sums_input ? scratch(job, total, partial_dtype(job)) : Tensor();
  if (!sums_input) sum_here(job, input, whole.view());
  Tensor rounded;
  View mine = has_one_device() ? output : View();
  if (leads()) {
    const View partial = sums_input ? input : whole.view();
    const std::vector<int64_t> counts = process_parts(job.call);
    const int64_t here = local_size() * job.call.count, first = group_->first_rank(group_->process) * job.call.count;
    if (!sums_input && partial.dtype == job.call.dtype) {
      mine = partial.rows(first, first + here);
    } else if (!has_one_device()) {
      rounded = scratch(job, here, job.call.dtype);
      mine = rounded.view();
    }
    const Tensor space = scratch(job, comm::scattered_scratch_elements(partial.dtype, counts), partial.dtype);
    const comm::SumBuffers buffers{partial.dtype,     partial.data,  mine.dtype,          mine.data,
                                   space.view().data, space.numel(), job.call.combination};
    queue_exchange(job, partial, mine, [buffers, counts, tag = job.tag](comm::ProcessExchange& exchange) {
      exchange.sum_scattered(buffers, counts, tag);
    });
  }
  if (!has_one_device()) return local().scatter(job.ctx, mine, local_parts(job.call), output, 0);
  if (mine.data != output.data) copy(job.ctx, mine, output);
}

void ProcessCommunicator::run_all_gather(const Job& job) {
  const int64_t count = job.call.count;
  const View input = job.view(job.call.input, count), output = job.view(job.call.output, count * size());
  const int64_t first = group_->first_rank(group_->process) * count;
  const View here = output.rows(first, first + local_size() * count);
  if (!has_one_device()) {
    local().gather(job.ctx, input, local_parts(job.call), leads() ? here : View(), 0);
  } else if (input.data != here.data) {
    copy(job.ctx, input, here);
  }
  if (leads()) {
    std::vector<int64_t> bytes = process_parts(job.call);
    for (int64_t& b : bytes) b *= job.element();
    queue_exchange(job, View(), output, [output, bytes, tag = job.tag](comm::ProcessExchange& exchange) {
      exchange.all_gather(output.data, bytes, tag);
    });
  }
  if (!has_one_device()) local().broadcast(job.ctx, output, 0);
}

void ProcessCommunicator::run_scatter(const Job& job) {
  const std::vector<int64_t> counts = process_parts(job.call);
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const int64_t first = std::accumulate(counts.begin(), counts.begin() + group_->process, int64_t{0});
  const int64_t here = counts[static_cast<size_t>(group_->process)];
  const int root = local_root(job.call.root);
  const View output = job.view(job.call.output, part_elements(job.call, rank()));
  // The first device of the root's process needs the whole; those of other processes need their process's part.
  Tensor space;
  if (leads() && root != 0 && !(root < 0 && has_one_device())) space = scratch(job, root > 0 ? total : here);
  const View whole = root == 0 ? job.view(job.call.input, total) : space.view();
  if (root > 0) {
    local().gather(job.ctx, job.view(job.call.input, device_ == root ? total : 0), parts_of_one(root, total),
                   leads() ? whole : View(), 0);
  }
  const View part = root >= 0          ? (leads() ? whole.rows(first, first + here) : View())
                    : has_one_device() ? output
                                       : space.view();
  if (leads()) {
    std::vector<int64_t> bytes = counts;
    for (int64_t& b : bytes) b *= job.element();
    queue_exchange(job, root >= 0 ? whole : View(), root >= 0 ? View() : part,
                   [whole, part, bytes, root = group_->process_of(job.call.root), tag = job.tag](
                       comm::ProcessExchange& exchange) { exchange.scatter(whole.data, part.data, bytes, root, tag); });
  }
  if (!has_one_device()) return local().scatter(job.ctx, part, local_parts(job.call), output, 0);
  if (part.data != output.data) copy(job.ctx, part, output);
}

void ProcessCommunicator::run_gather(const Job& job) {
  const std::vector<int64_t> counts = process_parts(job.call);
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const int64_t first = std::accumulate(counts.begin(), counts.begin() + group_->process, int64_t{0});
  const int64_t here = counts[static_cast<size_t>(group_->process)];
  const int root = local_root(job.call.root);
  const View input = job.view(job.call.input, part_elements(job.call, rank()));
  Tensor space;
  if (leads() && root != 0 && !(root < 0 && has_one_device())) space = scratch(job, root > 0 ? total : here);
  const View whole = root == 0 ? job.view(job.call.output, total) : space.view();
  const View part = root >= 0          ? (leads() ? whole.rows(first, first + here) : View())
                    : has_one_device() ? input
                                       : space.view();
  if (!has_one_device()) {
    local().gather(job.ctx, input, local_parts(job.call), leads() ? part : View(), 0);
  } else if (part.data != input.data) {
    copy(job.ctx, input, part);
  }
  if (leads()) {
    std::vector<int64_t> bytes = counts;
    for (int64_t& b : bytes) b *= job.element();
    queue_exchange(job, root >= 0 ? View() : part, root >= 0 ? whole : View(),
                   [whole, part, bytes, root = group_->process_of(job.call.root), tag = job.tag](
                       comm::ProcessExchange& exchange) { exchange.gather(part.data, whole.data, bytes, root, tag); });
  }
  if (root <= 0) return;
  local().scatter(job.ctx, leads() ? whole : View(), parts_of_one(root, total),
                  job.view(job.call.output, device_ == root ? total : 0), 0);
}

void ProcessCommunicator::run_all_to_all(const Job& job) {
  using Part = comm::ProcessExchange::Part;
  const int64_t whole = job.call.count * size();
  const View input = job.view(job.call.input, whole), output = job.view(job.call.output, whole);
  exchange_all(job, input, output, [&](const View& all_inputs, const View& all_outputs) {
    const int64_t part_bytes = job.call.count * job.element();
    const auto place = [&](const View& all, int local_rank, int other_rank) {
      return static_cast<std::byte*>(all.data) + (int64_t{local_rank} * size() + other_rank) * part_bytes;
    };
    const int first = group_->first_rank(group_->process);
    const std::vector<int> process_of = group_->processes_of_ranks();
    std::vector<Part> sends, receives;
    std::vector<std::pair<const void*, void*>> here;
    for (int mine = 0; mine < local_size(); ++mine) {
      for (int target = 0; target < size(); ++target) {
        const int to = process_of[static_cast<size_t>(target)];
        std::byte* const part = place(all_inputs, mine, target);
        if (to == group_->process) {
          here.emplace_back(part, place(all_outputs, target - first, first + mine));
        } else {
          sends.push_back({to, part, part_bytes});
        }
      }
    }
    for (int source = 0; source < size(); ++source) {
      const int from = process_of[static_cast<size_t>(source)];
      for (int mine = 0; from != group_->process && mine < local_size(); ++mine)
        receives.push_back({from, place(all_outputs, mine, source), part_bytes});
    }
    queue_exchange(job, all_inputs, all_outputs,
                   [sends, receives, here, part_bytes, tag = job.tag](comm::ProcessExchange& exchange) {
                     for (const auto& [from, to] : here) {
                       if (part_bytes > 0) std::memcpy(to, from, static_cast<size_t>(part_bytes));
                     }
                     exchange.exchange(sends, receives, tag);
                   });
  });
}

void ProcessCommunicator::run_send_receive(const Job& job) {
  const int64_t count = job.call.count;
  const bool receives = job.call.output != nullptr;
  // Inputs that are not sent are gathered too, and ignored: the ranks of a process do not know which of them send.
  const View input = job.view(job.call.input != nullptr ? job.call.input : job.call.known, count);
  const Tensor unused = has_one_device() || receives ? Tensor() : scratch(job, count);
  const View output = receives ? job.view(job.call.output, count) : unused.view();
  job.ctx.dispatch({"send_receive", {}, {}},
                   [group = group_, device = device_, tag = job.tag,
                    route = ProcessState::Route{job.call.to, job.call.from}] { group->add_route(tag, device, route); });
  exchange_all(job, input, output, [&](const View& all_inputs, const View& all_outputs) {
    queue_exchange(job, all_inputs, all_outputs,
                   [group = group_, all_inputs, all_outputs, bytes = count * job.element(), tag = job.tag](auto&) {
                     group->send_and_receive(static_cast<std::byte*>(all_inputs.data),
                                             static_cast<std::byte*>(all_outputs.data), bytes, tag);
                   });
  });
}

void ProcessCommunicator::run_tree_sum(const Job& job) {
  const comm::TreeSum& tree = job.call.tree;
  const bool gathers = job.call.operation == Operation::tree_all_reduce;
  const int64_t whole = job.call.count * (gathers ? 1 : size());
  const View output = job.view(job.call.output, job.call.count);
  const std::vector<int> process_of = group_->processes_of_ranks();
  std::vector<int> processes;  // of the contributions
  for (const Contribution& c : tree.contributions) processes.push_back(process_of[static_cast<size_t>(c.rank)]);
  comm::TreeBuffers buffers{.dtype = job.call.dtype, .count = whole};
  if (!gathers) buffers.counts = process_parts(job.call);
  std::vector<Subtree> nodes;
  std::vector<ConstView> partials;  // of the first device
  std::vector<Tensor> spaces;
  size_t taken = 0;  // inputs of this device
  for (const comm::Part& part : comm::parts_of_one_owner(tree.folds, processes)) {
    buffers.processes.push_back(processes[part.begin]);
    // The order of the parts depends only on where they begin.
    const int64_t begin = tree.contributions[part.begin].node.begin;
    nodes.push_back({begin, begin + 1});
    if (processes[part.begin] != group_->process) continue;
    std::vector<Contribution> here;
    std::vector<ConstView> inputs;
    for (size_t i = part.begin; i < part.end; ++i) {
      here.push_back(tree.contributions[i]);
      here.back().rank -= group_->first_rank(group_->process);
      if (here.back().rank == device_) inputs.push_back(job.view(tree.inputs[taken++], whole));
    }
    const bool in_place = here.size() == 1 && here[0].rank == 0;
    if (in_place && leads()) partials.push_back(inputs[0]);
    if (in_place) continue;
    if (leads()) partials.push_back(spaces.emplace_back(scratch(job, whole)).view());
    local().tree_reduce(job.ctx, here, inputs, leads() ? spaces.back().view() : job.view(job.call.output, whole), 0);
  }
  Tensor results;  // of this process's devices
  if (!gathers && !has_one_device() && leads()) results = scratch(job, job.call.count * local_size());
  const View mine = results ? results.view() : output;
  if (leads()) {
    const TreeOrder order(nodes);
    buffers.folds.assign(order.folds().begin(), order.folds().end());
    for (const ConstView& partial : partials) buffers.partials.push_back(partial.data);
    buffers.results = mine.data;
    const Tensor space =
        scratch(job, comm::tree_scratch_elements(job.call.dtype, whole, static_cast<int>(group_->counts.size()),
                                                 static_cast<int64_t>(nodes.size())));
    buffers.scratch = space.view().data;
    buffers.scratch_elements = space.numel();
    queue_exchange(
        job, View(), mine,
        [buffers, tag = job.tag](comm::ProcessExchange& exchange) { exchange.tree_sum(buffers, tag); }, partials);
  }
  if (has_one_device()) return;
  if (gathers) return local().broadcast(job.ctx, output, 0);
  local().scatter(job.ctx, mine, local_parts(job.call), output, 0);
}

void ProcessCommunicator::run_barrier(const Job& job) {
  if (!has_one_device()) local().barrier(job.ctx);
  if (leads()) queue_exchange(job, View(), View(), [](comm::ProcessExchange&) {});
  if (!has_one_device()) local().barrier(job.ctx);
}

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_process_communicators(
    DeviceGroup& devices, std::vector<std::unique_ptr<LocalCommunicator>> locals) {
  const auto group = std::make_shared<ProcessState>(devices, std::move(locals));
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int device = 0; device < devices.size(); ++device)
    communicators.push_back(std::make_unique<ProcessCommunicator>(group, device));
  return communicators;
}

}  // namespace vitrine
