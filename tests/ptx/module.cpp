// SPDX-License-Identifier: Apache-2.0
// The entries and declarations of a module.
#include <cstdio>
#include <functional>
#include <mutex>

#include "tests/ptx/findings.h"
#include "tests/ptx/parser.h"

namespace vitrine::ptx {

namespace {

std::mutex modules_mutex;
/// Kept until the process ends: the log is written after the destructors.
std::vector<std::unique_ptr<Module>>& modules() {
  static auto* const all = new std::vector<std::unique_ptr<Module>>;
  return *all;
}

}  // namespace

Module& make_module(std::string_view text) {
  auto m = std::make_unique<Module>();
  m->text = text;
  const std::string_view t = m->text;
  m->lines.push_back(0);
  int depth = 0;
  for (size_t begin = 0; begin < t.size();) {
    const size_t end = std::min(t.find('\n', begin), t.size());
    std::string_view line = t.substr(begin, end - begin);
    const std::string_view code = trim(line.substr(0, line.find("//")));
    if (depth == 0) {
      const auto name_at = [&](size_t position) {
        while (std::isspace(static_cast<unsigned char>(t[position]))) ++position;
        size_t stop = position;
        while (std::isalnum(static_cast<unsigned char>(t[stop])) || t[stop] == '_' || t[stop] == '$') ++stop;
        return std::string(t.substr(position, stop - position));
      };
      if (const size_t e = code.find(".entry"); e != std::string_view::npos) {
        const size_t position = static_cast<size_t>(code.data() - t.data()) + e + 6;
        m->entries[name_at(position)] = position;
      } else if (const size_t f = code.find(".func"); f != std::string_view::npos) {
        size_t position = static_cast<size_t>(code.data() - t.data()) + f + 5;
        const size_t head = position;
        while (std::isspace(static_cast<unsigned char>(t[position]))) ++position;
        if (t[position] == '(') position = t.find(')', position) + 1;
        const std::string name = name_at(position);
        const size_t stop = t.find_first_of("{;", position);
        if (stop != std::string_view::npos && t[stop] == '{') m->functions[name] = head;  // not a mere declaration
      } else if (code.substr(0, 7) == ".shared" || code.substr(0, 14) == ".extern .shared") {
        unsigned alignment = 1, count = 1;
        char type[16] = "", name[2000] = "";
        const std::string s(code);
        if (std::sscanf(s.c_str(), ".shared .align %u .%15s %1999[^[;][%u]", &alignment, type, name, &count) < 3)
          fatal("unsupported: %s", s.c_str());
        Type parsed;
        parse_type(type, parsed);
        m->shared[name] = {count * static_cast<unsigned>(parsed.bits / 8), std::max(alignment, 1U)};
      } else if (code.substr(0, 5) == ".file") {
        int number = 0;
        char name[2000] = "";
        if (std::sscanf(std::string(code).c_str(), ".file %d \"%1999[^\"]", &number, name) == 2)
          m->files[number] = name;
      } else if ((code.substr(0, 7) == ".global" || code.substr(0, 6) == ".const") &&
                 code.find("_ZZ") != std::string_view::npos) {
        fatal("variables are not supported: %s", std::string(code).c_str());
      }
    }
    for (char x : code) depth += x == '{' ? 1 : x == '}' ? -1 : 0;
    begin = end + 1;
    m->lines.push_back(begin);
  }
  const std::lock_guard lock(modules_mutex);
  modules().push_back(std::move(m));
  return *modules().back();
}

Kernel* find_kernel(Module& m, const std::string& name) {
  if (const auto made = m.kernels.find(name); made != m.kernels.end()) return made->second.get();
  const auto entry = m.entries.find(name);
  if (entry == m.entries.end()) return nullptr;
  auto k = std::make_unique<Kernel>();
  k->module = &m;
  k->name = name;
  k->pretty = demangled(name);
  Parser(m, *k).entry(entry->second);
  const std::lock_guard lock(modules_mutex);
  return (m.kernels[name] = std::move(k)).get();
}

void for_each_kernel(const std::function<void(const Kernel&)>& visit) {
  const std::lock_guard lock(modules_mutex);
  for (const auto& m : modules()) {
    for (const auto& [name, k] : m->kernels) visit(*k);
  }
}

}  // namespace vitrine::ptx
