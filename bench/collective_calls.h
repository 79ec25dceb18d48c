// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/comm/communicator.h"

/// The collectives that are timed, each on one rank's pair of flat buffers: what is scattered or gathered is as large as a buffer.
namespace vitrine::bench {

struct Rank {
  Communicator& comm;
  ExecContext& ctx;
  const Tensor& input;
  const Tensor& output;

  /// Elements of a rank's part of a buffer, and of all parts.
  int64_t part() const { return input.numel() / comm.size(); }
  int64_t whole() const { return part() * comm.size(); }
  std::vector<int64_t> counts() const { return std::vector<int64_t>(static_cast<size_t>(comm.size()), part()); }
};

using Issue = void (*)(const Rank&);

inline void all_reduce(const Rank& r) { r.comm.all_reduce(r.ctx, r.input); }
inline void reduce(const Rank& r) { r.comm.reduce(r.ctx, r.input, r.input, 0); }
inline void broadcast(const Rank& r) { r.comm.broadcast(r.ctx, r.input, 0); }
inline void reduce_scatter(const Rank& r) { r.comm.reduce_scatter(r.ctx, r.input.rows(0, r.whole()), r.output.rows(0, r.part())); }
inline void all_gather(const Rank& r) { r.comm.all_gather(r.ctx, r.input.rows(0, r.part()), r.output.rows(0, r.whole())); }
inline void scatter(const Rank& r) { r.comm.scatter(r.ctx, r.input.rows(0, r.whole()), r.counts(), r.output.rows(0, r.part()), 0); }
inline void gather(const Rank& r) { r.comm.gather(r.ctx, r.input.rows(0, r.part()), r.counts(), r.output.rows(0, r.whole()), 0); }
/// What --reduce gpu0 does.
inline void gpu0_star(const Rank& r) {
  reduce(r);
  broadcast(r);
}
inline void barrier(const Rank& r) { r.comm.barrier(r.ctx); }

/// busbw / algbw for n ranks. source  nccl-tests, doc/PERFORMANCE.md
inline double ring_factor(double n) { return 2 * (n - 1) / n; }
inline double part_factor(double n) { return (n - 1) / n; }
inline double whole_factor(double) { return 1; }
inline double star_factor(double) { return 2; }
inline double no_factor(double) { return 0; }

}  // namespace vitrine::bench
