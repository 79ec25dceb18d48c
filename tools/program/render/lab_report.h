// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/program/learn/experiment.h"
#include "tools/program/render/html/page.h"
#include "tools/program/text/terminal.h"

/// Results of experiments as text, JSON and a page.
namespace vitrine::tools::lab {

/// "0.52", "1.3e-07", "0".
std::string format_wrongness(double value);

/// A table with a row for each experiment.
std::string overview(const std::vector<Result>& results, const Style& style);

/// Everything about one experiment: what is wrong, its numbers under each setting as a chart, how to notice it, a link.
std::string page(const Result& result, const Style& style);

/// Names and questions.
std::string list_of_experiments(const Style& style);

/// docs/json.md describes the keys.
Json results_json(const std::vector<Result>& results, bool interrupted);

///   command  the command line
html::Page results_page(const std::vector<Result>& results, bool interrupted, const std::string& command);

}  // namespace vitrine::tools::lab
