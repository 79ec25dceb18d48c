// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/communicators.h"

#include <set>

#include <fmt/format.h>

#include "runtime/error.h"

namespace vitrine::cuda {

/// NCCL's communicators, or peer communicators when a GPU is named twice or NCCL is not built in.
std::vector<std::unique_ptr<Communicator>> make_communicators(DeviceGroup& devices) {
  std::set<int> gpus;
  for (int i = 0; i < devices.size(); ++i) gpus.insert(devices[i].id().index);
  const bool distinct = static_cast<int>(gpus.size()) == devices.size();
  if (!distinct && devices.process_count() > 1) {
    throw UnsupportedError(
        "make_communicators: with several processes every device needs a separate GPU, because NCCL does not support "
        "two ranks on one GPU");
  }
  const std::string no_nccl = why_no_nccl();
  if (distinct && no_nccl.empty()) return make_nccl_communicators(devices);
  const std::string reason = distinct ? no_nccl : "NCCL does not support two ranks on one GPU";
  if (!devices.options().nccl_communicators.empty()) {
    throw UnsupportedError(fmt::format("make_communicators: nccl_communicators are set, but {}", reason));
  }
  if (devices.process_count() > 1)
    throw UnsupportedError("make_communicators: GPUs of several processes need NCCL: " + no_nccl);
  return make_peer_communicators(devices, reason);
}

}  // namespace vitrine::cuda
