// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <span>
#include <string>

#include "nn/parallel/replicas/replica_group.h"

/// Private to nn/parallel. Sharded values of several processes, in messages between hosts: no device holds more than
/// its shard. All processes call these functions. gather_shards() and scatter_shards() do nothing in one process and
/// without Scheme::shard.
namespace vitrine {

enum class Receivers { rank0, all };

/// Sends the shards of a flat f32 buffer from the processes that own them.
///   what  its name in errors
///   own   a piece of it on a replica of this process
///   take  receives what other processes own, from element `begin` of the buffer on
void gather_shards(const EngineSetup& setup, ReplicaGroup& replicas, const std::string& what, Receivers receivers,
                   const std::function<View(Replica&, const ShardPiece&)>& own,
                   const std::function<void(int64_t begin, std::span<const float> values)>& take);

/// Reads the shards of a flat buffer from the devices of all processes, which all call it; what all replicas have, from
/// `device`.
///   values  of the whole buffer
void read_shards(const EngineSetup& setup, ReplicaGroup& replicas, int device, const std::string& what,
                 std::span<float> values, const std::function<View(Replica&, const ShardPiece&)>& own);

/// Reads the frozen parameters from a replica's `flat` parameters.
///   values  of all parameters
void read_frozen(const EngineSetup& setup, Replica& r, const View& flat, std::span<float> values);

/// Sends rank 0's values of a flat f32 buffer to the replicas of other processes that own them, or share them.
///   set  copies them to a piece on a replica of this process, and waits
void scatter_shards(const EngineSetup& setup, ReplicaGroup& replicas, const std::string& what,
                    std::span<const float> values,
                    const std::function<void(Replica&, const ShardPiece&, std::span<const float>)>& set);

}  // namespace vitrine
