// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/ptx/state.h"

/// What the checks have found, on stderr once for each place; the settings of the checks; and the log of what ran.
namespace vitrine::ptx {

/// From the environment, VITRINE_PTX_...
struct Settings {
  const char* log = nullptr;  // LOG: a folder that gets a file for each process, see report.py
  int order = 0;             // ORDER: of blocks and warps; 0 ascending, 1 descending, 2 and above shuffled by this seed
  bool races = true;         // RACES=0: shared memory is not checked for races
  bool approximate = false;  // APPROXIMATE=1: approximate functions are off by up to 2 units in the last place
  bool global_races = false;  // GLOBAL_RACES=1: races in global memory within a launch
};
const Settings& settings();

/// code: the error that ends the launch and the device; 0: it goes on
[[gnu::format(printf, 5, 6)]] void report(Ctx& c, const Inst* i, int lane, int code, const char* format, ...);

/// Lets the log name a kernel of the program even if it never runs.
void note_kernel(const std::string& name);
std::string demangled(const std::string& name);

}  // namespace vitrine::ptx
