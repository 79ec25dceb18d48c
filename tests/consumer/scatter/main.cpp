// SPDX-License-Identifier: Apache-2.0
// The runtime alone: times the scatter of a batch from one device to all, and checks what arrives.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <vector>

#include <vitrine/runtime/comm/communicator.h>
#include <vitrine/runtime/copy.h>
#include <vitrine/runtime/device.h>
#include <vitrine/runtime/host_buffer.h>
#include <vitrine/runtime/units.h>

using namespace vitrine;

namespace {

constexpr int64_t kColumns = 1024;

/// Microseconds of one scatter of rows `counts` from rank 0. The host issues for all ranks; their streams do the work.
double scatter_once(DeviceGroup& devices, std::vector<std::unique_ptr<Communicator>>& ranks, const Tensor& input, const std::vector<int64_t>& counts,
                    const std::vector<Tensor>& outputs) {
  const int64_t begin_ns = steady_now_ns();
  for (int rank = 0; rank < devices.size(); ++rank) {
    const auto r = static_cast<size_t>(rank);
    ranks[r]->scatter(devices[rank].communication(), rank == 0 ? ConstView(input) : ConstView(), counts, outputs[r], 0);
  }
  devices.synchronize();
  return static_cast<double>(steady_now_ns() - begin_ns) * 1e-3;
}

/// True if rank's output holds its rows of the input, whose row i is filled with i.
bool arrived(DeviceGroup& devices, int rank, const Tensor& output, int64_t first_row) {
  HostBuffer buffer(std::max<int64_t>(output.bytes(), 1));
  const View host = buffer.view(output.shape(), DType::f32);
  copy(devices[rank].communication(), output, host);
  devices.synchronize();
  for (int64_t i = 0; i < host.numel(); ++i) {
    if (host.as<float>()[i] != static_cast<float>(first_row + i / kColumns)) return false;
  }
  return true;
}

int run() {
  DeviceGroupOptions options;
  options.devices = parse_device_list("cpu:0-2", 0);
  options.memory_bytes = {int64_t{64} << 20};
  options.threads_per_device = {1};
  options.check_order = true;
  DeviceGroup devices(options);
  std::vector<std::unique_ptr<Communicator>> ranks = make_communicators(devices);

  const std::vector<int64_t> counts = {64, 512, 448};
  const int64_t rows = 64 + 512 + 448;
  HostBuffer buffer(rows * kColumns * 4);
  const View host = buffer.view({rows, kColumns}, DType::f32);
  for (int64_t i = 0; i < host.numel(); ++i) host.as<float>()[i] = static_cast<float>(i / kColumns);

  const Tensor input = devices[0].communication().allocate(host.shape, DType::f32, Category::staging, "batch");
  copy(devices[0].communication(), host, input);
  std::vector<Tensor> outputs;
  for (int rank = 0; rank < devices.size(); ++rank) {
    const Shape slice = {counts[static_cast<size_t>(rank)], kColumns};
    outputs.push_back(devices[rank].communication().allocate(slice, DType::f32, Category::staging, "slice"));
  }

  std::vector<double> times_us;
  for (int i = 0; i < 21; ++i) times_us.push_back(scatter_once(devices, ranks, input, counts, outputs));
  std::sort(times_us.begin(), times_us.end());
  const double median_us = times_us[times_us.size() / 2];
  std::printf("%s: scatter of %s took %s (median of %zu)\n", ranks[0]->description().c_str(), format_bytes(input.bytes()).c_str(),
              format_seconds(median_us * 1e-6).c_str(), times_us.size());

  int64_t first_row = 0;
  for (int rank = 0; rank < devices.size(); ++rank) {
    const auto r = static_cast<size_t>(rank);
    if (!arrived(devices, rank, outputs[r], first_row)) {
      std::fprintf(stderr, "time_scatter: rank %d did not get its rows\n", rank);
      return 1;
    }
    first_row += counts[r];
  }
  std::puts("every rank got its rows");
  return 0;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "time_scatter: %s\n", error.what());
    return 1;
  }
}
