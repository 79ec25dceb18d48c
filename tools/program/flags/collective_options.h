// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/comm/reduce_op.h"
#include "runtime/dtype.h"

namespace CLI {
class App;
}

namespace vitrine::tools {

/// What `vitrine collectives` measures. gpu0_star is what `--reduce gpu0` does: a reduction to the root, then a
/// broadcast from there.
enum class Collective {
  scatter,
  gather,
  broadcast,
  reduce,
  all_reduce,
  reduce_scatter,
  all_gather,
  alltoall,
  sendrecv,
  gpu0_star
};
inline constexpr Collective kCollectives[] = {
    Collective::scatter,    Collective::gather,         Collective::broadcast,  Collective::reduce,
    Collective::all_reduce, Collective::reduce_scatter, Collective::all_gather, Collective::alltoall,
    Collective::sendrecv,   Collective::gpu0_star};
const char* collective_name(Collective collective);
/// All of them, in the order of kCollectives.
const std::vector<std::string>& collective_names();
/// Whether the collective adds.
bool sums(Collective collective);

/// Sizes up to this can be doubled and added without overflow.
inline constexpr int64_t kMostCollectiveBytes = int64_t{1} << 50;

/// What `vitrine collectives` times, named as nccl-tests' flags.
struct CollectiveOptions {
  std::vector<std::string> names;                  // all, when none was given
  std::optional<int64_t> first_bytes, last_bytes;  // -b, -e
  double step_factor = 4;
  int64_t step_bytes = 0;  // above 0: instead of the factor
  int iterations = 20, warm_up = 5;
  bool check = true;
  std::string datatype = "float", reduction = "sum";
  int root = 0;
  std::vector<int64_t> counts = {};  // of scatter and gather: the ranks' parts, one to another; empty: equal
  // Resolved:
  int64_t min_bytes = int64_t{64} << 10, max_bytes = int64_t{16} << 20;
  DType dtype = DType::f32;
  ReduceOp op = ReduceOp::sum;
};

/// Completes the options.   app  the subcommand, parsed      throws ConfigError
void resolve_collectives(const CLI::App& app, CollectiveOptions& options);

/// The size that follows `bytes`: larger than it, and above max_bytes after the last one.
int64_t next_size(const CollectiveOptions& options, int64_t bytes);

}  // namespace vitrine::tools
