// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <fstream>

#include <CLI/Version.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "kernels/libraries.h"
#include "runtime/device.h"
#include "runtime/units.h"
#include "tools/commands.h"
#include "tools/json_report.h"
#include "tools/tables.h"
#include "vitrine_version.h"

namespace vitrine::tools {

namespace {

/// Something that a build may have or not.
struct Part {
  const char* name;
  bool built_in;
  const char* use;
  const char* remedy;  // when it is missing
};

std::vector<Part> parts() {
  return {
      {"cpu", true, "virtual devices of one process, each with its own cores and memory", ""},
      {"meta", true, "devices that compute nothing and count every byte: plans run on them", ""},
      {"cuda", false, "GPUs",
       VITRINE_BUILD_CUDA ? "streams, events and memory are built in, kernels for GPUs are not part of this version"
                          : "built without the CUDA toolkit, and kernels for GPUs are not part of this version"},
      {"mpi", false, "several processes", "training in several processes is not part of this version"},
      {"onednn", VITRINE_BUILD_ONEDNN != 0, "fast convolution and matrix products on the CPU", "install libdnnl-dev, then configure and build again"},
      {"openmp", VITRINE_BUILD_OPENMP != 0, "several threads in a CPU device", "use a compiler with OpenMP, then configure and build again"},
  };
}

std::vector<LibraryInfo> libraries() {
  std::vector<LibraryInfo> all = kernel_libraries();
  all.push_back({"fmt", fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100), "messages"});
  all.push_back(
      {"nlohmann-json", fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH), "JSON"});
  all.push_back({"CLI11", CLI11_VERSION, "the command line"});
  return all;
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) != 0) continue;
    const size_t begin = line.find_first_not_of(" \t", line.find(':') + 1);
    return begin == std::string::npos ? std::string{} : line.substr(begin);
  }
  return "unknown";
}

/// "MemTotal" and the like, in bytes; -1 where the system does not tell.
int64_t memory_bytes(const std::string& key) {
  std::ifstream file("/proc/meminfo");
  for (std::string name, unit; file >> name;) {
    int64_t kibibytes = 0;
    file >> kibibytes;
    std::getline(file, unit);
    if (name == key + ":") return kibibytes * 1024;
  }
  return -1;
}

Json info_json(const std::vector<int>& cores) {
  Json json;
  json["version"] = VITRINE_VERSION;
  json["compiler"] = VITRINE_BUILD_COMPILER;
  json["instruction_set"] = VITRINE_BUILD_ARCH;
  json["processor"] = processor_name();
  json["cores"] = cores;
  json["memory"] = {{"total_bytes", memory_bytes("MemTotal")}, {"available_bytes", memory_bytes("MemAvailable")}};
  json["devices"] = Json::array();
  for (size_t i = 0; i < cores.size(); ++i) json["devices"].push_back(fmt::format("cpu:{}", i));
  json["libraries"] = Json::object();
  for (const LibraryInfo& library : libraries()) json["libraries"][library.name] = library.version;
  json["built_in"] = Json::array();
  json["missing"] = Json::object();
  for (const Part& part : parts()) {
    if (part.built_in) {
      json["built_in"].push_back(part.name);
    } else {
      json["missing"][part.name] = part.remedy;
    }
  }
  return json;
}

void print_info(const std::vector<int>& cores) {
  const Style style = Style::of(fileno(stdout));
  const int64_t total = memory_bytes("MemTotal"), available = memory_bytes("MemAvailable");
  fmt::print("vitrine {}, compiled by {} for {}\n", VITRINE_VERSION, VITRINE_BUILD_COMPILER, VITRINE_BUILD_ARCH);
  fmt::print("{}\n{} cores for this process: {}\n", processor_name(), cores.size(), fmt::join(cores, ","));
  if (total >= 0 && available >= 0) fmt::print("{} of memory, {} available\n", format_bytes(total), format_bytes(available));

  Table built({{"part", Table::Align::left}, {"", Table::Align::left}, {"for", Table::Align::left}}, "\nBuilt in");
  Table missing({{"part", Table::Align::left}, {"for", Table::Align::left}, {"why", Table::Align::left}}, "\nMissing");
  for (const Part& part : parts()) {
    if (part.built_in) {
      built.add_row({part.name, "", part.use});
    } else {
      missing.add_row({part.name, part.use, part.remedy});
    }
  }
  built.add_rule();
  for (const LibraryInfo& library : libraries()) built.add_row({library.name, library.version, library.use});
  built.set_hint(fmt::format("CPU devices are virtual: name as many as you like; up to cpu:0-{} each has a core of its own.", cores.size() - 1));
  fmt::print("{}{}", built.str(style), missing.str(style));
}

}  // namespace

int run_info(const Options& options) {
  // A single CPU device has all cores of the process.
  DeviceGroupOptions group;
  group.devices = {DeviceId{Backend::cpu, 0}};
  const std::vector<int> cores = DeviceGroup(group)[0].cores();
  if (options.json) {
    print_json(info_json(cores));
  } else {
    print_info(cores);
  }
  return kExitOk;
}

}  // namespace vitrine::tools
