// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace vitrine::tools {

/// Keeps a closed pipe or a full disk at stdout or stderr from ending the program: what cannot be written is dropped
/// from then on, and the program continues. Ignores SIGPIPE and SIGXFSZ, so that closed pipes and limits on file sizes
/// are errors like full disks. Call it first in main(). Afterwards fileno(stdout) is invalid; use STDOUT_FILENO.
void keep_standard_streams();

/// Writes `json` to stdout. Under mpirun it writes lines of at most 4 KiB, where the strings allow that, and waits
/// until mpirun has read what is on stderr and then each line, for a second at most: mpirun of Open MPI 5 reads 4 KiB
/// at a time, keeps an incomplete line, and writes it before what it reads next, on whichever stream that is. Where
/// stdout is a terminal of mpirun's, what it has read is not known, and parts can still get to the wrong stream.
void print_results(const std::string& json);

/// From now on only print_results() writes to stdout, and what else is printed there, such as ONEDNN_VERBOSE's and
/// NCCL_DEBUG's lines, goes to stderr.
void keep_stdout_for_results();

/// Flushes stdout. Returns why some output could not be written; empty if all of it was.
std::string finish_stdout();

}  // namespace vitrine::tools
