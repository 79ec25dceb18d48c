// SPDX-License-Identifier: Apache-2.0
#include "tests/ptx/findings.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include <cxxabi.h>
#include <unistd.h>

namespace vitrine::ptx {

namespace {

struct Finding {
  std::string text;  // without the values of one case
  int64_t count = 0;
};
struct Log {
  std::mutex mutex;
  std::map<std::pair<const Instruction*, std::string>, Finding> findings;  // by their kind
};
Log& all() {
  static auto* const log = new Log;  // until the process ends
  return *log;
}

std::string demangled(const std::string& name) {
  char* const text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, nullptr);
  std::string result = text == nullptr ? name : text;
  std::free(text);
  return result;
}

/// K: a kernel, with a digit for each instruction, 1 if it ran; none if it was never launched. F: a finding.
void write_log() {
  const std::string path = std::string(settings().log) + "/" + std::to_string(getpid()) + ".log";
  FILE* const f = std::fopen(path.c_str(), "w");
  if (f == nullptr) fatal("%s cannot be written", path.c_str());
  for_each_kernel([&](const Kernel& k) {
    std::fprintf(f, "K\t%s\t%ld\t%ld\t%ld\t", demangled(k.name).c_str(), k.launches.load(), k.lane_instructions.load(),
                 k.ns.load());
    for (const auto& ran : k.covered) std::fputc(ran.load() ? '1' : '0', f);
    std::fputc('\n', f);
  });
  const std::lock_guard lock(all().mutex);
  for (const auto& [place, finding] : all().findings)
    std::fprintf(f, "F\t%ld\t%s\n", finding.count, finding.text.c_str());
  std::fclose(f);
}

/// The lines in PTX and, by the .loc before it, in the source.
std::string place_of(const std::string& text, size_t position) {
  const auto source = [&](size_t at, const char* format) {
    int file = 0, line = 0;
    if (at == std::string::npos || std::sscanf(text.c_str() + at, format, &file, &line) != 2) return std::string("?");
    const size_t name = text.find('"', text.find(".file\t" + std::to_string(file) + " ")) + 1;
    return text.substr(name, text.find('"', name) - name) + ":" + std::to_string(line);
  };
  const size_t loc = text.rfind(".loc", position), inlined = text.find("inlined_at", loc);
  const auto line = 1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(position), '\n');
  return "ptx line " + std::to_string(line) + ", " + source(loc, ".loc %d %d") +
         (inlined < text.find('\n', loc) ? " inlined at " + source(inlined, "inlined_at %d %d") : "");
}

uint64_t number(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

}  // namespace

void fatal(const char* format, ...) {
  va_list list;
  va_start(list, format);
  std::fputs("ptx: ", stderr);
  std::vfprintf(stderr, format, list);
  std::fputc('\n', stderr);
  std::abort();
}

const Settings& settings() {
  static const Settings made = [] {
    const Settings s{std::getenv("VITRINE_PTX_LOG"), number("VITRINE_PTX_ORDER"),
                     number("VITRINE_PTX_APPROXIMATE") != 0, number("VITRINE_PTX_GLOBAL_RACES") != 0};
    if (s.log != nullptr) std::atexit(write_log);
    return s;
  }();
  return made;
}

void report(Context& c, const Instruction& i, int lane, int code, const char* format, ...) {
  char text[400];
  va_list list;
  va_start(list, format);
  std::vsnprintf(text, sizeof text, format, list);
  va_end(list);
  if (c.error == 0) c.error = code;
  const std::string whole(text), kind = whole.substr(0, whole.find(':'));
  const std::lock_guard lock(all().mutex);
  Finding& finding = all().findings[{&i, kind}];
  if (finding.count++ > 0) return;
  const std::string kernel = demangled(c.kernel->name), place = place_of(c.kernel->module->text, i.position);
  finding.text = kind + " in " + kernel + ", " + place;
  const uint32_t thread = c.warp->index * 32 + static_cast<uint32_t>(lane);
  const uint32_t *const grid = c.launch->grid, *const block = c.launch->block;
  std::fprintf(stderr, "ptx: %s: %s, block (%u, %u, %u) of (%u, %u, %u), thread (%u, %u, %u) of (%u, %u, %u), %s\n",
               text, kernel.c_str(), c.ctaid[0], c.ctaid[1], c.ctaid[2], grid[0], grid[1], grid[2], thread % block[0],
               thread / block[0] % block[1], thread / block[0] / block[1], block[0], block[1], block[2], place.c_str());
}

}  // namespace vitrine::ptx
