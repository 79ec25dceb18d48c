// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/state/process_shards.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "nn/parallel/replicas/host_copies.h"
#include "runtime/process_group/process_group.h"

namespace vitrine {
namespace {

constexpr int64_t kMostElements = int64_t{1} << 20;  // of a message

/// A part of a rank's shard that fits into a message.
struct Part {
  size_t process;  // that has the rank
  Replica* owner;  // null in other processes
  ShardPiece piece;
};

/// Those of all ranks, in rank order.
std::vector<Part> all_parts(const EngineSetup& setup, ReplicaGroup& replicas) {
  std::vector<Part> parts;
  if (setup.peers() == nullptr || !setup.sharded()) return parts;
  ReducerContext context = replicas[0].reducer_context;
  context.rank = 0;
  const std::vector<int>& devices = setup.devices.devices_of_processes();
  for (size_t process = 0; process < devices.size(); ++process) {
    for (int d = 0; d < devices[process]; ++d, ++context.rank) {
      Replica* const owner = static_cast<int>(process) == setup.devices.process() ? &replicas[d] : nullptr;
      for (const ShardPiece& whole : make_shard(context, nullptr)) {
        for (int64_t at = 0; at < whole.size(); at += kMostElements) {
          ShardPiece piece = whole;
          piece.begin += at;
          piece.state_begin += at;
          piece.end = std::min(whole.end, piece.begin + kMostElements);
          parts.push_back({process, owner, piece});
        }
      }
    }
  }
  return parts;
}

std::string bytes_of(std::span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

std::vector<float> values_of(const std::string& what, const std::string& bytes, const ShardPiece& piece) {
  std::vector<float> values(static_cast<size_t>(piece.size()));
  if (bytes.size() != values.size() * sizeof(float)) {
    throw CommError(fmt::format("{}: received {} bytes, expected {}; run the same version on all processes", what,
                                bytes.size(), values.size() * sizeof(float)));
  }
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

}  // namespace

void gather_shards(const EngineSetup& setup, ReplicaGroup& replicas, const std::string& what, Receivers receivers,
                   const std::function<View(Replica&, const ShardPiece&)>& own,
                   const std::function<void(int64_t, std::span<const float>)>& take) {
  for (const Part& part : all_parts(setup, replicas)) {
    const bool to_all = receivers == Receivers::all;
    if (part.piece.shared || (part.process == 0 && !to_all)) continue;
    const auto answer = [&](std::vector<std::string> sent) {
      std::vector<std::string> answers(to_all ? 1 : sent.size());
      answers[0] = std::move(sent[part.process]);
      return answers;
    };
    const std::string mine = part.owner != nullptr
                                 ? bytes_of(read_flat(setup.devices, *part.owner, own(*part.owner, part.piece)))
                                 : std::string();
    const std::string received = setup.peers()->exchange(what, mine, answer);
    if (part.owner == nullptr && (to_all || setup.devices.process() == 0))
      take(part.piece.begin, values_of(what, received, part.piece));
  }
}

void read_shards(const EngineSetup& setup, ReplicaGroup& replicas, int device, const std::string& what,
                 std::span<float> values, const std::function<View(Replica&, const ShardPiece&)>& own) {
  const auto take = [&](int64_t begin, std::span<const float> part) {
    std::copy(part.begin(), part.end(), values.begin() + begin);
  };
  for (auto& owner : replicas) {
    for (const ShardPiece& piece : owner->optimizer.shard) {
      if (piece.shared && owner->ordinal() != device) continue;
      take(piece.begin, read_flat(setup.devices, *owner, own(*owner, piece)));
    }
  }
  gather_shards(setup, replicas, what, Receivers::all, own, take);
}

void read_frozen(const EngineSetup& setup, Replica& r, const View& flat, std::span<float> values) {
  const int64_t trained = setup.trained.parameter_elements(), count = setup.layout.parameter_elements() - trained;
  if (count == 0) return;
  const std::vector<float> frozen = read_flat(setup.devices, r, flat.rows(flat.numel() - count, flat.numel()));
  std::copy(frozen.begin(), frozen.end(), values.begin() + trained);
}

void scatter_shards(const EngineSetup& setup, ReplicaGroup& replicas, const std::string& what,
                    std::span<const float> values,
                    const std::function<void(Replica&, const ShardPiece&, std::span<const float>)>& set) {
  for (const Part& part : all_parts(setup, replicas)) {
    if (part.process == 0) continue;
    const auto answer = [&](const std::vector<std::string>& asked) {
      std::vector<std::string> answers(asked.size());
      answers[part.process] =
          bytes_of(values.subspan(static_cast<size_t>(part.piece.begin), static_cast<size_t>(part.piece.size())));
      return answers;
    };
    const std::string received = setup.peers()->exchange(what, {}, answer);
    if (part.owner != nullptr) set(*part.owner, part.piece, values_of(what, received, part.piece));
  }
}

}  // namespace vitrine
