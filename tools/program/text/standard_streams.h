// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace vitrine::tools {

/// Keeps a closed pipe or a full disk at stdout or stderr from ending the program: what cannot be written is dropped
/// from then on, and the program continues. Ignores SIGPIPE and SIGXFSZ, so that closed pipes and limits on file sizes
/// are errors like full disks. Call it first in main(). Afterwards fileno(stdout) is invalid; use STDOUT_FILENO.
void keep_standard_streams();

/// Writes `text` to stdout. Under mpirun it first waits until mpirun has read what is on stderr, and then until it has
/// read the text, each time for a second at most: that of Open MPI 5 puts the first 4,096 bytes of a longer line on
/// stderr if it reads from there before it has read the whole line.
void print_results(const std::string& text);

/// Flushes stdout. Returns why some output could not be written; empty if all of it was.
std::string finish_stdout();

}  // namespace vitrine::tools
