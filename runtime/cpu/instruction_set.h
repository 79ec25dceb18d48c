// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "runtime/instruction_set.h"

namespace vitrine::cpu {

/// Operations in files called *_cpu.cpp are compiled for VITRINE_ARCH, the baseline, and, on x86-64 with a lower
/// baseline, for x86-64-v4 as well.
enum class InstructionSet { baseline, avx512 };
const char* instruction_set_name(InstructionSet set);

/// Those that this build contains and this processor has; the baseline comes first.
std::vector<InstructionSet> instruction_sets();

/// The set in use. throws  ConfigError, see cpu_instruction_set()
InstructionSet instruction_set();
/// For tests, while no operation runs. `set` is one of instruction_sets().
void use_instruction_set(InstructionSet set);

}  // namespace vitrine::cpu
