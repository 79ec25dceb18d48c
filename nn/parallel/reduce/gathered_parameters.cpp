// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/reduce/gathered_parameters.h"

#include <algorithm>
#include <utility>

#include "runtime/copy.h"
#include "runtime/trace/communication_table.h"

namespace vitrine {

GatheredParameters::GatheredParameters(const ReducerContext& replica, const FlatLayout& all, std::vector<View>& views)
    : replica_(replica), layout_(all), views_(views) {
  for (ShardedBucket& bucket : make_sharded_buckets(replica)) {
    Unit& unit = units_.emplace_back(Unit{std::move(bucket)});
    unit.bucket.name.insert(0, kParametersOf);
    for (int i = 0; i < all.size(); ++i) {
      if (all.offset(i) < unit.bucket.begin || all.offset(i) >= unit.bucket.parameters_end) continue;
      unit.parameters.push_back(i);
      if (replica.config.precision.mixed() && all.specs()[static_cast<size_t>(i)].stays_f32) unit.stays_f32 = true;
    }
    if (unit.stays_f32 && !frees()) stage_staying_f32(unit);
  }
}

void GatheredParameters::reset() {
  ready_ = replica_.device.compute().stream().make_event();
  for (Unit& unit : units_) {
    unit.gathered = replica_.device.compute().stream().make_event();
    unit.waits = false;
  }
  set_stale(!complete_);
}

bool GatheredParameters::begin_pass(Direction direction) {
  direction_ = direction;
  if (frees()) return true;
  // Updates during backward make parameters stale that no layer of this step reads again.
  if (!stale_ || direction == Direction::backward) return false;
  replica_.device.compute().record(*ready_);
  return true;
}

void GatheredParameters::begin_use(int first, int end) {
  size_t low = units_.size(), high = 0;
  for (size_t k = 0; k < units_.size(); ++k) {
    if (units_[k].parameters.front() >= end || units_[k].parameters.back() < first) continue;
    low = std::min(low, k);
    high = k;
  }
  if (low == units_.size()) return;  // all are frozen
  const bool forward = direction_ == Direction::forward;
  for (size_t i = 0; i <= high - low; ++i) gather(units_[forward ? high - i : low + i]);
  if (forward ? low > 0 : high + 1 < units_.size()) {
    Unit& next = units_[forward ? low - 1 : high + 1];
    int64_t bytes = bytes_of(next);
    for (size_t k = low; k <= high; ++k) bytes += bytes_of(units_[k]);
    if (!frees() || bytes <= 2 * replica_.config.bucket_bytes) gather(next);
  }
  for (size_t k = low; k <= high; ++k) wait(units_[k]);
}

void GatheredParameters::wait(Unit& unit) {
  if (!std::exchange(unit.waits, false)) return;
  replica_.device.compute().wait(*unit.gathered, "broadcast");
}

void GatheredParameters::end_use(int first, int end) {
  const bool forward = direction_ == Direction::forward;
  if (forward && end == layout_.size()) return;
  for (Unit& unit : units_) {
    if (forward ? unit.parameters.back() < end : unit.parameters.front() >= first) release(unit);
  }
}

void GatheredParameters::set_stale(bool stale) {
  if (frees()) return;
  stale_ = stale;
  for (Unit& unit : units_) unit.stale = stale && (unit.shards.size > 0 || unit.stays_f32);
}

void GatheredParameters::set_complete(bool complete) {
  ExecContext& compute = replica_.device.compute();
  if (compute.backend() != Backend::cpu) {
    complete_ = false;
    return;
  }
  compute.dispatch({"set_complete", {}, {}}, [this, complete] { complete_ = complete; });
}

void GatheredParameters::begin_updates() {
  if (frees()) return;
  set_stale(true);
  set_complete(false);
}

void GatheredParameters::finish() {
  if (!stale_) return;
  if (std::ranges::any_of(units_, [](const Unit& unit) { return unit.stale; }))
    replica_.device.compute().record(*ready_);
  for (auto unit = units_.rbegin(); unit != units_.rend(); ++unit) gather(*unit);
  for (auto unit = units_.rbegin(); unit != units_.rend(); ++unit) wait(*unit);
  stale_ = false;
  set_complete(true);
}

void GatheredParameters::gather_in_place(Unit& unit) {
  if (!std::exchange(unit.stale, false)) return;
  ExecContext& communication = replica_.device.communication();
  const PhaseScope phase(communication, Phase::broadcast, unit.bucket.name.c_str());
  communication.wait(*ready_, "compute");
  if (unit.shards.size > 0) {
    const View& whole = replica_.half_parameters ? replica_.half_parameters : replica_.parameters;
    replica_.communicator->all_gather(communication, unit.shards.owned_by(replica_.rank, whole),
                                      unit.shards.all(whole));
  }
  if (unit.stays_f32) gather_staying_f32(unit);
  communication.record(*unit.gathered);
  unit.waits = true;
}

template <class Use>
void GatheredParameters::for_each_staying_f32(const Unit& unit, int64_t first, int64_t size, const Use& use) const {
  for (const int i : unit.parameters) {
    const ParamSpec& spec = layout_.specs()[static_cast<size_t>(i)];
    const int64_t offset = layout_.offset(i), begin = std::max(offset, first),
                  end = std::min(offset + spec.shape.numel(), first + size);
    if (spec.stays_f32 && begin < end) use(i, begin, end);
  }
}

void GatheredParameters::stage_staying_f32(Unit& unit) {
  int64_t most = 0;
  for (int rank = 0; rank < replica_.world_size; ++rank) {
    int64_t owned = 0;
    for_each_staying_f32(unit, unit.shards.begin + rank * unit.shards.size, unit.shards.size,
                         [&](int, int64_t begin, int64_t end) { owned += end - begin; });
    most = std::max(most, owned);
  }
  if (most == 0) return;
  ExecContext& ctx = replica_.device.compute();
  unit.staged =
      ctx.allocate({replica_.world_size * most}, DType::f32, Category::communication, "parameters that stay f32");
  zero(ctx, unit.staged);
}

void GatheredParameters::gather_staying_f32(const Unit& unit) {
  ExecContext& communication = replica_.device.communication();
  const BucketShards& shards = unit.shards;
  const int64_t most = unit.staged ? unit.staged.numel() / replica_.world_size : 0;
  const auto seen = [&](int i, int64_t begin, int64_t end) {
    const View& view = views_[static_cast<size_t>(i)];
    return view.reshape({view.numel()}).rows(begin - layout_.offset(i), end - layout_.offset(i));
  };
  int64_t at = replica_.rank * most;
  const int64_t own = shards.begin + replica_.rank * shards.size;
  for_each_staying_f32(unit, own, shards.size, [&](int, int64_t begin, int64_t end) {
    copy(communication, replica_.parameters.rows(unit.own_in_shard + begin - own, unit.own_in_shard + end - own),
         unit.staged.view().rows(at, at + end - begin));
    at += end - begin;
  });
  if (most > 0) {
    const View mine = unit.staged.view().rows(replica_.rank * most, (replica_.rank + 1) * most);
    replica_.communicator->all_gather(communication, mine, unit.staged);
  }
  for (int rank = 0; rank < replica_.world_size; ++rank) {
    at = rank * most;
    for_each_staying_f32(unit, shards.begin + rank * shards.size, shards.size, [&](int i, int64_t begin, int64_t end) {
      copy(communication, unit.staged.view().rows(at, at + end - begin), seen(i, begin, end));
      at += end - begin;
    });
  }
  for_each_staying_f32(unit, shards.shared_begin, unit.bucket.parameters_end - shards.shared_begin,
                       [&](int i, int64_t begin, int64_t end) {
                         const int64_t from = unit.shared_in_shard - shards.shared_begin;
                         copy(communication, replica_.parameters.rows(from + begin, from + end), seen(i, begin, end));
                       });
}

void GatheredParameters::gather(Unit& unit) {
  if (!frees()) return gather_in_place(unit);
  if (unit.memory) return;
  ExecContext& compute = replica_.device.compute();
  ExecContext& communication = replica_.device.communication();
  const auto allocate = [&](DType dtype) {
    return compute.allocate({unit.elements()}, dtype, Category::parameters, "gathered " + unit.bucket.name);
  };
  unit.memory = allocate(shard().dtype);
  if (unit.stays_f32) unit.masters = allocate(DType::f32);
  compute.record(*ready_);
  {
    const PhaseScope phase(communication, Phase::broadcast, unit.bucket.name.c_str());
    communication.wait(*ready_, "compute");
    gather(unit, shard(), unit.memory);
    if (unit.stays_f32) gather(unit, replica_.parameters, unit.masters);
    communication.record(*unit.gathered);
  }
  unit.waits = true;
  for (const int i : unit.parameters) {
    const ParamSpec& spec = layout_.specs()[static_cast<size_t>(i)];
    const int64_t at = layout_.offset(i) - unit.bucket.begin;
    const View whole = unit.stays_f32 && spec.stays_f32 ? unit.masters : unit.memory;
    views_[static_cast<size_t>(i)] = whole.rows(at, at + spec.shape.numel()).reshape(spec.shape);
  }
}

void GatheredParameters::gather(const Unit& unit, const View& from, const Tensor& to) {
  ExecContext& communication = replica_.device.communication();
  const View whole = to.view();
  const int64_t divided = unit.shards.shared_begin - unit.shards.begin;
  if (divided > 0) replica_.communicator->all_gather(communication, unit.own_of(from), whole.rows(0, divided));
  if (divided < unit.elements()) copy(communication, unit.shared_of(from), whole.rows(divided, unit.elements()));
}

void GatheredParameters::release() {
  for (Unit& unit : units_) release(unit);
}

void GatheredParameters::release(Unit& unit) {
  if (!unit.memory) return;
  wait(unit);  // memory is used again in the order of the compute stream
  for (const int i : unit.parameters) views_[static_cast<size_t>(i)] = View();
  unit.memory = {};
  unit.masters = {};
}

}  // namespace vitrine
