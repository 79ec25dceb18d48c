// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/chrome_trace.h"

#include <map>
#include <random>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/trace_nesting.h"

namespace vitrine::chrome_trace_test {
namespace {

using nlohmann::json;
using test::first_overlap;

SpanRecord span(const SpanInfo& info, int64_t begin_ns, int64_t end_ns, int depth, int64_t bytes = 0) {
  return {info, begin_ns, end_ns, bytes, depth};
}

json written(const std::vector<TraceProcess>& processes) {
  std::ostringstream out;
  write_chrome_trace(out, processes);
  return json::parse(out.str()).at("traceEvents");
}

std::vector<json> events_of(const json& events, const std::string& ph) {
  std::vector<json> found;
  for (const json& event : events) {
    if (event.at("ph") == ph) found.push_back(event);
  }
  return found;
}

std::vector<TraceProcess> example() {
  TraceProcess device{"rank 0, cpu:1", {}, {}};
  device.threads.push_back({"compute",
                            {span({Phase::forward, "features.0", "conv2d_forward", "", 7}, 1001500, 1002001, 2, 64),
                             span({Phase::forward, "features.0", "", "", 7}, 1001500, 1002500, 1, 64),
                             span({Phase::forward, "", "", "", 7}, 1001500, 1003000, 0, 64),
                             span({Phase::step, "", "", "", 7}, 1001000, 1001000, 0)}});
  device.threads.push_back({"communication",
                            {span({Phase::wait, "bucket 3", "", "cpu:2 in \"all_reduce\"\n", 7}, 1002000, 1002999, 1),
                             span({Phase::reduce, "bucket 3", "", "", 7}, 1001800, 1003200, 0, 128)}});
  MemoryEvent taken;
  taken.time_ns = 1000000;
  taken.bytes = 4096;
  taken.category = Category::gradients;
  MemoryEvent given_back = taken;
  given_back.time_ns = 1003500;
  given_back.bytes = -4096;
  MemoryEvent before = taken;
  before.bytes = 1024;
  device.memory.at_start = {before};
  device.memory.changes = {taken, given_back};
  return {TraceProcess{"rank 0, host", {}, {}}, device};
}

TEST(ChromeTrace, NamesProcessesAndThreads) {
  std::map<std::string, std::string> names;
  for (const json& event : events_of(written(example()), "M")) {
    if (event["args"].contains("name")) {
      names[event["name"].get<std::string>() + std::to_string(event["pid"].get<int>()) + "/" +
            std::to_string(event["tid"].get<int>())] = event["args"]["name"];
    }
  }
  EXPECT_EQ(names.at("process_name0/0"), "rank 0, host");
  EXPECT_EQ(names.at("process_name1/0"), "rank 0, cpu:1");
  EXPECT_EQ(names.at("thread_name1/0"), "compute");
  EXPECT_EQ(names.at("thread_name1/1"), "communication");
}

TEST(ChromeTrace, SlicesHaveTimesAndArgumentsAndOuterSlicesComeFirst) {
  const std::vector<json> slices = events_of(written(example()), "X");
  ASSERT_EQ(slices.size(), 5u);
  EXPECT_EQ(slices[0]["name"], "forward");
  EXPECT_EQ(slices[1]["name"], "features.0");
  EXPECT_EQ(slices[2]["name"], "conv2d_forward");
  EXPECT_DOUBLE_EQ(slices[2]["ts"].get<double>(), 1.5);
  EXPECT_DOUBLE_EQ(slices[2]["dur"].get<double>(), 0.501);
  EXPECT_EQ(slices[2]["args"]["layer"], "features.0");
  EXPECT_EQ(slices[2]["args"]["operation"], "conv2d_forward");
  EXPECT_EQ(slices[2]["args"]["bytes"], 64);
  EXPECT_EQ(slices[2]["args"]["step"], 7);
  EXPECT_EQ(slices[2]["pid"], 1);
  EXPECT_EQ(slices[3]["tid"], 1);
  EXPECT_EQ(slices[3]["name"], "reduce bucket 3");
  EXPECT_EQ(slices[3]["args"]["layer"], "bucket 3");
  EXPECT_EQ(slices[4]["tid"], 1);
  EXPECT_EQ(slices[4]["args"]["cause"], "cpu:2 in \"all_reduce\"\n");
}

TEST(ChromeTrace, StepsAreInstantsAndMemoryIsACounter) {
  const json events = written(example());
  const std::vector<json> steps = events_of(events, "i");
  ASSERT_EQ(steps.size(), 1u);
  EXPECT_EQ(steps[0]["args"]["step"], 7);
  const std::vector<json> memory = events_of(events, "C");
  ASSERT_EQ(memory.size(), 3u);
  EXPECT_DOUBLE_EQ(memory[0]["ts"].get<double>(), 0);
  EXPECT_EQ(memory[0]["args"]["gradients"], 1024);
  EXPECT_EQ(memory[1]["args"]["gradients"], 5120);
  EXPECT_EQ(memory[1]["args"]["activations"], 0);
  EXPECT_EQ(memory[2]["args"]["gradients"], 1024);
}

TEST(ChromeTrace, SlicesNestHoweverTheClockRounds) {
  std::mt19937 random(3);
  TraceThread thread{"compute", {}};
  for (int64_t begin = 0; begin < 400000; begin += 4000) {
    const auto rounded = [&](int64_t time_ns) { return time_ns + static_cast<int64_t>(random() % 600); };
    thread.spans.push_back(span({Phase::forward, "fc", "gemm", "", 0}, rounded(begin + 100), rounded(begin + 4000), 2));
    thread.spans.push_back(span({Phase::forward, "fc", "", "", 0}, rounded(begin), rounded(begin + 4000), 1));
  }
  thread.spans.push_back(span({Phase::forward, "", "", "", 0}, 0, 400000, 0));
  const json events = written({TraceProcess{"cpu:0", {thread}, {}}});
  EXPECT_EQ(events_of(events, "X").size(), 201u);
  EXPECT_EQ(first_overlap(events), "");
}

TEST(ChromeTrace, AnEmptyTraceIsValid) { EXPECT_TRUE(written({}).empty()); }

}  // namespace
}  // namespace vitrine::chrome_trace_test
