// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace vitrine {

/// The instruction set for which the loops of CPU operations that run here were compiled: "avx2", "avx512" or
/// "baseline" (any other). The same operations compiled for several sets give the same bits. It is the best one that
/// this build contains and this processor has, unless the environment variable VITRINE_ISA names another. throws
/// ConfigError if VITRINE_ISA names a set that this build does not contain or this processor does not have
std::string cpu_instruction_set();

}  // namespace vitrine
