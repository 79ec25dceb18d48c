// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/record.h"

#include "runtime/exec_context.h"

namespace vitrine::comm {
namespace {

uint64_t mix(uint64_t hash, uint64_t value) {
  // source  Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", 2014
  hash += value + 0x9e3779b97f4a7c15ULL;
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9ULL;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebULL;
  return hash ^ (hash >> 31);
}

}  // namespace

CollectiveRecord record_of(const ExecContext& ctx, const Call& call, uint64_t sequence) {
  CollectiveRecord record;
  record.sequence = sequence;
  record.operation = operation_name(call.operation);
  record.label = ctx.layer();
  record.phase = phase_name(ctx.phase());
  record.step = ctx.step();
  record.bytes = call.count * size_of(call.dtype);
  uint64_t hash = mix(static_cast<uint64_t>(call.operation), static_cast<uint64_t>(call.root) + 1);
  hash = mix(hash, static_cast<uint64_t>(call.reduction.op));
  if (call.counts.empty()) hash = mix(mix(hash, static_cast<uint64_t>(call.dtype)), static_cast<uint64_t>(call.count));
  for (const int64_t count : call.counts) hash = mix(hash, static_cast<uint64_t>(count));
  for (const char letter : record.label) hash = mix(hash, static_cast<uint64_t>(static_cast<unsigned char>(letter)));
  record.signature = mix(hash, static_cast<uint64_t>(record.step));
  return record;
}

CollectiveRecord record_of_launch(const CollectiveRecord& captured, uint64_t sequence, int64_t step) {
  CollectiveRecord record = captured;
  record.in_graph = true;
  record.sequence = sequence;
  record.step = step;
  record.signature = mix(mix(captured.signature, 1), static_cast<uint64_t>(step));
  return record;
}

}  // namespace vitrine::comm
