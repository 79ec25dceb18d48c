// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/checked_communicator.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "runtime/comm/call.h"
#include "runtime/comm/fused.h"
#include "runtime/error.h"
#include "runtime/note_reads.h"
#include "runtime/order_checker.h"
#include "runtime/square_sums.h"

namespace vitrine {
namespace {

using comm::Call;
using comm::Operation;

/// Represents an omitted or ignored argument in an operation's reads and writes.
View nothing() { return View{nullptr, Shape{0}, DType::u8, DeviceId::host()}; }

void check_present(const char* operation, const char* argument, const ConstView& view) {
  if (view || view.numel() == 0) return;
  throw ShapeError(fmt::format("{}: {} is empty; pass a view of this rank's device", operation, argument));
}

void check_combines(const char* operation, const char* argument, const ConstView& view) {
  if (view.dtype != DType::u8) return;
  throw DtypeError(
      fmt::format("{}: {} is {}; expected f32, f16, bf16 or i32", operation, argument, dtype_name(view.dtype)));
}

void check_adds(const char* operation, const char* argument, const ConstView& view) {
  if (view.dtype == DType::f32 || view.dtype == DType::f16 || view.dtype == DType::bf16) return;
  throw DtypeError(fmt::format("{}: {} is {}; expected f32, f16 or bf16", operation, argument, dtype_name(view.dtype)));
}

void check_same_dtype(const char* operation, const ConstView& input, const ConstView& output) {
  if (input.dtype == output.dtype) return;
  throw DtypeError(fmt::format("{}: input is {} but output is {}; they must be equal", operation,
                               dtype_name(input.dtype), dtype_name(output.dtype)));
}

/// Equal shapes and dtypes.
void check_same(const char* operation, const ConstView& input, const ConstView& output) {
  check_same_dtype(operation, input, output);
  if (output.shape == input.shape) return;
  throw ShapeError(fmt::format("{}: output has shape {} but input has shape {}; they must be equal", operation,
                               output.shape.str(), input.shape.str()));
}

void check_root(const char* operation, int root, int size) {
  if (root >= 0 && root < size) return;
  throw CommError(fmt::format("{}: root is {} but the group has ranks 0 to {}", operation, root, size - 1));
}

void check_peer(const char* argument, int peer, int size) {
  if (peer >= -1 && peer < size) return;
  throw CommError(
      fmt::format("send_receive: {} is {} but the group has ranks 0 to {}; pass one of them, or -1 for none", argument,
                  peer, size - 1));
}

void check_apart(const char* operation, const ConstView& input, const ConstView& output) {
  const auto begin = [](const ConstView& view) { return reinterpret_cast<uintptr_t>(view.data); };
  const auto bytes = [](const ConstView& view) { return static_cast<uintptr_t>(view.bytes()); };
  if (begin(input) + bytes(input) <= begin(output) || begin(output) + bytes(output) <= begin(input)) return;
  throw ShapeError(fmt::format("{}: output overlaps input; pass a separate tensor", operation));
}

void check_has_rows(const char* operation, const char* argument, const ConstView& view) {
  if (view.shape.rank() > 0) return;
  throw ShapeError(fmt::format("{}: {} has shape () but needs rows along dimension 0", operation, argument));
}

/// Requires `whole` to have `rows` rows of the shape of `part`'s.
void check_whole(const char* operation, const char* whole_name, const ConstView& whole, int64_t rows,
                 const char* part_name, const ConstView& part) {
  const Shape expected = part.shape.with_dim0(rows);
  if (whole.shape == expected) return;
  throw ShapeError(fmt::format("{}: {} has shape {} but {} {} needs shape {}", operation, whole_name, whole.shape.str(),
                               part_name, part.shape.str(), expected.str()));
}

/// Checks for scatter and gather: a rank's own part and, on the root, the whole. Returns the call without its pointers.
Call counted_call(Operation op, const ConstView& part, const char* part_name, const ConstView& whole,
                  const char* whole_name, std::span<const int64_t> counts, int root, int rank, int size) {
  const char* const name = comm::operation_name(op);
  check_root(name, root, size);
  if (static_cast<int>(counts.size()) != size) {
    throw ShapeError(fmt::format("{}: counts has {} values but the group has {} ranks; give one for each", name,
                                 counts.size(), size));
  }
  for (const int64_t count : counts) {
    if (count < 0) throw ShapeError(fmt::format("{}: counts has {}; every count must be at least 0", name, count));
  }
  const int64_t own = counts[static_cast<size_t>(rank)];
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const bool has_part = part || (own == 0 && part.shape.rank() > 0);
  if (!has_part && own > 0) check_present(name, part_name, part);
  if (has_part) {
    check_has_rows(name, part_name, part);
    if (part.shape[0] != own) {
      throw ShapeError(fmt::format("{}: {} has shape {} but counts gives rank {} {} rows", name, part_name,
                                   part.shape.str(), rank, own));
    }
  }
  const bool has_whole = rank == root && (whole || whole.shape.rank() > 0);
  if (rank == root && !has_whole && total > 0) check_present(name, whole_name, whole);
  if (has_whole) {
    check_has_rows(name, whole_name, whole);
    check_whole(name, whole_name, whole, total, part_name, has_part ? part : whole);
    if (has_part) check_same_dtype(name, whole, part);
  }
  const ConstView& known = has_part ? part : whole;
  Call call{.operation = op, .dtype = known.dtype, .root = root, .counts = {counts.begin(), counts.end()}};
  call.knows_elements = has_part || has_whole;
  call.count = call.knows_elements ? known.shape.with_dim0(1).numel() : 0;
  return call;
}

int64_t counted_bytes(const Call& call, int rank) {
  const int64_t own = call.counts[static_cast<size_t>(rank)];
  const int64_t total = std::accumulate(call.counts.begin(), call.counts.end(), int64_t{0});
  return (rank == call.root ? total - own : own) * call.count * size_of(call.dtype);
}

/// Bytes of what a collective reduces, or sends to all ranks.
int64_t buffer_bytes(const Call& call, int size) {
  if (size == 1) return 0;
  const bool of_a_part = call.operation == Operation::reduce_scatter || call.operation == Operation::all_gather ||
                         call.operation == Operation::tree_reduce_scatter;
  return call.count * size_of(call.dtype) * (of_a_part ? size : 1);
}

}  // namespace

void CheckedCommunicator::issue(ExecContext& ctx, Call call, ConstView read, View write, int64_t bytes_moved,
                                View also_written, std::span<const ConstView> more_reads) {
  const char* const name = comm::operation_name(call.operation);
  if (ctx.ordinal() != ordinal_) {
    throw DeviceError(fmt::format("{}: rank {} was given a context of device {} ({}); use one of its own device", name,
                                  rank_, ctx.ordinal(), ctx.device().str()));
  }
  const auto check_device = [&](const ConstView& view) {
    if (view && view.numel() > 0 && view.device != ctx.device()) {
      throw DeviceError(fmt::format("{}: rank {} was given a view on {} but runs on {}; use memory of its own device",
                                    name, rank_, view.device.str(), ctx.device().str()));
    }
  };
  for (const ConstView& view : {read, ConstView(write), ConstView(also_written)}) check_device(view);
  std::for_each(more_reads.begin(), more_reads.end(), check_device);
  note_reads(ctx, name, more_reads);
  if (OrderChecker* const checker = ctx.stream().checker()) {
    const CollectiveRecord record = comm::record_of(ctx, call, 0);
    checker->note({.kind = ScheduleEvent::Kind::collective,
                   .stream = ctx.stream().checker_index(),
                   .name = name,
                   .number = rank_,
                   .bytes = record.bytes,
                   .signature = record.signature});
  }
  const OpInfo info{name, {read}, {write, also_written}, books_bytes_ ? bytes_moved : 0, buffer_bytes(call, size_)};
  queue(ctx, info, std::move(call));
}

void CheckedCommunicator::all_reduce(ExecContext& ctx, ConstView input, View output, ReduceOp op) {
  for (const auto& [name, view] : {std::pair{"input", input}, std::pair{"output", ConstView(output)}}) {
    check_combines("all_reduce", name, view);
    check_present("all_reduce", name, view);
  }
  check_same("all_reduce", input, output);
  const Call call{.operation = Operation::all_reduce,
                  .dtype = input.dtype,
                  .count = input.numel(),
                  .combination = combination(op),
                  .input = input.data,
                  .output = output.data};
  issue(ctx, call, input, output, 2 * input.bytes() * (size_ - 1) / size_);
}

void CheckedCommunicator::issue_all_reduce_and_square(ExecContext& ctx, View inout, int64_t squared, View squares) {
  constexpr const char* kName = "all_reduce_and_square";
  check_present(kName, "inout", inout);
  check_present(kName, "squares", squares);
  if (inout.dtype != DType::f32 || squares.dtype != DType::i32) {
    throw DtypeError(fmt::format("{}: inout is {} and squares are {}, expected f32 and i32", kName,
                                 dtype_name(inout.dtype), dtype_name(squares.dtype)));
  }
  if (squared < 1 || squared > inout.numel() || squares.shape != Shape{square_tiles(squared), 2}) {
    throw ShapeError(fmt::format(
        "{}: squares have shape {} for {} of {} elements, expected ({}, 2), and 1 element or more to square", kName,
        squares.shape.str(), squared, inout.numel(), square_tiles(squared)));
  }
  const Call call{.operation = Operation::all_reduce,
                  .dtype = inout.dtype,
                  .count = inout.numel(),
                  .combination = combination(ReduceOp::sum),
                  .input = inout.data,
                  .output = inout.data,
                  .squared = squared,
                  .squares = static_cast<double*>(squares.data)};
  issue(ctx, call, inout, inout, 2 * inout.bytes() * (size_ - 1) / size_, squares);
}

void CheckedCommunicator::reduce(ExecContext& ctx, ConstView input, View output, int root, ReduceOp op) {
  check_root("reduce", root, size_);
  check_combines("reduce", "input", input);
  check_present("reduce", "input", input);
  if (rank_ == root) {
    check_combines("reduce", "output", output);
    check_present("reduce", "output", output);
    check_same("reduce", input, output);
  }
  issue_reduce(ctx, input, output, root, op, std::nullopt);
}

void CheckedCommunicator::reduce_unrounded(ExecContext& ctx, ConstView input, View output, int root, ReduceOp op) {
  issue_reduce(ctx, input, output, root, op, DType::f32);
}

void CheckedCommunicator::issue_reduce(ExecContext& ctx, ConstView input, View output, int root, ReduceOp op,
                                       std::optional<DType> sum_dtype) {
  const bool is_root = rank_ == root;
  const Call call{.operation = Operation::reduce,
                  .dtype = input.dtype,
                  .count = input.numel(),
                  .root = root,
                  .combination = combination(op),
                  .sum_dtype = sum_dtype,
                  .input = input.data,
                  .output = is_root ? output.data : nullptr};
  issue(ctx, call, input, is_root ? output : nothing(), input.bytes() * (is_root ? size_ - 1 : 1));
}

void CheckedCommunicator::broadcast(ExecContext& ctx, ConstView input, View output, int root) {
  check_root("broadcast", root, size_);
  check_present("broadcast", "output", output);
  const bool is_root = rank_ == root;
  if (is_root) {
    check_present("broadcast", "input", input);
    check_same("broadcast", input, output);
  }
  const bool writes = !is_root || input.data != output.data;
  const Call call{.operation = Operation::broadcast,
                  .dtype = output.dtype,
                  .count = output.numel(),
                  .root = root,
                  .input = is_root ? input.data : nullptr,
                  .output = output.data};
  issue(ctx, call, is_root ? input : ConstView(nothing()), writes ? output : nothing(),
        output.bytes() * (is_root ? size_ - 1 : 1));
}

void CheckedCommunicator::reduce_scatter(ExecContext& ctx, ConstView input, View output, ReduceOp op) {
  for (const auto& [name, view] : {std::pair{"input", input}, std::pair{"output", ConstView(output)}}) {
    check_combines("reduce_scatter", name, view);
    check_present("reduce_scatter", name, view);
    check_has_rows("reduce_scatter", name, view);
  }
  check_whole("reduce_scatter", "input", input, output.shape[0] * size_, "output", output);
  const Call call{.operation = Operation::reduce_scatter,
                  .dtype = input.dtype,
                  .count = output.numel(),
                  .combination = combination(op),
                  .input = input.data,
                  .output = output.data};
  issue(ctx, call, input, output, output.bytes() * (size_ - 1));
}

void CheckedCommunicator::all_gather(ExecContext& ctx, ConstView input, View output) {
  for (const auto& [name, view] : {std::pair{"input", input}, std::pair{"output", ConstView(output)}}) {
    check_present("all_gather", name, view);
    check_has_rows("all_gather", name, view);
  }
  check_same_dtype("all_gather", input, output);
  check_whole("all_gather", "output", output, input.shape[0] * size_, "input", input);
  const Call call{.operation = Operation::all_gather,
                  .dtype = input.dtype,
                  .count = input.numel(),
                  .input = input.data,
                  .output = output.data};
  issue(ctx, call, input, output, input.bytes() * (size_ - 1));
}

void CheckedCommunicator::tree_all_reduce(ExecContext& ctx, std::span<const Contribution> contributions,
                                          std::span<const ConstView> inputs, View output) {
  issue_tree_sum(ctx, Operation::tree_all_reduce, contributions, inputs, output.shape, output, -1);
}

void CheckedCommunicator::tree_reduce_scatter(ExecContext& ctx, std::span<const Contribution> contributions,
                                              std::span<const ConstView> inputs, View output) {
  check_has_rows("tree_reduce_scatter", "output", output);
  issue_tree_sum(ctx, Operation::tree_reduce_scatter, contributions, inputs,
                 output.shape.with_dim0(output.shape[0] * size_), output, -1);
}

void CheckedCommunicator::tree_reduce(ExecContext& ctx, std::span<const Contribution> contributions,
                                      std::span<const ConstView> inputs, View output, int root) {
  issue_tree_sum(ctx, Operation::tree_all_reduce, contributions, inputs, output.shape, output, root);
}

void CheckedCommunicator::issue_tree_sum(ExecContext& ctx, Operation operation,
                                         std::span<const Contribution> contributions, std::span<const ConstView> inputs,
                                         const Shape& whole, View output, int root) {
  const char* const name = comm::operation_name(operation);
  check_adds(name, "output", output);
  check_present(name, "output", output);
  Call call{.operation = operation,
            .dtype = output.dtype,
            .count = output.numel(),
            .root = root,
            .tree = {.contributions = {contributions.begin(), contributions.end()}},
            .output = output.data};
  std::vector<Subtree> nodes;
  for (const Contribution& contribution : contributions) {
    nodes.push_back(contribution.node);
    if (contribution.rank >= 0 && contribution.rank < size_) continue;
    throw ConfigError(
        fmt::format("{}: rank {} contributes, but the group has ranks 0 to {}", name, contribution.rank, size_ - 1));
  }
  const TreeOrder order(nodes);
  call.tree.folds.assign(order.folds().begin(), order.folds().end());
  const int64_t own = call.tree.count_of(rank_);
  if (static_cast<int64_t>(inputs.size()) != own) {
    throw ConfigError(fmt::format("{}: rank {} passes {} inputs, but contributes at {} nodes; pass one for each", name,
                                  rank_, inputs.size(), own));
  }
  const comm::Slice shard = comm::tree_shard(call, rank_, size_);
  const bool gathers = operation == Operation::tree_all_reduce;
  const View written = root < 0 || root == rank_ ? output : View();
  for (const ConstView& input : inputs) {
    check_present(name, "an input", input);
    check_same_dtype(name, input, output);
    if (input.shape != whole) {
      throw ShapeError(fmt::format("{}: an input has shape {} but output {} needs shape {}", name, input.shape.str(),
                                   output.shape.str(), whole.str()));
    }
    const bool in_place = output.data == (gathers ? input.data : comm::tree_part(call, input.data, rank_, size_));
    if (written && !in_place) check_apart(name, input, output);
    call.tree.inputs.push_back(input.data);
  }
  Tensor received;
  if (receives_contributions()) {
    const int64_t elements = (static_cast<int64_t>(contributions.size()) - own) * (shard.end - shard.begin);
    received = ctx.allocate({elements}, output.dtype, Category::communication, "contributions");
    call.tree.received = received.view().data;
  }
  // What it contributes to the shards of others, and the sums of its own.
  const int64_t bytes = (own + (gathers ? 1 : 0)) * whole.numel() * size_of(output.dtype) * (size_ - 1) / size_;
  issue(ctx, std::move(call), nothing(), written, bytes, received.view(), inputs);
}

void CheckedCommunicator::scatter(ExecContext& ctx, ConstView input, std::span<const int64_t> counts, View output,
                                  int root) {
  Call call = counted_call(Operation::scatter, output, "output", input, "input", counts, root, rank_, size_);
  const bool is_root = rank_ == root;
  call.input = is_root ? input.data : nullptr;
  call.output = output.data;
  const int64_t bytes = counted_bytes(call, rank_);
  issue(ctx, std::move(call), is_root && input ? input : ConstView(nothing()), output ? output : nothing(), bytes);
}

void CheckedCommunicator::gather(ExecContext& ctx, ConstView input, std::span<const int64_t> counts, View output,
                                 int root) {
  Call call = counted_call(Operation::gather, input, "input", output, "output", counts, root, rank_, size_);
  const bool is_root = rank_ == root;
  call.input = input.data;
  call.output = is_root ? output.data : nullptr;
  const int64_t bytes = counted_bytes(call, rank_);
  issue(ctx, std::move(call), input ? input : ConstView(nothing()), is_root && output ? output : nothing(), bytes);
}

void CheckedCommunicator::all_to_all(ExecContext& ctx, ConstView input, View output) {
  for (const auto& [name, view] : {std::pair{"input", input}, std::pair{"output", ConstView(output)}}) {
    check_present("all_to_all", name, view);
    check_has_rows("all_to_all", name, view);
  }
  check_same("all_to_all", input, output);
  check_apart("all_to_all", input, output);
  if (input.shape[0] % size_ != 0) {
    throw ShapeError(fmt::format("all_to_all: input has shape {}, but {} ranks need a multiple of {} rows",
                                 input.shape.str(), size_, size_));
  }
  const Call call{.operation = Operation::all_to_all,
                  .dtype = input.dtype,
                  .count = input.numel() / size_,
                  .input = input.data,
                  .output = output.data};
  issue(ctx, call, input, output, input.bytes() / size_ * (size_ - 1));
}

void CheckedCommunicator::send_receive(ExecContext& ctx, ConstView input, int to, View output, int from) {
  check_peer("to", to, size_);
  check_peer("from", from, size_);
  if (to >= 0) check_present("send_receive", "input", input);
  if (from >= 0) check_present("send_receive", "output", output);
  if (to >= 0 && from >= 0) {
    check_same("send_receive", input, output);
    check_apart("send_receive", input, output);
  }
  const bool has_input = input || to >= 0;
  const ConstView known = has_input ? input : ConstView(output);
  const Call call{.operation = Operation::send_receive,
                  .dtype = known.dtype,
                  .count = known.numel(),
                  .knows_elements = has_input || output || from >= 0,
                  .to = to,
                  .from = from,
                  .input = to >= 0 ? input.data : nullptr,
                  .output = from >= 0 ? output.data : nullptr,
                  .known = known.data};
  const bool moves = (to >= 0 && to != rank_) || (from >= 0 && from != rank_);
  issue(ctx, call, to >= 0 ? input : ConstView(nothing()), from >= 0 ? output : nothing(), moves ? known.bytes() : 0);
}

void CheckedCommunicator::barrier(ExecContext& ctx) {
  issue(ctx, Call{.operation = Operation::barrier}, nothing(), nothing(), 0);
}

}  // namespace vitrine
