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

enum class Operation : uint8_t { all_reduce, reduce, broadcast, reduce_scatter, all_gather, scatter, gather, all_to_all, send_receive, barrier };
inline constexpr int kOperationCount = 10;
const char* operation_name(Operation operation);

/// What one rank asks for in a collective.
struct Call {
  Operation operation = Operation::barrier;
  DType dtype = DType::f32;
  int64_t count = 0;                    // elements: of inout, of reduce_scatter's output, of all_gather's input, of a row of scatter and gather, of
                                        // what all_to_all sends to each rank
  bool knows_elements = true;           // false: this rank left its view out, so dtype and count say nothing
  int root = -1;                        // -1: the operation has none
  std::vector<int64_t> counts = {};     // rows of each rank, for scatter and gather
  Reduction reduction = {};             // of operations that combine
  std::optional<DType> sum_dtype = {};  // of reduce's output, where it is not that of the input
  int to = -1, from = -1;               // ranks, for send_receive; -1: none
  const void* input = nullptr;
  void* output = nullptr;
  const void* known = nullptr;  // send_receive: memory of the views' size
};

/// What the ranks' calls (in rank order) disagree in, worded for a CommError; empty when they are one collective.
///   sequence  its number within the group
std::string disagreement(std::span<const Call* const> calls, uint64_t sequence);

/// Rows of the ranks before `rank`, times the bytes of a row: where its part of a scattered or gathered whole begins.
int64_t part_offset(const Call& call, int rank);
int64_t part_bytes(const Call& call, int rank);

}  // namespace vitrine::comm
