// SPDX-License-Identifier: Apache-2.0
// Replaces planner_page.cpp in builds without emscripten.
#include "runtime/error.h"
#include "tools/program/page/planner_page.h"

std::string_view vitrine::tools::planner_page() {
  throw UnsupportedError(
      "page: this program was built without its page, which needs emscripten; install it with: apt-get install "
      "emscripten, and configure again with -DVITRINE_PAGE=ON");
}
