// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace vitrine {

/// Call before data of this size is brought into host memory.   what  "FILE: pixels", for the message
/// throws  OutOfMemory if less is available (available_memory()), with both sizes and the remedy
void require_memory(int64_t bytes, const std::string& what);

}  // namespace vitrine
