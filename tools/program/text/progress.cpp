// SPDX-License-Identifier: Apache-2.0
#include "tools/program/text/progress.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <unistd.h>

#include "runtime/clock.h"
#include "tools/program/text/tables.h"

namespace vitrine::tools {

namespace {

constexpr int64_t kTerminalIntervalNs = 100'000'000;
constexpr int64_t kPlainIntervalNs = 10'000'000'000;
constexpr int kBarWidth = 24, kLeastBarWidth = 8;

// The program's own stdout and stderr have none (standard_streams.h).
int descriptor_of(std::FILE* stream) {
  return stream == stderr ? STDERR_FILENO : stream == stdout ? STDOUT_FILENO : fileno(stream);
}

}  // namespace

Progress::Progress(std::string label, int64_t total_steps, Options options, std::FILE* stream)
    : label_(std::move(label)),
      total_steps_(total_steps),
      stream_(stream),
      options_(options),
      terminal_(is_terminal(descriptor_of(stream))),
      begin_ns_(steady_now_ns()) {
  last_ns_ = terminal_ ? begin_ns_ - kTerminalIntervalNs : begin_ns_;  // a bar is shown from the first step
}

Progress::~Progress() { clear(); }

void Progress::clear() {
  if (!drawn_) return;
  std::fputs("\r\033[K", stream_);
  std::fflush(stream_);
  drawn_ = false;
}

void Progress::update(int64_t steps_done, int64_t samples, double loss) {
  if (options_.quiet) return;
  const int64_t now = steady_now_ns();
  const bool logs = options_.log_every > 0 && steps_done / options_.log_every > logged_;
  const bool is_time = now - last_ns_ >= (terminal_ ? kTerminalIntervalNs : kPlainIntervalNs);
  const bool plain = logs || (!terminal_ && options_.log_every == 0 && is_time);
  const bool draws = terminal_ && (logs || is_time);
  if (!plain && !draws) return;
  last_ns_ = now;
  const double seconds = static_cast<double>(now - begin_ns_) * 1e-9;
  const double left = steps_done > 0 ? seconds / static_cast<double>(steps_done) *
                                           static_cast<double>(total_steps_ - steps_done + options_.steps_after)
                                     : 0.0;
  const std::string text = line(label_, steps_done, total_steps_, loss, static_cast<double>(samples) / seconds, left);
  if (plain) {
    if (logs) logged_ = steps_done / options_.log_every;
    clear();
    fmt::print(stream_, "{}\n", text);
  }
  if (draws) {
    fmt::print(stream_, "\r\033[K{}",
               with_bar(text, steps_done, total_steps_, Style::of(descriptor_of(stream_)).width - 1));
    drawn_ = true;
  }
  std::fflush(stream_);
}

std::string Progress::line(const std::string& label, int64_t steps_done, int64_t total_steps, double loss,
                           double samples_per_second, double seconds_left) {
  std::string text = fmt::format("{}  step {}/{}", label, steps_done, total_steps);
  if (!std::isnan(loss)) text += fmt::format("  loss {:.4f}", loss);
  text += fmt::format("  {} samples/s", format_rate(samples_per_second));
  if (steps_done > 0) text += fmt::format("  {} left", format_duration(seconds_left));
  return text;
}

std::string Progress::with_bar(const std::string& text, int64_t steps_done, int64_t total_steps, int width) {
  // A wrapped line cannot be overwritten.
  const int room = width - static_cast<int>(text.size()) - 3;
  if (room < kLeastBarWidth) return text.substr(0, static_cast<size_t>(width));
  return bar(steps_done, total_steps, std::min(room, kBarWidth)) + " " + text;
}

std::string Progress::bar(int64_t steps_done, int64_t total_steps, int width) {
  const auto filled = total_steps > 0 ? std::clamp<int64_t>(steps_done * width / total_steps, 0, width) : 0;
  return fmt::format("[{}{}]", std::string(static_cast<size_t>(filled), '#'),
                     std::string(static_cast<size_t>(width - filled), '.'));
}

}  // namespace vitrine::tools
