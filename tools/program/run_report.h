// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/program/process_measurements.h"
#include "tools/program/recorded_steps.h"
#include "tools/program/report/train_report.h"

/// What a page tells, taken from a run.
namespace vitrine::tools {

/// "vitrine train --devices cpu:0-1 ...", for a shell.
std::string command_line(const Options& options);

/// Model, data, scheme, optimizer, machine.
Facts run_facts(const Options& options, const Job& job, Run& run, const std::string& mode);
/// Devices with threads or GPU and capacity, and the versions of what was built in.
Facts machine_facts(DeviceGroup& devices);

/// What lies outside the pools of these devices.
std::string describe_outside(const std::vector<DeviceFigures>& figures, int processes);

/// Of all processes.
FindingsInput findings_input(const Options& options, Run& run, const Measurements& measurements);

/// Memory and spans of the step that charts show, of this process's devices; findings that need them gain them.
void add_recorded_step(TrainReport& report, Run& run, const std::vector<DeviceSpans>& spans, const RecordedSteps& recorded);

}  // namespace vitrine::tools
