// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/ptx/state.h"

/// What the checks have found, on stderr once for each place; the settings of the checks; and the log of what ran.
namespace vitrine::ptx {

inline constexpr int kIllegalAddress = 700, kIllegalInstruction = 715, kMisaligned = 716, kLaunchFailure = 719;

/// From the environment, VITRINE_PTX_...
struct Settings {
  const char* log = nullptr;  // LOG: a folder that gets a file for each process, which run.py reads
  uint64_t order = 0;         // ORDER: of blocks and warps; 0 ascending, above shuffled by this seed
  bool approximate = false;   // APPROXIMATE=1: approximate functions are off by up to 2 units in the last place
  bool global_races = false;  // GLOBAL_RACES=1: races in global memory within a launch
};
const Settings& settings();

/// format: begins with a kind of finding and a colon
/// code: the error that ends the launch and the device; 0: it goes on
[[gnu::format(printf, 5, 6)]] void report(Context& c, const Instruction& i, int lane, int code, const char* format,
                                          ...);

}  // namespace vitrine::ptx
