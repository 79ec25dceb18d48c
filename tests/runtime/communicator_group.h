// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "runtime/comm/communicator.h"
#include "tests/support/device_fixture.h"
#include "tests/support/on_threads.h"

namespace vitrine::test {

inline DeviceGroupOptions group_options(int ranks, Backend backend, TraceLevel trace) {
  DeviceGroupOptions options;
  options.devices = test_devices(ranks);
  for (int i = 0; backend != Backend::cuda && i < ranks; ++i) options.devices[static_cast<size_t>(i)] = {backend, i};
  options.memory_bytes = {int64_t{64} << 20};
  if (backend == Backend::cpu) options.threads_per_device = {1};
  options.comm_timeout_ms = 20000;
  options.check_order = true;
  options.trace = trace;
  return options;
}

/// A group of devices with its communicators, and tensors on all of them.
struct CommunicatorGroup {
  explicit CommunicatorGroup(int ranks, Backend backend = test_backend(), TraceLevel trace = TraceLevel::off)
      : devices(group_options(ranks, backend, trace)), communicators(make_communicators(devices)) {}

  int size() const { return static_cast<int>(communicators.size()); }
  ExecContext& ctx(int rank) { return devices[rank].compute(); }
  Communicator& comm(int rank) { return *communicators[static_cast<size_t>(rank)]; }

  Tensor tensor(int rank, const std::vector<float>& values) {
    const Shape shape{static_cast<int64_t>(values.size())};
    Tensor t = ctx(rank).allocate(shape, DType::f32, Category::communication, "test");
    if (!values.empty()) copy(ctx(rank), ConstView(values.data(), shape, DType::f32, DeviceId::host()), t);
    ctx(rank).stream().synchronize();
    return t;
  }
  Tensor filled(int rank, int64_t count, float value) {
    return tensor(rank, std::vector<float>(static_cast<size_t>(count), value));
  }

  std::vector<float> values(int rank, const Tensor& t) {
    std::vector<float> result(static_cast<size_t>(t.numel()));
    if (result.empty()) return result;
    copy(ctx(rank), t, View{result.data(), t.shape(), DType::f32, DeviceId::host()});
    ctx(rank).stream().synchronize();
    return result;
  }

  DeviceGroup devices;
  std::vector<std::unique_ptr<Communicator>> communicators;
};

/// Issues every rank's calls; with threads (always on GPUs), from one thread per rank.
inline void for_each_rank(CommunicatorGroup& group, const std::function<void(int)>& issue, bool threads = false) {
  if (!threads && group.ctx(0).backend() != Backend::cuda) {
    for (int rank = 0; rank < group.size(); ++rank) issue(rank);
    return;
  }
  on_threads(group.size(), issue);
}

}  // namespace vitrine::test
