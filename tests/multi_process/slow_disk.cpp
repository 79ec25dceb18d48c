// SPDX-License-Identifier: Apache-2.0
// A preloaded library that makes each flush take $VITRINE_SLOW_DISK_SECONDS.
#include <chrono>
#include <cstdlib>
#include <thread>

#include <sys/syscall.h>
#include <unistd.h>

extern "C" int fsync(int descriptor) {
  const char* const seconds = std::getenv("VITRINE_SLOW_DISK_SECONDS");
  if (seconds != nullptr) std::this_thread::sleep_for(std::chrono::seconds(std::atoi(seconds)));
  return static_cast<int>(syscall(SYS_fsync, descriptor));
}
