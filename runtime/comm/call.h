// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/comm/reduce_op.h"
#include "runtime/dtype.h"

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
  barrier
};
inline constexpr int kOperationCount = 10;
const char* operation_name(Operation operation);

/// Arguments of one rank in a collective.
struct Call {
  Operation operation = Operation::barrier;
  DType dtype = DType::f32;
  int64_t count = 0;  // elements of inout, of reduce_scatter's output, of all_gather's input, of a row of scatter and
                      // gather, or of the part that all_to_all sends to each rank
  bool knows_elements = true;           // false: this rank passed no view, so dtype and count are meaningless
  int root = -1;                        // -1: the operation has none
  std::vector<int64_t> counts = {};     // rows of each rank, for scatter and gather
  Reduction reduction = {};             // of operations that combine
  std::optional<DType> sum_dtype = {};  // dtype of reduce's output if it differs from the input's
  int to = -1, from = -1;               // ranks, for send_receive; -1: none
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

}  // namespace vitrine::comm
