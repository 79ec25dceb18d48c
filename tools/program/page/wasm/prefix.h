// SPDX-License-Identifier: Apache-2.0
// Included first in every file of the WebAssembly build: what Debian's emscripten lacks of C++20 and of Linux.
#pragma once

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <cerrno>
#include <version>

#ifndef __cpp_lib_bit_cast
namespace std {
template <class To, class From>
constexpr To bit_cast(const From& from) noexcept {
  return __builtin_bit_cast(To, from);
}
}  // namespace std
#endif

// Random123 refuses machines that its authors have not tried.
#define __riscv
#include <Random123/features/compilerfeatures.h>
#undef __riscv

#ifndef RENAME_EXCHANGE
#define RENAME_EXCHANGE 2
inline int renameat2(int, const char*, int, const char*, unsigned) {
  errno = ENOSYS;
  return -1;
}
#endif

inline const char* sigabbrev_np(int) { return nullptr; }  // no signal reaches a page
