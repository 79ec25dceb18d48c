// SPDX-License-Identifier: Apache-2.0
// A micro-benchmark without training: times an uneven scatter and a reduce between three CPU devices for several sizes,
// and checks the results.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>
#include <vector>

#include <vitrine/runtime/comm/communicator.h>
#include <vitrine/runtime/copy.h>
#include <vitrine/runtime/device.h>
#include <vitrine/runtime/host_buffer.h>
#include <vitrine/runtime/units.h>

using namespace vitrine;

namespace {

constexpr int64_t kColumns = 256;
constexpr int kRepeats = 21;

/// Median time of `issue` and of all work that it issues.
double median_seconds(DeviceGroup& devices, const std::function<void(int rank)>& issue) {
  std::vector<double> seconds;
  for (int i = 0; i < kRepeats; ++i) {
    const int64_t begin_ns = steady_now_ns();
    for (int rank = 0; rank < devices.size(); ++rank)
      issue(rank);  // the host issues for all ranks; their streams do the work
    devices.synchronize();
    seconds.push_back(static_cast<double>(steady_now_ns() - begin_ns) * 1e-9);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

/// Whether row i of a device's tensor is filled with scale * (first_row + i).
bool rows_are(DeviceGroup& devices, int rank, const Tensor& tensor, int64_t first_row, float scale) {
  HostBuffer buffer(std::max<int64_t>(tensor.bytes(), 1));
  const View host = buffer.view(tensor.shape(), DType::f32);
  copy(devices[rank].communication(), tensor, host);
  devices.synchronize();
  for (int64_t i = 0; i < host.numel(); ++i) {
    if (host.as<float>()[i] != scale * static_cast<float>(first_row + i / kColumns)) return false;
  }
  return true;
}

/// Times both collectives on `rows` rows; false if a device has a wrong result.
bool measure(DeviceGroup& devices, std::vector<std::unique_ptr<Communicator>>& ranks, int64_t rows) {
  const std::vector<int64_t> counts = {rows / 8, rows / 2, rows - rows / 8 - rows / 2};
  HostBuffer buffer(rows * kColumns * 4);
  const View host = buffer.view({rows, kColumns}, DType::f32);
  for (int64_t i = 0; i < host.numel(); ++i) host.as<float>()[i] = static_cast<float>(i / kColumns);

  std::vector<Tensor> whole, slices;
  for (int rank = 0; rank < devices.size(); ++rank) {
    ExecContext& ctx = devices[rank].communication();
    whole.push_back(ctx.allocate(host.shape, DType::f32, Category::staging, "whole"));
    slices.push_back(
        ctx.allocate({counts[static_cast<size_t>(rank)], kColumns}, DType::f32, Category::staging, "slice"));
    copy(ctx, host, whole.back());
  }
  devices.synchronize();

  const double scatter_seconds = median_seconds(devices, [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    ranks[r]->scatter(devices[rank].communication(), rank == 0 ? ConstView(whole[0]) : ConstView(), counts, slices[r],
                      0);
  });
  int64_t first_row = 0;
  for (int rank = 0; rank < devices.size(); ++rank) {
    const auto r = static_cast<size_t>(rank);
    if (!rows_are(devices, rank, slices[r], first_row, 1.0F)) return false;
    first_row += counts[r];
  }

  const Tensor sum = devices[0].communication().allocate(host.shape, DType::f32, Category::staging, "sum");
  const double reduce_seconds = median_seconds(devices, [&](int rank) {
    const auto r = static_cast<size_t>(rank);
    ranks[r]->reduce(devices[rank].communication(), whole[r], rank == 0 ? View(sum) : View(), 0);
  });
  std::printf("%10s  scatter %10s  reduce %10s\n", format_bytes(host.bytes()).c_str(),
              format_seconds(scatter_seconds).c_str(), format_seconds(reduce_seconds).c_str());
  return rows_are(devices, 0, sum, 0, static_cast<float>(devices.size()));
}

int run() {
  DeviceGroupOptions options;
  options.devices = parse_device_list("cpu:0-2", 0);
  options.memory_bytes = {int64_t{64} << 20};
  options.threads_per_device = {1};
  DeviceGroup devices(options);
  std::vector<std::unique_ptr<Communicator>> ranks = make_communicators(devices);
  std::printf("%s, median of %d\n", ranks[0]->description().c_str(), kRepeats);
  for (const int64_t rows : {64, 1024, 8192}) {
    if (measure(devices, ranks, rows)) continue;
    std::fprintf(stderr, "scatter_reduce: a device did not get its rows\n");
    return 1;
  }
  return 0;
}

}  // namespace

int main() {
  try {
    return run();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "scatter_reduce: %s\n", error.what());
    return 1;
  }
}
