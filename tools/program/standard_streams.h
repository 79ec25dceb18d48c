// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace vitrine::tools {

/// Makes a closed pipe or a full disk behind stdout or stderr no reason to end or to throw: what cannot be written is dropped from then on, and the
/// program goes on. Ignores SIGPIPE. Call it first in main(). Afterwards fileno(stdout) says nothing; use STDOUT_FILENO.
void keep_standard_streams();

/// Flushes stdout. Returns why some of it could not be written, empty where all of it was.
std::string finish_stdout();

}  // namespace vitrine::tools
