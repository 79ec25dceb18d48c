// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tools/program/record/record.h"

/// The HTML page of a record: texts and tables are HTML, which needs no JavaScript; charts.js draws the charts from the
/// record's JSON.
namespace vitrine::tools::html {

struct Section {
  std::string title;
  std::string content;  // HTML; a section without content is left out
};

struct Page {
  std::string title;
  std::string story;  // the result in a sentence or two, with figures in backquotes
  std::vector<Section> sections;
  Json data;  // for charts.js: {"kind", "record": what --json prints, "charts": chart_data(), ...}
};

/// The page of a record.
///   json  what --json prints of it
Page page_of(const TrainingRecord& record, Json json);
Page page_of(const PlanRecord& record, Json json);
Page page_of(const ComparisonRecord& record, Json json);

/// The first facts of a run's story: "`705` samples/s" and which device peaks at what, and why it holds more.
std::vector<std::string> speed_and_peak(const RunRecord& run);
/// "`705` samples/s; cpu:0 peaks at `15.3 MiB`, `4.3 MiB` more than cpu:1, mostly the optimizer's state; cpu:1 waits
/// `31 %` of the step."
std::string story(const TrainingRecord& record);
std::string story(const PlanRecord& record);
std::string story(const ComparisonRecord& record);

/// What --json leaves out of a run and charts show: {"name", "steps", "shown_step", "epoch_ends", "output_device",
/// "communication_of", "devices": [{"device", "step_seconds", "moved", "memory", "step"}], "differences"}.
///   moved   {"phase": bytes of a step}, with 0 for a phase that only works
///   memory  the timeline, null without one: {"moments", "phases": [[moment, "phase"]], "categories": {"name":
///   [[moment,
///           bytes]]}, "extent": [[moment, bytes]], "peak": {"moment", "bytes", "place"}, "blocks"}; values where they
///           change, and the large blocks
///   step    the spans of each stream, null without them; those that no screen can show are left out
Json chart_data(const RunRecord& run);

/// One file that needs nothing else and makes no request.
///   addition  elements at its end
std::string page_html(const Page& page, std::string_view addition = {});
/// {"title", "story", "nav", "main", "data"}: what page_html() puts into template.html, for a page that is shown again.
Json page_json(const Page& page);
/// Writes the page. throws DataError naming --report.
void write_page(const std::string& path, const Page& page);

/// template.html with charts.js, as they were built in.
std::string_view page_template();

// Content of sections. Texts are escaped.
std::string paragraph(const std::string& text);
/// A place that charts.js fills.
///   run, device  their positions, where the chart is of one
std::string chart(const char* name, size_t run = 0, size_t device = 0);
/// The last section of every page, folded.
Section settings_section(const std::string& command, const Facts& facts);

}  // namespace vitrine::tools::html
