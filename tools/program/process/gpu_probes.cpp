// SPDX-License-Identifier: Apache-2.0
#include "tools/program/process/gpu_probes.h"

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/gpu_probe.h"
#include "runtime/error.h"
#include "runtime/gpu_features.h"
#include "runtime/gpu_info.h"
#include "runtime/hash.h"
#include "runtime/text.h"

namespace vitrine::tools {
namespace {

namespace fs = std::filesystem;

constexpr const char* kArgument = "--probe-gpu";
constexpr unsigned kLongestSeconds = 60;

/// In which features that passed are noted; empty if there is no place.
fs::path cache_folder() {
  if (const char* const cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache == '/')
    return fs::path(cache) / "vitrine";
  const char* const home = std::getenv("HOME");
  return home != nullptr && *home == '/' ? fs::path(home) / ".cache" / "vitrine" : fs::path();
}

/// What a probe's result depends on.
std::string key_of(const GpuReport& report, const GpuInfo& gpu) {
  struct stat program {};
  stat("/proc/self/exe", &program);
  return fmt::format("{} sm_{}{}, driver {}, runtime {}, program of {} bytes and {}", gpu.name, gpu.compute_major,
                     gpu.compute_minor, report.driver_version, report.runtime_version, program.st_size,
                     program.st_mtime);
}

/// What the child has written to stderr, at the end of which it says why it failed.
std::string last_line(const std::string& text) {
  const size_t end = text.find_last_not_of('\n');
  if (end == std::string::npos) return {};
  const size_t before = text.rfind('\n', end);
  const size_t begin = before == std::string::npos ? 0 : before + 1;
  return printable(text.substr(begin, end + 1 - begin));
}

/// Runs the probe in a new process in which only one feature is tried. Returns why it failed, or nothing.
std::string failure_of_probe(int gpu, GpuFeature feature) {
  const std::string number = std::to_string(gpu);
  std::array<char*, 4> arguments{const_cast<char*>("vitrine"), const_cast<char*>(kArgument),
                                 const_cast<char*>(number.c_str()), nullptr};
  std::string others = fmt::format("{}=off", variable_of(GpuFeature::overlapping_launches));
  std::vector<char*> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
  // The first of two entries counts.
  if (feature != GpuFeature::overlapping_launches) environment.insert(environment.begin(), others.data());
  environment.push_back(nullptr);
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return "no pipe could be made for the probe";
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  pid_t child = 0;
  const int error = posix_spawn(&child, "/proc/self/exe", &actions, nullptr, arguments.data(), environment.data());
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  std::string text;
  std::array<char, 4096> part{};
  for (ssize_t n = 0; error == 0 && (n = read(ends[0], part.data(), part.size())) > 0;)
    text.append(part.data(), static_cast<size_t>(n));
  close(ends[0]);
  if (error != 0) return fmt::format("the probe could not be started: {}", std::strerror(error));
  int status = 0;
  if (waitpid(child, &status, 0) != child) return "the probe's end could not be waited for";
  if (WIFEXITED(status) && WEXITSTATUS(status) == kExitOk) return {};
  if (!WIFSIGNALED(status)) return last_line(text);
  if (WTERMSIG(status) == SIGALRM) return fmt::format("the probe did not end within {} s", kLongestSeconds);
  return fmt::format("the probe was ended by signal {}", WTERMSIG(status));
}

/// Whether all GPUs' probes have passed before; else probes them and notes it. Returns why one failed, or nothing.
std::string failure_on_any(const GpuReport& report, GpuFeature feature) {
  std::set<std::string> known;
  for (const GpuInfo& gpu : report.gpus) {
    const std::string key = key_of(report, gpu);
    if (!known.insert(key).second) continue;
    const fs::path folder = cache_folder();
    const uint64_t hash = hash_bytes(0, key.data(), static_cast<int64_t>(key.size()));
    const fs::path note = folder / fmt::format("gpu-probe-{}-{:016x}", variable_of(feature), hash);
    if (std::error_code ignored; !folder.empty() && fs::exists(note, ignored)) continue;
    const std::string failure = failure_of_probe(gpu.index, feature);
    if (!failure.empty()) return fmt::format("the probe of cuda:{} failed: {}", gpu.index, failure);
    std::error_code ignored;
    fs::create_directories(folder, ignored);
    if (!folder.empty()) std::ofstream(note) << key << '\n';  // without a note the next run probes again
  }
  return {};
}

}  // namespace

bool uses_gpus(const Options& options) {
  using Command = Options::Command;
  if (options.command == Command::plan || options.command == Command::lab) return false;
  return options.devices.empty() || options.devices.find("cuda") != std::string::npos;
}

void probe_gpus() {
  const GpuReport report = query_gpus(false);
  if (report.gpus.empty()) return;
  const char* const graphs = variable_of(GpuFeature::graphs);
  if (const char* const value = std::getenv(graphs); value == nullptr || *value == '\0') setenv(graphs, "on", 1);
  for (const GpuFeature feature : {GpuFeature::graphs, GpuFeature::overlapping_launches}) {
    if (!why_off(feature).empty()) continue;
    const std::string failure = failure_on_any(report, feature);
    if (!failure.empty()) setenv(variable_of(feature), ("off: " + failure).c_str(), 1);
  }
}

std::optional<int> run_probe(int argc, const char* const* argv) {
  if (argc != 3 || std::string_view(argv[1]) != kArgument) return std::nullopt;
  alarm(kLongestSeconds);
  try {
    probe_gpu(std::atoi(argv[2]));
    return kExitOk;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return kExitFailure;
  }
}

}  // namespace vitrine::tools
