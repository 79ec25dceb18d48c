// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <new>
#include <thread>

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nn/weights_file.h"
#include "runtime/error.h"
#include "runtime/trace/span.h"
#include "runtime/units.h"
#include "tools/program/checkpoint/checkpoints.h"
#include "tools/program/text/output_file.h"

namespace vitrine::tools {

namespace {

/// What is saved. It is copied from the devices before anything is written.
struct Weights {
  std::string path;
  std::map<std::string, std::string> metadata;
  const FlatLayout& layout;
  const BufferLayout& buffer_layout;
  std::vector<float> values;
  BufferValues buffers;

  void write(const WriteProgress& progress = {}) const {
    with_prefix<DataError>("--save ",
                           [&] { save_parameters(path, layout, values, buffer_layout, buffers, metadata, progress); });
  }
};

Weights copy_weights(const Options& options, const Job& job, Engine& engine) {
  Parameters& parameters = engine.parameters();
  return {options.save,        weights_metadata(job), parameters.layout(), parameters.buffer_layout(),
          parameters.values(), parameters.buffers()};
}

/// What the child process that saves reports to its parent.
struct Report {
  std::atomic<int64_t> bytes{0};
  std::atomic<bool> complete{false};
  std::array<char, 2048> error{};
};
static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<bool>::is_always_lock_free,
              "two processes share it");

/// A child process that writes the weights. It is in no process group that a launcher kills, and holds nothing but its
/// copy of the memory: it finishes the file even if this process is killed.
class SavingProcess {
 public:
  /// last_words: what the child prints when the file is complete.
  SavingProcess(const Weights& weights, const std::string& last_words) {
    void* const shared = mmap(nullptr, sizeof(Report), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
      throw DataError(fmt::format("--save {}: no memory to share with the process that saves ({})", weights.path,
                                  std::strerror(errno)));
    report_ = new (shared) Report;
    std::fflush(nullptr);
    pid_ = fork();
    if (pid_ == 0) run_child(weights, last_words);
    if (pid_ > 0) return;
    // There is no memory for a second process: this one saves.
    weights.write([this](int64_t bytes) { report_->bytes = bytes; });
    report_->complete = done_ = true;
    fmt::print(stderr, "{}", last_words);
  }
  ~SavingProcess() {
    if (!done_) wait();
    munmap(report_, sizeof(Report));
  }
  SavingProcess(const SavingProcess&) = delete;
  SavingProcess& operator=(const SavingProcess&) = delete;

  int64_t bytes() const { return report_->bytes; }
  void wait() { check(0); }
  /// Whether the child has exited.
  bool poll() { return check(WNOHANG); }
  /// throws DataError with the child's reason unless the file is complete.
  void throw_if_failed() const {
    if (report_->complete) return;
    throw DataError(report_->error[0] != '\0' ? std::string(report_->error.data())
                    : WIFSIGNALED(status_)
                        ? fmt::format("--save: the process that saves was ended by signal {}", WTERMSIG(status_))
                        : "--save: the process that saves ended without a result");
  }

 private:
  [[noreturn]] void run_child(const Weights& weights, const std::string& last_words) {
    setsid();
    for (const int signal_number : {SIGINT, SIGTERM, SIGHUP}) std::signal(signal_number, SIG_IGN);
    close_range(STDERR_FILENO + 1, ~0U, 0);  // the other processes detect the parent's death by its closed connections
    int status = kExitFailure;
    try {
      weights.write([this](int64_t bytes) { report_->bytes = bytes; });
      report_->complete = true;
      [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, last_words.data(), last_words.size());
      status = kExitOk;
    } catch (const std::exception& error) {
      std::strncpy(report_->error.data(), error.what(), report_->error.size() - 1);
    }
    _exit(status);
  }

  bool check(int options) {
    while (!done_) {
      const pid_t ended = waitpid(pid_, &status_, options);
      if (ended == 0) return false;
      if (ended < 0 && errno == EINTR) continue;
      done_ = true;  // or nothing is known of it but its report
    }
    return true;
  }

  Report* report_ = nullptr;
  pid_t pid_ = -1;
  int status_ = 0;
  bool done_ = false;
};

// How often rank 0 reports that it is still saving: often enough for any timeout.
std::chrono::milliseconds report_interval(const Options& options) {
  return std::chrono::milliseconds(std::clamp<int64_t>(static_cast<int64_t>(options.timeout_seconds * 200), 10, 1000));
}

constexpr const char* kSavingWeights = "the weights being saved";

/// Reports on rank 0 that it is still saving, until it is done.
void report_while_saving(const Options& options, const Weights& weights, SavingProcess& saving,
                         ProcessGroup& process_group) {
  const std::chrono::milliseconds interval = report_interval(options);
  int64_t bytes = 0, progress_ns = steady_now_ns();
  bool warned = false;
  while (!saving.poll()) {
    process_group.broadcast(kSavingWeights, "saving");
    if (const int64_t now = saving.bytes(); now != bytes) {
      bytes = now;
      progress_ns = steady_now_ns();
    }
    if (!warned && static_cast<double>(steady_now_ns() - progress_ns) * 1e-9 > options.timeout_seconds) {
      fmt::print(
          stderr,
          "vitrine: warning: --save {}: nothing was written for {} s, after {}; is the disk or its network stuck?\n",
          weights.path, options.timeout_seconds, format_bytes(bytes));
      warned = true;
    }
    // In short sleeps, so that the child's exit is noticed at once.
    constexpr std::chrono::milliseconds kPiece{10};
    for (auto rest = interval; rest > kPiece && !saving.poll(); rest -= kPiece) std::this_thread::sleep_for(kPiece);
  }
  process_group.broadcast(kSavingWeights, "saved");
}

/// Rank 0's part of save_weights().
void save_for_processes(const Options& options, const Weights& weights, ProcessGroup& process_group) {
  SavingProcess saving(weights, "");
  try {
    report_while_saving(options, weights, saving, process_group);
  } catch (const CommError&) {
    fmt::print(stderr,
               "vitrine: another process failed while the weights were being saved to {}; a separate process completes "
               "the file\n",
               weights.path);
    throw;
  }
  saving.throw_if_failed();
}

}  // namespace

void save_weights(const Options& options, const Job& job, Engine& engine, const Processes& processes) {
  if (options.save.empty()) return;
  ProcessGroup* const process_group = processes.process_group().get();
  if (!processes.leads()) {
    if (engine.config().scheme.shards(Sharding::optimizer)) engine.parameters().values();  // rank 0 reads the shards
    while (process_group->broadcast(kSavingWeights, {}) != "saved") {
    }
    return;
  }
  const Weights weights = copy_weights(options, job, engine);
  process_group == nullptr ? weights.write() : save_for_processes(options, weights, *process_group);
}

void rescue_weights(const Options& options, const Job& job, Engine& engine, const Processes& processes) noexcept {
  if (options.save.empty() || !processes.leads()) return;
  if (processes.process_group() != nullptr && engine.config().scheme.shards(Sharding::parameters)) {
    fmt::print(stderr,
               "vitrine: training failed, and its weights could not be saved: each process holds a shard of them; "
               "continue from the last checkpoint (--resume)\n");
    return;
  }
  const bool in_shards = processes.process_group() != nullptr && engine.config().scheme.shards(Sharding::optimizer);
  const std::string success =
      fmt::format("vitrine: training failed; the weights of the last finished step are in {}\n", options.save);
  try {
    const Weights weights = copy_weights(options, job, engine);
    if (processes.process_group() == nullptr) {
      weights.write();
      fmt::print(stderr, "{}", success);
    } else {
      SavingProcess saving(weights, success);
      saving.wait();
      saving.throw_if_failed();
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "vitrine: training failed, and its weights could not be saved: {}{}\n", error.what(),
               in_shards ? "; each process may hold updates of its shard that the others have not received; continue "
                           "from the last checkpoint (--resume)"
                         : "");
  }
}

}  // namespace vitrine::tools
