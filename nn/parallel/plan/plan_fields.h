// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "nn/model.h"
#include "nn/parallel/engine.h"
#include "nn/parallel/reduce/buckets.h"
#include "runtime/process_group/agreement.h"

/// Private to nn/parallel.
namespace vitrine {

/// What all processes must agree on before they train one model together: parameters, buckets, dtypes, split,
/// configuration.
AgreementFields plan_fields(const Model& model, const FlatLayout& layout, const EngineConfig& config,
                            const Workload& workload);

}  // namespace vitrine
