// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include <benchmark/benchmark.h>

#include "runtime/device_id.h"
#include "runtime/gpu_features.h"
#include "runtime/gpu_info.h"

namespace vitrine::bench {

/// Removes --device=cpu or --device=cuda from the arguments; the default is cpu. Exits with status 2 for any other
/// value, and with status 1 and the reason if there is no GPU.
inline Backend take_device_choice(int& argc, char** argv) {
  Backend backend = Backend::cpu;
  const std::string flag = "--device=";
  int kept = 1;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind(flag, 0) != 0) {
      argv[kept++] = argv[i];
      continue;
    }
    const std::string value = argument.substr(flag.size());
    if (value != "cpu" && value != "cuda") {
      std::fprintf(stderr, "%s: there is no device \"%s\"; use --device=cpu or --device=cuda\n", argv[0],
                   value.c_str());
      std::exit(2);
    }
    backend = value == "cuda" ? Backend::cuda : Backend::cpu;
  }
  argc = kept;
  argv[argc] = nullptr;
  if (backend == Backend::cuda && cuda_device_count() == 0) {
    std::fprintf(stderr, "%s: no GPU: %s\n", argv[0], query_gpus(false).problem.c_str());
    std::exit(1);
  }
  fix_order_of_sums();
  return backend;
}

/// Runs the registered benchmarks, and returns the exit status.
inline int run_benchmarks(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}

}  // namespace vitrine::bench
