// SPDX-License-Identifier: Apache-2.0
#include "tools/program/process/gpu_probes.h"

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/gpu_probe.h"
#include "kernels/libraries.h"
#include "runtime/descriptor.h"
#include "runtime/error.h"
#include "runtime/gpu_features.h"
#include "runtime/gpu_info.h"
#include "runtime/hash.h"
#include "runtime/process_group/launch.h"
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
///   gpus  "0", or several, between which copies are tried: "0,1"
std::string failure_of_probe(const std::string& gpus, GpuFeature feature) {
  std::array<char*, 4> arguments{const_cast<char*>("vitrine"), const_cast<char*>(kArgument),
                                 const_cast<char*>(gpus.c_str()), nullptr};
  std::vector<std::string> others;
  for (const GpuFeature other : {GpuFeature::cudnn, GpuFeature::graphs, GpuFeature::overlapping_launches}) {
    // Launches overlap in graphs too.
    const bool stays = other == GpuFeature::graphs && feature == GpuFeature::overlapping_launches;
    if (other != feature && !stays) others.push_back(fmt::format("{}=off", variable_of(other)));
  }
  std::vector<char*> environment;  // the first of two entries counts
  for (std::string& off : others) environment.push_back(off.data());
  for (char** entry = environ; *entry != nullptr; ++entry) environment.push_back(*entry);
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

/// failure_of_probe(), unless what depends on `key` has passed before. The processes of a machine start together: one
/// probes, and the others wait for what it notes.
std::string failure_once(const std::string& key, const std::string& gpus, GpuFeature feature, timespec begun) {
  constexpr std::string_view kFailed = "failed: ";
  constexpr size_t kLongestNote = 4096;
  const fs::path folder = cache_folder();
  std::error_code ignored;
  if (!folder.empty()) fs::create_directories(folder, ignored);
  const uint64_t hash = hash_bytes(0, key.data(), static_cast<int64_t>(key.size()));
  const fs::path path = folder / fmt::format("gpu-probe-{}-{:016x}", variable_of(feature), hash);
  const Descriptor note(folder.empty() ? -1 : open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (note) {
    flock(note.get(), LOCK_EX);  // until it is closed
    std::string text;
    struct stat state {};
    fstat(note.get(), &state);
    if (read_content(note, kLongestNote, text) && text == key + '\n') return {};
    const bool fresh = std::pair(state.st_mtim.tv_sec, state.st_mtim.tv_nsec) > std::pair(begun.tv_sec, begun.tv_nsec);
    if (text.starts_with(kFailed) && fresh) return text.substr(kFailed.size());
  }
  const std::string failure = failure_of_probe(gpus, feature);
  const std::string text = failure.empty() ? key + '\n' : std::string(kFailed) + failure;
  // Without a note the next run probes again.
  std::ignore = note && ftruncate(note.get(), 0) == 0 && pwrite(note.get(), text.data(), text.size(), 0) > 0;
  return failure;
}

/// The GPUs that the command uses. Nothing: its own errors say why.
std::vector<GpuInfo> gpus_of(const Options& options, const GpuReport& report) {
  if (options.command == Options::Command::info) return report.gpus;
  std::vector<GpuInfo> gpus;
  try {
    Options placed = options;
    const Launch launch =
        detect_launch({options.rank, options.world_size, options.local_rank, !options.rendezvous.empty()},
                      [](const char* name) { return std::getenv(name); });
    if (!placed.local_rank) placed.local_rank = launch.local_rank;
    const std::vector<DeviceId> devices = resolve_devices(placed, cuda_device_count());
    std::ranges::copy_if(report.gpus, std::back_inserter(gpus), [&](const GpuInfo& gpu) {
      return std::ranges::find(devices, DeviceId{Backend::cuda, gpu.index}) != devices.end();
    });
  } catch (const Error&) {
  }
  return gpus;
}

/// Tries the feature on each kind of these GPUs. Returns why one failed, or nothing.
std::string failure_on_any(const GpuReport& report, const std::vector<GpuInfo>& gpus, GpuFeature feature,
                           timespec begun) {
  std::string libraries;
  if (feature == GpuFeature::cudnn) {
    for (const LibraryInfo& library : kernel_libraries(Backend::cuda))
      libraries += fmt::format(", {} {}", library.name, library.version);
  }
  std::set<std::string> known;
  for (const GpuInfo& gpu : gpus) {
    const std::string key = key_of(report, gpu) + libraries;
    if (!known.insert(key).second) continue;
    const std::string failure = failure_once(key, std::to_string(gpu.index), feature, begun);
    if (!failure.empty()) return fmt::format("the probe of cuda:{} failed: {}", gpu.index, failure);
  }
  return {};
}

/// Tries copies between these GPUs. Returns why one failed, or nothing.
std::string failure_between(const GpuReport& report, const std::vector<GpuInfo>& gpus, timespec begun) {
  std::array<char, 256> host{};
  gethostname(host.data(), host.size() - 1);
  std::string indices, key = key_of(report, gpus.front()) + ", copies on " + host.data();
  for (const GpuInfo& gpu : gpus) {
    indices += fmt::format("{}{}", indices.empty() ? "" : ",", gpu.index);
    key += " " + gpu.pci_bus_id;
  }
  const std::string failure = failure_once(key, indices, GpuFeature::peer_access, begun);
  return failure.empty() ? failure : fmt::format("the probe of cuda:{} failed: {}", indices, failure);
}

}  // namespace

bool uses_gpus(const Options& options) {
  using Command = Options::Command;
  if (options.command == Command::plan || options.command == Command::lab) return false;
  return options.devices.empty() || options.devices.find("cuda") != std::string::npos;
}

void probe_gpus(const Options& options) {
  timespec begun{};
  clock_gettime(CLOCK_REALTIME, &begun);
  const GpuReport report = query_gpus(false);
  if (report.gpus.empty()) return;
  const char* const graphs = variable_of(GpuFeature::graphs);
  if (const char* const value = std::getenv(graphs); value == nullptr || *value == '\0') setenv(graphs, "on", 1);
  const std::vector<GpuInfo> gpus = gpus_of(options, report);
  const auto turn_off = [](GpuFeature feature, const std::string& failure) {
    if (!failure.empty()) setenv(variable_of(feature), ("off: " + failure).c_str(), 1);
    return !failure.empty();
  };
  for (const GpuFeature feature : {GpuFeature::cudnn, GpuFeature::graphs, GpuFeature::overlapping_launches}) {
    if (why_off(feature).empty()) turn_off(feature, failure_on_any(report, gpus, feature, begun));
  }
  if (gpus.size() < 2 || !why_off(GpuFeature::peer_access).empty()) return;
  if (turn_off(GpuFeature::peer_access, failure_between(report, gpus, begun))) setenv("NCCL_P2P_DISABLE", "1", 0);
}

std::optional<int> run_probe(int argc, const char* const* argv) {
  if (argc != 3 || std::string_view(argv[1]) != kArgument) return std::nullopt;
  alarm(kLongestSeconds);
  try {
    std::vector<int> gpus;
    for (const std::string& gpu : split_text(argv[2], ',')) gpus.push_back(std::atoi(gpu.c_str()));
    gpus.size() == 1 ? probe_gpu(gpus.front()) : probe_peers(gpus);
    return kExitOk;
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return kExitFailure;
  }
}

}  // namespace vitrine::tools
