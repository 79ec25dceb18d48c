// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

namespace vitrine {

/// The instruction set for which the loops of CPU operations that run here were compiled: "avx2", "avx512" or
/// "baseline" (any other). The same operations compiled for several sets give the same bits. It is the best one that
/// this build contains and this processor has, unless the environment variable VITRINE_ISA names another. throws
/// ConfigError if VITRINE_ISA names a set that this build does not contain or this processor does not have
std::string cpu_instruction_set();

}  // namespace vitrine

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
