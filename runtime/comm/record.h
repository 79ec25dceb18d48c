// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runtime/comm/call.h"
#include "runtime/process_group/process_group.h"

namespace vitrine {

class ExecContext;

namespace comm {

/// Describes the collective issued on `ctx` as the `sequence`-th of its rank, for the process group: phase and step of
/// the context, and its layer as label.
CollectiveRecord record_of(const ExecContext& ctx, const Call& call, uint64_t sequence);

/// The record of a collective that was captured as `captured`, as the `sequence`-th of its rank, when its graph is
/// launched in `step`.
CollectiveRecord record_of_launch(const CollectiveRecord& captured, uint64_t sequence, int64_t step);

}  // namespace comm
}  // namespace vitrine
