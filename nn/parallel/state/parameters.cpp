// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/state/parameters.h"

#include <algorithm>
#include <charconv>
#include <cstring>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "nn/parallel/replicas/host_copies.h"
#include "nn/parallel/settings.h"
#include "nn/parallel/state/process_shards.h"
#include "nn/parallel/step/step_window.h"
#include "runtime/copy.h"
#include "runtime/process_group/process_group.h"

namespace vitrine {

Parameters::Parameters(EngineSetup& setup, ReplicaGroup& replicas, StepWindow& window)
    : setup_(setup), replicas_(replicas), window_(window), averages_(setup, replicas, window) {}

const FlatLayout& Parameters::layout() const { return setup_.layout; }
const BufferLayout& Parameters::buffer_layout() const { return setup_.buffer_layout; }

void Parameters::set_part(Replica& r, int64_t first, std::span<const float> values) {
  const PhaseScope phase(r.compute(), Phase::replicate);
  const auto count = static_cast<int64_t>(values.size());
  if (r.model.parameters) {
    for (const ShardPiece& piece : r.model.parameter_shard) {
      const int64_t begin = std::max(first, piece.begin), end = std::min(first + count, piece.end);
      if (begin >= end) continue;
      copy(r.compute(), ConstView(values.data() + (begin - first), {end - begin}, DType::f32, DeviceId::host()),
           r.model.parameters.rows(piece.state_begin + begin - piece.begin, piece.state_begin + end - piece.begin));
    }
  }
  if (r.model.parameters ? r.reducer_context.shards_masters() && !r.reducer_context.shards_parameters()
                         : setup_.config.forward_only) {
    const DType dtype = r.model.half_parameters.dtype();
    const std::vector<std::byte> narrow = narrow_on_host(dtype, values);
    copy(r.compute(), ConstView(narrow.data(), {count}, dtype, DeviceId::host()),
         r.model.half_parameters.rows(first, first + count));
    r.device.synchronize();
  }
  for (int i = 0; r.model.f32_copies && i < setup_.layout.size(); ++i) {
    const View& seen = r.model.parameter_views[static_cast<size_t>(i)];
    const int64_t offset = setup_.layout.offset(i), begin = std::max(first, offset),
                  end = std::min(first + count, offset + seen.numel());
    if (seen.dtype != DType::f32 || begin >= end) continue;
    copy(r.compute(), ConstView(values.data() + (begin - first), {end - begin}, DType::f32, DeviceId::host()),
         seen.reshape({seen.numel()}).rows(begin - offset, end - offset));
  }
}

void Parameters::set(std::span<const float> flat) {
  set_in_parts([&](const TakePart& take) {
    VITRINE_ASSERT(static_cast<int64_t>(flat.size()) == setup_.layout.parameter_elements(),
                   "parameters come in the engine's layout");
    take(0, flat);
  });
}

void Parameters::set_shards(const std::function<void(const TakePart&)>& give, const TakePart& set) {
  ProcessGroup& process_group = *setup_.peers();
  constexpr const char* kWhat = "the parameters of rank 0";
  constexpr size_t kMostElements = size_t{1} << 20;
  if (process_group.rank() == 0) {
    give([&](int64_t first, std::span<const float> values) {
      for (size_t at = 0; at < values.size(); at += kMostElements) {
        const std::span<const float> part = values.subspan(at, std::min(kMostElements, values.size() - at));
        const int64_t begin = first + static_cast<int64_t>(at);
        std::string bytes(reinterpret_cast<const char*>(&begin), sizeof begin);
        process_group.broadcast(kWhat, bytes.append(reinterpret_cast<const char*>(part.data()), part.size_bytes()));
        set(begin, part);
      }
    });
    process_group.broadcast(kWhat, {});  // the end
    return;
  }
  for (std::string bytes; !(bytes = process_group.broadcast(kWhat, {})).empty();) {
    int64_t first = 0;
    VITRINE_ASSERT(bytes.size() % sizeof(float) == 0 && bytes.size() > sizeof first, "rank 0 sends whole parts");
    std::vector<float> part((bytes.size() - sizeof first) / sizeof(float));
    std::memcpy(&first, bytes.data(), sizeof first);
    std::memcpy(part.data(), bytes.data() + sizeof first, part.size() * sizeof(float));
    set(first, part);
  }
}

void Parameters::set_in_parts(const std::function<void(const TakePart&)>& give) {
  if (averages_.in_place()) throw OrderError("set_parameters: an AverageScope is open; close it first");
  window_.drain();
  setup_.devices.synchronize();
  const auto set = [&](int64_t first, std::span<const float> values) {
    replicas_.for_each([&](Replica& r) { set_part(r, first, values); });
    setup_.devices.synchronize();  // before the memory of the part is used again
  };
  if (setup_.peers() == nullptr) {
    give(set);
  } else if (replicas_[0].reducer_context.shards_masters()) {
    set_shards(give, set);
  } else {
    if (setup_.peers()->rank() == 0) give(set);
    const ProcessGroup::Waiting waiting(*setup_.peers(), "the parameters of rank 0");
    replicas_.for_each_at_once([&](Replica& r) {
      const PhaseScope phase(r.communication(), Phase::replicate, "parameters");
      r.reducer_context.communicator->broadcast(r.communication(),
                                                r.model.parameters ? r.model.parameters : r.model.half_parameters, 0);
    });
    setup_.devices.synchronize();
  }
  replicas_.for_each([&](Replica& r) {
    if (!r.model.parameters) return;
    const PhaseScope phase(r.compute(), Phase::replicate);
    r.start_average();
    r.cast_parameters();
  });
  setup_.devices.synchronize();
  replicas_.for_each([&](Replica& r) {
    if (r.model.parameters || setup_.config.forward_only) return;
    // The bits that device 0 casts and broadcasts in every step.
    const PhaseScope phase(r.compute(), Phase::replicate);
    copy(r.compute(), replicas_[0].model.half_parameters, r.model.half_parameters);
  });
  setup_.devices.synchronize();
}

void Parameters::set_buffers(const BufferValues& values) {
  window_.drain();
  const FlatLayout& saved = setup_.buffer_layout.saved();
  VITRINE_ASSERT(static_cast<int64_t>(values.values.size()) == saved.parameter_elements() &&
                     values.counters.size() == setup_.buffer_layout.counters().size(),
                 "buffers come in the engine's layout");
  std::vector<int64_t>& counters = window_.progress().counters;
  counters = values.counters;
  if (!setup_.buffer_layout.any_saved()) return;
  setup_.devices.synchronize();
  if (saved.size() > 0) {
    replicas_.for_each([&](Replica& r) {
      const PhaseScope phase(r.compute(), Phase::replicate);
      copy(r.compute(), ConstView(values.values.data(), r.model.buffers.shape(), DType::f32, DeviceId::host()),
           r.model.buffers);
    });
    setup_.devices.synchronize();
  }
  if (setup_.peers() == nullptr) return;
  ProcessGroup& process_group = *setup_.peers();
  const std::string text =
      process_group.broadcast("the counters of rank 0", fmt::format("{}", fmt::join(counters, " ")));
  const char* at = text.data();
  for (int64_t& counter : counters) at = std::from_chars(at, text.data() + text.size(), counter).ptr + 1;
  if (saved.size() == 0) return;
  const ProcessGroup::Waiting waiting(process_group, "the buffers of rank 0");
  replicas_.for_each_at_once([&](Replica& r) {
    const PhaseScope phase(r.communication(), Phase::replicate, "buffers");
    r.reducer_context.communicator->broadcast(r.communication(), r.model.buffers, 0);
  });
  setup_.devices.synchronize();
}

BufferValues Parameters::buffers(int device) {
  window_.drain();
  Replica& r = replicas_[device];
  return {r.model.buffers ? read_flat(setup_.devices, r, r.model.buffers) : std::vector<float>(),
          window_.progress().counters};
}

std::vector<float> Parameters::read(int device, View (*flat)(const Replica&)) {
  window_.drain();
  if (!replicas_[device].is_sharded(flat(replicas_[device])))
    return read_flat(setup_.devices, replicas_[device], flat(replicas_[device]));
  std::vector<float> values(static_cast<size_t>(setup_.layout.parameter_elements()));
  read_frozen(setup_, replicas_[device], flat(replicas_[device]), values);
  read_shards(setup_, replicas_, device, "the parameters", values,
              [&](Replica& owner, const ShardPiece& piece) { return owner.parameters_of(piece, flat(owner)); });
  return values;
}

std::vector<float> Parameters::values(int device) {
  return read(device, [](const Replica& r) -> View {
    return r.model.parameters ? r.model.parameters : r.model.half_parameters;
  });
}

std::vector<float> Parameters::working_values(int device) {
  return read(device, [](const Replica& r) -> View { return r.model.working_parameters(); });
}

std::vector<float> Parameters::gradients(int device) {
  setup_.require_training("gradients");
  if (setup_.config.update_in_backward)
    throw ConfigError({"gradients: they are freed during backward; leave out ", settings::kUpdateInBackward});
  window_.drain();
  if (!setup_.sharded()) return read_flat(setup_.devices, replicas_[device], replicas_[device].parameter_gradients());
  std::vector<float> values(static_cast<size_t>(setup_.trained.parameter_elements()));
  read_shards(setup_, replicas_, device, "the gradients", values,
              [](Replica& owner, const ShardPiece& piece) { return owner.gradients_of(piece); });
  return values;
}

std::vector<float> Parameters::leaf_totals() {
  if (!setup_.config.exact())
    throw ConfigError({"leaf_totals: only exact mode has leaves; set ", propose(settings::kLeaves, "8")});
  setup_.require_training("leaf_totals");
  window_.drain();
  return read_flat(setup_.devices, replicas_[0], replicas_[0].exact->leaf_totals());
}

}  // namespace vitrine
