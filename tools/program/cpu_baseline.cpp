// SPDX-License-Identifier: Apache-2.0
// The program uses the instructions it was compiled for from its first line. This runs earlier and reports what the
// processor lacks.
#if defined(__x86_64__) && defined(__GNUC__)

#include <cstring>

#include <unistd.h>

namespace {

// Compiled for any x86-64, and uses nothing that needs an initializer.
#define VITRINE_ANY_X86_64 __attribute__((target("arch=x86-64")))

[[maybe_unused]] VITRINE_ANY_X86_64 void say(const char* text) {
  if (write(STDERR_FILENO, text, std::strlen(text)) < 0) _exit(1);
}

[[maybe_unused]] VITRINE_ANY_X86_64 void refuse(const char* instructions) {
  say("vitrine: this program was compiled for processors with ");
  say(instructions);
  say(", which this one lacks; configure it with -DVITRINE_ARCH=x86-64 and build it again\n");
  _exit(1);
}

// 101 is the first priority that programs may use: it runs before every other initializer.
__attribute__((constructor(101))) VITRINE_ANY_X86_64 void check_processor() {
  __builtin_cpu_init();
#ifdef __AVX2__
  if (!__builtin_cpu_supports("avx2")) refuse("AVX2");
#endif
#ifdef __FMA__
  if (!__builtin_cpu_supports("fma")) refuse("FMA");
#endif
#ifdef __BMI2__
  if (!__builtin_cpu_supports("bmi2")) refuse("BMI2");
#endif
#ifdef __AVX512F__
  if (!__builtin_cpu_supports("avx512f")) refuse("AVX-512");
#endif
}

}  // namespace

#endif
