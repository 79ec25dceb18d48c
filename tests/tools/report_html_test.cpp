// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/expect_contains.h"
#include "tests/support/text.h"
#include "tools/program/render/html/page.h"
#include "tools/program/render/report_tables.h"
#include "tools/program/render/reports.h"
#include "tools/program/run/run_facts.h"
#include "tools/program/text/tables.h"

namespace vitrine::tools::html {
namespace {

/// A record with a title.
template <class Kind = TrainingRecord>
Kind example() {
  Kind record;
  record.title = "mlp <b>";
  record.command_line = "vitrine train --data 'a&b'";
  record.facts = {{"model", "<mlp>"}};
  return record;
}

DeviceRecord example_device() {
  DeviceRecord device;
  device.device = "cpu:0";
  device.pool.peak_by_category[static_cast<size_t>(Category::activations)] = 2 << 20;
  device.pool.peak_bytes = 2 << 20;
  device.plan.peak_by_category = device.pool.peak_by_category;
  device.plan.peak_bytes = 2 << 20;
  device.outside_bytes = 5 << 20;
  return device;
}

Json json_of(const TrainingRecord& record) { return run_json(record); }
Json json_of(const PlanRecord& record) { return plan_json(record); }
Json json_of(const ComparisonRecord& record) { return comparison_json(record, {}); }
/// The page of a record, as HTML.
std::string shown(const auto& record) { return page_html(page_of(record, json_of(record))); }

/// What charts are drawn from: the data within a page.
Json data_in(const std::string& html) {
  const size_t begin = html.find("id=\"record\">") + 12;
  return Json::parse(html.substr(begin, html.find("</script>", begin) - begin));
}

TEST(Page, EmbedsWhatJsonPrints) {
  const auto check = [](const auto& record) {
    const Json data = data_in(shown(record));
    EXPECT_EQ(data["record"].dump(), json_of(record).dump());
    EXPECT_EQ(data["charts"].size(), 1U);
  };
  RunRecord run;
  run.step_losses = {2.5, 0.1};
  run.devices.resize(2);
  run.rates.rounds = {7.0};
  auto training = example();
  training.run = run;
  training.notes = {"</script><!-- \u2028"};
  check(training);
  auto plan = example<PlanRecord>();
  plan.run = run;
  check(plan);
  auto comparison = example<ComparisonRecord>();
  comparison.runs = {run};
  check(comparison);
}

TEST(Page, TextIsNeverMarkup) {
  const std::string hostile = "</script><img src=x onerror='a'>\"&{{record}}";
  const auto check = [&](auto record) {
    record.title = record.command_line = hostile;
    record.facts = {{hostile, hostile}, {"bytes", std::string("\xFF\x01z\xC3", 4)}, {"text", "Grüße \xE2\x82\xAC"}};
    record.findings = {{hostile + " `" + hostile + "`", hostile}};
    const std::string html = shown(record);
    expect_lacks(html, "<img", "</script><");
    EXPECT_EQ(count_of(html, "</script>"), count_of(std::string(page_template()), "</script>"));
    expect_contains(html, "&lt;/script&gt;&lt;img src=x onerror='a'&gt;&quot;&amp;{{record}}",
                    "\xEF\xBF\xBD\x01z\xEF\xBF\xBD", "Grüße \xE2\x82\xAC");
  };
  check(example());
  auto plan = example<PlanRecord>();
  plan.remedies = hostile;
  plan.run.devices.resize(1);
  check(plan);
}

TEST(Page, SettingsAndMachineAreFoldedAtTheEndOnly) {
  auto plan = example<PlanRecord>();
  plan.run.devices.resize(1);
  for (const std::string& html : {shown(example()), shown(example<ComparisonRecord>()), shown(plan)}) {
    EXPECT_EQ(count_of(html, "<code class=\"command\">"), 1U);
    expect_contains(html, "<h2>Settings and machine</h2><details><summary>Command, settings, machine and versions");
    EXPECT_GT(html.find("Settings and machine</h2>"), html.rfind("<section"));
  }
}

TEST(Page, IsSelfContainedAndReadableWithoutScripts) {
  auto record = example();
  record.run.devices = {example_device()};
  const std::string html = shown(record);
  expect_contains(html, "<h1>mlp &lt;b&gt;</h1>", "'a&amp;b'", "<noscript>", "Where the memory went",
                  "Nothing stands out", "prefers-color-scheme:dark", "@media print");
  for (const char* address : {"http:", "https:", "src=", "@import", "url(//"}) expect_lacks(html, address);
}

TEST(Tables, NumbersKeepTheirUnitsAndOnlyTotalsAreBold) {
  Table table({{"a"}, {"b"}}, "1 < 2");
  table.set_hint("hint & more");
  table.add_row({"first", "1.5 MiB of 3 GiB"});
  table.add_rule();
  table.add_row({"a layer", "2"});
  table.add_rule_above_total();
  table.add_row({"<b>", "3"});
  const std::string html = table.html();
  expect_contains(html, "<caption><span>1 &lt; 2</span></caption>", "1.5\u00a0MiB of 3\u00a0GiB", ">a layer<",
                  "<tr class=\"rule\">", "hint &amp; more");
  EXPECT_EQ(count_of(html, "total"), 1U) << "the last row below a line need not be a total";
  EXPECT_GT(html.find("&lt;b&gt;"), html.find("total"));
  expect_contains(std::string(page_template()), "tr.total>*{font-weight:600}");
}

TEST(Scale, NumbersAreShort) {
  EXPECT_EQ(short_bytes(512 << 20), "512 MiB");
  EXPECT_EQ(short_bytes((3 << 20) / 2), "1.5 MiB");
  EXPECT_EQ(short_seconds(0.01234), "12.3 ms");
  EXPECT_EQ(short_seconds(45e-6), "45 us");
  EXPECT_EQ(percent(0.123), "12 %");
  EXPECT_EQ(percent(0.004), "0.4 %");
}

/// A step in which a block is held throughout, and another one comes and goes.
MemoryTimeline example_timeline() {
  MemoryHistory history;
  history.at_start = {{0, 0, 4096, Category::parameters, Phase::setup, "weight<1>", "fc"}};
  history.changes = {{10, 4096, 2048, Category::activations, Phase::forward, "fc.output", "fc"},
                     {20, 8192, 1024, Category::activations, Phase::backward, "fc.grad_input", "fc"},
                     {30, 4096, -2048, Category::activations, Phase::backward, "fc.output", "fc"},
                     {40, 8192, -1024, Category::activations, Phase::backward, "fc.grad_input", "fc"}};
  return make_memory_timeline(history);
}

DeviceRecord device_with(const MemoryTimeline& timeline, int64_t capacity, int64_t planned) {
  DeviceRecord device;
  device.device = "cpu:0";
  device.pool.capacity_bytes = capacity;
  device.plan.peak_bytes = planned;
  device.memory = timeline;
  return device;
}

/// What a chart is drawn from, of a run with one device.
Json device_data(const DeviceRecord& device) {
  RunRecord run;
  run.devices = {device};
  return chart_data(run)["devices"][0];
}

/// A value at a moment.
int64_t value_at(const Json& changes, size_t moment) {
  int64_t value = 0;
  for (const Json& change : changes) value = change[0] <= moment ? change[1].get<int64_t>() : value;
  return value;
}

TEST(ChartData, TheTimelineIsTheRecords) {
  const MemoryTimeline timeline = example_timeline();
  const Json memory = device_data(device_with(timeline, 0, 0))["memory"];
  ASSERT_EQ(memory["moments"], timeline.moments.size());
  for (size_t m = 0; m < timeline.moments.size(); ++m) {
    int64_t sum = 0;
    for (const Json& changes : memory["categories"]) sum += value_at(changes, m);
    EXPECT_EQ(sum, allocated_bytes(timeline.moments[m].by_category)) << m;
    EXPECT_EQ(value_at(memory["extent"], m), timeline.moments[m].extent_bytes) << m;
  }
  EXPECT_EQ(memory["phases"], Json({{0, "step"}, {1, "forward"}, {2, "backward"}}));
  EXPECT_EQ(memory["peak"], Json({{"moment", 2}, {"bytes", 9216}, {"place", "backward fc"}}));
  EXPECT_EQ(memory["blocks"][0]["tensor"], "weight<1>");
  EXPECT_EQ(memory["blocks"][1], Json({{"category", "activations"},
                                       {"bytes", 2048},
                                       {"first", 1},
                                       {"end", 3},
                                       {"tensor", "fc.output"},
                                       {"layer", "fc"},
                                       {"phase", "forward"}}));
  EXPECT_TRUE(device_data(device_with(MemoryTimeline{}, 0, 0))["memory"].is_null());
}

TEST(ChartData, ManyBlocksStaySmall) {
  MemoryHistory history;
  for (int64_t i = 0; i < 3000; ++i)
    history.changes.push_back({i, i * 256, 256, Category::activations, Phase::forward, std::to_string(i), ""});
  EXPECT_LT(device_data(device_with(make_memory_timeline(history), 0, 0)).dump().size(), 400000U);
}

TEST(ChartData, SpansAreInTheirStreamsUnlessNoScreenCanShowThem) {
  StepView view;
  view.begin_ns = 0;
  view.end_ns = 1000000;
  const auto span = [](const SpanInfo& info, int64_t begin, int64_t end, int depth) {
    return SpanRecord{info, begin, end, 2048, depth};
  };
  view.compute = {span({Phase::forward, "", "", "", 2}, 0, 400000, 0),
                  span({Phase::forward, "fc", "linear_forward", "", 2}, 0, 200000, 1),
                  span({Phase::loss, "", "", "", 2}, 400000, 400200, 0)};
  view.communication = {span({Phase::reduce, "bucket 0", "", "", 2}, 500000, 900000, 0),
                        span({Phase::wait, "", "", "backward", 2}, 500000, 600000, 1)};
  DeviceRecord device;
  device.step = view;
  const Json step = device_data(device)["step"];
  ASSERT_EQ(step["compute"].size(), 2U);
  EXPECT_EQ(step["compute"][1]["name"], "linear_forward");
  EXPECT_EQ(step["compute"][1]["depth"], 1);
  EXPECT_EQ(step["communication"][0]["name"], "reduce bucket 0");
  EXPECT_EQ(step["communication"][1], Json({{"begin", 500000},
                                            {"end", 600000},
                                            {"depth", 1},
                                            {"phase", "wait"},
                                            {"name", "wait for backward"},
                                            {"bytes", 2048},
                                            {"step", 2}}));
  EXPECT_TRUE(step["copy"].empty());
  EXPECT_TRUE(device_data(DeviceRecord{})["step"].is_null());
}

/// Three steps of `scheme` on three devices, each with 16 samples. No copy of samples was measured.
RunRecord moving_run(const char* scheme) {
  RunRecord run;
  run.scheme = scheme_preset(scheme);
  run.batch_size = 48;
  run.image_bytes = 1024;
  run.label_bytes = 64;
  for (int d = 0; d < 3; ++d) {
    DeviceRecord& device = run.devices.emplace_back();
    device.device = "cpu:" + std::to_string(d);
    device.samples_per_step = 16;
    device.phases.steps = device.communication.steps = 3;
    device.phases.wall_seconds = 1;
    device.phases.rows = {{.phase = Phase::forward, .seconds = 0.1, .calls = 3}};
    CommunicationRow sum;
    sum.buffer_bytes = 3 * (int64_t{1} << 20);
    sum.moved_bytes = sum.buffer_bytes / 2;
    device.communication.rows = {sum};
  }
  return run;
}

TEST(ChartData, ASampleMovesWithItsLabelWhereTheSchemeSendsIt) {
  const auto moved = [](const RunRecord& run, size_t device) { return chart_data(run)["devices"][device]["moved"]; };
  RunRecord run = moving_run("dp");
  EXPECT_EQ(moved(run, 0)["stage"], 48 * 1024 + 48 * 64) << "all images, and their labels for the gathered loss";
  EXPECT_EQ(moved(run, 1)["scatter"], 16 * 1024);
  EXPECT_FALSE(moved(run, 1).contains("stage"));
  EXPECT_EQ(moved(run, 1)["reduce"], 1 << 19) << "what each device sends";
  EXPECT_EQ(moved(run, 1)["forward"], 0) << "a phase that only works";
  run.images_on_device = true;
  EXPECT_EQ(moved(run, 0)["stage"], 48 * 4 + 48 * 64) << "indices of images that lie on the devices";
  run = moving_run("ddp");
  for (size_t d = 0; d < 3; ++d) EXPECT_EQ(moved(run, d)["stage"], 16 * 1024 + 16 * 64);
}

TEST(ChartData, ADifferenceNamesTheTensorsBehindIt) {
  RunRecord run;
  for (const int64_t bytes : {8 << 20, 2 << 20}) {
    DeviceRecord& device = run.devices.emplace_back();
    device.pool.peak_by_category[static_cast<size_t>(Category::activations)] = device.pool.peak_bytes = bytes;
    device.memory.emplace().moments.resize(1);
    device.memory->blocks = {{0, bytes, Category::activations, Phase::gather, "outputs", "", 0, 1}};
  }
  EXPECT_EQ(chart_data(run)["differences"],
            Json::array({{{"category", "activations"}, {"bytes", 6 << 20}, {"tensors", {{6 << 20, "outputs"}}}}}));
}

/// Four devices, of which the first holds 6 MiB more than the others.
std::vector<DeviceRecord> one_fuller_device() {
  std::vector<DeviceRecord> devices(4, example_device());
  for (size_t d = 0; d < devices.size(); ++d) {
    DeviceRecord& device = devices[d];
    device.device = "cpu:" + std::to_string(d);
    if (d == 0) {
      device.pool.peak_by_category[static_cast<size_t>(Category::optimizer)] = 6 << 20;
      device.pool.peak_bytes += 6 << 20;
      device.plan.peak_by_category = device.pool.peak_by_category;
      device.plan.peak_bytes = device.pool.peak_bytes;
    }
    device.phases.steps = 10;
    device.phases.wall_seconds = 1;
    device.phases.rows = {{Phase::wait, 0, 0.1 * static_cast<double>(d), 0.1 * static_cast<double>(d), 0, 5, 0.0}};
    device.phases.waits = {{"reduce", 0.1 * static_cast<double>(d), 0.1 * static_cast<double>(d)}};
  }
  return devices;
}

TEST(Story, OfARunHasItsSpeedItsFullestDeviceAndItsLongestWait) {
  RunRecord run;
  run.devices = one_fuller_device();
  for (const double seconds : {1.5, 2.5}) {
    EpochRecord& epoch = run.epochs.emplace_back();
    epoch.samples = 1410;
    epoch.seconds = seconds;
  }
  auto record = example();
  record.run = run;
  EXPECT_EQ(
      story(record),
      "`705` samples/s; cpu:0 peaks at `8 MiB`, `6 MiB` more than cpu:1, mostly the optimizer's state; cpu:3 waits "
      "`30 %` of the step.");
  expect_contains(shown(record),
                  "<p class=\"story\"><strong>705</strong> samples/s; cpu:0 peaks at <strong>8 MiB</strong>");
  expect_contains(epochs_table(run)->html(), ">940<");  // samples/s of the first epoch
  record.run.devices.erase(record.run.devices.begin());
  record.run.diverged = "The loss was NaN in step 3";
  EXPECT_EQ(story(record).find("The loss was NaN in step 3. `705` samples/s; each device peaks at `2 MiB`; cpu:3"), 0U)
      << story(record);
}

TEST(Story, OfAComparisonNamesTheFastestOnlyBeyondNoise) {
  auto record = example<ComparisonRecord>();
  record.runs.resize(3);
  const double speeds[] = {100, 150, 151};
  for (size_t r = 0; r < 3; ++r) {
    RunRecord& run = record.runs[r];
    run.name = std::array{"dp", "ddp", "criterion"}[r];
    run.devices = one_fuller_device();
    if (r > 0) run.devices.erase(run.devices.begin());
    for (int round = 0; round < 4; ++round) run.rates.rounds.push_back(speeds[r] + round);
  }
  EXPECT_EQ(story(record),
            "Fastest: criterion, ddp (within noise of each other), up to `153` samples/s, `1.50` times dp. Least "
            "memory on the "
            "fullest device: ddp, criterion, `2 MiB`, `6 MiB` less than dp.");
  RunRecord& balanced = record.runs.emplace_back(record.runs[0]);
  balanced.name = "balanced";
  balanced.rates.rounds = {120, 121, 122, 120};
  balanced.devices[0].pool.peak_bytes -= 1 << 20;
  expect_contains(story(record), "times balanced, whose fullest device holds `1 MiB` less than that of dp.");
  record.runs.pop_back();
  for (RunRecord& run : record.runs) run.rates.rounds.resize(1);
  EXPECT_EQ(story(record).find("Too few rounds to compare speeds: `100` to `151` samples/s."), 0U) << story(record);
  record.runs.erase(record.runs.begin());
  expect_contains(story(record), "The fullest device holds `2 MiB` under each scheme.");
  record.runs.clear();
  EXPECT_EQ(story(record), "");
}

TEST(Story, OfAPlanSaysWhetherItFits) {
  auto record = example<PlanRecord>();
  record.run.devices = one_fuller_device();
  EXPECT_EQ(story(record).find("Planned: cpu:0 needs `8 MiB`, `6 MiB` more than cpu:1"), 0U) << story(record);
  for (DeviceRecord& d : record.run.devices) d.pool.capacity_bytes = 16 << 20;
  EXPECT_EQ(story(record).find("It fits: cpu:0 needs `8 MiB` of 16 MiB, `6 MiB` more"), 0U) << story(record);
  record.run.devices[2].pool.capacity_bytes = 1 << 20;
  record.remedies = "Lower --batch-size.";
  EXPECT_EQ(story(record), "It does not fit: cpu:2 needs `2 MiB` of 1 MiB.") << "the fullest device has room";
}

TEST(MemorySection, ListsTheLargestBlocksAtThePeakFirst) {
  MemoryHistory history;
  for (int64_t i = 0; i < 10; ++i) {
    history.changes.push_back(
        {i, i * 4096, (i + 1) * 256, Category::activations, Phase::forward, "block" + std::to_string(i), ""});
  }
  auto record = example();
  record.run.devices = {device_with(make_memory_timeline(history), 0, 0)};
  const std::string html = shown(record);
  const std::string table = html.substr(html.find("What holds it at the peak"));
  expect_contains(table, ">block9</th><td>2.5\u00a0KiB<", ">2\u00a0more</th><td>768\u00a0B<");
  EXPECT_LT(table.find(">block9<"), table.find(">block2<"));
  expect_lacks(table.substr(0, table.find("</details>")), ">block1<");
}

TEST(MemorySection, ReportsWhetherThePlanWasMet) {
  auto record = example();
  record.run.devices = {example_device()};
  expect_contains(shown(record), "equal to the byte", "outside the pool");
  record.run.devices[0].plan.peak_by_category[0] += 256;
  record.run.devices[0].plan.peak_bytes += 256;
  const std::string missed = shown(record);
  expect_lacks(missed, "equal to the byte");
  expect_contains(missed, "2,097,408");
}

TEST(TimeSection, PhasesAndWaitsAddUpToTheStep) {
  DeviceRecord device = example_device();
  PhaseTable& table = device.phases;
  table.steps = 10;
  table.wall_seconds = 1;
  table.rows = {{Phase::forward, 0, 0.75, 0.75, 0, 10, 0.0},
                {Phase::stage, 0, 0.0, 0.0, 0, 10, 0.02},
                {Phase::wait, 0, 0.25, 0.25, 0, 5, 0.0}};
  table.waits = {{"reduce", 0.2, 0.2}, {"host", 0.0495, 0.0495}, {"stage", 0.0005, 0.0005}};
  auto record = example();
  record.run.devices = {device};
  const std::string html = shown(record);
  expect_contains(html, "  for reduce", ">20.0</td><td>20.0\u00a0%<", "100.00 %", "ran beside other work");
  EXPECT_EQ(html.find("  for stage"), std::string::npos) << "a short wait has no row, only a part of the bar";
}

TEST(FindingsSection, SaysWhatACostIsAShareOf) {
  auto record = example();
  record.findings = {
      {"cpu:0 holds more.", "", 0.32, "its memory"}, {"Diverged.", "", 1.0}, {"It waits.", "", 0.12, "the step"}};
  const std::string data = shown(record);
  expect_contains(data, ">large, 32 % of its memory<", "<span class=\"severity\">large</span>Diverged.",
                  ">moderate, 12 % of the step<", "Large: at least 25 % of the step");
  record.findings = {{"ddp is fastest.", ""}};
  const std::string result = shown(record);
  expect_contains(result, "<li class=\"result\">ddp is fastest.");
  EXPECT_EQ(result.find("Large: at least"), std::string::npos) << "a result has no severity to explain";
}

TEST(FindingsSection, ClaimsNoMoreThanWasJudged) {
  auto record = example();
  record.run.devices = {example_device(), example_device()};
  const auto said = [&](int64_t steps) {
    record.run.devices[1].phases.steps = steps;
    return shown(record);
  };
  record.run.devices[0].phases.steps = 20;
  expect_contains(
      said(1),
      "Nothing stands out in 1 step after the first; judging waits between devices takes at least 8 measured steps.");
  expect_contains(said(7), "Nothing stands out in 7 steps after the first;");
  expect_contains(said(8), "no device waits for long");
  record.run.devices[1].phases.rows = {{.phase = Phase::wait, .share = 0.2}};
  expect_contains(said(8), "no setting is known to shorten the waits");
  record.run.steps.steps = 1;
  expect_contains(said(0), "No step was timed: the first never is.");
}

TEST(MemorySection, ExplainsFragmentationOnlyWhereItIsDrawn) {
  auto record = example();
  record.run.devices = {device_with(example_timeline(), 0, 0)};
  expect_contains(shown(record), "Fragmentation: free gaps");
  MemoryHistory without_gaps;
  without_gaps.changes = {{10, 0, 4096, Category::activations, Phase::forward, "a", ""},
                          {20, 4096, 2048, Category::activations, Phase::forward, "b", ""}};
  record.run.devices = {device_with(make_memory_timeline(without_gaps), 0, 0)};
  expect_lacks(shown(record), "Fragmentation: free gaps");
}

TEST(PlanPage, ShowsTheSteadyStepAndWhatLayersHold) {
  auto record = example<PlanRecord>();
  for (const char* name : {"meta:0", "meta:1", "meta:2"}) {
    DeviceRecord device;
    device.device = name;
    device.plan.peak_bytes = device.pool.peak_bytes = 9216;
    device.plan.peak_by_category[0] = device.pool.peak_by_category[0] = 9216;
    device.plan.peak_phase = Phase::backward;
    device.plan.held_activations = {{"fc<1>", 2048}};
    device.plan.history.changes = {{10, 0, 4096, Category::parameters, Phase::setup, "weight", ""},
                                   {20, 4096, 1024, Category::activations, Phase::forward, "first", "fc"},
                                   {30, 4096, -1024, Category::activations, Phase::backward, "first", "fc"},
                                   {40, 4096, 2048, Category::activations, Phase::forward, "steady", "fc"}};
    device.plan.history.steps = {{0, 15, 1}, {0, 35, 3}};
    device.memory = steady_step(device.plan);
    record.run.devices.push_back(device);
  }
  record.run.devices.back().plan.peak_bytes = record.run.devices.back().pool.peak_bytes += 256;
  const std::string data = shown(record);
  expect_contains(data, "<h3>meta:0, meta:1</h3>", "fc&lt;1&gt;", "\"tensor\":\"steady\"",
                  "meta:2 needs <strong>9.2 KiB</strong>", "not known");
  expect_lacks(data, "\"tensor\":\"first\"");
  record.remedies = "Lower --batch-size.";
  expect_contains(shown(record), "<h2>How it would fit</h2><p>Lower --batch-size.</p>");
}

}  // namespace
}  // namespace vitrine::tools::html
