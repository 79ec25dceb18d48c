// SPDX-License-Identifier: Apache-2.0
#include "data/host_memory.h"

#include <fmt/format.h>

#include "runtime/error.h"
#include "runtime/memory/available.h"
#include "runtime/units.h"

namespace vitrine {

void require_memory(int64_t bytes, const std::string& what) {
  const AvailableMemory available = available_memory();
  if (bytes <= less_reserve(available.bytes)) return;
  throw OutOfMemory(
      fmt::format("{} take {} of host memory, but only {} are available ({}); use fewer samples, or unpack compressed "
                  "files, which are then read on demand",
                  what, format_bytes(bytes), format_bytes(less_reserve(available.bytes)), available.source));
}

}  // namespace vitrine
