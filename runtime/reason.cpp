// SPDX-License-Identifier: Apache-2.0
#include "runtime/reason.h"

#include <algorithm>
#include <iterator>

#include "runtime/error.h"

namespace vitrine {

namespace {

std::string render(const Reason::Part& part, const char* (*name)(Setting)) {
  if (part.kind == Reason::Part::Kind::text) return part.text;
  std::string text = name(part.setting);
  if (!part.text.empty()) text.append(" ").append(part.text);
  return text;
}

}  // namespace

const char* setting_name(Setting setting) {
  switch (setting) {
    case Setting::batch_size:
      return "EngineConfig::batch_size";
    case Setting::accumulate:
      return "EngineConfig::accumulate";
    case Setting::recompute_segments:
      return "EngineConfig::recompute_segments";
    case Setting::workspace_bytes:
      return "EngineConfig::workspace_bytes";
    case Setting::optimizer:
      return "EngineConfig::optimizer";
    case Setting::momentum:
      return "SgdConfig::momentum";
    case Setting::scheme:
      return "EngineConfig::scheme";
    case Setting::split:
      return "Scheme::split";
    case Setting::staging:
      return "Scheme::staging";
    case Setting::loss_at:
      return "Scheme::loss_at";
    case Setting::reduce:
      return "Scheme::reduce";
    case Setting::image_size:
      return "ModelOptions::image_size";
    case Setting::memory_bytes:
      return "DeviceGroupOptions::memory_bytes";
    case Setting::tf32:
      return "DeviceGroupOptions::tf32";
    case Setting::rendezvous:
      return "ProcessGroupOptions::rendezvous";
    case Setting::timeout_ms:
      return "ProcessGroupOptions::timeout_ms";
    case Setting::rank:
      return "ProcessGroupOptions::rank";
    case Setting::size:
      return "ProcessGroupOptions::size";
    case Setting::launch_rank:
      return "LaunchFlags::rank";
    case Setting::launch_world_size:
      return "LaunchFlags::world_size";
    case Setting::launch_local_rank:
      return "LaunchFlags::local_rank";
  }
  VITRINE_ASSERT(false, "not a setting");
  return "";
}

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
