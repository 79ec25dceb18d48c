// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/program/run.h"

namespace vitrine::tools {

/// Output files whose names promise another format than the one that is written.
std::vector<std::string> file_warnings(const Options& options);
/// A batch size that no step of this training set reaches.
std::vector<std::string> batch_warnings(const Options& options, const Job& job);

/// "vitrine: warning: ..." on stderr, each; nothing from a process that does not print.
void print_warnings(const Options& options, const std::vector<std::string>& warnings);
/// Those of a device group. Of the processes of one machine, whose warnings are alike, the first prints them.
void print_device_warnings(const Options& options, const DeviceGroup& devices);

}  // namespace vitrine::tools
