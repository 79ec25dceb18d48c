// SPDX-License-Identifier: Apache-2.0
// Whether all replicas hold the same, by hashes.
#include <algorithm>
#include <functional>
#include <map>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "nn/parallel/replicas/host_copies.h"
#include "nn/parallel/state/parameters.h"
#include "nn/parallel/step/step_window.h"
#include "runtime/copy.h"
#include "runtime/hash.h"
#include "runtime/process_group/process_group.h"

namespace vitrine {
namespace {

constexpr size_t kDigits = 16;  // of a parameter's hash
constexpr int64_t kChunkBytes = int64_t{16} << 20;

/// Names the replicas whose parameter differs from that of most; empty when all are equal.
///   names         of the parameters and buffers, in the order of the hashes
///   of_processes  the hashes of each process's devices, separated by spaces
///   name          name of a device when there is one process
std::string describe_difference(const std::vector<std::string>& names, const std::vector<std::string>& of_processes,
                                const std::function<std::string(int)>& name) {
  std::vector<std::pair<std::string, std::string>> replicas;  // name, hashes
  for (size_t p = 0; p < of_processes.size(); ++p) {
    std::istringstream devices(of_processes[p]);
    int d = 0;
    for (std::string hashes; devices >> hashes; ++d) {
      replicas.emplace_back(of_processes.size() > 1 ? fmt::format("rank {}, device {}", p, d) : name(d), hashes);
    }
  }
  for (size_t i = 0; i < names.size(); ++i) {
    std::map<std::string, std::vector<std::string>> holders;
    for (const auto& [replica, hashes] : replicas) holders[hashes.substr(i * kDigits, kDigits)].push_back(replica);
    if (holders.size() == 1) continue;
    // The value that most devices hold counts as right; when two are held equally often, that of the first device.
    const auto has_first = [&](const auto& group) { return group.second.front() == replicas.front().first; };
    const auto fewest = std::ranges::min_element(holders, [&](const auto& a, const auto& b) {
      return a.second.size() != b.second.size() ? a.second.size() < b.second.size() : !has_first(a) && has_first(b);
    });
    return fmt::format("the {} of {} differs from the others", names[i], fmt::join(fewest->second, " and "));
  }
  return {};
}

}  // namespace

std::vector<uint64_t> Parameters::hashes(Replica& r) {
  const bool all_hold_f32 =
      std::ranges::all_of(replicas_, [](const auto& other) { return static_cast<bool>(other->model.parameters); });
  const bool copies = r.reducer_context.shards_masters() && !r.reducer_context.shards_parameters();
  const View flat = all_hold_f32 && !copies ? r.model.parameters : r.model.half_parameters;
  setup_.devices.synchronize();
  std::vector<std::byte> chunk;
  std::vector<uint64_t> hashes;
  const auto hash_part = [&](uint64_t hash, const View& values) {
    const int64_t count = kChunkBytes / size_of(values.dtype);
    for (int64_t at = 0; at < values.numel(); at += count) {
      const View part = values.rows(at, std::min(values.numel(), at + count));
      chunk.resize(std::max(chunk.size(), static_cast<size_t>(part.bytes())));
      copy(r.compute(), part, View{chunk.data(), part.shape, part.dtype, DeviceId::host()});
      r.compute().stream().synchronize();
      note_host_read(setup_.devices, "verify_replicas",
                     ConstView(chunk.data(), part.shape, part.dtype, DeviceId::host()));
      hash = hash_bytes(hash, chunk.data(), part.bytes());
    }
    return hash;
  };
  const auto add = [&](const FlatLayout& of, const View& values, const Shard& pieces) {
    for (int i = 0; i < of.size(); ++i) {
      const int64_t first = of.offset(i), last = first + of.specs()[static_cast<size_t>(i)].shape.numel();
      uint64_t hash = 0;
      for (const ShardPiece& piece : pieces) {
        const int64_t begin = std::max(first, piece.begin), end = std::min(last, piece.end),
                      at = piece.state_begin - piece.begin;
        if (piece.shared && begin < end) hash = hash_part(hash, values.rows(at + begin, at + end));
      }
      if (copies && &of == &setup_.layout && of.specs()[static_cast<size_t>(i)].stays_f32)
        hash = hash_part(hash, r.model.parameter_views[static_cast<size_t>(i)].reshape({last - first}));
      hashes.push_back(hash);
    }
  };
  const FlatLayout& saved = setup_.buffer_layout.saved();
  add(setup_.layout, flat, copies ? Shard{{.end = flat.numel()}} : r.model.parameter_shard);
  add(saved, r.model.buffers, {{.end = saved.parameter_elements()}});
  return hashes;
}

void Parameters::verify() {
  window_.drain();
  std::vector<std::string> of_devices;
  for (auto& r : replicas_) {
    std::string& text = of_devices.emplace_back();
    for (const uint64_t hash : hashes(*r)) text += fmt::format("{:016x}", hash);
  }
  const std::string mine = fmt::format("{}", fmt::join(of_devices, " "));
  const bool equal_here = std::ranges::all_of(of_devices, [&](const std::string& h) { return h == of_devices[0]; });
  const auto name = [&](int device) { return setup_.devices[device].name(); };
  std::vector<std::string> names;
  for (const FlatLayout* part : {&std::as_const(setup_.layout), &setup_.buffer_layout.saved()}) {
    for (const ParamSpec& spec : part->specs()) names.push_back(spec.name);
  }
  std::string difference;
  if (setup_.peers() == nullptr) {
    if (!equal_here) difference = describe_difference(names, {mine}, name);
  } else {
    ProcessGroup& process_group = *setup_.peers();
    // A process whose own devices differ agrees with no other.
    if (process_group.all_equal("the replicas' parameters",
                                equal_here ? of_devices[0] : fmt::format("rank {}", setup_.devices.process())))
      return;
    difference = process_group.exchange("the replicas that differ", mine, [&](const std::vector<std::string>& parts) {
      return std::vector<std::string>{describe_difference(names, parts, name)};
    });
  }
  if (difference.empty()) return;
  throw CommError(
      fmt::format("the replicas differ after {} steps: {}; possible causes are parameters that were set on one replica "
                  "only, a skipped collective, "
                  "or faulty memory",
                  window_.progress().steps, difference));
}

}  // namespace vitrine
