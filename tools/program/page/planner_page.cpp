// SPDX-License-Identifier: Apache-2.0
#include "tools/program/page/planner_page.h"

// The linker names what it makes of planner.page so: see cmake/VitrinePage.cmake.
extern "C" const char planner_begin[] asm("_binary_planner_page_start"), planner_end[] asm("_binary_planner_page_end");

std::string_view vitrine::tools::planner_page() {
  return {planner_begin, static_cast<size_t>(planner_end - planner_begin)};
}
