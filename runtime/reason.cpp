// SPDX-License-Identifier: Apache-2.0
#include "runtime/reason.h"

#include <algorithm>
#include <iterator>

namespace vitrine {

namespace {

constexpr std::pair<Setting, const char*> kNames[] = {
    {Setting::batch_size, "EngineConfig::batch_size"},
    {Setting::accumulate, "EngineConfig::accumulate"},
    {Setting::recompute_segments, "EngineConfig::recompute_segments"},
    {Setting::recompute, "EngineConfig::recompute"},
    {Setting::resident_images, "EngineConfig::resident_images"},
    {Setting::workspace_bytes, "EngineConfig::workspace_bytes"},
    {Setting::optimizer, "EngineConfig::optimizer"},
    {Setting::momentum, "SgdConfig::momentum"},
    {Setting::scheme, "EngineConfig::scheme"},
    {Setting::split, "Scheme::split"},
    {Setting::staging, "Scheme::staging"},
    {Setting::loss_at, "Scheme::loss_at"},
    {Setting::reduce, "Scheme::reduce"},
    {Setting::image_size, "ModelOptions::image_size"},
    {Setting::memory_bytes, "DeviceGroupOptions::memory_bytes"},
    {Setting::tf32, "DeviceGroupOptions::tf32"},
    {Setting::rendezvous, "ProcessGroupOptions::rendezvous"},
    {Setting::timeout_ms, "ProcessGroupOptions::timeout_ms"},
    {Setting::rank, "ProcessGroupOptions::rank"},
    {Setting::size, "ProcessGroupOptions::size"},
    {Setting::launch_rank, "LaunchFlags::rank"},
    {Setting::launch_world_size, "LaunchFlags::world_size"},
    {Setting::launch_local_rank, "LaunchFlags::local_rank"},
};
static_assert(names_every_setting(kNames));

std::string render(const Reason::Part& part, const char* (*name)(Setting)) {
  if (part.kind == Reason::Part::Kind::text) return part.text;
  std::string text = name(part.setting);
  if (!part.text.empty()) text.append(" ").append(part.text);
  return text;
}

}  // namespace

const char* setting_name(Setting setting) { return kNames[static_cast<size_t>(setting)].second; }

Reason::Reason(std::initializer_list<Part> parts) {
  for (const Part& part : parts) append(part);
}

std::string Reason::str(const char* (*name)(Setting)) const {
  std::string text;
  for (const Part& part : parts_) text += render(part, name);
  return text;
}

std::vector<Reason::Part> Reason::parts(Part::Kind kind) const {
  std::vector<Part> found;
  std::copy_if(parts_.begin(), parts_.end(), std::back_inserter(found), [kind](const Part& part) { return part.kind == kind; });
  return found;
}

Reason& Reason::operator+=(const Reason& other) {
  const std::vector<Part> added = other.parts_;  // a copy: `other` may be this object
  for (const Part& part : added) append(part);
  return *this;
}

void Reason::append(Part part) {
  if (part.kind == Part::Kind::text && part.text.empty()) return;
  text_ += render(part, setting_name);
  if (part.kind == Part::Kind::text && !parts_.empty() && parts_.back().kind == Part::Kind::text) {
    parts_.back().text += part.text;
  } else {
    parts_.push_back(std::move(part));
  }
}

Reason::Part given(Setting setting, std::string value) { return {Reason::Part::Kind::given, setting, std::move(value)}; }
Reason::Part propose(Setting setting, std::string value) { return {Reason::Part::Kind::proposed, setting, std::move(value)}; }
Reason::Part propose(Setting setting, int64_t value) { return propose(setting, std::to_string(value)); }

}  // namespace vitrine
