// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "runtime/device.h"

/// The unique ids through which the ranks of an NCCL group find each other. A thread of the process that created an id
/// receives every rank that joins through it, one after the other, which takes long for thousands, so a large group
/// shares several ids (ncclCommInitRankScalable).
namespace vitrine::cuda {

/// As in PyTorch and XLA.
inline constexpr int kRanksPerNcclId = 128;

/// Ids for a group: one for every `ranks_per_id` ranks, the last for the rest. requires both above 0
int nccl_id_count(int world_size, int ranks_per_id);
/// Where NCCL expects id `id` of `count` to come from: the first of the ranks that join through it. Ranks are divided
/// in order, and the first world_size % count ids have one more than the others.
int first_rank_of_nccl_id(int id, int count, int world_size);

/// The ids of a new group, NCCL_UNIQUE_ID_BYTES each, in one order that is the same on all processes. The process of an
/// id's first rank creates it. With several processes, all of them call it. throws CommError
std::string exchange_nccl_ids(const DeviceGroup& devices, int ranks_per_id = kRanksPerNcclId);

}  // namespace vitrine::cuda
