// SPDX-License-Identifier: Apache-2.0
// Replaces Linux's header in the WebAssembly build, which has one thread: none sleeps.
#pragma once

#define SYS_futex (-1)
#define FUTEX_WAIT 0
#define FUTEX_WAKE 1
#define FUTEX_WAIT_PRIVATE 128
#define FUTEX_WAKE_PRIVATE 129

template <class... Arguments>
long syscall(long, Arguments...) {
  return -1;
}
