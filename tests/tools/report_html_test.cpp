// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

#include "tools/program/report/curves.h"
#include "tools/program/report/html.h"
#include "tools/program/report/memory_chart.h"
#include "tools/program/report/palette.h"
#include "tools/program/report/plan_page.h"
#include "tools/program/report/scale.h"
#include "tools/program/report/sections.h"
#include "tools/program/report/step_chart.h"
#include "tools/program/report/train_report.h"

namespace vitrine::tools::html {
namespace {

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)

TEST(Html, WhatIsNoTextIsEscaped) {
  EXPECT_EQ(escape("a < b && \"c\" > 'd'"), "a &lt; b &amp;&amp; &quot;c&quot; &gt; &#39;d&#39;");
  EXPECT_EQ(escape("Grüße \xE2\x82\xAC"), "Grüße \xE2\x82\xAC");
  EXPECT_EQ(escape(std::string_view("\xFF\x01z\xC3", 4)), "\xEF\xBF\xBD\xEF\xBF\xBDz\xEF\xBF\xBD");
  HtmlTable table({"<name>"});
  table.add_row({"</td><script>"});
  EXPECT_EQ(table.str().find("<script>"), std::string::npos);
}

TEST(Html, NumbersAreShort) {
  EXPECT_EQ(number(12.5), "12.5");
  EXPECT_EQ(number(3), "3");
  EXPECT_EQ(number(-0.001), "0");
  EXPECT_EQ(number(NAN), "0");
  EXPECT_EQ(short_bytes(512 << 20), "512 MiB");
  EXPECT_EQ(short_bytes((3 << 20) / 2), "1.5 MiB");
  EXPECT_EQ(short_seconds(0.01234), "12.3 ms");
  EXPECT_EQ(short_seconds(45e-6), "45 us");
  EXPECT_EQ(percent(0.123), "12 %");
  EXPECT_EQ(percent(0.004), "0.4 %");
}

TEST(Scale, TicksAreRoundAndReachTheLargest) {
  for (const double largest : {0.003, 0.7, 1.0, 9.0, 47.0, 123456.0}) {
    const std::vector<double> all = ticks(largest);
    EXPECT_GE(all.back(), largest * 0.999) << largest;
    EXPECT_LE(all.size(), 8U) << largest;
  }
  EXPECT_EQ(byte_ticks(50 << 20), (std::vector<int64_t>{0, 16 << 20, 32 << 20, 48 << 20, 64 << 20}));
  EXPECT_EQ(ticks(NAN).size(), 2U);
}

/// WCAG's contrast of two colours "#rrggbb".
double contrast(const std::string& a, const std::string& b) {
  const auto luminance = [](const std::string& colour) {
    double sum = 0;
    const double weights[] = {0.2126, 0.7152, 0.0722};
    for (size_t i = 0; i < 3; ++i) {
      const double part = std::stoi(colour.substr(1 + 2 * i, 2), nullptr, 16) / 255.0;
      sum += weights[i] * (part <= 0.03928 ? part / 12.92 : std::pow((part + 0.055) / 1.055, 2.4));
    }
    return sum;
  };
  const double first = luminance(a), second = luminance(b);
  return (std::max(first, second) + 0.05) / (std::min(first, second) + 0.05);
}

TEST(Palette, EveryPaintShowsOnLightAndDarkAndCarriesText) {
  for (const Paint& paint : all_paints()) {
    EXPECT_GE(contrast(paint.colour, kLightPage), 3.0) << paint.css_class;
    EXPECT_GE(contrast(paint.colour, kDarkPage), 3.0) << paint.css_class;
    EXPECT_GE(contrast(paint.colour, kInk), 4.5) << paint.css_class;
  }
}

TEST(Palette, CategoriesDiffer) {
  std::vector<std::string> classes;
  for (int c = 0; c < kCategoryCount; ++c) classes.emplace_back(category_paint(static_cast<Category>(c)).css_class);
  std::sort(classes.begin(), classes.end());
  EXPECT_EQ(std::adjacent_find(classes.begin(), classes.end()), classes.end());
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

TEST(MemoryCharts, NameEveryHolderAndThePeak) {
  const std::string svg = memory_chart({"cpu:0", example_timeline(), 10240, 9216, 0});
  EXPECT_HAS(svg, "parameters 4 KiB: weight&lt;1&gt;, layer fc. Taken in setup, held over changes 0 to 4");
  EXPECT_HAS(svg, "activations 2 KiB: fc.output, layer fc. Taken in forward, held over changes 1 to 2");
  EXPECT_HAS(svg, "fragmentation: between blocks, at most 4 KiB");
  EXPECT_HAS(svg, "peak 9 KiB in backward");
  EXPECT_HAS(svg, "capacity 10 KiB");
  EXPECT_HAS(svg, "class=\"plan\"");
  EXPECT_HAS(svg, "backward: changes 2 to 4");
  EXPECT_EQ(svg.find("weight<1>"), std::string::npos);
  const std::string far = memory_chart({"cpu:0", example_timeline(), int64_t{1} << 40, 0, 0});
  EXPECT_EQ(far.find("class=\"capacity\""), std::string::npos);
  EXPECT_EQ(memory_chart({"cpu:0", MemoryTimeline{}, 0, 0, 0}), "");
}

TEST(MemoryCharts, HoldersAtThePeakAreTheLargestFirst) {
  const std::string table = peak_holders(example_timeline(), 2);
  EXPECT_LT(table.find("weight&lt;1&gt;"), table.find("fc.output"));
  EXPECT_HAS(table, "1 more");
  EXPECT_EQ(table.find("fc.grad_input"), std::string::npos);
}

TEST(MemoryCharts, ManyBlocksStaySmall) {
  MemoryHistory history;
  for (int64_t i = 0; i < 3000; ++i) history.changes.push_back({i, i * 256, 256, Category::activations, Phase::forward, std::to_string(i), ""});
  EXPECT_LT(memory_chart({"meta:0", make_memory_timeline(history), 0, 0, 0}).size(), 400000U);
}

TEST(StepChart, SpansStandInTheirLanesAndSayWhatTheyAre) {
  StepView view;
  view.begin_ns = 0;
  view.end_ns = 1000000;
  const auto span = [](const SpanInfo& info, int64_t begin, int64_t end, int depth) { return SpanRecord{info, begin, end, 2048, depth}; };
  view.compute = {span({Phase::forward, "", "", "", 2}, 0, 400000, 0), span({Phase::forward, "fc", "linear_forward", "", 2}, 0, 200000, 1)};
  view.communication = {span({Phase::reduce, "bucket 0", "", "", 2}, 500000, 900000, 0),
                        span({Phase::wait, "", "", "backward", 2}, 500000, 600000, 1)};
  const std::string svg = step_chart({{"cpu:0", view}, {"cpu:1", view}});
  EXPECT_EQ(count_of(svg, "<title>forward: 400 us, moved 2 KiB, in step 3</title>"), 2U);
  EXPECT_HAS(svg, "<title>linear_forward: 200 us");
  EXPECT_HAS(svg, "<title>reduce bucket 0: 400 us");
  EXPECT_HAS(svg, "class=\"part hatched\"><title>wait for backward: 100 us");
  EXPECT_EQ(count_of(svg, ">communication</text>"), 2U);
  EXPECT_EQ(count_of(svg, ">copy</text>"), 0U);
  EXPECT_EQ(step_chart({}), "");
}

TEST(CurveCharts, LongCurvesKeepTheirExtremes) {
  Curve curve{"loss", "rose", {}, false, false};
  for (int i = 0; i < 20000; ++i) curve.points.push_back({static_cast<double>(i), 1.0});
  curve.points[12345].y = 50;
  const std::string chart = curve_chart({"Loss", "step", {curve}, true, false});
  EXPECT_LT(chart.size(), 20000U);
  EXPECT_HAS(chart, ">40</text>");  // a line of an axis that reaches the one high value
  curve.points = {{0, NAN}};
  EXPECT_EQ(curve_chart({"Loss", "step", {curve}, true, false}), "");
}

TEST(CurveCharts, ALossScaleHasPowersOfTwo) {
  Curve curve{"loss scale", "orange", {{1, 65536}, {5, 32768}, {9, 32768}}, false, true};
  const std::string chart = curve_chart({"Loss scale", "step", {curve}, true, true});
  EXPECT_HAS(chart, ">65536</text>");
  EXPECT_HAS(chart, ">32768</text>");
}

DeviceFigures example_device() {
  DeviceFigures device;
  device.device = "cpu:0";
  device.pool.peak_by_category[static_cast<size_t>(Category::activations)] = 2 << 20;
  device.pool.peak_bytes = 2 << 20;
  device.plan.peak_by_category = device.pool.peak_by_category;
  device.plan.peak_bytes = 2 << 20;
  device.outside_bytes = 5 << 20;
  return device;
}

TEST(MemorySection, SaysWhetherThePlanWasMet) {
  DeviceFigures device = example_device();
  EXPECT_HAS(memory_section({device}, ""), "equal to the byte");
  EXPECT_HAS(memory_section({device}, ""), "outside the pool");
  device.plan.peak_by_category[0] += 256;
  device.plan.peak_bytes += 256;
  const std::string missed = memory_section({device}, "");
  EXPECT_EQ(missed.find("equal to the byte"), std::string::npos);
  EXPECT_HAS(missed, "2,097,408");
}

TEST(TimeSection, PhasesAndWaitsAddUpToTheStep) {
  PhaseTable table;
  table.steps = 10;
  table.wall_seconds = 1;
  table.rows = {{Phase::forward, 0, 0.75, 0.75, 0, 10, 0.0}, {Phase::stage, 0, 0.0, 0.0, 0, 10, 0.02}, {Phase::wait, 0, 0.25, 0.25, 0, 5, 0.0}};
  table.waits = {{"reduce", 0.2, 0.2}, {"host", 0.0495, 0.0495}, {"stage", 0.0005, 0.0005}};
  const Bar bar = time_bar("cpu:0", table);
  EXPECT_NEAR(std::accumulate(bar.parts.begin(), bar.parts.end(), 0.0, [](double sum, const BarPart& part) { return sum + part.value; }), 0.1, 1e-12);
  const std::string html = time_section({"cpu:0"}, {table});
  for (const char* part : {"wait for reduce", "20.0 ms, 20 %", "other waits", "100.00 %", "beside other work"}) EXPECT_HAS(html, part);
  EXPECT_EQ(html.find("<th scope=\"row\">wait for stage"), std::string::npos);
}

TEST(TrainPage, IsCompleteByItself) {
  TrainReport report;
  report.title = "mlp <b>";
  report.command_line = "vitrine train --data 'a&b'";
  report.facts = {{"model", "<mlp>"}};
  report.figures.figures = {example_device()};
  report.memory = {{"cpu:0", example_timeline(), 0, 0, 0}, {"cpu:1", example_timeline(), 0, 0, 0}};
  report.processes = 2;
  const std::string page = train_page(report).str();
  for (const char* part : {"mlp &lt;b&gt;", "&#39;a&amp;b&#39;", "<h3>cpu:0, cpu:1</h3>", "devices of rank 0", "Nothing stands out",
                           "prefers-color-scheme:dark", "@media print"})
    EXPECT_HAS(page, part);
  for (const char* address : {"http:", "https:", "src=", "@import", "url(//"}) EXPECT_EQ(page.find(address), std::string::npos) << address;
}

TEST(PlanPage, TellsOfTheSteadyStepAndWhatLayersHold) {
  PlanReport report;
  report.title = "plan";
  for (const char* name : {"meta:0", "meta:1", "meta:2"}) {
    PlannedMemory device;
    device.device = name;
    device.plan.peak_bytes = 9216;
    device.plan.peak_by_category[0] = 9216;
    device.plan.peak_phase = Phase::backward;
    device.plan.held = {{"fc<1>", 2048}};
    device.plan.history.changes = {{10, 0, 4096, Category::parameters, Phase::setup, "weight", ""},
                                   {20, 4096, 1024, Category::activations, Phase::forward, "first", "fc"},
                                   {30, 4096, -1024, Category::activations, Phase::backward, "first", "fc"},
                                   {40, 4096, 2048, Category::activations, Phase::forward, "steady", "fc"}};
    device.plan.history.steps = {{0, 15, 1}, {0, 35, 3}};
    report.devices.push_back(device);
  }
  report.devices.back().plan.peak_bytes += 256;
  const std::string page = plan_page(report).str();
  for (const char* part : {"meta:0, meta:1", "fc&lt;1&gt;", "activations 2 KiB: steady, layer fc", "has room for its plan", "not known"})
    EXPECT_HAS(page, part);
  EXPECT_EQ(page.find("first, layer fc"), std::string::npos);
  report.remedies = "Lower --batch-size.";
  EXPECT_HAS(plan_page(report).str(), "It does not fit. Lower --batch-size.");
}

}  // namespace
}  // namespace vitrine::tools::html
