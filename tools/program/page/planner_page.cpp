// SPDX-License-Identifier: Apache-2.0
#include "tools/program/page/planner_page.h"

// VITRINE_PLANNER_PAGE is the path of planner.page.
asm(".pushsection .rodata\n"
    "vitrine_planner_page: .incbin \"" VITRINE_PLANNER_PAGE
    "\"\n"
    "vitrine_planner_page_end:\n"
    ".popsection\n");

extern "C" const char planner_begin[] asm("vitrine_planner_page"), planner_end[] asm("vitrine_planner_page_end");

std::string_view vitrine::tools::planner_page() {
  return {planner_begin, static_cast<size_t>(planner_end - planner_begin)};
}
