// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/replicas/batch_exchange.h"

#include "runtime/error.h"
#include "runtime/trace/communication_table.h"

namespace vitrine {

void BatchExchange::sum(ExecContext& ctx, const View& values) {
  VITRINE_ASSERT(&ctx == &replica_.device.compute(), "layers run on the compute stream");
  overlap_.start(Phase::reduce, kBatchStatistics, "compute",
                 [&](ExecContext& communication) { replica_.communicator->all_reduce(communication, values); });
  overlap_.join(kBatchStatistics);
}

void BatchExchange::broadcast(const View& values) {
  overlap_.start(Phase::broadcast, "buffers", "compute",
                 [&](ExecContext& communication) { replica_.communicator->broadcast(communication, values, 0); });
  overlap_.join("buffers");
}

}  // namespace vitrine
