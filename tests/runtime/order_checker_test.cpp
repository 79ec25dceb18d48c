// SPDX-License-Identifier: Apache-2.0
#include <string>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "runtime/copy.h"
#include "runtime/device.h"
#include "runtime/error.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine {
namespace {

class OrderCheckerTest : public ::testing::TestWithParam<Backend> {
 protected:
  OrderCheckerTest() {
    DeviceGroupOptions options{
        .devices = {{GetParam(), 0}, {GetParam(), 1}}, .memory_bytes = {int64_t{1} << 20}, .check_order = true};
    group_ = std::make_unique<DeviceGroup>(options);
  }
  ExecContext& a() { return (*group_)[0].compute(); }
  ExecContext& b() { return (*group_)[1].compute(); }
  Tensor tensor() { return a().allocate({100}, DType::f32, Category::activations, "t"); }

  std::unique_ptr<DeviceGroup> group_;
};

TEST_P(OrderCheckerTest, FindsAReadWithoutAnEventEveryTime) {
  for (int i = 0; i < 50; ++i) {
    Tensor t = tensor(), u = tensor();
    zero(a(), t);
    EXPECT_THROW(copy(b(), t, u), OrderError) << i;
    group_->synchronize();
  }
}

TEST_P(OrderCheckerTest, FindsAWriteAfterReadWithoutAnEvent) {
  Tensor t = tensor(), u = tensor();
  zero(a(), t);
  copy(a(), t, u);
  EXPECT_THROW(zero(b(), t), OrderError);
}

TEST_P(OrderCheckerTest, FindsMemoryThatAnOperationDoesNotDeclare) {
  if (GetParam() == Backend::meta) GTEST_SKIP() << "operations do not run";
  Tensor t = tensor(), u = tensor();
  zero(a(), t);
  const auto run = [&](std::initializer_list<ConstView> reads) {
    a().dispatch({"my_op", reads, {u}}, [from = t.view(), to = u.view()] { to.as<float>()[0] = from.as<float>()[0]; });
    group_->synchronize();
  };
  EXPECT_NO_THROW(run({t}));
  EXPECT_NO_THROW(run({t.view().rows(50, 100), t.view().rows(0, 50)}));
  for (const auto& [declared, missing] : {std::pair{ConstView(), "400 bytes"}, {t.view().rows(0, 50), "200 bytes"}}) {
    expect_contains(error_of<OrderError>([&, reads = declared] { run({reads}); }),
                    fmt::format("my_op: it accesses {} that it has not declared", missing));
  }
}

TEST_P(OrderCheckerTest, AcceptsAnEventInBetween) {
  Tensor t = tensor(), u = tensor();
  const auto event = a().stream().make_event();
  zero(a(), t);
  a().record(*event);
  b().wait(*event, "a");
  EXPECT_NO_THROW(copy(b(), t, u));
}

TEST_P(OrderCheckerTest, FindsAnEventThatIsRecordedTooEarly) {
  Tensor t = tensor(), u = tensor();
  const auto event = a().stream().make_event();
  a().record(*event);
  zero(a(), t);
  b().wait(*event, "a");
  EXPECT_THROW(copy(b(), t, u), OrderError);
}

TEST_P(OrderCheckerTest, OrderIsTransitiveThroughAThirdStream) {
  Tensor t = tensor();
  const auto first = a().stream().make_event(), second = a().stream().make_event();
  ExecContext& middle = (*group_)[0].communication();
  zero(a(), t);
  a().record(*first);
  middle.wait(*first, "a");
  middle.record(*second);
  b().wait(*second, "middle");
  EXPECT_NO_THROW(zero(b(), t));
}

TEST_P(OrderCheckerTest, HostWaitsCreateOrder) {
  Tensor t = tensor();
  zero(a(), t);
  group_->synchronize();
  EXPECT_NO_THROW(zero(b(), t));
}

TEST_P(OrderCheckerTest, DisjointRowsOfOneTensorDoNotConflict) {
  Tensor t = a().allocate({10, 16}, DType::f32, Category::activations, "t");
  zero(a(), t.rows(0, 5));
  EXPECT_NO_THROW(zero(b(), t.rows(5, 10)));
  EXPECT_THROW(zero(b(), t.rows(4, 6)), OrderError);
}

TEST_P(OrderCheckerTest, ThePoolOrdersABlockThatMovesToAnotherStream) {
  ExecContext& other = (*group_)[0].copy();
  for (int i = 0; i < 20; ++i) {
    {
      Tensor t = tensor();
      zero(a(), t);
    }
    Tensor u = other.allocate({100}, DType::f32, Category::staging, "u");
    EXPECT_NO_THROW(zero(other, u));
  }
}

TEST_P(OrderCheckerTest, FindsHostAccessWithoutAWait) {
  OrderChecker& checker = *group_->checker();
  float host[100] = {};
  const View memory{host, {100}, DType::f32, DeviceId::host()};
  const auto touch = [&](bool write) {
    const MemoryAccess access{host, sizeof host, write, "the program"};
    checker.on_host_access("the program", {&access, 1});
  };
  const Tensor t = tensor();
  copy(a(), memory, t);
  EXPECT_NO_THROW(touch(false)) << "both read";
  EXPECT_THROW(touch(true), OrderError) << "the copy may not have read it yet";
  group_->synchronize();
  EXPECT_NO_THROW(touch(true));
  copy(b(), t, memory);
  expect_contains(error_of<OrderError>([&] { touch(false); }), "the program on host reads 400 bytes that copy on ");
  const auto event = b().stream().make_event();
  b().record(*event);
  event->synchronize();
  EXPECT_NO_THROW(touch(false));
}

TEST_P(OrderCheckerTest, ShowsAnObserverWhatEachOperationDeclares) {
  OrderChecker& checker = *group_->checker();
  const Tensor t = tensor(), u = tensor();
  std::string seen;
  checker.observe([&](const ScheduleEvent& event) {
    if (event.kind != ScheduleEvent::Kind::operation) return;
    seen += event.name;
    for (const MemoryAccess& access : event.accesses) {
      seen += access.address == t.view().data ? " t" : " u";
      seen += (access.write ? " written " : " read ") + std::to_string(access.bytes);
    }
    seen += "; ";
  });
  zero(a(), t);
  copy(a(), t, u);
  checker.observe(nullptr);
  zero(a(), t);
  EXPECT_EQ(seen, "zero t written 400; copy t read 400 u written 400; ");
  group_->synchronize();
}

TEST_P(OrderCheckerTest, NamesBothOperationsAndStreams) {
  Tensor t = tensor(), u = tensor();
  zero(a(), t);
  const std::string text = error_of<OrderError>([&] { copy(b(), t, u); });
  const std::string device = backend_name(GetParam());
  expect_contains(text,
                  "copy on " + device + ":1/compute reads 400 bytes that zero on " + device + ":0/compute writes");
}

INSTANTIATE_TEST_SUITE_P(Backends, OrderCheckerTest, ::testing::Values(Backend::cpu, Backend::meta),
                         [](const auto& param) { return std::string(backend_name(param.param)); });

}  // namespace
}  // namespace vitrine
