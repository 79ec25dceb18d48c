// SPDX-License-Identifier: Apache-2.0
// For ThreadSanitizer builds: runs the engine with one wait omitted (or none, with the argument "none") and the order
// checker muted, on CPU devices, or with the second argument "cuda" on imitated GPUs. The test expects
// ThreadSanitizer's report.
#include <cstdio>
#include <string_view>

#include "tests/parallel/left_out_wait.h"

int main(int argc, char** argv) {
  using namespace vitrine::test;
  constexpr const char* kMode = "ddp";
  int64_t wait = -1;
  if (argc < 2 || std::string_view(argv[1]) != "none") {
    const int64_t waits = waits_of_a_step(kMode);
    do ++wait;
    while (wait < waits && !finds_left_out_wait(vitrine::Backend::meta, kMode, wait, false));
    std::printf("leaving out wait %lld of %lld\n", static_cast<long long>(wait), static_cast<long long>(waits));
  }
  const bool on_gpus = argc > 2 && std::string_view(argv[2]) == "cuda";
  finds_left_out_wait(on_gpus ? vitrine::Backend::cuda : vitrine::Backend::cpu, kMode, wait, true);
  return 0;
}
