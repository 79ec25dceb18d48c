// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/reduce/gathered_parameters.h"

#include <utility>

#include "runtime/copy.h"

namespace vitrine {

GatheredParameters::GatheredParameters(const ReducerContext& replica, std::vector<View>& views)
    : replica_(replica), views_(views) {
  const FlatLayout& layout = replica.layout;
  for (ShardedBucket& bucket : make_sharded_buckets(replica)) {
    Unit& unit = units_.emplace_back(Unit{std::move(bucket)});
    for (int i = 0; i < layout.size(); ++i) {
      if (layout.offset(i) >= unit.bucket.begin && layout.offset(i) < unit.bucket.parameters_end)
        unit.parameters.push_back(i);
    }
  }
  views_.assign(static_cast<size_t>(layout.size()), View());
}

void GatheredParameters::reset() {
  ready_ = replica_.device.compute().stream().make_event();
  for (Unit& unit : units_) unit.gathered = replica_.device.compute().stream().make_event();
}

void GatheredParameters::begin_use(int first, int end) {
  const int64_t begin = replica_.layout.offset(end - 1), behind = finished_elements(replica_.layout, first);
  size_t low = 0;
  while (units_[low].bucket.parameters_end <= begin) ++low;
  size_t high = low;
  while (units_[high].bucket.parameters_end < behind) ++high;
  const bool forward = direction_ == Direction::forward;
  for (size_t i = 0; i <= high - low; ++i) gather(units_[forward ? high - i : low + i]);
  if (forward ? low > 0 : high + 1 < units_.size()) {
    Unit& next = units_[forward ? low - 1 : high + 1];
    int64_t bytes = bytes_of(next);
    for (size_t k = low; k <= high; ++k) bytes += bytes_of(units_[k]);
    if (bytes <= 2 * replica_.config.bucket_bytes) gather(next);
  }
  for (size_t k = low; k <= high; ++k) {
    if (std::exchange(units_[k].waits, false)) replica_.device.compute().wait(*units_[k].gathered, "broadcast");
  }
}

void GatheredParameters::end_use(int first, int end) {
  const bool forward = direction_ == Direction::forward;
  if (forward && end == replica_.layout.size()) return;
  // Parameters lie in reverse order.
  const int64_t begin = replica_.layout.offset(end - 1), behind = finished_elements(replica_.layout, first);
  for (Unit& unit : units_) {
    if (forward ? unit.bucket.begin >= begin : unit.bucket.parameters_end <= behind) release(unit);
  }
}

void GatheredParameters::gather(Unit& unit) {
  if (unit.memory) return;
  ExecContext& compute = replica_.device.compute();
  ExecContext& communication = replica_.device.communication();
  unit.memory =
      compute.allocate({unit.elements()}, shard().dtype, Category::parameters, "gathered " + unit.bucket.name);
  const View whole = unit.memory.view();
  const int64_t shared = unit.shards.rest - unit.shards.begin;
  compute.record(*ready_);
  {
    const PhaseScope phase(communication, Phase::broadcast, unit.bucket.name.c_str());
    communication.wait(*ready_, "compute");
    if (shared > 0) replica_.communicator->all_gather(communication, unit.own_of(shard()), whole.rows(0, shared));
    if (shared < unit.elements()) copy(communication, unit.rest_of(shard()), whole.rows(shared, unit.elements()));
    communication.record(*unit.gathered);
  }
  unit.waits = true;
  for (const int i : unit.parameters) {
    const Shape& shape = replica_.layout.specs()[static_cast<size_t>(i)].shape;
    const int64_t at = replica_.layout.offset(i) - unit.bucket.begin;
    views_[static_cast<size_t>(i)] = whole.rows(at, at + shape.numel()).reshape(shape);
  }
}

void GatheredParameters::release() {
  for (Unit& unit : units_) release(unit);
}

void GatheredParameters::release(Unit& unit) {
  if (!unit.memory) return;
  // Memory is used again in the order of the compute stream.
  if (std::exchange(unit.waits, false)) replica_.device.compute().wait(*unit.gathered, "broadcast");
  for (const int i : unit.parameters) views_[static_cast<size_t>(i)] = View();
  unit.memory = {};
}

}  // namespace vitrine
