// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/comm/fused.h"
#include "runtime/comm/reduce_op.h"
#include "runtime/dtype.h"
#include "runtime/process_group/process_group.h"

namespace vitrine {
class ExecContext;
}

namespace vitrine::comm {

enum class Operation : uint8_t {
  all_reduce,
  reduce,
  broadcast,
  reduce_scatter,
  all_gather,
  scatter,
  gather,
  all_to_all,
  send_receive,
  tree_all_reduce,
  tree_reduce_scatter,
  barrier
};
inline constexpr int kOperationCount = 12;
const char* operation_name(Operation operation);

/// Further arguments of tree_all_reduce and tree_reduce_scatter.
struct TreeSum {
  std::vector<Contribution> contributions = {};  // of all ranks
  std::vector<uint8_t> folds = {};               // TreeOrder of their nodes
  std::vector<const void*> inputs = {};          // of this rank
  void* received = nullptr;                      // GPUs: memory for the other ranks' contributions to this rank's shard

  int64_t count_of(int rank) const;
  /// The inputs of all ranks in the order of their nodes; input(r, i) is the i-th of rank r.
  template <class Input>
  std::vector<const void*> ordered(const Input& input) const {
    std::map<int, size_t> taken;
    std::vector<const void*> all;
    for (const Contribution& c : contributions) all.push_back(input(c.rank, taken[c.rank]++));
    return all;
  }
};

/// Contributions [begin, end), in the order of their nodes.
struct Part {
  size_t begin = 0, end = 0;
};
/// The largest parts that one owner can add, ascending: whole nodes of the tree with the contributions of its owner
/// alone.
///   folds  TreeOrder of the contributions' nodes      owners  of each contribution
std::vector<Part> parts_of_one_owner(std::span<const uint8_t> folds, std::span<const int> owners);

/// Arguments of one rank in a collective.
struct Call {
  Operation operation = Operation::barrier;
  DType dtype = DType::f32;
  int64_t count = 0;  // elements of inout, of reduce_scatter's and tree_reduce_scatter's output, of all_gather's input,
                      // of a row of scatter and gather, or of the part that all_to_all sends to each rank
  bool knows_elements = true;           // false: this rank passed no view, so dtype and count are meaningless
  int root = -1;                        // -1: the operation has none
  std::vector<int64_t> counts = {};     // rows of each rank, for scatter and gather
  Combination combination = {};         // of operations that combine
  std::optional<DType> sum_dtype = {};  // dtype of reduce's output if it differs from the input's
  int to = -1, from = -1;               // ranks, for send_receive; -1: none
  TreeSum tree = {};
  const void* input = nullptr;
  void* output = nullptr;
  const void* known = nullptr;  // send_receive: memory of the views' size
  int64_t squared =
      0;  // all_reduce of f32: elements of the output whose squares are summed by tiles (runtime/square_sums.h)
  double* squares = nullptr;  // those sums
};

/// Describes the differences between the ranks' calls (in rank order), for a CommError; empty if they are one
/// collective.
///   sequence  its number in the group
std::string disagreement(std::span<const Call* const> calls, uint64_t sequence);

/// Offset of a rank's part in a scattered or gathered whole: the rows of the ranks before it, times the bytes of a row.
int64_t part_offset(const Call& call, int rank);
int64_t part_bytes(const Call& call, int rank);

/// The elements of the whole that a rank adds along the tree, and where they begin in it.
Slice tree_shard(const Call& call, int rank, int size);
std::byte* tree_part(const Call& call, const void* whole, int rank, int size);

/// Describes the collective issued on `ctx` as the `sequence`-th of its rank, for the process group: phase and step of
/// the context, and its layer as label.
CollectiveRecord record_of(const ExecContext& ctx, const Call& call, uint64_t sequence);

/// The record of a collective that was captured as `captured`, as the `sequence`-th of its rank, when its graph is
/// launched in `step`.
CollectiveRecord record_of_launch(const CollectiveRecord& captured, uint64_t sequence, int64_t step);

}  // namespace vitrine::comm
