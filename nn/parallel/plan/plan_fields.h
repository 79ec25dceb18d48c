// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "nn/parallel/engine_setup.h"
#include "runtime/process_group/agreement.h"

/// Private to nn/parallel.
namespace vitrine {

/// What all processes must agree on before they train one model together: parameters, buckets, dtypes, split,
/// configuration.
AgreementFields plan_fields(const Model& model, const FlatLayout& layout, const EngineConfig& config,
                            const Workload& workload);

/// What else they must agree on in exact mode, because it decides the bits of a leaf.
AgreementFields exact_fields(const DeviceGroup& devices, const EngineConfig& config);

/// throws ConfigError unless the configuration works with several processes and all of them plan the same.
void agree_with_processes(const EngineSetup& setup);

}  // namespace vitrine
