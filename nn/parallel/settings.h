// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/runtime/reason.h>

/// Settings of nn/parallel/ that messages refer to, and the list of all of them (see runtime/settings.h).
namespace vitrine::settings {

inline constexpr Setting kBatchSize{"EngineConfig::batch_size"};
inline constexpr Setting kAccumulate{"EngineConfig::accumulate"};
inline constexpr Setting kRecomputeSegments{"EngineConfig::recompute_segments"};
inline constexpr Setting kRecompute{"EngineConfig::recompute"};
inline constexpr Setting kResidentImages{"EngineConfig::resident_images"};
inline constexpr Setting kWorkspaceBytes{"EngineConfig::workspace_bytes"};
inline constexpr Setting kUpdateInBackward{"EngineConfig::update_in_backward"};
inline constexpr Setting kOptimizer{"EngineConfig::optimizer"};
inline constexpr Setting kMomentum{"SgdConfig::momentum"};
inline constexpr Setting kNesterov{"SgdConfig::nesterov"};
inline constexpr Setting kScheme{"EngineConfig::scheme"};
inline constexpr Setting kSplit{"Scheme::split"};
inline constexpr Setting kStaging{"Scheme::staging"};
inline constexpr Setting kLossAt{"Scheme::loss_at"};
inline constexpr Setting kReduce{"Scheme::reduce"};
inline constexpr Setting kShard{"Scheme::shard"};
inline constexpr Setting kTrainBatches{"Workload::train_batches"};

inline constexpr Setting kLeaves{"Split::leaves"};
inline constexpr Setting kLeafThreads{"EngineConfig::leaf_threads"};
inline constexpr Setting kBatchNormLeaves{"EngineConfig::batch_norm_leaves"};

inline constexpr Setting kEngineSettings[] = {
    kAccumulate,     kRecomputeSegments, kBatchSize,       kRecompute,        kResidentImages,
    kWorkspaceBytes, kOptimizer,         kMomentum,        kNesterov,         kScheme,
    kSplit,          kStaging,           kLossAt,          kReduce,           kShard,
    kLeaves,         kLeafThreads,       kBatchNormLeaves, kUpdateInBackward, kTrainBatches};

}  // namespace vitrine::settings
