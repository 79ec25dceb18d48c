// SPDX-License-Identifier: Apache-2.0
#include <fstream>

#include <CLI/Version.hpp>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include "kernels/libraries.h"
#include "runtime/comm/communicator.h"
#include "runtime/cpu/affinity.h"
#include "runtime/cpu/instruction_set.h"
#include "runtime/gpu_features.h"
#include "runtime/gpu_info.h"
#include "runtime/memory/available.h"
#include "runtime/units.h"
#include "tools/program/commands/commands.h"
#include "tools/program/process/gpu_probes.h"
#include "tools/program/record/machine.h"
#include "tools/program/render/reports.h"
#include "tools/program/text/json_text.h"
#include "tools/program/text/tables.h"
#include "vitrine_version.h"

namespace vitrine::tools {
namespace {

/// An optional part of a build.
struct Part {
  const char* name;
  bool built_in;
  const char* use;
  const char* install;  // if it is missing
  std::string remedy() const { return fmt::format("{}, then configure and build again", install); }
};

std::vector<Part> parts() {
  return {
      {"cpu", true, "virtual devices of one process, each with its own cores and memory", ""},
      {"meta", true, "devices that compute nothing and count every byte: plans run on them", ""},
      {"cuda", VITRINE_BUILD_CUDA != 0, "GPUs", "install the CUDA toolkit (nvcc on PATH)"},
      {"cudnn", VITRINE_BUILD_CUDNN != 0, "fast convolution on GPUs; without it our own", "install cuDNN 9"},
      {"nccl", VITRINE_BUILD_NCCL != 0, "collectives between GPUs; without it direct copies between peers",
       "install NCCL"},
      {"mpi", VITRINE_BUILD_MPI != 0, "CPU devices of several processes, and processes that mpirun starts",
       "install libopenmpi-dev"},
      {"onednn", VITRINE_BUILD_ONEDNN != 0, "fast convolution and matrix products on the CPU", "install libdnnl-dev"},
      {"openmp", VITRINE_BUILD_OPENMP != 0, "several threads in a CPU device", "use a compiler with OpenMP"},
  };
}

std::vector<LibraryInfo> libraries() {
  std::vector<LibraryInfo> all = kernel_libraries(Backend::cpu);
  for (const LibraryInfo& library : kernel_libraries(Backend::cuda)) all.push_back(library);
  const std::string nccl = nccl_version();
  if (!nccl.empty()) all.push_back({"NCCL", nccl, "collectives between GPUs"});
  all.push_back(
      {"fmt", fmt::format("{}.{}.{}", FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100), "messages"});
  all.push_back(
      {"nlohmann-json",
       fmt::format("{}.{}.{}", NLOHMANN_JSON_VERSION_MAJOR, NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH),
       "JSON"});
  all.push_back({"CLI11", CLI11_VERSION, "the command line"});
  return all;
}

/// An entry of /proc/meminfo such as "MemTotal" in bytes; -1 if it cannot be read.
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

std::vector<std::string> peers_of(const GpuInfo& gpu) {
  std::vector<std::string> names;
  for (size_t i = 0; i < gpu.peers.size(); ++i) {
    if (gpu.peers[i]) names.push_back(fmt::format("cuda:{}", i));
  }
  return names;
}

Json gpus_json(const GpuReport& report) {
  Json json = {{"driver_version", report.driver_version},
               {"runtime_version", report.runtime_version},
               {"problem", report.problem}};
  json["features"] = Json::object();  // why each is off; empty: on
  for (const GpuFeatureState& feature : gpu_features()) json["features"][feature.variable] = feature.off;
  json["gpus"] = Json::array();
  for (const GpuInfo& gpu : report.gpus) {
    json["gpus"].push_back({{"device", fmt::format("cuda:{}", gpu.index)},
                            {"name", gpu.name},
                            {"total_bytes", gpu.total_bytes},
                            {"free_bytes", gpu.free_bytes},
                            {"pci_bus_id", gpu.pci_bus_id},
                            {"compute_capability", fmt::format("{}.{}", gpu.compute_major, gpu.compute_minor)},
                            {"multiprocessors", gpu.multiprocessors},
                            {"bf16", gpu.has_bf16()},
                            {"peers", peers_of(gpu)}});
  }
  return json;
}

void print_gpus(const GpuReport& report, const Style& style) {
  if (report.gpus.empty()) {
    fmt::print("\n{}\n", style.prose("No GPU: " + report.problem));
    return;
  }
  Table table(
      {{"device", Table::Align::left},
       {"name", Table::Align::left},
       {"memory"},
       {"free"},
       {"PCI bus", Table::Align::left},
       {"sm"},
       {"multiprocessors"},
       {"reaches directly", Table::Align::left}},
      fmt::format("\nGPUs, driver for CUDA {}, built with CUDA {}", report.driver_version, report.runtime_version));
  for (const GpuInfo& gpu : report.gpus) {
    const std::vector<std::string> peers = peers_of(gpu);
    table.add_row({fmt::format("cuda:{}", gpu.index), gpu.name, format_bytes(gpu.total_bytes),
                   format_bytes(gpu.free_bytes), gpu.pci_bus_id,
                   fmt::format("{}{}", gpu.compute_major, gpu.compute_minor), fmt::format("{}", gpu.multiprocessors),
                   peers.empty() ? "no other GPU" : fmt::format("{}", fmt::join(peers, " "))});
  }
  Table features({{"feature", Table::Align::left}, {"variable", Table::Align::left}, {"", Table::Align::left}},
                 "\nUse of the GPUs");
  for (const GpuFeatureState& feature : gpu_features())
    features.add_row({feature.use, feature.variable, feature.off.empty() ? "on" : "off: " + feature.off});
  features.set_hint("VITRINE_CUDA_SAFE=1 turns off all but cuDNN, if a GPU misbehaves.");
  fmt::print("{}\n{}", table.str(style), features.str(style));
}

Json info_json(const std::vector<int>& cores) {
  Json json;
  json["version"] = VITRINE_VERSION;
  json["compiler"] = VITRINE_BUILD_COMPILER;
  json["instruction_set"] = VITRINE_BUILD_ARCH;
  json["cpu_operations"] = cpu_instruction_set();
  json["processor"] = processor_name();
  json["cores"] = cores;
  json["memory"] = {{"total_bytes", memory_bytes("MemTotal")}, {"available_bytes", available_memory().bytes}};
  const std::optional<double> quota = cpu_quota();
  json["cpu_quota_cores"] = value_or_null(quota);
  json["devices"] = Json::array();
  for (size_t i = 0; i < cores.size(); ++i) json["devices"].push_back(fmt::format("cpu:{}", i));
  const GpuReport gpus = query_gpus(true);
  for (const GpuInfo& gpu : gpus.gpus) json["devices"].push_back(fmt::format("cuda:{}", gpu.index));
  json["cuda"] = gpus_json(gpus);
  json["libraries"] = Json::object();
  for (const LibraryInfo& library : libraries()) json["libraries"][library.name] = library.version;
  json["built_in"] = Json::array();
  json["missing"] = Json::object();
  for (const Part& part : parts()) {
    if (part.built_in) {
      json["built_in"].push_back(part.name);
    } else {
      json["missing"][part.name] = part.remedy();
    }
  }
  return json;
}

void print_info(const std::vector<int>& cores) {
  const Style style = Style::of(STDOUT_FILENO);
  const int64_t total = memory_bytes("MemTotal");
  const AvailableMemory available = available_memory();
  std::string head =
      fmt::format("vitrine {}, compiled by {} for {}\n", VITRINE_VERSION, VITRINE_BUILD_COMPILER, VITRINE_BUILD_ARCH);
  head += fmt::format("{}\n{} cores for this process: {}\n", processor_name(), cores.size(), fmt::join(cores, ","));
  if (const std::optional<double> quota = cpu_quota())
    head += fmt::format("a control group limits it to the time of {:.3g} cores\n", *quota);
  head += fmt::format("loops of CPU operations use {}\n", cpu_instruction_set());
  if (total >= 0)
    head += fmt::format("{} of memory, {} available ({})\n", format_bytes(total), format_bytes(available.bytes),
                        available.source);
  fmt::print("{}", style.prose(head));

  Table built({{"part", Table::Align::left}, {"", Table::Align::left}, {"for", Table::Align::left}}, "\nBuilt in");
  Table missing({{"part", Table::Align::left}, {"for", Table::Align::left}, {"why", Table::Align::left}}, "\nMissing");
  for (const Part& part : parts()) {
    if (part.built_in) {
      built.add_row({part.name, "", part.use});
    } else {
      missing.add_row({part.name, part.use, part.remedy()});
    }
  }
  built.add_rule();
  for (const LibraryInfo& library : libraries()) built.add_row({library.name, library.version, library.use});
  built.set_hint(
      fmt::format("CPU devices are virtual: name as many as you like; up to cpu:0-{} each has a core of its own.",
                  cores.size() - 1));
  fmt::print("{}{}", built.str(style), missing.is_empty() ? std::string() : missing.str(style));
  print_gpus(query_gpus(true), style);
}

}  // namespace

int run_info(const Options& options) {
  probe_gpus(options);
  const std::vector<int> cores = available_cores();
  if (options.json) {
    print_json(info_json(cores));
  } else {
    print_info(cores);
  }
  return kExitOk;
}

}  // namespace vitrine::tools
