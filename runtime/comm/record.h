// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/comm/call.h"
#include "runtime/process_group/collective_record.h"

namespace vitrine {

class ExecContext;

namespace comm {

/// Describes the collective issued on `ctx` as the `sequence`-th of its rank, for the process group: phase and step of the context, and its layer as
/// label.
CollectiveRecord record_of(const ExecContext& ctx, const Call& call, uint64_t sequence);

}  // namespace comm
}  // namespace vitrine
