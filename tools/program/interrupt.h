// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace vitrine::tools {

/// Ctrl-C and SIGTERM: the first asks the program to end after the current step, the second ends it at once with status 130.
void install_interrupt_handler();
/// Whether the program was asked to end.
bool interrupted();
/// From here on nothing is said when it is: by processes that are not the one which prints, or that end anyway.
void keep_interrupts_quiet();

}  // namespace vitrine::tools
