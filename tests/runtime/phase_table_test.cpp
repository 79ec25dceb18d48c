// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/phase_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <random>

#include <gtest/gtest.h>

namespace vitrine::phase_table_test {
namespace {

SpanRecord span(Phase phase, int64_t begin_ns, int64_t end_ns, int depth = 0, int64_t bytes = 0,
                const char* cause = "") {
  return {.info = {phase, "", "", cause, 0}, .begin_ns = begin_ns, .end_ns = end_ns, .bytes = bytes, .depth = depth};
}

SpanRecord mark(int64_t step, int64_t time_ns) {
  SpanRecord record = span(Phase::step, time_ns, time_ns);
  record.info.step = step;
  return record;
}

/// The row of a phase in nanoseconds; all zero if there is none.
PhaseRow row_of(const PhaseTable& table, Phase phase) {
  const auto row = std::ranges::find_if(table.rows, [&](const PhaseRow& r) { return r.phase == phase; });
  PhaseRow result = row == table.rows.end() ? PhaseRow{} : *row;
  result.seconds = std::round(result.seconds * 1e9);
  result.hidden_seconds = std::round(result.hidden_seconds * 1e9);
  return result;
}

TEST(PhaseTable, ComputeTakesPrecedenceOverCommunicationCopiesAndWaits) {
  DeviceSpans spans{
      .ordinal = 3,
      .compute = {mark(0, 0), span(Phase::forward, 0, 40), span(Phase::wait, 40, 80, 0, 0, "bucket 1"),
                  span(Phase::optimizer, 90, 95), mark(1, 100)},
      .copy = {span(Phase::stage, 50, 75)},
      .communication = {span(Phase::reduce, 30, 60, 0, 512), span(Phase::wait, 60, 70, 0, 0, "cpu:1 in all_reduce")},
      .host = {span(Phase::data, 70, 98, 0, 4096)}};
  const PhaseTable table = make_phase_table(spans);
  EXPECT_EQ(table.ordinal, 3);
  EXPECT_EQ(table.steps, 1);
  EXPECT_EQ(row_of(table, Phase::forward).seconds, 40);
  EXPECT_EQ(row_of(table, Phase::reduce).seconds, 20);  // 40 to 60
  EXPECT_EQ(row_of(table, Phase::reduce).hidden_seconds, 10);
  EXPECT_EQ(row_of(table, Phase::reduce).bytes, 512);
  EXPECT_EQ(row_of(table, Phase::stage).seconds, 15);  // 60 to 75
  EXPECT_EQ(row_of(table, Phase::stage).hidden_seconds, 10);
  EXPECT_EQ(row_of(table, Phase::optimizer).seconds, 5);
  EXPECT_EQ(row_of(table, Phase::data).seconds, 13);         // 80 to 90, 95 to 98
  EXPECT_EQ(row_of(table, Phase::data).hidden_seconds, 15);  // 70 to 80, 90 to 95
  EXPECT_EQ(row_of(table, Phase::data).bytes, 0) << "the host's";
  EXPECT_EQ(row_of(table, Phase::wait).seconds, 7);  // 75 to 80 and 98 to 100
  EXPECT_NEAR(table.named_share, 1.0, 1e-12);
  ASSERT_EQ(table.waits.size(), 2u);
  EXPECT_EQ(table.waits[0].cause, "bucket 1");
  EXPECT_NEAR(table.waits[0].seconds, 5e-9, 1e-15);
  EXPECT_EQ(table.waits[1].cause, "host");
  EXPECT_NEAR(table.waits[1].share, 0.02, 1e-12);
}

TEST(PhaseTable, TheInnermostSpanGetsTheTimeAndNestedPhasesKeepTheirBytes) {
  DeviceSpans spans;
  // In the order of streams: inner spans are closed first. The forward span's bytes include those of nested spans.
  spans.compute = {mark(0, 0),
                   span(Phase::forward, 10, 20, 1, 100),
                   span(Phase::wait, 35, 45, 2, 0, "cpu:1 in gather"),
                   span(Phase::gather, 30, 50, 1, 300),
                   span(Phase::forward, 0, 60, 0, 450),
                   mark(1, 60)};
  const PhaseTable table = make_phase_table(spans);
  EXPECT_EQ(row_of(table, Phase::forward).seconds, 40);
  EXPECT_EQ(row_of(table, Phase::forward).calls, 1);
  EXPECT_EQ(row_of(table, Phase::forward).bytes, 150);
  EXPECT_EQ(row_of(table, Phase::gather).seconds, 10);
  EXPECT_EQ(row_of(table, Phase::gather).calls, 1);
  EXPECT_EQ(row_of(table, Phase::gather).bytes, 300);
  EXPECT_EQ(row_of(table, Phase::wait).seconds, 10);
  EXPECT_EQ(table.waits.at(0).cause, "cpu:1 in gather");
}

TEST(PhaseTable, IdleComputeHasTheCauseOfTheCommunicationStream) {
  DeviceSpans spans;
  spans.compute = {mark(0, 0), mark(1, 10)};
  spans.communication = {span(Phase::wait, 0, 6, 0, 0, "cpu:1 in all_reduce")};
  const PhaseTable table = make_phase_table(spans);
  ASSERT_EQ(table.waits.size(), 2u);
  EXPECT_EQ(table.waits[0].cause, "cpu:1 in all_reduce");
  EXPECT_NEAR(table.waits[0].share, 0.6, 1e-12);
}

TEST(PhaseTable, ACollectiveBelongsToTheStepThatIssuedIt) {
  DeviceSpans spans;
  for (int64_t step = 0; step <= 3; ++step) spans.compute.push_back(mark(step, 100 * step));
  for (int64_t step = 0; step < 3; ++step) {
    SpanRecord reduce = span(Phase::reduce, 100 * step - 5, 100 * step + 50, 0, 1 << step);  // opened before its step
    reduce.info.step = step;
    spans.communication.push_back(reduce);
  }
  const PhaseTable table = make_phase_table(spans, {.first_step = 1});
  EXPECT_EQ(row_of(table, Phase::reduce).calls, 2);
  EXPECT_EQ(row_of(table, Phase::reduce).bytes, 2 + 4);
}

TEST(PhaseTable, RangeSelectsSteps) {
  DeviceSpans spans;
  for (int64_t step = 0; step <= 4; ++step) {
    spans.compute.push_back(mark(step, 100 * step));
    if (step < 4)
      spans.compute.push_back(span(Phase::backward, 100 * step + 10, 100 * step + 10 + 5 * (step + 1), 0, step + 1));
  }
  const PhaseTable all = make_phase_table(spans);
  EXPECT_EQ(all.steps, 4);
  EXPECT_EQ(row_of(all, Phase::backward).seconds, 50);
  const PhaseTable later = make_phase_table(spans, {.first_step = 1});
  EXPECT_EQ(later.steps, 3);
  EXPECT_NEAR(later.wall_seconds, 300e-9, 1e-15);
  EXPECT_EQ(row_of(later, Phase::backward).seconds, 45);
  EXPECT_EQ(row_of(later, Phase::backward).bytes, 9);
  EXPECT_EQ(row_of(later, Phase::backward).calls, 3);
  const PhaseTable one = make_phase_table(spans, {.first_step = 2, .last_step = 2});
  EXPECT_EQ(row_of(one, Phase::backward).seconds, 15);
  const PhaseTable none = make_phase_table(spans, {.first_step = 9});
  EXPECT_EQ(none.steps, 0);
  EXPECT_TRUE(none.rows.empty());
}

/// Spans nested at random in [begin, end).
void random_spans(std::mt19937& random, int64_t begin, int64_t end, int depth, std::vector<SpanRecord>& out) {
  while (begin < end) {
    begin += static_cast<int64_t>(random() % 40);
    const int64_t stop = std::min(end, begin + static_cast<int64_t>(random() % 120));
    if (begin >= stop) continue;
    if (depth < 3 && random() % 2 == 0) random_spans(random, begin, stop, depth + 1, out);
    const auto phase = static_cast<Phase>(random() % static_cast<unsigned>(kPhaseCount - 1));
    out.push_back(span(phase, begin, stop, depth, 8, phase == Phase::wait ? "peer" : ""));
    begin = stop;
  }
}

/// The innermost span of a stream at one moment: the deepest one that covers it.
const SpanRecord* innermost(const std::vector<SpanRecord>& spans, int64_t time_ns) {
  const SpanRecord* found = nullptr;
  for (const SpanRecord& s : spans) {
    const bool covers = s.info.phase != Phase::step && s.begin_ns <= time_ns && time_ns < s.end_ns;
    if (covers && (found == nullptr || s.depth > found->depth)) found = &s;
  }
  return found;
}

TEST(PhaseTable, ExclusiveTimesSumToTheWallTimeAndMatchAMomentByMomentCount) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    DeviceSpans spans;
    for (auto* stream : {&spans.compute, &spans.communication, &spans.copy}) random_spans(random, 0, 1500, 0, *stream);
    random_spans(random, 0, 1500, 0, spans.host);
    std::vector<int64_t> marks = {100, 400 + static_cast<int64_t>(random() % 100), 900, 1400};
    for (size_t i = 0; i < marks.size(); ++i) spans.compute.push_back(mark(static_cast<int64_t>(i), marks[i]));
    std::array<double, kPhaseCount> expected{};
    for (int64_t t = marks[1]; t < marks[3]; ++t) {
      Phase phase = Phase::wait;
      bool waits = false, works = false;
      for (const auto* stream : {&spans.compute, &spans.communication, &spans.copy}) {
        const SpanRecord* s = innermost(*stream, t);
        if (s == nullptr || works) continue;
        waits = true;
        works = s->info.phase != Phase::wait;
        if (works) phase = s->info.phase;
      }
      const bool loading = std::ranges::any_of(spans.host, [&](const SpanRecord& s) {
        return s.info.phase == Phase::data && s.begin_ns <= t && t < s.end_ns;
      });
      if (!waits && loading) phase = Phase::data;
      expected[static_cast<size_t>(phase)] += 1;
    }
    const PhaseTable table = make_phase_table(spans, {.first_step = 1});
    double seconds = 0, waits = 0;
    for (const PhaseRow& row : table.rows) seconds += row.seconds;
    for (const WaitRow& wait : table.waits) waits += wait.seconds;
    EXPECT_NEAR(seconds, table.wall_seconds, 1e-15);
    EXPECT_NEAR(table.wall_seconds, static_cast<double>(marks[3] - marks[1]) * 1e-9, 1e-15);
    EXPECT_NEAR(table.named_share, 1.0, 1e-12);
    for (int p = 0; p < kPhaseCount; ++p) {
      EXPECT_EQ(row_of(table, static_cast<Phase>(p)).seconds, expected[static_cast<size_t>(p)])
          << phase_name(static_cast<Phase>(p)) << ", seed " << seed;
    }
    EXPECT_EQ(std::round(waits * 1e9), expected[static_cast<size_t>(Phase::wait)]);
  }
}

}  // namespace
}  // namespace vitrine::phase_table_test
