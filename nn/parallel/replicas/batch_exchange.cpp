// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/replicas/batch_exchange.h"

#include "runtime/error.h"
#include "runtime/trace/communication_table.h"

namespace vitrine {

void BatchExchange::reset() {
  for (auto* event : {&ready_, &done_}) *event = replica_.device.compute().stream().make_event();
}

template <class Collective>
void BatchExchange::between_events(Phase phase, const char* name, const Collective& collective) {
  ExecContext& compute = replica_.device.compute();
  ExecContext& communication = replica_.device.communication();
  compute.record(*ready_);
  {
    const PhaseScope scope(communication, phase, name);
    communication.wait(*ready_, "compute");
    collective(communication);
  }
  communication.record(*done_);
  compute.wait(*done_, name);
}

void BatchExchange::sum(ExecContext& ctx, const View& values) {
  VITRINE_ASSERT(&ctx == &replica_.device.compute(), "layers run on the compute stream");
  between_events(Phase::reduce, kBatchStatistics,
                 [&](ExecContext& communication) { replica_.communicator->all_reduce(communication, values); });
}

void BatchExchange::broadcast(const View& values) {
  between_events(Phase::broadcast, "buffers",
                 [&](ExecContext& communication) { replica_.communicator->broadcast(communication, values, 0); });
}

}  // namespace vitrine
