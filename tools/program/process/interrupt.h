// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

namespace vitrine::tools {

/// Ctrl-C, SIGTERM, and what else ends jobs (SIGHUP of a terminal that closes; SIGUSR1 and SIGXCPU of schedulers), even
/// if the parent has blocked them; Ctrl-C and SIGHUP that it ignores stay ignored: the first signal stops the program
/// after the current step, a later Ctrl-C or SIGTERM immediately, with status 130 for Ctrl-C and 143 for the others.
/// Before the first call of interrupted() there is no step to finish: the first one ends the program, without a message
/// unless report_early_interrupt() was called.
void install_interrupt_handler();
/// From now on the first signal before the first call of interrupted() calls `report` on a thread of its own, with
/// its name ("SIGTERM"), and then ends the program. Call it once.
void report_early_interrupt(std::function<void(const std::string& name)> report);
/// What the program finishes when it is asked to stop: "step", if not set. A literal.
void set_interruptible(const char* work);
/// Whether the program was asked to stop.
bool interrupted();
/// Whether the first signal was another than Ctrl-C, as from a scheduler that takes the machine away.
bool terminated();
/// The exit status of a program that was asked to stop: 130 if it was by Ctrl-C, else 143.
int interrupt_status();
/// From now on an interrupt prints nothing: for processes other than the one that prints, and for those that end
/// anyway.
void keep_interrupts_quiet();

}  // namespace vitrine::tools
