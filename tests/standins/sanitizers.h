// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#endif
#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_read_range(void* address, unsigned long bytes);
extern "C" void __tsan_write_range(void* address, unsigned long bytes);
#endif

/// Reports memory accesses of code compiled without the sanitizers to them.
namespace vitrine::standins {

inline void tell_read([[maybe_unused]] const void* p, [[maybe_unused]] int64_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  if (const void* const bad = __asan_region_is_poisoned(const_cast<void*>(p), static_cast<size_t>(bytes));
      bad != nullptr) {
    __asan_report_error(__builtin_return_address(0), __builtin_frame_address(0), __builtin_frame_address(0),
                        const_cast<void*>(bad), 0, 1);
  }
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_read_range(const_cast<void*>(p), static_cast<unsigned long>(bytes));
#endif
}

inline void tell_write([[maybe_unused]] const void* p, [[maybe_unused]] int64_t bytes) {
#if defined(__SANITIZE_ADDRESS__)
  if (const void* const bad = __asan_region_is_poisoned(const_cast<void*>(p), static_cast<size_t>(bytes));
      bad != nullptr) {
    __asan_report_error(__builtin_return_address(0), __builtin_frame_address(0), __builtin_frame_address(0),
                        const_cast<void*>(bad), 1, 1);
  }
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_write_range(const_cast<void*>(p), static_cast<unsigned long>(bytes));
#endif
}

}  // namespace vitrine::standins
