// SPDX-License-Identifier: Apache-2.0
#include "tools/program/advice.h"

#include <utility>

namespace vitrine::tools {

namespace {

constexpr std::pair<const char*, const char*> kFlags[] = {
    {"EngineConfig::workspace_bytes", "--workspace"},
    {"EngineConfig::batch_size", "--batch-size"},
    {"EngineConfig::accumulate", "--accumulate"},
    {"EngineConfig::recompute_segments", "--recompute-segments"},
    {"EngineConfig::optimizer", "--optimizer"},
    {"EngineConfig::scheme", "--mode"},
    {"Scheme::split", "--split"},
    {"Scheme::staging", "--staging"},
    {"Scheme::loss_at", "--loss-at"},
    {"Scheme::reduce", "--reduce"},
    {"SgdConfig::momentum", "--momentum"},
    {"ModelOptions::image_size", "--image-size"},
    {"DeviceGroupOptions::memory_bytes", "--device-memory"},
    {"DeviceGroupOptions::tf32", "--tf32"},
    {"ProcessGroupOptions::rendezvous", "--rendezvous"},
    {"ProcessGroupOptions::timeout_ms", "--timeout"},
    {"ProcessGroupOptions::rank", "--rank"},
    {"ProcessGroupOptions::size", "--world-size"},
    {"LaunchFlags::rank", "--rank"},
    {"LaunchFlags::world_size", "--world-size"},
    {"LaunchFlags::local_rank", "--local-rank"},
};

}  // namespace

std::string in_program_words(std::string message) {
  for (const auto& [setting, flag] : kFlags) {
    const std::string name = setting;
    for (size_t at = message.find(name); at != std::string::npos; at = message.find(name, at)) message.replace(at, name.size(), flag);
  }
  return message;
}

}  // namespace vitrine::tools
