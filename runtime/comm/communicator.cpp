// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/communicator.h"

#include <iterator>

#include <fmt/format.h>

#include "runtime/comm/capabilities.h"
#include "runtime/comm/local_communicator.h"
#include "runtime/comm/process_communicator.h"
#include "runtime/error.h"

namespace vitrine {

namespace cuda {  // cuda/communicators.cpp
std::vector<std::unique_ptr<Communicator>> make_communicators(DeviceGroup& devices);
}  // namespace cuda

namespace {

std::vector<std::unique_ptr<Communicator>> make_local_communicators(DeviceGroup& devices) {
  std::shared_ptr<comm::LocalGroup> group;
  if (devices[0].id().backend == Backend::cpu) {
    if (devices.size() > comm::LocalGroup::kMaxRanks) {
      throw UnsupportedError(
          fmt::format("make_communicators: {} CPU devices; a process has at most {}: use fewer, or several processes",
                      devices.size(), comm::LocalGroup::kMaxRanks));
    }
    std::vector<std::string> names;
    for (int i = 0; i < devices.size(); ++i) names.push_back(devices[i].name());
    group = std::make_shared<comm::LocalGroup>(std::move(names));
  }
  std::vector<std::unique_ptr<LocalCommunicator>> locals;
  const bool alone = devices.process_count() == 1;
  for (int rank = 0; rank < devices.size(); ++rank)
    locals.push_back(std::make_unique<LocalCommunicator>(group, rank, devices.size(), alone,
                                                         devices.target().backend == Backend::cuda));
  if (!alone) return make_process_communicators(devices, std::move(locals));
  return {std::make_move_iterator(locals.begin()), std::make_move_iterator(locals.end())};
}

}  // namespace

CollectiveCapture* CollectiveCapture::of(Communicator* communicator) {
  auto* const capture = dynamic_cast<CollectiveCapture*>(communicator);
  return capture != nullptr && capture->can_capture() ? capture : nullptr;
}

std::vector<std::unique_ptr<Communicator>> make_communicators(DeviceGroup& devices) {
  return devices[0].id().backend == Backend::cuda ? cuda::make_communicators(devices)
                                                  : make_local_communicators(devices);
}

}  // namespace vitrine
