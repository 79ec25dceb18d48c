// SPDX-License-Identifier: Apache-2.0
#include "tools/program/process/interrupt.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "tools/program/flags/options.h"

namespace vitrine::tools {

namespace {

// A signal handler can reach nothing but a global.
std::atomic<int> signals_received{0};
std::atomic<int> first_signal{0};
std::atomic<int> early_interrupt{-1};  // the event of report_early_interrupt()
std::atomic<bool> quiet{false}, asked_before{false};
std::atomic<const char*> unit_of_work{"step"};
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

extern "C" void on_signal(int number) {
  const bool early = !asked_before.load(std::memory_order_relaxed);
  const int event = early_interrupt.load(std::memory_order_relaxed);
  const bool again = signals_received.fetch_add(1) > 0;
  // A terminal and a shell may both send SIGHUP, and SIGXCPU comes every second.
  if (again && number != SIGINT && number != SIGTERM) return;
  if (again || (early && event < 0)) _exit(number == SIGINT ? kExitInterrupted : kExitTerminated);
  first_signal.store(number, std::memory_order_relaxed);
  if (early) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(event, &one, sizeof one);
    return;
  }
  if (quiet.load(std::memory_order_relaxed)) return;
  for (const char* part : {"\nvitrine: stopping after the current ", unit_of_work.load(std::memory_order_relaxed),
                           "; interrupt again to stop immediately\n"}) {
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, part, std::strlen(part));
  }
}

}  // namespace

void install_interrupt_handler() {
  struct sigaction action {};
  action.sa_handler = on_signal;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  sigset_t received;
  sigemptyset(&received);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGXCPU}) {
    struct sigaction before {};
    sigaction(number, nullptr, &before);
    // nohup ignores the end of the terminal, and a shell's script the Ctrl-C of others for what it starts with `&`.
    const bool stays = (number == SIGINT || number == SIGHUP) && before.sa_handler == SIG_IGN;
    if (!stays) sigaction(number, &action, nullptr);
    sigaddset(&received, number);
  }
  // A parent may have left them blocked, and may not care how its children end; this program waits for its own.
  sigaddset(&received, SIGCHLD);
  std::signal(SIGCHLD, SIG_DFL);
  sigprocmask(SIG_UNBLOCK, &received, nullptr);
}

void report_early_interrupt(std::function<void(const std::string& name)> report) {
  const int event = eventfd(0, EFD_CLOEXEC);
  if (event < 0) return;  // the signal ends the program without a message
  std::thread([event, report = std::move(report)] {
    uint64_t signals = 0;
    while (read(event, &signals, sizeof signals) < 0 && errno == EINTR) {
    }
    report(fmt::format("SIG{}", sigabbrev_np(first_signal.load(std::memory_order_relaxed))));
    _exit(interrupt_status());
  }).detach();
  early_interrupt.store(event, std::memory_order_relaxed);
}

void set_interruptible(const char* work) { unit_of_work.store(work, std::memory_order_relaxed); }

void keep_interrupts_quiet() { quiet.store(true, std::memory_order_relaxed); }

bool interrupted() {
  asked_before.store(true, std::memory_order_relaxed);
  return signals_received.load(std::memory_order_relaxed) > 0;
}

bool terminated() {
  const int number = first_signal.load(std::memory_order_relaxed);
  return number != 0 && number != SIGINT;
}

int interrupt_status() { return terminated() ? kExitTerminated : kExitInterrupted; }

}  // namespace vitrine::tools
