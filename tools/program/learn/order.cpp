// SPDX-License-Identifier: Apache-2.0
// A bug of order: a missing event between two streams.
#include <array>
#include <memory>
#include <vector>

#include "kernels/elementwise.h"
#include "runtime/copy.h"
#include "runtime/error.h"
#include "runtime/host_buffer.h"
#include "tools/program/learn/experiment.h"
#include "tools/program/learn/problem.h"

namespace vitrine::tools::lab {
/// Batches that the copy stream brings to the device, and that the compute stream reads.
double measure_missing_event(size_t setting, bool planted) {
  constexpr std::array<int, 3> kBatches = {1, 2, 4};
  constexpr int64_t kElements = 1024;
  DeviceGroup devices(cpu_devices(1));
  ExecContext& copies = devices[0].copy();
  ExecContext& compute = devices[0].compute();
  HostBuffer memory(kElements * size_of(DType::f32));
  const View host = memory.view({kElements}, DType::f32);
  std::vector<Tensor> tensors;
  std::vector<std::unique_ptr<Event>> copied;
  int violations = 0;
  for (int batch = 0; batch < kBatches[setting]; ++batch) {
    const Tensor input = tensors.emplace_back(copies.allocate({kElements}, DType::f32, Category::staging, "batch"));
    const Tensor output =
        tensors.emplace_back(compute.allocate({kElements}, DType::f32, Category::activations, "output"));
    Event& event = *copied.emplace_back(copies.stream().make_event());
    copy(copies, host, input);
    copies.record(event);
    if (!planted) compute.wait(event, "copy");
    try {
      relu_forward(compute, input, output);  // the checker refuses it before it runs
    } catch (const OrderError&) {
      ++violations;
    }
  }
  devices.synchronize();
  return violations;
}

}  // namespace vitrine::tools::lab
