// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "tools/program/record/record.h"

namespace vitrine::tools::html {

/// What a page shows: {"title", "story", "sections": [{"title", "blocks": [...]}]}. template.html draws each block by
/// its "kind": text, heading, facts, findings, table, fold, bars, waterfall, movement, memory, lanes, curves or pair.
Json page_data(const Record& record);

/// The result in one sentence or two, with its figures in backquotes: "`705` samples/s; cpu:0 peaks at `15.3 MiB`,
/// `4.3 MiB` more than cpu:1, mostly the optimizer's state; cpu:1 waits `31 %` of the step."
std::string story(const Record& record);

/// The last section of every page, folded.
Json settings_section(const std::string& command, const Facts& facts);

/// template.html with page_data() in it: one file that needs nothing else and makes no request.
std::string page(const Record& record);

/// template.html as it was built in.
std::string_view page_template();

/// template.html with other data of that form, and with elements at its end.
std::string page_of(const Json& data, std::string_view addition = {});
/// Writes that page. throws DataError naming --report.
void write_page_data(const std::string& path, const Json& data);

/// Writes the page. throws DataError naming --report.
void write_page(const std::string& path, const Record& record);

}  // namespace vitrine::tools::html
