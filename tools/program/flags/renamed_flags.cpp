// SPDX-License-Identifier: Apache-2.0
#include "tools/program/flags/renamed_flags.h"

#include <functional>

#include <fmt/format.h>

#include "runtime/error.h"
#include "tools/program/flags/memory_options.h"

namespace vitrine::tools {

namespace {

void warn_renamed(Options& o, const std::string& old_usage, const std::string& usage) {
  o.warnings.push_back(fmt::format("{} is deprecated; use {}", old_usage, usage));
}

}  // namespace

void add_deprecated_init(CLI::App& app, Options& o, bool has_weights) {
  const auto read = [&o, has_weights](const std::vector<std::string>& values) {
    for (const std::string& value : values) {
      const bool rendezvous = value.rfind("tcp://", 0) == 0 || value.rfind("file:", 0) == 0;
      if (!rendezvous && !has_weights)
        throw ConfigError(fmt::format("--init {}: expected --rendezvous tcp://HOST:PORT or file:PATH", value));
      const std::string name = rendezvous ? "--rendezvous" : "--init-weights";
      (rendezvous ? o.rendezvous : o.init_weights) = value;
      warn_renamed(o, "--init " + value, name + " " + value);
    }
  };
  app.add_option_function<std::vector<std::string>>("--init", read)
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group("");
}

void add_deprecated_recompute(CLI::App& app, Options& o, bool may_choose) {
  const CLI::Option* const option = app.get_option("--recompute-segments");
  const auto add = [&](const std::string& name, const std::function<std::string(const std::string&)>& translated) {
    const auto read = [&o, may_choose, name, translated, option](const std::string& text) {
      if (option->count() > 0)
        throw ConfigError(fmt::format("{} is the old name of --recompute-segments; give one of them", name));
      warn_renamed(o, fmt::format("{} {}", name, text), "--recompute-segments " + translated(text));
      set_recompute_segments(o, translated(text), may_choose);
    };
    app.add_option_function<std::string>(name, read)->group("");
  };
  add("--checkpoint-segments", [](const std::string& text) { return text == "auto" ? "sqrt" : text; });
  if (!may_choose) return;
  add("--checkpoint", [](const std::string& text) {
    if (text == "auto") return "auto";
    if (text == "none") return "1";
    throw ConfigError(fmt::format("--checkpoint {}: expected --recompute-segments N, sqrt or auto", text));
  });
}

std::string current_broadcast(Options& o, const std::string& value) {
  if (value != "shadow") return value;
  warn_renamed(o, "--broadcast shadow", "--broadcast half");
  return "half";
}

}  // namespace vitrine::tools
