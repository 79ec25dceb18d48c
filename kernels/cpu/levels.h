// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include "runtime/cpu/instruction_set.h"

/// CPU implementations that are compiled for several instruction sets, see runtime/cpu/instruction_set.h.
/// `elementwise_cpu.cpp` defines them in the namespace vitrine::cpu::VITRINE_CPU_LEVEL; `elementwise.cpp` declares them
/// with
///
///     VITRINE_CPU_LEVELS(relu_forward, ExecContext&, ConstView, View);
///
/// and calls cpu::relu_forward, which calls the one for the instruction set in use.
namespace vitrine::cpu {

template <class... Parameters>
struct Levels {
  using Function = void (*)(Parameters...);
  Function baseline, avx512;
  void operator()(Parameters... parameters) const {
    (instruction_set() == InstructionSet::avx512 ? avx512 : baseline)(std::forward<Parameters>(parameters)...);
  }
};

}  // namespace vitrine::cpu

#ifdef VITRINE_HAVE_AVX512_LEVEL
#define VITRINE_CPU_LEVELS(name, ...) \
  namespace baseline {                \
  void name(__VA_ARGS__);             \
  }                                   \
  namespace avx512 {                  \
  void name(__VA_ARGS__);             \
  }                                   \
  constexpr Levels<__VA_ARGS__> name { &baseline::name, &avx512::name }
#else
#define VITRINE_CPU_LEVELS(name, ...) \
  namespace baseline {                \
  void name(__VA_ARGS__);             \
  }                                   \
  constexpr Levels<__VA_ARGS__> name { &baseline::name, &baseline::name }
#endif
