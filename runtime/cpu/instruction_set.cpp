// SPDX-License-Identifier: Apache-2.0
#include "runtime/cpu/instruction_set.h"

#include <atomic>
#include <cstdlib>
#include <string_view>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/error.h"
#include "runtime/text.h"

namespace vitrine::cpu {
namespace {

constexpr const char* kVariable = "VITRINE_ISA";

InstructionSet chosen_by_environment() {
  const std::vector<InstructionSet> sets = instruction_sets();
  const char* const name = std::getenv(kVariable);
  if (name == nullptr || *name == '\0') return sets.back();
  std::vector<const char*> names;
  for (const InstructionSet set : sets) {
    names.push_back(instruction_set_name(set));
    if (std::string_view(name) == names.back()) return set;
  }
  throw ConfigError(
      fmt::format("{} is '{}', but this build on this processor has only {}; set one of them or unset the variable",
                  kVariable, excerpt(name), fmt::join(names, " and ")));
}

std::atomic<InstructionSet>& set_in_use() {
  static std::atomic<InstructionSet> set{chosen_by_environment()};
  return set;
}

}  // namespace

const char* instruction_set_name(InstructionSet set) {
  if (set == InstructionSet::avx512) return "avx512";
#if defined(__AVX512F__) && defined(__AVX512BW__)
  return "avx512";
#elif defined(__AVX2__)
  return "avx2";
#else
  return "baseline";
#endif
}

std::vector<InstructionSet> instruction_sets() {
  std::vector<InstructionSet> sets{InstructionSet::baseline};
#ifdef VITRINE_HAVE_AVX512_LEVEL
  // All of x86-64-v4. These tests include that the operating system saves the registers.
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    sets.push_back(InstructionSet::avx512);
  }
#endif
  return sets;
}

InstructionSet instruction_set() { return set_in_use().load(std::memory_order_relaxed); }

void use_instruction_set(InstructionSet set) { set_in_use().store(set, std::memory_order_relaxed); }

}  // namespace vitrine::cpu

namespace vitrine {

std::string cpu_instruction_set() { return cpu::instruction_set_name(cpu::instruction_set()); }

}  // namespace vitrine
