// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace vitrine::python {

/// Reads a pickle before Python does, without building anything.
/// throws   DataError with the offset: for what names classes or calls functions, lengths beyond the end, places in the
///          memo for which Python would allocate more than the file's size, and keys that it would hash for hours
void check_pickle(const std::string& path);

}  // namespace vitrine::python
