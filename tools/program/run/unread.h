// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>
#include <vector>

#include "runtime/process_group/process_group.h"
#include "tools/program/record/job.h"

namespace vitrine::tools {

/// An error of the data, with the flag that would go on.
std::string describe_unread(const std::exception_ptr& error);

/// The first process's text that is not empty, with its rank: the same in all processes, which call it together.
///   process_group  null: this process is alone
std::string first_error(ProcessGroup* process_group, const std::string& mine);

/// What is wrong with the images that --skip-damaged has skipped in all processes, each once; on rank 0.
std::vector<std::string> gather_skipped(const Job& job, ProcessGroup* process_group);
/// "2 damaged images were skipped:" and the first of them; empty if there are none.
std::string skipped_report(const std::vector<std::string>& skipped);

}  // namespace vitrine::tools
