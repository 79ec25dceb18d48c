// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/record.h"

#include "runtime/exec_context.h"
#include "runtime/hash.h"

namespace vitrine::comm {

CollectiveRecord record_of(const ExecContext& ctx, const Call& call, uint64_t sequence) {
  CollectiveRecord record;
  record.sequence = sequence;
  record.operation = operation_name(call.operation);
  record.label = ctx.layer();
  record.phase = phase_name(ctx.phase());
  record.step = ctx.step();
  record.bytes = call.count * size_of(call.dtype);
  uint64_t hash = hash_number(hash_number(0, static_cast<uint64_t>(call.operation)), static_cast<uint64_t>(call.root));
  hash = hash_number(hash, static_cast<uint64_t>(call.combination.op));
  if (call.counts.empty())
    hash = hash_number(hash_number(hash, static_cast<uint64_t>(call.dtype)), static_cast<uint64_t>(call.count));
  for (const int64_t count : call.counts) hash = hash_number(hash, static_cast<uint64_t>(count));
  for (const Contribution& c : call.tree.contributions) {
    for (const int64_t number : {c.node.begin, c.node.end, int64_t{c.rank}})
      hash = hash_number(hash, static_cast<uint64_t>(number));
  }
  hash = hash_bytes(hash, record.label.data(), static_cast<int64_t>(record.label.size()));
  record.signature = hash_number(hash, static_cast<uint64_t>(record.step));
  return record;
}

CollectiveRecord record_of_launch(const CollectiveRecord& captured, uint64_t sequence, int64_t step) {
  CollectiveRecord record = captured;
  record.in_graph = true;
  record.sequence = sequence;
  record.step = step;
  record.signature = hash_number(hash_number(captured.signature, 1), static_cast<uint64_t>(step));
  return record;
}

}  // namespace vitrine::comm
