// SPDX-License-Identifier: Apache-2.0
// NCCL with one rank, which every GPU can run: it shows that the library loads, joins and executes every operation.
#include <numeric>

#include "runtime/comm/capabilities.h"
#include "runtime/copy.h"
#include "runtime/error.h"
#include "tests/runtime/communicator_group.h"

namespace vitrine::test {
namespace {

class NcclOneRank : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!on_gpu()) GTEST_SKIP() << "NCCL needs a GPU; set VITRINE_TEST_DEVICES=cuda";
  }
};

std::vector<float> counting(int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  std::iota(values.begin(), values.end(), 1.0F);
  return values;
}

TEST_F(NcclOneRank, TellsNcclsVersion) {
  CommunicatorGroup group(1);
  EXPECT_EQ(group.comm(0).description().rfind("NCCL 2.", 0), 0U) << group.comm(0).description();
  EXPECT_EQ(group.comm(0).size(), 1);
}

TEST_F(NcclOneRank, EveryOperationIsACopy) {
  CommunicatorGroup group(1);
  Communicator& comm = group.comm(0);
  ExecContext& ctx = group.ctx(0);
  const std::vector<float> values = counting(1000);
  const std::vector<int64_t> counts{1000};
  const Tensor input = group.tensor(0, values);
  const std::vector<std::pair<const char*, std::function<void(View)>>> operations = {
      {"all_reduce", [&](View out) { comm.all_reduce(ctx, input, out); }},
      {"all_reduce, average", [&](View out) { comm.all_reduce(ctx, input, out, ReduceOp::average); }},
      {"reduce", [&](View out) { comm.reduce(ctx, input, out, 0); }},
      {"broadcast", [&](View out) { comm.broadcast(ctx, input, out, 0); }},
      {"reduce_scatter", [&](View out) { comm.reduce_scatter(ctx, input, out); }},
      {"all_gather", [&](View out) { comm.all_gather(ctx, input, out); }},
      {"scatter", [&](View out) { comm.scatter(ctx, input, counts, out, 0); }},
      {"gather", [&](View out) { comm.gather(ctx, input, counts, out, 0); }},
      {"all_to_all", [&](View out) { comm.all_to_all(ctx, input, out); }},
      {"send_receive", [&](View out) { comm.send_receive(ctx, input, 0, out, 0); }},
  };
  for (const auto& [name, operation] : operations) {
    Tensor output = group.filled(0, 1000, -1);
    const auto& run = operation;
    for_each_rank(group, [&](int) { run(output); });
    EXPECT_EQ(group.values(0, output), values) << name;
  }
  for_each_rank(group, [&](int) { comm.barrier(ctx); });
  group.devices.synchronize();
}

TEST_F(NcclOneRank, AbortEndsTheGroupAndAnotherCanBeMade) {
  CommunicatorGroup group(1);
  group.comm(0).abort("planted: enough");
  EXPECT_EQ(group.comm(0).failure(), "planted: enough");
  EXPECT_THROW(for_each_rank(group, [&](int) { group.comm(0).barrier(group.ctx(0)); }), CommError);
  group.communicators = make_communicators(group.devices);
  Tensor t = group.filled(0, 8, 2);
  for_each_rank(group, [&](int) { group.comm(0).all_reduce(group.ctx(0), t); });
  EXPECT_EQ(group.values(0, t), std::vector<float>(8, 2));
}

/// Collectives of the communication stream in a graph that the compute stream launches.
class NcclGraph : public NcclOneRank {
 protected:
  /// A graph that copies `from` to `to` on the communication stream, by an all_reduce, after it has set `from` to zero
  /// on the compute stream.
  struct Captured {
    std::unique_ptr<CapturedWork> work;
    std::unique_ptr<CapturedCollectives> collectives;
  };
  static DeviceGroupOptions options() { return {.devices = test_devices(1), .memory_bytes = {int64_t{64} << 20}}; }
  static Captured capture(Device& device, Communicator& comm, const Tensor& from, const Tensor& to) {
    Stream& compute = device.compute().stream();
    const std::unique_ptr<Event> ready = compute.make_event(), done = compute.make_event();
    Stream* const joined[] = {&device.communication().stream()};
    Captured captured;
    compute.begin_capture(joined);
    CollectiveCapture& collectives = *CollectiveCapture::of(&comm);
    collectives.begin_capture();
    zero(device.compute(), from);
    device.compute().record(*ready);
    {
      const PhaseScope phase(device.communication(), Phase::reduce, "bucket 0");
      device.communication().wait(*ready, "compute");
      comm.all_reduce(device.communication(), from, to);
    }
    device.communication().record(*done);
    device.compute().wait(*done, "reduce");
    captured.collectives = collectives.end_capture();
    captured.work = compute.end_capture();
    return captured;
  }
  static std::vector<float> read(Device& device, const Tensor& t) {
    std::vector<float> values(static_cast<size_t>(t.numel()));
    copy(device.compute(), t, View{values.data(), t.shape(), DType::f32, DeviceId::host()});
    device.synchronize();
    return values;
  }
};

TEST_F(NcclGraph, HasCollectivesThatEachLaunchCarriesOut) {
  DeviceGroup devices(options());
  const auto communicators = make_communicators(devices);
  Communicator& comm = *communicators[0];
  Device& device = devices[0];
  const Tensor from = device.compute().allocate({1000}, DType::f32, Category::communication, "from");
  const Tensor to = device.compute().allocate({1000}, DType::f32, Category::communication, "to");
  const std::vector<float> ones(1000, 1.0F);
  const auto fill = [&](const Tensor& t) {
    copy(device.compute(), ConstView(ones.data(), {1000}, DType::f32, DeviceId::host()), t);
  };
  fill(from);
  device.synchronize();
  comm.all_reduce(device.communication(), from, from);  // connects
  device.synchronize();
  Captured captured = capture(device, comm, from, to);
  fill(to);
  EXPECT_EQ(read(device, from), ones) << "nothing runs while it is captured";
  for (int step = 0; step < 3; ++step) {
    fill(to);
    CollectiveCapture::of(&comm)->begin_launch(*captured.collectives, step);
    device.compute().stream().launch(*captured.work, step);
    EXPECT_EQ(read(device, to), std::vector<float>(1000, 0.0F)) << step;
  }
  comm.all_reduce(device.communication(), from, to);  // issued, between launches
  device.synchronize();
  CollectiveCapture::of(&comm)->begin_launch(*captured.collectives, 3);
  device.compute().stream().launch(*captured.work, 3);
  device.synchronize();
  int64_t step = 0;
  for (const SpanRecord& span : device.communication().stream().take_spans()) {
    if (span.info.phase != Phase::reduce) continue;
    EXPECT_EQ(span.info.step, step++);
    EXPECT_STREQ(span.info.layer, "bucket 0");
  }
  EXPECT_EQ(step, 4);
  captured.work.reset();
}

TEST_F(NcclGraph, MayEndAfterTheAbortOfItsCommunicator) {
  DeviceGroup devices(options());
  auto communicators = make_communicators(devices);
  Device& device = devices[0];
  const Tensor t = device.compute().allocate({1000}, DType::f32, Category::communication, "values");
  zero(device.compute(), t);
  device.synchronize();
  communicators[0]->all_reduce(device.communication(), t, t);
  device.synchronize();
  Captured captured = capture(device, *communicators[0], t, t);
  CollectiveCapture::of(communicators[0].get())->begin_launch(*captured.collectives, 1);
  device.compute().stream().launch(*captured.work, 1);
  communicators[0]->abort("planted: enough");
  EXPECT_THROW(CollectiveCapture::of(communicators[0].get())->begin_launch(*captured.collectives, 2), CommError);
  device.synchronize();
  captured.work.reset();
  communicators.clear();
}

TEST_F(NcclGraph, IsForOneGpuInAProcess) {
  CommunicatorGroup group(1);
  EXPECT_NE(CollectiveCapture::of(&group.comm(0)), nullptr);
  if (test_devices(2)[1].index == 0) GTEST_SKIP() << "needs two GPUs";
  CommunicatorGroup two(2);
  EXPECT_EQ(CollectiveCapture::of(&two.comm(0)), nullptr);
}

}  // namespace
}  // namespace vitrine::test
