// SPDX-License-Identifier: Apache-2.0
#include "tools/program/process_measurements.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace vitrine::tools {

namespace {

using Json = nlohmann::json;

Json to_json(const BytesByCategory& bytes) { return std::vector<int64_t>(bytes.begin(), bytes.end()); }

BytesByCategory categories(const Json& json) {
  BytesByCategory bytes{};
  for (size_t c = 0; c < bytes.size(); ++c) bytes[c] = json[c];
  return bytes;
}

Json to_json(const DeviceFigures& f) {
  return {{"device", f.device},
          {"samples", f.samples_per_step},
          {"outside", f.outside_bytes},
          {"plan", {f.plan.peak_bytes, to_json(f.plan.peak_by_category), static_cast<int>(f.plan.peak_phase), f.plan.peak_layer}},
          {"pool", {f.pool.peak_bytes, to_json(f.pool.peak_by_category), static_cast<int>(f.pool.peak_phase), f.pool.peak_layer}},
          {"capacity", f.pool.capacity_bytes},
          {"reserved", f.pool.reserved_bytes}};
}

DeviceFigures figures(const Json& json) {
  DeviceFigures f;
  f.device = json["device"];
  f.samples_per_step = json["samples"];
  f.outside_bytes = json["outside"];
  const auto read = [](const Json& from, auto& to) {
    to.peak_bytes = from[0];
    to.peak_by_category = categories(from[1]);
    to.peak_phase = static_cast<Phase>(from[2].get<int>());
    to.peak_layer = from[3];
  };
  read(json["plan"], f.plan);
  read(json["pool"], f.pool);
  f.pool.capacity_bytes = json["capacity"];
  f.pool.reserved_bytes = json["reserved"];
  return f;
}

Json to_json(const PhaseTable& t) {
  Json json = {{"steps", t.steps}, {"wall", t.wall_seconds}, {"named", t.named_share}, {"rows", Json::array()}, {"waits", Json::array()}};
  for (const PhaseRow& r : t.rows) {
    json["rows"].push_back({static_cast<int>(r.phase), r.seconds, r.share, r.bytes, r.calls, r.hidden_seconds});
  }
  for (const WaitRow& w : t.waits) json["waits"].push_back({w.cause, w.seconds, w.share});
  return json;
}

PhaseTable table(const Json& json, int ordinal) {
  PhaseTable t;
  t.ordinal = ordinal;
  t.steps = json["steps"];
  t.wall_seconds = json["wall"];
  t.named_share = json["named"];
  for (const Json& r : json["rows"]) t.rows.push_back({static_cast<Phase>(r[0].get<int>()), ordinal, r[1], r[2], r[3], r[4], r[5]});
  for (const Json& w : json["waits"]) t.waits.push_back({w[0], w[1], w[2]});
  return t;
}

Json to_json(const CommunicationTable& t) {
  Json json = {{"steps", t.steps}, {"rows", Json::array()}};
  for (const CommunicationRow& r : t.rows) {
    json["rows"].push_back({static_cast<int>(r.phase), r.layer, r.calls, r.moved_bytes, r.buffer_bytes, r.hidden_seconds, r.exposed_seconds,
                            r.late_hidden_seconds, r.late_exposed_seconds, r.bus_factor});
  }
  return json;
}

CommunicationTable communication(const Json& json, int ordinal) {
  CommunicationTable t;
  t.ordinal = ordinal;
  t.steps = json["steps"];
  for (const Json& r : json["rows"]) t.rows.push_back({static_cast<Phase>(r[0].get<int>()), r[1], r[2], r[3], r[4], r[5], r[6], r[7], r[8], r[9]});
  return t;
}

}  // namespace

Measurements gather_measurements(const Processes& processes, Measurements mine) {
  if (processes.count() == 1) return mine;
  Json json = {{"figures", Json::array()}, {"tables", Json::array()}, {"communication", Json::array()}};
  for (DeviceFigures& f : mine.figures) {
    f.device = fmt::format("rank {} {}", processes.process_group()->rank(), f.device);
    json["figures"].push_back(to_json(f));
  }
  for (const PhaseTable& t : mine.tables) json["tables"].push_back(to_json(t));
  for (const CommunicationTable& t : mine.communication) json["communication"].push_back(to_json(t));
  const std::vector<std::string> parts = processes.process_group()->gather("what it measured", json.dump());
  if (parts.empty()) return mine;
  Measurements all;
  for (const std::string& part : parts) {
    const Json of_process = Json::parse(part);
    for (const Json& f : of_process["figures"]) all.figures.push_back(figures(f));
    for (const Json& t : of_process["tables"]) all.tables.push_back(table(t, static_cast<int>(all.tables.size())));
    for (const Json& t : of_process["communication"]) all.communication.push_back(communication(t, static_cast<int>(all.communication.size())));
  }
  return all;
}

}  // namespace vitrine::tools
