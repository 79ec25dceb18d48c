// SPDX-License-Identifier: Apache-2.0
// The program: reads the command line, runs the subcommand, and turns errors into a sentence and an exit status.
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <malloc.h>
#include <sys/resource.h>

#include "nn/parallel/engine.h"
#include "nn/parallel/plan/plan_search.h"
#include "runtime/error.h"
#include "runtime/gpu_features.h"
#include "runtime/memory/available.h"
#include "runtime/units.h"
#include "tools/program/commands/commands.h"
#include "tools/program/flags/advice.h"
#include "tools/program/process/gpu_probes.h"
#include "tools/program/process/interrupt.h"
#include "tools/program/process/processes.h"
#include "tools/program/run/unread.h"
#include "tools/program/run/warnings.h"
#include "tools/program/text/standard_streams.h"
#include "tools/program/text/terminal.h"

namespace {

int run(const vitrine::tools::Options& options, vitrine::tools::Processes& processes) {
  using Command = vitrine::tools::Options::Command;
  if (options.command == Command::train) return run_train(options, processes);
  if (options.command == Command::eval) return run_eval(options, processes);
  if (options.command == Command::collectives) return run_collectives(options, processes);
  require_alone(processes, options.arguments.front().c_str());
  if (options.command == Command::compare) return run_compare(options);
  if (options.command == Command::sample) return run_sample(options);
  return options.command == Command::plan ? run_plan(options) : run_lab(options);
}

/// Some libraries end in a segmentation fault where they get no addresses.
void require_address_space() {
  constexpr int64_t kLeast = int64_t{128} << 20;
  const vitrine::AvailableMemory memory = vitrine::available_memory();
  if (memory.source.starts_with("RLIMIT_AS") && memory.bytes < kLeast)
    throw vitrine::OutOfMemory(
        fmt::format("{} leaves {} of address space, too little for libraries and threads; raise it", memory.source,
                    vitrine::format_bytes(memory.bytes)));
}

int run_program(const std::vector<std::string>& arguments) {
  using namespace vitrine::tools;
  const CommandLine line = parse_command_line(arguments);
  std::fputs(line.output.c_str(), stdout);
  std::fputs(line.error.c_str(), stderr);
  if (!line.options) return line.exit_code;
  install_interrupt_handler();
  Options options = *line.options;
  if (options.json) keep_stdout_for_results();
  std::optional<Processes> processes;
  const auto fail = [&](const vitrine::Reason& reason, int status) {
    const std::string text = with_short_quotes(in_program_words(reason), arguments);
    if (processes) {
      processes->fail(text, status == kExitUsage);
    } else {
      fmt::print(stderr, "{}\n", Style::of(STDERR_FILENO).prose("vitrine: " + text));
    }
    return status;
  };
  try {
    if (options.command == Options::Command::info) return run_info(options);
    if (options.command == Options::Command::verify) return run_verify(options);
    if (options.command == Options::Command::page) return run_page(options);
    if (options.command == Options::Command::lesson) return run_lesson(options, run_program);
    require_address_space();
    if (!options.nccl_defaults) vitrine::fix_order_of_sums();
    if (uses_gpus(options)) probe_gpus(options);
    processes.emplace(options);
    print_warnings(options, file_warnings(options));
    const int status = run(options, *processes);
    processes->close();
    return status;
  } catch (const vitrine::DamagedSample& error) {
    const bool skips = options.command == Options::Command::train || options.command == Options::Command::eval;
    return fail(skips ? vitrine::Reason(describe_unread(std::current_exception())) : error.reason(), kExitFailure);
  } catch (const vitrine::Error& error) {
    return fail(error.reason(), error.kind() == vitrine::ErrorKind::config ? kExitUsage : kExitFailure);
  } catch (const vitrine::SearchStopped&) {
    return fail("interrupted while searching for a configuration that fits; there is no result", interrupt_status());
  } catch (const std::system_error& error) {
    if (error.code() != std::errc::resource_unavailable_try_again) return fail(error.what(), kExitFailure);
    return fail(
        "the system refuses another thread: raise the limit on address space (ulimit -v) or on processes "
        "(ulimit -u), or lower --device-memory or --threads-per-device",
        kExitFailure);
  } catch (const std::bad_alloc&) {
    return fail("host memory is exhausted: free some, or raise the limit on address space (ulimit -v)", kExitFailure);
  } catch (const std::exception& error) {
    return fail(error.what(), kExitFailure);
  }
}

/// Under a limit on address space, threads share one heap: each of their own reserves 64 MiB of addresses.
void save_addresses() {
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) mallopt(M_ARENA_MAX, 1);
}

}  // namespace

int main(int argc, char** argv) {
  save_addresses();
  vitrine::tools::keep_standard_streams();
  if (const std::optional<int> probed = vitrine::tools::run_probe(argc, argv)) return *probed;
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  const int status = run_program(arguments);
  const std::string problem = vitrine::tools::finish_stdout();
  if (problem.empty()) return status;
  // A reader such as head has what it wants; files are complete.
  if (problem != std::strerror(EPIPE))
    fmt::print(stderr, "vitrine: the results could not be written to stdout: {}\n", problem);
  return status == vitrine::tools::kExitOk ? vitrine::tools::kExitFailure : status;
}
