// SPDX-License-Identifier: Apache-2.0
#include "runtime/control_groups.h"

#include <algorithm>
#include <fstream>

namespace vitrine {
namespace {

/// Whether a list such as "cpu,memory,pids" contains a controller.
bool has_controller(std::string_view controllers, std::string_view wanted) {
  while (!controllers.empty()) {
    const size_t comma = std::min(controllers.find(','), controllers.size());
    if (controllers.substr(0, comma) == wanted) return true;
    controllers.remove_prefix(std::min(comma + 1, controllers.size()));
  }
  return false;
}

}  // namespace

void visit_control_groups(const std::string& root, std::string_view controller,
                          const std::function<void(const std::string&, int)>& visit) {
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // hierarchy:controllers:path
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string_view controllers = std::string_view(line).substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    if (!path.empty() && path.front() != '/') continue;
    const int version = controllers.empty() ? 2 : 1;
    if (version == 1 && !has_controller(controllers, controller)) continue;
    std::string mount = root + "/sys/fs/cgroup";
    if (version == 1) mount.append("/").append(controller);
    while (true) {
      visit(mount + path, version);
      if (path.empty()) break;
      path.erase(path.find_last_of('/'));
    }
  }
}

}  // namespace vitrine
