// SPDX-License-Identifier: Apache-2.0
// Replaces comm/mpi_exchange.cpp and process_group/mpi_session.cpp in builds without MPI.
#include <fmt/format.h>

#include "runtime/comm/process_exchange.h"
#include "runtime/error.h"
#include "runtime/process_group/mpi_session.h"
#include "runtime/settings.h"

namespace vitrine {

std::unique_ptr<comm::ProcessExchange> comm::make_mpi_exchange(ProcessGroup&, const ExchangeOptions&) {
  throw UnsupportedError(
      fmt::format("CPU devices of several processes need MPI, which this build does not include; install "
                  "libopenmpi-dev, build again, and {}",
                  kUseMpirun));
}

std::unique_ptr<process_group::MpiSession> process_group::MpiSession::open(int, int, int64_t) {
  throw UnsupportedError(
      {"MPI is not built in, so the processes cannot connect over it; build with libopenmpi-dev installed, or, with "
       "GPUs, use ",
       propose(settings::kRendezvous, "tcp://HOST:PORT"), " or ", propose(settings::kRendezvous, "file:PATH")});
}

}  // namespace vitrine
