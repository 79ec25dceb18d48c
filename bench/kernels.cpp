// SPDX-License-Identifier: Apache-2.0
// Benchmarks of single kernels: bench_kernels [--device=cpu|cuda] [Google Benchmark's options].
#include "bench/device_choice.h"
#include "bench/kernel_bench.h"

int main(int argc, char** argv) {
  using namespace vitrine;
  const Backend backend = bench::take_device_choice(argc, argv);
  for (const int threads : backend == Backend::cpu ? std::vector<int>{1, 4} : std::vector<int>{0}) {
    bench::add_heavy_kernels({backend, threads});
    bench::add_light_kernels({backend, threads});
  }
  return bench::run_benchmarks(argc, argv);
}
