// SPDX-License-Identifier: Apache-2.0
#include "runtime/control_groups.h"

#include <algorithm>
#include <fstream>
#include <vector>

#include "runtime/text.h"

namespace vitrine {

void visit_control_groups(const std::string& root, std::string_view controller,
                          const std::function<void(const std::string&, int)>& visit) {
  std::ifstream groups(root + "/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    // hierarchy:controllers:path
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::vector<std::string> controllers = split_text(line.substr(first + 1, second - first - 1), ',');
    std::string path = line.substr(second + 1);
    if (path == "/") path.clear();
    if (!path.empty() && path.front() != '/') continue;
    const int version = controllers.front().empty() ? 2 : 1;
    if (version == 1 && std::find(controllers.begin(), controllers.end(), controller) == controllers.end()) continue;
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
