// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/communicator.h"

#include <fmt/format.h>

#include "runtime/comm/local_communicator.h"
#include "runtime/error.h"

namespace vitrine {

std::vector<std::unique_ptr<Communicator>> make_communicators(DeviceGroup& devices) {
  std::vector<std::string> names;
  for (int i = 0; i < devices.size(); ++i) {
    const DeviceId id = devices[i].id();
    if (id.backend != Backend::cpu && id.backend != Backend::meta) {
      throw UnsupportedError(
          fmt::format("make_communicators: {} devices have no communicator in this build; use cpu or meta devices", backend_name(id.backend)));
    }
    if (id.backend != devices[0].id().backend) {
      throw UnsupportedError(fmt::format("make_communicators: {} and {} are of different backends; a group has one", devices[0].name(), id.str()));
    }
    names.push_back(id.str());
  }
  std::shared_ptr<comm::LocalGroup> group;
  if (devices.size() > 0 && devices[0].id().backend == Backend::cpu) {
    if (devices.size() > comm::LocalGroup::kMaxRanks) {
      throw UnsupportedError(fmt::format("make_communicators: {} CPU devices; a group has at most {}", devices.size(), comm::LocalGroup::kMaxRanks));
    }
    group = std::make_shared<comm::LocalGroup>(std::move(names));
  }
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int rank = 0; rank < devices.size(); ++rank) communicators.push_back(std::make_unique<LocalCommunicator>(group, rank, devices.size()));
  return communicators;
}

}  // namespace vitrine
