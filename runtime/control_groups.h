// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace vitrine {

/// Calls visit(folder, version) for this process's control group of `controller` ("memory", "cpu"), version 1 or 2, and
/// for each of its parents. In a container the group's path may be a path of the host; only the mounted part is
/// visible.
///   root  prefix of all paths; tests put their own /proc and /sys/fs/cgroup there
void visit_control_groups(const std::string& root, std::string_view controller,
                          const std::function<void(const std::string&, int)>& visit);

}  // namespace vitrine
