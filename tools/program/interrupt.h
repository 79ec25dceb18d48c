// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace vitrine::tools {

/// Ctrl-C and SIGTERM: the first asks the program to end after the current step, the second ends it at once with status 130.
void install_interrupt_handler();
/// Whether the program was asked to end.
bool interrupted();
/// From now on an interrupt prints nothing: for processes other than the one that prints, and for those that end anyway.
void keep_interrupts_quiet();

}  // namespace vitrine::tools
