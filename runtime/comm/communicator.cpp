// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/communicator.h"

#include <iterator>
#include <set>

#include <fmt/format.h>

#include "runtime/comm/local_communicator.h"
#include "runtime/comm/process_communicator.h"
#ifdef VITRINE_HAVE_CUDA
#include "runtime/cuda/peer_communicator.h"
#endif
#ifdef VITRINE_HAVE_NCCL
#include "runtime/cuda/nccl_communicator.h"
#endif
#include "runtime/error.h"

namespace vitrine {
namespace {

std::vector<std::unique_ptr<Communicator>> make_local_communicators(DeviceGroup& devices) {
  std::shared_ptr<comm::LocalGroup> group;
  if (devices[0].id().backend == Backend::cpu) {
    if (devices.size() > comm::LocalGroup::kMaxRanks) {
      throw UnsupportedError(fmt::format("make_communicators: {} CPU devices; a group has at most {}", devices.size(), comm::LocalGroup::kMaxRanks));
    }
    std::vector<std::string> names;
    for (int i = 0; i < devices.size(); ++i) names.push_back(devices[i].name());
    group = std::make_shared<comm::LocalGroup>(std::move(names));
  }
  std::vector<std::unique_ptr<LocalCommunicator>> locals;
  const bool alone = devices.process_count() == 1;
  for (int rank = 0; rank < devices.size(); ++rank) locals.push_back(std::make_unique<LocalCommunicator>(group, rank, devices.size(), alone));
  if (!alone) return make_process_communicators(devices, std::move(locals));
  return {std::make_move_iterator(locals.begin()), std::make_move_iterator(locals.end())};
}

#ifdef VITRINE_HAVE_CUDA
std::vector<std::unique_ptr<Communicator>> make_gpu_communicators(DeviceGroup& devices) {
  std::set<int> gpus;
  for (int i = 0; i < devices.size(); ++i) gpus.insert(devices[i].id().index);
  const bool distinct = static_cast<int>(gpus.size()) == devices.size();
  if (!distinct && devices.process_count() > 1) {
    throw UnsupportedError(
        "make_communicators: with several processes every device needs a separate GPU, because NCCL does not support two ranks on one GPU");
  }
#ifdef VITRINE_HAVE_NCCL
  if (distinct) return cuda::make_nccl_communicators(devices);
#endif
  if (!devices.options().nccl_communicators.empty()) {
    throw UnsupportedError(fmt::format("make_communicators: nccl_communicators are set, but {}",
                                       distinct ? "this build has no NCCL" : "NCCL does not support two ranks on one GPU"));
  }
  if (devices.process_count() > 1)
    throw UnsupportedError("make_communicators: GPUs of several processes need NCCL, which this build does not include");
  return cuda::make_peer_communicators(devices, distinct ? "this build has no NCCL" : "NCCL does not support two ranks on one GPU");
}
#else
std::vector<std::unique_ptr<Communicator>> make_gpu_communicators(DeviceGroup& devices) {
  throw UnsupportedError(fmt::format("make_communicators: {}: this build does not include CUDA", devices[0].name()));
}
#endif

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_communicators(DeviceGroup& devices) {
  return devices[0].id().backend == Backend::cuda ? make_gpu_communicators(devices) : make_local_communicators(devices);
}

std::string nccl_version() {
#ifdef VITRINE_HAVE_NCCL
  return cuda::nccl_version();
#else
  return {};
#endif
}

}  // namespace vitrine
