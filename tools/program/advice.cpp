// SPDX-License-Identifier: Apache-2.0
#include "tools/program/advice.h"

#include <utility>

#include "runtime/error.h"

namespace vitrine::tools {

namespace {

constexpr std::pair<Setting, const char*> kFlags[] = {
    {Setting::batch_size, "--batch-size"},
    {Setting::accumulate, "--accumulate"},
    {Setting::recompute_segments, "--recompute-segments"},
    {Setting::workspace_bytes, "--workspace"},
    {Setting::optimizer, "--optimizer"},
    {Setting::momentum, "--momentum"},
    {Setting::scheme, "--mode"},
    {Setting::split, "--split"},
    {Setting::staging, "--staging"},
    {Setting::loss_at, "--loss-at"},
    {Setting::reduce, "--reduce"},
    {Setting::image_size, "--image-size"},
    {Setting::memory_bytes, "--device-memory"},
    {Setting::tf32, "--tf32"},
    {Setting::rendezvous, "--rendezvous"},
    {Setting::timeout_ms, "--timeout"},
    {Setting::rank, "--rank"},
    {Setting::size, "--world-size"},
    {Setting::launch_rank, "--rank"},
    {Setting::launch_world_size, "--world-size"},
    {Setting::launch_local_rank, "--local-rank"},
};
static_assert(names_every_setting(kFlags));

}  // namespace

const char* flag_of(Setting setting) { return kFlags[static_cast<size_t>(setting)].second; }

std::string in_program_words(const Reason& reason) { return reason.str(flag_of); }

std::string in_program_words(const std::exception& error) {
  const auto* const ours = dynamic_cast<const Error*>(&error);
  return ours != nullptr ? in_program_words(ours->reason()) : error.what();
}

}  // namespace vitrine::tools
