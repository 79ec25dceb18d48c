// SPDX-License-Identifier: Apache-2.0
#include "tests/ptx/findings.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <set>

#include <cxxabi.h>
#include <unistd.h>

namespace vitrine::ptx {

namespace {

// Used until the process ends.
struct Log {
  std::mutex mutex;
  std::map<std::string, int64_t> findings;  // by text without positions
  std::set<std::string> known;              // kernels of the program
};
Log& all() {
  static auto* const log = new Log;
  return *log;
}

/// K: a kernel that ran, with a digit 1 for each instruction that ran. N: one that did not. F: a finding.
void write_log() {
  const std::string path = std::string(settings().log) + "/" + std::to_string(getpid()) + ".log";
  FILE* const f = std::fopen(path.c_str(), "w");
  if (f == nullptr) fatal("%s cannot be written", path.c_str());
  const std::lock_guard lock(all().mutex);
  std::set<std::string> left = all().known;
  for_each_kernel([&](const Kernel& k) {
    if (k.launches == 0) return;
    left.erase(k.pretty);
    std::fprintf(f, "K\t%s\t%ld\t%ld\t%ld\t%ld\t%ld\t", k.pretty.c_str(), k.launches.load(), k.blocks.load(),
                 k.warp_instructions.load(), k.lane_instructions.load(), k.ns.load());
    for (const auto& x : k.covered) std::fputc(x.load() != 0 ? '1' : '0', f);
    std::fputc('\n', f);
  });
  for (const std::string& name : left) std::fprintf(f, "N\t%s\n", name.c_str());
  for (const auto& [what, count] : all().findings) std::fprintf(f, "F\t%ld\t%s\n", count, what.c_str());
  std::fclose(f);
}

int number(const char* name, int otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoi(text);
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
    const Settings s{std::getenv("VITRINE_PTX_LOG"), number("VITRINE_PTX_ORDER", 0),
                     number("VITRINE_PTX_RACES", 1) != 0, number("VITRINE_PTX_APPROXIMATE", 0) != 0,
                     number("VITRINE_PTX_GLOBAL_RACES", 0) != 0};
    if (s.log != nullptr) std::atexit([] { write_log(); });
    return s;
  }();
  return made;
}

void note_kernel(const std::string& name) {
  settings();
  const std::lock_guard lock(all().mutex);
  all().known.insert(demangled(name));
}

std::string demangled(const std::string& name) {
  int status = 0;
  char* const text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  if (text == nullptr) return name;
  std::string result(text);
  std::free(text);
  for (size_t i = result.find("(anonymous namespace)::"); i != std::string::npos;
       i = result.find("(anonymous namespace)::"))
    result.erase(i, 23);
  return result;
}

void report(Ctx& c, const Inst* i, int lane, int code, const char* format, ...) {
  char text[400];
  va_list list;
  va_start(list, format);
  std::vsnprintf(text, sizeof text, format, list);
  va_end(list);
  if (code != 0 && c.error == 0) c.error = code;
  std::string where;
  if (i != nullptr) {
    const auto& files = c.kernel->module->files;
    const auto name = [&](int f) {
      const auto found = files.find(f);
      return found == files.end() ? std::string("?") : found->second;
    };
    where = ", ptx line " + std::to_string(i->line) + ", " + name(i->file) + ":" + std::to_string(i->source_line);
    if (i->outer_file != 0) where += " inlined at " + name(i->outer_file) + ":" + std::to_string(i->outer_line);
  }
  std::string kind(text, std::string_view(text).find_first_of(':') == std::string_view::npos
                             ? std::strlen(text)
                             : std::string_view(text).find_first_of(':'));
  const std::lock_guard lock(all().mutex);
  if (all().findings[kind + " in " + c.kernel->pretty + where]++ > 0) return;
  const uint32_t t = lane < 0 ? 0 : c.warp->index * 32 + static_cast<uint32_t>(lane);
  const uint32_t* const b = c.launch->block;
  std::fprintf(stderr, "ptx: %s: %s, block (%u, %u, %u) of (%u, %u, %u), thread (%u, %u, %u) of (%u, %u, %u)%s\n", text,
               c.kernel->pretty.c_str(), c.ctaid[0], c.ctaid[1], c.ctaid[2], c.launch->grid[0], c.launch->grid[1],
               c.launch->grid[2], t % b[0], t / b[0] % b[1], t / b[0] / b[1], b[0], b[1], b[2], where.c_str());
}

}  // namespace vitrine::ptx
