// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "tools/program/record/record.h"

namespace vitrine::tools::html {

/// What a page shows: {"title", "command", "sections": [{"title", "blocks": [...]}]}. template.html draws each block by
/// its "kind": text, heading, facts, findings, table, fold, bars, waterfall, movement, memory, lanes, curves or pair.
Json page_data(const Record& record);

/// template.html with page_data() in it: one file that needs nothing else and makes no request.
std::string page(const Record& record);

/// template.html as it was built in.
std::string_view page_template();

/// template.html with other data of that form.
std::string page_of(const Json& data);
/// Writes that page. throws DataError naming --report.
void write_page_data(const std::string& path, const Json& data);

/// Writes the page. throws DataError naming --report.
void write_page(const std::string& path, const Record& record);

}  // namespace vitrine::tools::html
