// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace vitrine {

/// Calls visit(folder, version) for the control group of this process that has `controller` ("memory", "cpu"), of version 1 or 2, and for each of its
/// parents. In a container the group's path may be one of the host, of which only the mounted part is there.
///   root  precedes the paths: tests have a /proc and /sys/fs/cgroup of their own there
void visit_control_groups(const std::string& root, std::string_view controller, const std::function<void(const std::string&, int)>& visit);

}  // namespace vitrine
