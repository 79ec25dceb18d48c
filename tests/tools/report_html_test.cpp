// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cmath>
#include <map>
#include <numeric>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/expect_contains.h"
#include "tests/support/text.h"
#include "tools/program/render/html/charts.h"
#include "tools/program/render/html/page.h"
#include "tools/program/render/report_tables.h"
#include "tools/program/run/run_facts.h"
#include "tools/program/text/scale.h"
#include "tools/program/text/tables.h"

namespace vitrine::tools::html {
namespace {

/// A record with a title and a device.
Record example_record() {
  Record record;
  record.title = "mlp <b>";
  record.command_line = "vitrine train --data 'a&b'";
  record.facts = {{"model", "<mlp>"}};
  record.runs.emplace_back();
  return record;
}

TEST(Page, TextCannotEndTheData) {
  Record record = example_record();
  record.title = "</script><script>alert(1)</script>";
  record.facts = {{"bytes", std::string("\xFF\x01z\xC3", 4)}, {"text", "Grüße \xE2\x82\xAC"}};
  const std::string whole = page(record);
  expect_lacks(whole, "<script>alert");
  EXPECT_EQ(count_of(whole, "</script>"), count_of(std::string(page_template()), "</script>"));
  const size_t begin = whole.find("id=\"record\">") + 12, end = whole.find("</script>", begin);
  const Json data = Json::parse(whole.substr(begin, end - begin));
  EXPECT_EQ(data["title"], record.title);
  const Json& facts = data["sections"].back()["blocks"][0]["blocks"][0]["facts"];
  EXPECT_EQ(facts[0][1], "\xEF\xBF\xBD\x01z\xEF\xBF\xBD");
  EXPECT_EQ(facts[1][1], "Grüße \xE2\x82\xAC");
}

TEST(Page, SettingsAndMachineAreFoldedAtTheEndOnly) {
  Record record = example_record();
  for (const auto kind : {Record::Kind::run, Record::Kind::comparison}) {
    record.kind = kind;
    if (kind != Record::Kind::run) record.runs.clear();
    const Json data = page_data(record);
    EXPECT_EQ(count_of(data.dump(), "\"facts\":"), 1U);
    EXPECT_EQ(data["sections"].back()["title"], "Settings and machine");
    EXPECT_EQ(data["sections"].back()["blocks"][0]["kind"], "fold");
    EXPECT_EQ(data["sections"].back()["blocks"][0]["blocks"][0]["command"], record.command_line);
  }
}

TEST(Scale, NumbersAreShort) {
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

DeviceRecord device_with(const MemoryTimeline& timeline, int64_t capacity, int64_t planned,
                         const std::string& name = "cpu:0") {
  DeviceRecord device;
  device.device = name;
  device.pool.capacity_bytes = capacity;
  device.plan.peak_bytes = planned;
  device.memory = timeline;
  return device;
}

TEST(MemoryCharts, NameEveryLayerAndThePeak) {
  const Json chart = memory_charts({device_with(example_timeline(), 10240, 9216)}).at(0);
  const std::string text = chart.dump();
  expect_contains(text, "parameters 4 KiB: weight<1>, layer fc. Allocated in setup, held over changes 0 to 4",
                  "activations 2 KiB: fc.output, layer fc. Allocated in forward, held over changes 1 to 2",
                  "fragmentation: gaps between blocks, 2 KiB beyond the largest sum of blocks",
                  "peak 9 KiB in backward", "capacity 10 KiB", "backward: changes 2 to 4");
  EXPECT_EQ(chart["planned"], 9216);
  EXPECT_FALSE(memory_charts({device_with(example_timeline(), int64_t{1} << 40, 0)}).at(0).contains("capacity"));
  EXPECT_TRUE(memory_charts({device_with(MemoryTimeline{}, 0, 0)}).empty());
}

TEST(MemoryOverlay, PartsOfTheStepHaveOneWidthUnderAllSchemes) {
  // Under dp, the first device also holds a gathered batch, for two changes more.
  MemoryHistory history;
  history.at_start = {{0, 0, 4096, Category::parameters, Phase::setup, "weight", "fc"}};
  history.changes = {{10, 4096, 4096, Category::activations, Phase::forward, "fc.output", "fc"},
                     {11, 8192, 2048, Category::activations, Phase::gather, "outputs", ""},
                     {12, 8192, -2048, Category::activations, Phase::gather, "outputs", ""},
                     {20, 4096, -4096, Category::activations, Phase::backward, "fc.output", "fc"}};
  RunRecord ddp, dp;
  ddp.name = "ddp fp16";
  ddp.devices = {device_with(example_timeline(), 0, 0), device_with(example_timeline(), 0, 0, "cpu:1")};
  dp.name = "dp fp16";
  dp.devices = {device_with(make_memory_timeline(history), 0, 0), device_with(example_timeline(), 0, 0, "cpu:1")};
  const Json chart = memory_overlay({ddp, dp});
  ASSERT_EQ(chart["curves"].size(), 2U);
  EXPECT_EQ(chart["y"], Json({0.0, 10240.0}));
  EXPECT_NE(chart["curves"][0]["paint"], chart["curves"][1]["paint"]);
  EXPECT_EQ(chart["curves"][0]["dashes"], chart["curves"][1]["dashes"]) << "one precision";
  EXPECT_EQ(chart["curves"][1]["name"], "dp fp16, cpu:0, at most 10 KiB");
  // The first change of forward, and the first of backward.
  const auto bytes_at = [&](size_t curve, double x) {
    double bytes = -1;
    for (const Json& point : chart["curves"][curve]["points"]) {
      if (point[0].get<double>() <= x + 1e-9) bytes = point[1].get<double>();
    }
    return bytes;
  };
  EXPECT_EQ(bytes_at(0, 0.05), 4096);
  EXPECT_EQ(bytes_at(0, 0.1), 6144);
  EXPECT_EQ(bytes_at(1, 0.1), 8192);
  EXPECT_EQ(bytes_at(1, 0.3), 10240);
  EXPECT_EQ(bytes_at(0, 0.5), 7168) << "three blocks without the gap between them";
  EXPECT_EQ(bytes_at(1, 0.5), 4096);
  EXPECT_EQ(bytes_at(1, 1.0), 4096);
  ddp.devices.resize(1);
  ddp.devices[0].memory.reset();
  EXPECT_TRUE(memory_overlay({ddp}).is_null());
}

/// Bytes of a layer, or of the extent, at a moment.
int64_t bytes_at(const Json& layer, size_t moment) {
  int64_t held = 0;
  for (const Json& total : layer["totals"]) held = total[0] <= moment ? total[1].get<int64_t>() : held;
  return held;
}

TEST(MemoryCharts, TheExtentIsDrawnWhereGapsCostMemory) {
  const MemoryTimeline timeline = example_timeline();
  const Json chart = memory_charts({device_with(timeline, 0, 0)}).at(0);
  for (size_t m = 0; m < timeline.moments.size(); ++m) {
    int64_t sum = 0;
    for (const Json& layer : chart["layers"]) {
      EXPECT_NE(layer["category"], "fragmentation");
      sum += bytes_at(layer, m);
    }
    EXPECT_EQ(sum, allocated_bytes(timeline.moments[m].by_category)) << m;
    EXPECT_EQ(bytes_at(chart["extent"], m), m == 2 || m == 3 ? 9216 : 0)
        << "beyond the largest sum, 7 KiB; moment " << m;
  }
  MemoryHistory without_gaps;
  without_gaps.changes = {{10, 0, 4096, Category::activations, Phase::forward, "a", ""},
                          {20, 4096, 2048, Category::activations, Phase::forward, "b", ""}};
  EXPECT_TRUE(memory_charts({device_with(make_memory_timeline(without_gaps), 0, 0)}).at(0)["extent"].is_null());
}

TEST(MemoryCharts, ListTheLargestLayersAtThePeakFirst) {
  MemoryHistory history;
  for (int64_t i = 0; i < 10; ++i) {
    history.changes.push_back(
        {i, i * 4096, (i + 1) * 256, Category::activations, Phase::forward, "block" + std::to_string(i), ""});
  }
  const Json rows = memory_charts({device_with(make_memory_timeline(history), 0, 0)}).at(0)["holders"]["rows"];
  ASSERT_EQ(rows.size(), 9U);
  EXPECT_EQ(rows[0]["cells"][0], "block9");
  EXPECT_EQ(rows[7]["cells"][0], "block2");
  EXPECT_EQ(rows[8]["cells"][0], "2 more");
  EXPECT_EQ(rows[8]["cells"][1], "768 B");
}

TEST(MemoryCharts, ManyBlocksStaySmall) {
  MemoryHistory history;
  for (int64_t i = 0; i < 3000; ++i)
    history.changes.push_back({i, i * 256, 256, Category::activations, Phase::forward, std::to_string(i), ""});
  EXPECT_LT(memory_charts({device_with(make_memory_timeline(history), 0, 0)}).at(0).dump().size(), 400000U);
}

TEST(StepChart, SpansAreInTheirLanesWithDescriptions) {
  StepView view;
  view.begin_ns = 0;
  view.end_ns = 1000000;
  const auto span = [](const SpanInfo& info, int64_t begin, int64_t end, int depth) {
    return SpanRecord{info, begin, end, 2048, depth};
  };
  view.compute = {span({Phase::forward, "", "", "", 2}, 0, 400000, 0),
                  span({Phase::forward, "fc", "linear_forward", "", 2}, 0, 200000, 1)};
  view.communication = {span({Phase::reduce, "bucket 0", "", "", 2}, 500000, 900000, 0),
                        span({Phase::wait, "", "", "backward", 2}, 500000, 600000, 1)};
  std::vector<DeviceRecord> devices(2);
  devices[0].device = "cpu:0";
  devices[1].device = "cpu:1";
  devices[0].step = devices[1].step = view;
  const Json chart = step_chart(devices);
  ASSERT_EQ(chart["groups"].size(), 2U);
  const Json& lanes = chart["groups"][1]["lanes"];
  ASSERT_EQ(lanes.size(), 2U) << "the copy stream has no span";
  EXPECT_EQ(lanes[0]["name"], "compute");
  EXPECT_EQ(lanes[0]["spans"][0]["title"], "forward: 400 us, moved 2 KiB, in step 3");
  EXPECT_EQ(lanes[0]["spans"][1]["title"], "linear_forward: 200 us, moved 2 KiB, in step 3");
  EXPECT_EQ(lanes[1]["name"], "communication");
  EXPECT_EQ(lanes[1]["spans"][0]["name"], "reduce bucket 0");
  EXPECT_EQ(lanes[1]["spans"][1]["paint"], "wait");
  EXPECT_EQ(lanes[1]["spans"][1]["title"], "wait for backward: 100 us, moved 2 KiB, in step 3");
  EXPECT_TRUE(step_chart({}).is_null());
}

PhaseRow phase_of(Phase phase, double seconds, int64_t bytes, int64_t calls) {
  return {.phase = phase, .seconds = seconds, .bytes = bytes, .calls = calls};
}

/// Ten steps of dp on `devices` devices, each with 16 samples. No copy of samples was measured.
RunRecord moving_run(int devices) {
  RunRecord run;
  run.scheme = scheme_preset("dp");
  run.batch_size = 16 * devices;
  run.image_bytes = 1024;
  run.label_bytes = 64;
  for (int d = 0; d < devices; ++d) {
    DeviceRecord& device = run.devices.emplace_back();
    device.device = "cpu:" + std::to_string(d);
    device.samples_per_step = 16;
    device.phases.steps = 10;
    device.phases.wall_seconds = 1;
    device.phases.rows = {phase_of(Phase::forward, 0.1, 0, 10)};
    if (d == 0) {
      device.phases.rows.push_back(phase_of(Phase::gather, 0.01, 10 * 3072, 10));
      device.phases.rows.push_back(phase_of(Phase::loss, 0.02, 0, 10));
    } else {
      device.phases.rows.push_back(phase_of(Phase::loss, 0.00002, 0, 10));
    }
    CommunicationRow sum;
    sum.buffer_bytes = 10 * (int64_t{1} << 20);
    sum.moved_bytes = sum.buffer_bytes / 2;
    device.communication.steps = 10;
    device.communication.rows = {sum};
  }
  return run;
}

TEST(MovementChart, ShowsFromWhereToWhereEachPhaseMovesItsBytes) {
  RunRecord run = moving_run(3);
  Json chart = movement_chart(run);
  ASSERT_EQ(chart["columns"].size(), 4U);
  EXPECT_EQ(chart["columns"][1]["note"], "16 samples");
  std::map<std::string, Json> rows;
  std::string order;
  for (const Json& row : chart["rows"]) {
    rows[row["name"]] = row;
    order += row["name"].get<std::string>() + " ";
  }
  EXPECT_EQ(order, "stage scatter forward gather loss reduce ");
  EXPECT_EQ(rows["stage"]["sources"], Json::array({0}));
  EXPECT_EQ(rows["stage"]["sinks"], Json({1})) << "only the first device is given samples by the host";
  EXPECT_EQ(rows["stage"]["marks"][0]["text"], "51 KiB") << "48 images, and their labels for the gathered loss";
  EXPECT_EQ(rows["scatter"]["sources"], Json({1}));
  EXPECT_EQ(rows["scatter"]["sinks"], Json({2, 3}));
  EXPECT_EQ(rows["scatter"]["marks"], Json({{{"column", 2}, {"text", "16 KiB"}}, {{"column", 3}, {"text", "16 KiB"}}}));
  EXPECT_EQ(rows["gather"]["sources"], Json({2, 3}));
  EXPECT_EQ(rows["gather"]["marks"], Json({{{"column", 1}, {"text", "3 KiB"}}}));
  EXPECT_EQ(rows["loss"]["boxes"].size(), 1U) << "the others only clear their totals";
  EXPECT_EQ(rows["loss"]["boxes"][0]["text"], "2 ms");
  EXPECT_EQ(rows["forward"]["boxes"].size(), 3U);
  EXPECT_EQ(rows["reduce"]["sinks"], Json({1}));
  EXPECT_EQ(rows["reduce"]["sources"], Json({2, 3}));
  run.scheme = scheme_preset("ddp");
  chart = movement_chart(run);
  EXPECT_EQ(chart["rows"][0]["name"], "stage");
  EXPECT_EQ(chart["rows"][0]["sinks"], Json({1, 2, 3}));
  EXPECT_EQ(chart["rows"][0]["marks"][2]["text"], "17 KiB") << "16 images with their labels";
  EXPECT_EQ(chart["rows"].back()["sources"], Json({1, 2, 3}));
  EXPECT_EQ(chart["rows"].back()["sinks"], Json({1, 2, 3}));
  EXPECT_EQ(chart["rows"].back()["marks"][0]["text"], "512 KiB") << "what each device sends";
  run.scheme = scheme_preset("zero1");
  for (DeviceRecord& device : run.devices)
    device.phases.rows.push_back(phase_of(Phase::broadcast, 0.01, 10 * (int64_t{1} << 20), 10));
  chart = movement_chart(run);
  EXPECT_EQ(chart["rows"].back()["name"], "broadcast");
  EXPECT_EQ(chart["rows"].back()["sources"], Json({1, 2, 3})) << "each owner sends its part to all";
}

TEST(MovementChart, TheHostSendsTheIndicesOfImagesThatLieOnTheDevices) {
  RunRecord run = moving_run(3);
  run.images_on_device = true;
  run.label_bytes = 60;
  const Json through_first = movement_chart(run)["rows"];
  EXPECT_EQ(through_first[0]["marks"][0]["text"], "3 KiB") << "indices and labels of 48 images, 64 bytes each";
  EXPECT_EQ(through_first[1]["name"], "scatter");
  EXPECT_EQ(through_first[1]["marks"][0]["text"], "16 KiB") << "16 images";
  run.scheme = scheme_preset("ddp");
  EXPECT_EQ(movement_chart(run)["rows"][0]["marks"][2]["text"], "1 KiB");
}

TEST(MovementChart, APlanHasBoxesWithoutTimesAndItsOwnBytesOfSamples) {
  RunRecord run = moving_run(3);
  for (DeviceRecord& device : run.devices) {
    device.phases.wall_seconds = 0;
    device.phases.steps = device.communication.steps = 1;
    for (PhaseRow& row : device.phases.rows) row.seconds = 0;
    device.phases.rows.push_back(phase_of(Phase::stage, 0, device.device == "cpu:0" ? 5 << 10 : 0, 1));
  }
  const Json rows = movement_chart(run)["rows"];
  EXPECT_EQ(rows[0]["marks"], Json({{{"column", 1}, {"text", "5 KiB"}}}));
  EXPECT_EQ(rows[1]["name"], "forward");
  ASSERT_EQ(rows[1]["boxes"].size(), 3U);
  EXPECT_EQ(rows[1]["boxes"][0]["text"], "");
  EXPECT_EQ(rows[1]["boxes"][0]["title"], "forward on cpu:0");
}

TEST(MovementChart, ManyDevicesThatDoTheSameShareAColumn) {
  const Json chart = movement_chart(moving_run(64));
  ASSERT_EQ(chart["columns"].size(), 3U);
  EXPECT_EQ(chart["columns"][2]["name"], "cpu:1 to cpu:63");
  EXPECT_EQ(chart["columns"][2]["note"], "16 samples each");
  EXPECT_TRUE(movement_chart(moving_run(1)).is_null());
}

TEST(DifferenceChart, LeadsFromTheEmptiestDeviceToTheFullest) {
  std::vector<DeviceRecord> devices(3);
  const int64_t activations[] = {8 << 20, 4 << 20, 2 << 20}, staging[] = {0, 0, 1 << 20};
  for (size_t d = 0; d < devices.size(); ++d) {
    devices[d].device = "cpu:" + std::to_string(d);
    devices[d].pool.peak_by_category[static_cast<size_t>(Category::activations)] = activations[d];
    devices[d].pool.peak_by_category[static_cast<size_t>(Category::staging)] = staging[d];
    devices[d].pool.peak_bytes = activations[d] + staging[d];
  }
  const auto holds = [](const std::string& tensor, int64_t bytes) {
    MemoryTimeline timeline;
    timeline.moments.resize(1);
    timeline.blocks = {{0, bytes, Category::activations, Phase::gather, tensor, "", 0, 1}};
    return timeline;
  };
  devices[0].memory = holds("gathered outputs", 6 << 20);
  devices[2].memory = holds("outputs", 1 << 20);
  const Json chart = difference_chart(devices);
  const Json& rows = chart["rows"];
  ASSERT_EQ(rows.size(), 4U);
  EXPECT_EQ(rows[0]["label"], "cpu:2 at its peak");
  EXPECT_EQ(rows[1]["label"], "activations: gathered outputs 6 MiB");
  EXPECT_EQ(rows[1]["text"], "+6 MiB");
  EXPECT_EQ(rows[2]["label"], "staging");
  EXPECT_EQ(rows[2]["text"], "\u22121 MiB");
  EXPECT_EQ(rows[3]["label"], "cpu:0 at its peak");
  for (size_t i = 1; i + 1 < rows.size(); ++i) EXPECT_EQ(rows[i]["begin"], rows[i - 1]["end"]) << i;
  EXPECT_EQ(rows[2]["end"], rows[3]["end"]);
  EXPECT_EQ(chart["largest"], 9 << 20);
  devices[0] = devices[1] = devices[2];
  EXPECT_TRUE(difference_chart(devices).is_null());
}

TEST(CurveCharts, LongCurvesKeepTheirExtremesAndEnds) {
  Curve curve{"loss", "series1", {}};
  for (int i = 0; i < 20000; ++i) curve.points.push_back({static_cast<double>(i), 1.0});
  curve.points[12345].y = 50;
  curve.points[19997].y = 0.5;
  curve.points[19998].y = 3;
  const Json chart = curve_chart({"Loss", {curve}});
  EXPECT_LT(chart.dump().size(), 40000U);
  EXPECT_EQ(chart["x"], Json({0.0, 19999.0}));
  EXPECT_EQ(chart["y"], Json({0.0, 50.0}));
  EXPECT_EQ(chart["curves"][0]["name"], "loss, at the end 1.00");
  EXPECT_EQ(chart["ticks"].back()[1], "40");
  curve.points = {{0, NAN}};
  EXPECT_TRUE(curve_chart({"Loss", {curve}}).is_null());
}

TEST(CurveCharts, LossScaleTicksArePowersOfTwo) {
  const Json chart =
      curve_chart({"Loss scale", {{"loss scale", "series4", {{1, 65536}, {5, 32768}, {9, 32768}}, false, true}}, true});
  EXPECT_EQ(chart["ticks"][0][1], "32,768");
  EXPECT_EQ(chart["ticks"][1][1], "65,536");
}

TEST(CurveCharts, LegendsHaveRoundedNumbers) {
  EXPECT_EQ(curve_chart({"Loss", {{"loss", "series1", {{1, 2.3}, {2, 0.0980392}}}}})["curves"][0]["name"],
            "loss, at the end 0.10");
  EXPECT_EQ(short_number(65536), "65,536");
  EXPECT_EQ(short_number(123.4), "123");
  EXPECT_EQ(short_number(12.34), "12.3");
  EXPECT_EQ(short_number(-1.239), "-1.24");
  EXPECT_EQ(short_number(0.00213), "0.0021");
  EXPECT_EQ(short_number(0), "0.00");
}

TEST(FrontierChart, HasADotForEachChoiceAndTheCapacity) {
  Record record = example_record();
  DeviceRecord device;
  device.device = "cpu:0";
  device.plan.peak_bytes = 4 << 20;
  device.pool.capacity_bytes = 3 << 20;
  record.runs[0].devices = {device};
  EXPECT_TRUE(frontier_chart(record).is_null());
  EXPECT_FALSE(frontier_table(record));
  record.frontier = std::vector<RecomputationRecord>{{{}, 4 << 20, 0.0, false},
                                                     {{"conv1-layer1.0", "fc"}, 2 << 20, 0.125, true, 0.5, true},
                                                     {{"conv1-layer2.0"}, 1 << 20, 0.25, true, 0.75}};
  const Json chart = frontier_chart(record);
  ASSERT_EQ(chart["curves"].size(), 2U);
  EXPECT_EQ(chart["curves"][1]["points"], Json({{0.0, 3145728.0}, {0.25, 3145728.0}}));
  const Json& points = chart["curves"][0]["points"];
  ASSERT_EQ(points.size(), 3U);
  EXPECT_EQ(points[1][0], 0.125);
  EXPECT_EQ(points[1][1], 2097152.0);
  expect_contains(points[1][2].get<std::string>(), "--recompute conv1-layer1.0,fc");
  expect_contains(chart["ends"][1].get<std::string>(), "+25 %");
  const Json rows = frontier_table(record)->json()["rows"];
  EXPECT_EQ(rows[1]["cells"],
            Json({"2.0 MiB", "2,097,152", "50.0 %", "+12.5 %", "yes, with least time", "conv1-layer1.0,fc"}));
  EXPECT_EQ(rows[0]["cells"][4], "no");
  EXPECT_EQ(rows[2]["cells"][4], "yes");
}

TEST(Tables, OnlyTotalsAreBold) {
  const std::string whole(page_template());
  expect_lacks(whole, "tr:last-child");
  expect_contains(whole, "tr.total>*{font-weight:600}");
  Table table({{"a"}, {"b"}});
  table.add_row({"first", "1"});
  table.add_rule();
  table.add_row({"second group", "2"});
  EXPECT_EQ(table.json()["rows"][1]["total"], false) << "the last row below a line need not be a total";
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
  Record record = example_record();
  record.runs = {run};
  EXPECT_EQ(
      story(record),
      "`705` samples/s; cpu:0 peaks at `8 MiB`, `6 MiB` more than cpu:1, mostly the optimizer's state; cpu:3 waits "
      "`30 %` of the step.");
  EXPECT_EQ(page_data(record)["story"], story(record));
  expect_contains(epochs_table(run)->json().dump(), "\"940\"");  // samples/s of the first epoch
  record.runs[0].devices.erase(record.runs[0].devices.begin());
  record.runs[0].diverged = "The loss was NaN in step 3";
  EXPECT_EQ(story(record).find("The loss was NaN in step 3. `705` samples/s; each device peaks at `2 MiB`; cpu:3"), 0U)
      << story(record);
}

TEST(Story, OfAComparisonNamesTheFastestOnlyBeyondNoise) {
  Record record = example_record();
  record.kind = Record::Kind::comparison;
  record.runs.assign(3, record.runs[0]);
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
  balanced.rates.rounds = {90, 91, 92, 90};
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
  Record record = example_record();
  record.kind = Record::Kind::plan;
  record.runs[0].devices = one_fuller_device();
  EXPECT_EQ(story(record).find("Planned: cpu:0 needs `8 MiB`, `6 MiB` more than cpu:1"), 0U) << story(record);
  for (DeviceRecord& d : record.runs[0].devices) d.pool.capacity_bytes = 16 << 20;
  EXPECT_EQ(story(record).find("It fits: cpu:0 needs `8 MiB` of 16 MiB, `6 MiB` more"), 0U) << story(record);
  record.runs[0].devices[2].pool.capacity_bytes = 1 << 20;
  record.remedies = "Lower --batch-size.";
  EXPECT_EQ(story(record), "It does not fit: cpu:2 needs `2 MiB` of 1 MiB.") << "the fullest device has room";
}

/// The first chart of bars within a page, or a null value.
Json first_bars(const Json& value) {
  if (value.is_object() && value.value("kind", "") == "bars") return value;
  for (const Json& child : value) {
    if (!child.is_structured()) continue;
    if (Json found = first_bars(child); !found.is_null()) return found;
  }
  return {};
}

TEST(MemoryBars, DevicesThatAreEqualShareABar) {
  Record record = example_record();
  record.runs[0].devices = one_fuller_device();
  record.runs[0].devices[3].outside_bytes = 7 << 20;
  const Json bars = first_bars(page_data(record)["sections"])["groups"][0]["bars"];
  std::vector<std::string> labels;
  for (const Json& bar : bars) labels.push_back(bar["label"]);
  EXPECT_EQ(labels, (std::vector<std::string>{"cpu:0", "cpu:1 to cpu:3, each", "cpu:0 to cpu:2, each, outside the pool",
                                              "cpu:3, outside the pool"}));
  EXPECT_EQ(bars[1]["total"], "2 MiB");
  EXPECT_EQ(bars[2]["parts"][0]["value"], 5 << 20);
  for (const auto kind : {Record::Kind::plan, Record::Kind::comparison}) {
    record.kind = kind;
    record.runs[0].rates.rounds = {0};
    EXPECT_EQ(first_bars(page_data(record)["sections"])["groups"][0]["bars"].size(), 2U);
  }
}

TEST(MemorySection, ReportsWhetherThePlanWasMet) {
  Record record = example_record();
  record.runs[0].devices = {example_device()};
  expect_contains(page_data(record).dump(), "equal to the byte", "outside the pool");
  record.runs[0].devices[0].plan.peak_by_category[0] += 256;
  record.runs[0].devices[0].plan.peak_bytes += 256;
  const std::string missed = page_data(record).dump();
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
  const Bar bar = time_bar(device);
  EXPECT_NEAR(std::accumulate(bar.parts.begin(), bar.parts.end(), 0.0,
                              [](double sum, const BarPart& part) { return sum + part.value; }),
              0.1, 1e-12);
  Record record = example_record();
  record.runs[0].devices = {device};
  const std::string data = page_data(record).dump();
  expect_contains(data, "  for reduce", "\"20.0\",\"20.0 %\"", "100.00 %", "ran beside other work", "wait for stage");
  EXPECT_EQ(data.find("  for stage"), std::string::npos) << "a short wait has no row, only a part of the bar";
}

TEST(CommunicationBars, ALabelHasTheLatePeersThatItsBarHas) {
  Record record = example_record();
  record.runs = {moving_run(2)};
  for (DeviceRecord& device : record.runs[0].devices) {
    device.communication.rows[0].hidden_seconds = 1e-3;
    device.communication.rows[0].late_exposed_seconds = 2e-3;
  }
  expect_contains(page_data(record).dump(), "1 MiB, 100 us, late peers 200 us");
}

TEST(FindingsSection, SaysWhatACostIsAShareOf) {
  Record record = example_record();
  record.findings = {
      {"cpu:0 holds more.", "", 0.32, "its memory"}, {"Diverged.", "", 1.0}, {"It waits.", "", 0.12, "the step"}};
  const std::string data = page_data(record).dump();
  expect_contains(data, "\"large, 32 % of its memory\"", "\"cost\":\"large\"", "\"moderate, 12 % of the step\"",
                  "Large: at least 25 % of the step");
  record.findings = {{"ddp is fastest.", ""}};
  const std::string result = page_data(record).dump();
  expect_contains(result, "\"cost\":\"\"");
  EXPECT_EQ(result.find("Large: at least"), std::string::npos) << "a result has no severity to explain";
}

TEST(FindingsSection, ClaimsNoMoreThanWasJudged) {
  Record record = example_record();
  record.runs[0].devices = {example_device(), example_device()};
  const auto said = [&](int64_t steps) {
    record.runs[0].devices[1].phases.steps = steps;
    return page_data(record).dump();
  };
  record.runs[0].devices[0].phases.steps = 20;
  expect_contains(
      said(1),
      "Nothing stands out in 1 step after the first; judging waits between devices takes at least 8 measured steps.");
  expect_contains(said(7), "Nothing stands out in 7 steps after the first;");
  expect_contains(said(8), "no device waits for long");
  record.runs[0].devices[1].phases.rows = {{.phase = Phase::wait, .share = 0.2}};
  expect_contains(said(8), "no setting is known to shorten the waits");
  record.runs[0].steps.steps = 1;
  expect_contains(said(0), "No step was timed: the first never is.");
}

TEST(MemorySection, ExplainsFragmentationOnlyWhereItIsDrawn) {
  Record record = example_record();
  record.runs[0].devices = {device_with(example_timeline(), 0, 0)};
  expect_contains(page_data(record).dump(), "Fragmentation: free gaps");
  MemoryHistory without_gaps;
  without_gaps.changes = {{10, 0, 4096, Category::activations, Phase::forward, "a", ""},
                          {20, 4096, 2048, Category::activations, Phase::forward, "b", ""}};
  record.runs[0].devices = {device_with(make_memory_timeline(without_gaps), 0, 0)};
  expect_lacks(page_data(record).dump(), "Fragmentation: free gaps");
}

TEST(TrainPage, IsSelfContained) {
  Record record = example_record();
  record.processes = 2;
  record.runs[0].devices = {example_device(), example_device()};
  record.runs[0].devices[1].device = "cpu:1";
  for (DeviceRecord& d : record.runs[0].devices) d.memory = example_timeline();
  const std::string whole = page(record);
  expect_contains(whole, "mlp \\u003cb>", "'a&b'", "\"device\":\"cpu:0, cpu:1\"", "devices of rank 0",
                  "\"findings\":[]", "Nothing stands out", "prefers-color-scheme:dark", "@media print");
  for (const char* address : {"http:", "https:", "src=", "@import", "url(//"}) expect_lacks(whole, address);
}

TEST(PlanPage, ShowsTheSteadyStepAndWhatLayersHold) {
  Record record = example_record();
  record.kind = Record::Kind::plan;
  for (const char* name : {"meta:0", "meta:1", "meta:2"}) {
    DeviceRecord device;
    device.device = name;
    device.plan.peak_bytes = device.pool.peak_bytes = 9216;
    device.plan.peak_by_category[0] = device.pool.peak_by_category[0] = 9216;
    device.plan.peak_phase = Phase::backward;
    device.plan.held = {{"fc<1>", 2048}};
    device.plan.history.changes = {{10, 0, 4096, Category::parameters, Phase::setup, "weight", ""},
                                   {20, 4096, 1024, Category::activations, Phase::forward, "first", "fc"},
                                   {30, 4096, -1024, Category::activations, Phase::backward, "first", "fc"},
                                   {40, 4096, 2048, Category::activations, Phase::forward, "steady", "fc"}};
    device.plan.history.steps = {{0, 15, 1}, {0, 35, 3}};
    device.memory = steady_step(device.plan);
    record.runs[0].devices.push_back(device);
  }
  record.runs[0].devices.back().plan.peak_bytes = record.runs[0].devices.back().pool.peak_bytes += 256;
  const std::string data = page_data(record).dump();
  expect_contains(data, "meta:0, meta:1", "fc<1>", "activations 2 KiB: steady, layer fc", "meta:2 needs `9.2 KiB`",
                  "not known");
  expect_lacks(data, "first, layer fc");
  record.remedies = "Lower --batch-size.";
  EXPECT_EQ(page_data(record)["sections"][0]["blocks"][0]["text"], "Lower --batch-size.");
}

}  // namespace
}  // namespace vitrine::tools::html
