// SPDX-License-Identifier: Apache-2.0
#include "tools/program/advice.h"

#include "runtime/error.h"

namespace vitrine::tools {

const char* flag_of(Setting setting) {
  switch (setting) {  // without a default: the compiler reports a setting that has no flag
    case Setting::batch_size:
      return "--batch-size";
    case Setting::accumulate:
      return "--accumulate";
    case Setting::recompute_segments:
      return "--recompute-segments";
    case Setting::workspace_bytes:
      return "--workspace";
    case Setting::optimizer:
      return "--optimizer";
    case Setting::momentum:
      return "--momentum";
    case Setting::scheme:
      return "--mode";
    case Setting::split:
      return "--split";
    case Setting::staging:
      return "--staging";
    case Setting::loss_at:
      return "--loss-at";
    case Setting::reduce:
      return "--reduce";
    case Setting::image_size:
      return "--image-size";
    case Setting::memory_bytes:
      return "--device-memory";
    case Setting::tf32:
      return "--tf32";
    case Setting::rendezvous:
      return "--rendezvous";
    case Setting::timeout_ms:
      return "--timeout";
    case Setting::rank:
    case Setting::launch_rank:
      return "--rank";
    case Setting::size:
    case Setting::launch_world_size:
      return "--world-size";
    case Setting::launch_local_rank:
      return "--local-rank";
  }
  VITRINE_ASSERT(false, "not a setting");
  return "";
}

std::string in_program_words(const Reason& reason) { return reason.str(flag_of); }

std::string in_program_words(const std::exception& error) {
  const auto* const ours = dynamic_cast<const Error*>(&error);
  return ours != nullptr ? in_program_words(ours->reason()) : error.what();
}

}  // namespace vitrine::tools
