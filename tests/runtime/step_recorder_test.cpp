// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/step_recorder.h"

#include <algorithm>
#include <random>
#include <string>

#include <gtest/gtest.h>

namespace vitrine::step_recorder_test {
namespace {

SpanRecord span(Phase phase, int64_t step, int64_t begin_ns, int64_t end_ns, int64_t bytes = 0, const char* layer = "",
                const char* cause = "") {
  return {.info = {phase, layer, "", cause, step}, .begin_ns = begin_ns, .end_ns = end_ns, .bytes = bytes};
}

constexpr int64_t kStepNs = 100;

/// Steps as the engine has them: computation, a reduction that overlaps backward and, in some steps, the next step, a
/// copy made ahead of its step, and a communication stream that opens its next bucket before that step begins.
DeviceSpans random_steps(int64_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto pick = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  DeviceSpans spans;
  int64_t reduced_ns = 0;
  for (int64_t step = 0; step < count; ++step) {
    const int64_t begin = step * kStepNs;
    spans.compute.push_back(span(Phase::step, step, begin, begin));
    const int64_t forward_ends = begin + pick(20, 40), backward_ends = forward_ends + pick(20, 40);
    spans.compute.push_back(span(Phase::forward, step, begin + pick(0, 5), forward_ends));
    spans.compute.push_back(span(Phase::backward, step, forward_ends, backward_ends, 0));
    spans.compute.push_back(span(Phase::wait, step, backward_ends, begin + kStepNs - 5, 0, "", "bucket 0"));
    const int64_t opens = std::max(reduced_ns, begin - 30), reduces = forward_ends + pick(0, 20);
    SpanRecord wait = span(Phase::wait, step, opens, reduces, 0, "bucket 0", "backward");
    wait.depth = 1;
    spans.communication.push_back(wait);
    reduced_ns = begin + kStepNs + pick(-20, 10);
    spans.communication.push_back(span(Phase::reduce, step, opens, reduced_ns, 1000 + step, "bucket 0"));
    spans.copy.push_back(
        span(Phase::scatter, step, std::max<int64_t>(0, begin - 2 * kStepNs + 10), begin + pick(0, 9), 64));
    if (step % 7 == 0) spans.host.push_back(span(Phase::data, step, begin + 95, begin + 99));
  }
  spans.compute.push_back(span(Phase::step, count - 1, count * kStepNs, count * kStepNs));
  return spans;
}

std::vector<SpanRecord> until(std::vector<SpanRecord>& from, int64_t time_ns) {
  const auto closed =
      std::stable_partition(from.begin(), from.end(), [&](const SpanRecord& s) { return s.end_ns <= time_ns; });
  std::vector<SpanRecord> taken(from.begin(), closed);
  from.erase(from.begin(), closed);
  return taken;
}

void expect_same(const StepRecorder& recorder, const DeviceSpans& all, StepRange range) {
  const CommunicationGroup group;
  const PhaseTable phases = make_phase_table(all, range);
  const CommunicationTable communication = make_communication_table(all, group, range);
  EXPECT_EQ(recorder.phases().steps, phases.steps);
  EXPECT_NEAR(recorder.phases().wall_seconds, phases.wall_seconds, 1e-12);
  ASSERT_EQ(recorder.phases().rows.size(), phases.rows.size());
  for (size_t i = 0; i < phases.rows.size(); ++i) {
    const PhaseRow &found = recorder.phases().rows[i], &wanted = phases.rows[i];
    const std::string name = phase_name(wanted.phase);
    EXPECT_EQ(found.phase, wanted.phase);
    EXPECT_NEAR(found.seconds, wanted.seconds, 1e-12) << name;
    EXPECT_NEAR(found.hidden_seconds, wanted.hidden_seconds, 1e-12) << name;
    EXPECT_EQ(found.bytes, wanted.bytes) << name;
    EXPECT_EQ(found.calls, wanted.calls) << name;
  }
  ASSERT_EQ(recorder.communication().rows.size(), communication.rows.size());
  for (size_t i = 0; i < communication.rows.size(); ++i) {
    const CommunicationRow &found = recorder.communication().rows[i], &wanted = communication.rows[i];
    EXPECT_EQ(found.calls, wanted.calls);
    EXPECT_EQ(found.moved_bytes, wanted.moved_bytes);
    EXPECT_NEAR(found.hidden_seconds, wanted.hidden_seconds, 1e-12);
    EXPECT_NEAR(found.exposed_seconds, wanted.exposed_seconds, 1e-12);
  }
}

TEST(StepRecorder, PolledSpansGiveTheTablesOfAllSpansAtOnce) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const DeviceSpans all = random_steps(60, seed);
    DeviceSpans rest = all;
    StepRecorder recorder(0, {});
    for (int64_t now = 0; now < 61 * kStepNs; now += 37 * static_cast<int64_t>(seed + 1)) {
      recorder.add(
          {0, until(rest.compute, now), until(rest.copy, now), until(rest.communication, now), until(rest.host, now)},
          3);
    }
    recorder.add(rest, 3);
    recorder.finish(3);
    expect_same(recorder, all, {3, 1000});
  }
}

TEST(StepRecorder, HoldsTheSpansOfAFewStepsInRunsOfAnyLength) {
  size_t most = 0;
  DeviceSpans rest = random_steps(5000, 1);
  for (std::vector<SpanRecord>* stream : {&rest.compute, &rest.copy, &rest.communication, &rest.host}) {
    std::stable_sort(stream->begin(), stream->end(),
                     [](const SpanRecord& a, const SpanRecord& b) { return a.end_ns < b.end_ns; });
  }
  StepRecorder recorder(0, {}, StepRange{1, 2});
  DeviceSpans next;
  size_t at = 0;
  for (int64_t now = 0; now <= 5000 * kStepNs; now += 4 * kStepNs, ++at) {
    const auto take = [&](std::vector<SpanRecord>& from) {
      const auto end = std::find_if(from.begin(), from.end(), [&](const SpanRecord& s) { return s.end_ns > now; });
      std::vector<SpanRecord> taken(from.begin(), end);
      from.erase(from.begin(), end);
      return taken;
    };
    recorder.add({0, take(rest.compute), take(rest.copy), take(rest.communication), take(rest.host)}, 0);
    most = std::max(most, recorder.pending_spans());
  }
  recorder.finish(0);
  EXPECT_EQ(recorder.phases().steps, 5000);
  EXPECT_LT(most, 15U * 8U) << "spans of 15 steps";
  EXPECT_EQ(recorder.pending_spans(), 0U);
  EXPECT_EQ(recorder.kept().communication.size(), 4U) << "those of steps 1 and 2";
}

TEST(StepRecorder, TablesDoNotContainDiscardedSteps) {
  StepRecorder recorder(0, {});
  recorder.add(random_steps(3, 1), 0);
  recorder.discard();
  recorder.finish(0);
  EXPECT_EQ(recorder.phases().steps, 0);
}

TEST(StepView, OutlivesTheOwnersOfItsNames) {
  std::string bucket = "bucket 0", peer = "cpu:1 in all_reduce";
  DeviceSpans spans;
  spans.compute = {span(Phase::step, 0, 0, 0), span(Phase::step, 1, kStepNs, kStepNs)};
  SpanRecord wait = span(Phase::wait, 0, 10, 20, 0, "", peer.c_str());
  wait.depth = 1;
  spans.communication = {wait, span(Phase::reduce, 0, 10, 40, 1000, bucket.c_str())};
  const std::optional<StepView> view = view_step(spans, 0);
  ASSERT_TRUE(view && view->communication.size() == 2);
  bucket.assign("freed");
  peer.assign("freed");
  EXPECT_STREQ(view->communication[0].info.layer, "bucket 0");
  EXPECT_STREQ(view->communication[1].info.cause, "cpu:1 in all_reduce");
}

}  // namespace
}  // namespace vitrine::step_recorder_test
