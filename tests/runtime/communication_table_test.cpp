// SPDX-License-Identifier: Apache-2.0
#include "runtime/trace/communication_table.h"

#include <gtest/gtest.h>

namespace vitrine::communication_table_test {
namespace {

SpanRecord span(const SpanInfo& info, int64_t begin_ns, int64_t end_ns, int depth = 0, int64_t bytes = 0,
                int64_t buffers = 0) {
  return {
      .info = info, .begin_ns = begin_ns, .end_ns = end_ns, .bytes = bytes, .depth = depth, .buffer_bytes = buffers};
}

SpanInfo reduce(const char* layer, int64_t step) { return {Phase::reduce, layer, "", "", step}; }
SpanInfo wait(const char* cause, int64_t step = 0) { return {Phase::wait, "", "", cause, step}; }
SpanRecord mark(int64_t step, int64_t time_ns) { return span({Phase::step, "", "", "", step}, time_ns, time_ns); }

/// Two steps of 1000 ns: backward from 100 to 700, then the compute stream waits for the reduction until 900.
std::vector<SpanRecord> two_steps() {
  std::vector<SpanRecord> compute;
  for (int64_t step = 0; step < 2; ++step) {
    const int64_t t = 1000 * step;
    compute.push_back(mark(step, t));
    compute.push_back(span({Phase::backward, "", "", "", step}, t + 100, t + 700));
    compute.push_back(span(wait("reduce", step), t + 710, t + 900, 1));
    compute.push_back(span(reduce("", step), t + 700, t + 900));
  }
  compute.push_back(mark(1, 2000));
  return compute;
}

TEST(CommunicationTable, SplitsACollectiveAtTheEndOfBackwardWithoutItsWaits) {
  DeviceSpans spans;
  spans.compute = two_steps();
  // Waits for its own backward until 400, for a peer until 500; then all-reduces, overlapping backward until 700.
  spans.communication = {span(wait("backward"), 0, 400, 1), span(wait("cpu:2 in all_reduce"), 400, 500, 1),
                         span(reduce("bucket 0", 0), 0, 800, 0, 6000, 4000)};
  const CommunicationTable table = make_communication_table(spans, {});
  ASSERT_EQ(table.rows.size(), 1U);
  const CommunicationRow& row = table.rows[0];
  EXPECT_EQ(row.layer, "bucket 0");
  EXPECT_EQ(row.calls, 1);
  EXPECT_NEAR(row.hidden_seconds, 200e-9, 1e-15);
  EXPECT_NEAR(row.exposed_seconds, 100e-9, 1e-15);
  EXPECT_NEAR(row.late_hidden_seconds, 100e-9, 1e-15);
  EXPECT_EQ(row.late_exposed_seconds, 0);
  EXPECT_EQ(row.moved_bytes, 6000);
  EXPECT_EQ(row.buffer_bytes, 4000);
  EXPECT_NEAR(row.algbw(), 4000 / 300e-9, 1);
  EXPECT_NEAR(row.busbw(), 6000 / 300e-9, 1);
}

TEST(CommunicationTable, AWaitForAPeerWhileTheComputeStreamWaitsOrIsIdleIsExposed) {
  DeviceSpans spans;
  spans.compute = two_steps();
  spans.communication = {span(wait("backward"), 600, 700, 1), span(wait("cpu:1 in all_reduce"), 700, 930, 1),
                         span(reduce("bucket 1", 0), 600, 950, 0, 100, 100)};
  const CommunicationRow row = make_communication_table(spans, {}).total();
  EXPECT_NEAR(row.late_exposed_seconds, 230e-9, 1e-15);  // waiting to 900, idle to 930
  EXPECT_EQ(row.late_hidden_seconds, 0);
  EXPECT_NEAR(row.exposed_seconds, 20e-9, 1e-15);
  EXPECT_EQ(row.buffer_bytes, 100);
}

TEST(CommunicationTable, BatchStatisticsAreAllReducedUnderEveryScheme) {
  DeviceSpans spans;
  spans.compute = two_steps();
  spans.communication = {span(reduce(kBatchStatistics, 0), 0, 100, 0, 6000, 4000),
                         span(reduce("gradients", 0), 700, 800, 0, 6000, 2000)};
  const CommunicationTable table = make_communication_table(spans, {false});
  ASSERT_EQ(table.rows.size(), 2U);
  EXPECT_EQ(table.rows[0].buffer_bytes, 4000);
  EXPECT_EQ(table.rows[0].bus_factor, 1.5);
  EXPECT_EQ(table.rows[1].bus_factor, 1.0);
}

TEST(CommunicationTable, NamesReduceScattersAndAllGathers) {
  DeviceSpans spans;
  spans.compute = two_steps();
  spans.communication = {span(reduce("shards of bucket 0", 0), 0, 100, 0, 3000, 4000),
                         span(reduce("bucket 1", 0), 100, 200, 0, 6, 4),
                         span({Phase::broadcast, "parameters of bucket 0", "", "", 0}, 710, 810, 0, 1500, 2000),
                         span({Phase::broadcast, "buffers", "", "", 0}, 820, 830, 0, 6, 2)};
  const CommunicationTable table = make_communication_table(spans, {});
  ASSERT_EQ(table.rows.size(), 4U);
  EXPECT_EQ(table.rows[0].name(), "reduce-scatter of bucket 0");
  EXPECT_EQ(table.rows[1].name(), "bucket 1");
  EXPECT_EQ(table.rows[2].name(), "all-gather of bucket 0");
  EXPECT_EQ(table.rows[3].name(), "buffers");
  EXPECT_EQ(sharded_collective("buffers"), "");
  EXPECT_EQ(table.rows[0].bus_factor, 0.75);
  EXPECT_EQ(table.rows[1].bus_factor, 1.5);
  EXPECT_EQ(table.rows[2].bus_factor, 0.75);
  EXPECT_EQ(table.rows[3].bus_factor, 1.0) << "rank 0 sends them to three";
  EXPECT_NEAR(table.rows[2].exposed_seconds, 100e-9, 1e-15);
  EXPECT_NEAR(table.total().busbw(), (3000 + 6 + 1500 + 2) / 310e-9, 1);
}

TEST(CommunicationTable, OperationsAndWaitsBelongToTheirBucket) {
  DeviceSpans spans;
  spans.compute = two_steps();
  spans.communication = {span(wait("backward"), 100, 200, 1), span(wait("cpu:1 in all_reduce"), 210, 250, 2),
                         span({Phase::reduce, "bucket 0", "all_reduce", "", 0}, 210, 300, 1, 60),
                         span(reduce("bucket 0", 0), 100, 300, 0, 60)};
  const CommunicationTable table = make_communication_table(spans, {});
  ASSERT_EQ(table.rows.size(), 1U);
  EXPECT_EQ(table.rows[0].calls, 1);
  EXPECT_EQ(table.rows[0].moved_bytes, 60);
  EXPECT_NEAR(table.rows[0].hidden_seconds, 60e-9, 1e-15);
  EXPECT_NEAR(table.rows[0].late_hidden_seconds, 40e-9, 1e-15);
}

TEST(CommunicationTable, CountsTheStepThatASpanNames) {
  DeviceSpans spans;
  spans.compute = two_steps();
  // The stream is in step 1's bucket while step 0 still runs.
  spans.communication = {span(reduce("bucket 0", 0), 300, 800, 0, 1, 1), span(wait("backward", 1), 800, 1300, 1),
                         span(reduce("bucket 0", 1), 800, 1400, 0, 10, 10)};
  const CommunicationTable later = make_communication_table(spans, {}, {.first_step = 1});
  EXPECT_EQ(later.steps, 1);
  ASSERT_EQ(later.rows.size(), 1U);
  EXPECT_EQ(later.rows[0].buffer_bytes, 10);
  EXPECT_NEAR(later.rows[0].hidden_seconds, 100e-9, 1e-15);
  EXPECT_TRUE(make_communication_table(spans, {}, {.first_step = 2}).rows.empty());
}

TEST(CommunicationTable, RowsAreInTheOrderOfTheStepAndAddUp) {
  DeviceSpans spans;
  spans.compute = two_steps();
  for (int64_t step = 0; step < 2; ++step) {
    const int64_t t = 1000 * step;
    spans.communication.push_back(span(reduce("bucket 0", step), t + 200, t + 300, 0, 8, 8));
    spans.communication.push_back(span(reduce("bucket 10", step), t + 300, t + 400, 0, 16, 16));
    spans.communication.push_back(span(reduce("bucket 2", step), t + 400, t + 800, 0, 32, 32));
  }
  const CommunicationTable both = make_communication_table(spans, {});
  ASSERT_EQ(both.rows.size(), 3U);
  EXPECT_EQ(both.rows[1].layer, "bucket 10");
  EXPECT_EQ(both.total().buffer_bytes, 112);
  EXPECT_EQ(both.total().calls, 6);
  EXPECT_NEAR(both.total().exposed_seconds, 200e-9, 1e-15);
  EXPECT_EQ(both.total().bus_factor, 1.0);
  CommunicationTable sum = make_communication_table(spans, {}, {.last_step = 0});
  add_communication_table(sum, make_communication_table(spans, {}, {.first_step = 1}));
  EXPECT_EQ(sum.steps, both.steps);
  ASSERT_EQ(sum.rows.size(), 3U);
  EXPECT_EQ(sum.rows[2].buffer_bytes, both.rows[2].buffer_bytes);
  EXPECT_NEAR(sum.rows[2].hidden_seconds, both.rows[2].hidden_seconds, 1e-15);
}

TEST(CommunicationTable, ARootHasALinkForEachOther) {
  for (const int others : {3, 1}) {  // of the root, and of another
    DeviceSpans spans;
    spans.compute = two_steps();
    spans.communication = {span(reduce("gradients", 0), 700, 800, 0, others * 1000, 1000),
                           span({Phase::broadcast, "", "", "", 0}, 920, 980, 0, others * 500, 500)};
    const CommunicationTable table = make_communication_table(spans, {false});
    ASSERT_EQ(table.rows.size(), 2U);
    EXPECT_EQ(table.rows[0].buffer_bytes, 1000);
    EXPECT_EQ(table.rows[0].bus_factor, 1.0);
    EXPECT_EQ(table.rows[1].phase, Phase::broadcast);
    EXPECT_EQ(table.rows[1].buffer_bytes, 500);
    EXPECT_EQ(table.rows[1].bus_factor, 1.0);
  }
}

TEST(CommunicationTable, HalvesOfAnAllReduceCarryHalfOfIt) {
  DeviceSpans spans;
  spans.compute = two_steps();
  spans.communication = {span(reduce("bucket 0", 0), 100, 200, 0, 3000, 4000),
                         span({Phase::broadcast, "bucket 0", "", "", 0}, 300, 400, 0, 3000, 4000)};
  for (const CommunicationRow& row : make_communication_table(spans, {}).rows) EXPECT_EQ(row.bus_factor, 0.75);
}

TEST(CommunicationTable, OneRankHasNoBandwidth) {
  DeviceSpans spans;
  spans.compute = two_steps();
  spans.communication = {span(reduce("bucket 0", 0), 100, 200)};
  const CommunicationRow row = make_communication_table(spans, {}).total();
  EXPECT_EQ(row.calls, 1);
  EXPECT_EQ(row.busbw(), 0);
}

}  // namespace
}  // namespace vitrine::communication_table_test
