// SPDX-License-Identifier: Apache-2.0
// Messages between the processes of a process group.
#include "runtime/process_group/message.h"

#include <gtest/gtest.h>

#include "runtime/settings.h"
#include "tests/runtime/upper_settings.h"

namespace vitrine::process_group {
namespace {

TEST(Message, ValuesSurviveARoundTrip) {
  CollectiveRecord record;
  record.sequence = 17;
  record.signature = ~uint64_t{0};
  record.operation = "all_reduce";
  record.label = "";
  record.phase = "reduce";
  record.step = int64_t{1} << 50;
  record.bytes = int64_t{1} << 40;
  record.group = 3;
  record.end_is_reported = false;
  record.in_graph = true;
  const auto read = std::get<Progress>(decode(encode(Progress{42, 7, {CollectiveRecord(), record}})));
  EXPECT_EQ(read.device, 42);
  EXPECT_EQ(read.finished, 7U);
  ASSERT_EQ(read.begun.size(), 2U);
  const CollectiveRecord& last = read.begun.back();
  EXPECT_EQ(last.str(), record.str());
  EXPECT_EQ(last.signature, record.signature);
  EXPECT_EQ(last.group, 3);
  EXPECT_FALSE(last.end_is_reported);
  EXPECT_TRUE(last.in_graph);
  const std::string bytes("a\0\x1b", 3);
  const auto gather = std::get<Gather>(decode(encode(Gather{9, bytes, {bytes}})));
  EXPECT_EQ(gather.what, "a\\x00\\x1b") << "text for display";
  EXPECT_EQ(gather.part.bytes, bytes);
}

TEST(Message, AReasonKeepsItsSettings) {
  const Reason sent(
      {"cpu:1: layer '\x1b[2J' needs more: ", propose(test::kWorkspaceBytes, "8MiB"), "; or ", settings::kTf32});
  const Message read = decode(encode(Verdict{sent}));
  const Reason& reason = std::get<Verdict>(read).reason;
  EXPECT_EQ(reason,
            "cpu:1: layer '\\x1b[2J' needs more: EngineConfig::workspace_bytes 8MiB; or DeviceGroupOptions::tf32");
  EXPECT_EQ(reason.parts(Reason::Part::Kind::proposed), sent.parts(Reason::Part::Kind::proposed));
  EXPECT_EQ(reason.parts().size(), 4U);
}

TEST(Message, DescribesACollectiveWithAllItsFields) {
  CollectiveRecord record{
      .sequence = 17, .operation = "all_reduce", .label = "bucket 3", .phase = "reduce", .step = 5, .bytes = 1048576};
  EXPECT_EQ(record.str(), "collective 17 (all_reduce of bucket 3, 1048576 bytes, phase reduce, step 5)");
  record.label.clear();
  record.group = 2;
  EXPECT_EQ(record.str(), "collective 17 of group 2 (all_reduce, 1048576 bytes, phase reduce, step 5)");
}

}  // namespace
}  // namespace vitrine::process_group
