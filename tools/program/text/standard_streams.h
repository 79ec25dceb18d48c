// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace vitrine::tools {

/// Keeps a closed pipe or a full disk at stdout or stderr from ending the program: what cannot be written is dropped
/// from then on, and the program continues. Ignores SIGPIPE and SIGXFSZ, so that closed pipes and limits on file sizes
/// are errors like full disks. Call it first in main(). Afterwards fileno(stdout) is invalid; use STDOUT_FILENO.
void keep_standard_streams();

/// Flushes stdout. Under mpirun it waits, for a second at most, until mpirun has read all of it: that of Open MPI 5
/// puts the first 4,096 bytes of a longer line on stderr if something on stderr follows at once.
void flush_results();

/// Flushes stdout. Returns why some output could not be written; empty if all of it was.
std::string finish_stdout();

}  // namespace vitrine::tools
