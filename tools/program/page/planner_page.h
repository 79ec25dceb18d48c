// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace vitrine::tools {

/// planner.html with the planner in it, as the build made it (page/assemble). throws UnsupportedError in a program that
/// was built without emscripten.
std::string_view planner_page();

}  // namespace vitrine::tools
