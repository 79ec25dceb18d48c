// SPDX-License-Identifier: Apache-2.0
#include "tools/program/renamed_flags.h"

#include <functional>

#include <fmt/format.h>

#include "runtime/error.h"
#include "tools/program/flag_values.h"

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
      if (!rendezvous && !has_weights) throw ConfigError(fmt::format("--init {}: expected --rendezvous tcp://HOST:PORT or file:PATH", value));
      const std::string name = rendezvous ? "--rendezvous" : "--init-weights";
      (rendezvous ? o.rendezvous : o.init_weights) = value;
      warn_renamed(o, "--init " + value, name + " " + value);
    }
  };
  app.add_option_function<std::vector<std::string>>("--init", read)->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)->group("");
}

void add_recompute_options(CLI::App& app, Options& o, bool may_choose) {
  const auto set = [&o, may_choose](const std::string& text) {
    o.choices.recompute_segments = text == "auto";
    if (o.choices.recompute_segments && !may_choose) {
      throw ConfigError("--recompute-segments auto: compare runs every scheme with the same number of segments; give it, or sqrt");
    }
    o.recompute_segments = o.choices.recompute_segments ? "1" : text;
  };
  const std::string help =
      "Activation checkpointing: keep only the inputs of N segments of the model, and compute the rest again in backward; sqrt: the square root of "
      "the number of its parts";
  CLI::Option* option = app.add_option_function<std::string>("--recompute-segments", set, help + (may_choose ? "; auto: the fewest that fit" : ""))
                            ->type_name(may_choose ? "N|sqrt|auto" : "N|sqrt")
                            ->default_str("1")
                            ->group("Training");
  const auto add_deprecated = [&](const std::string& name, const std::function<std::string(const std::string&)>& translated) {
    const auto read = [&o, set, name, translated, option](const std::string& text) {
      if (option->count() > 0) throw ConfigError(fmt::format("{} is the old name of --recompute-segments; give one of them", name));
      warn_renamed(o, fmt::format("{} {}", name, text), "--recompute-segments " + translated(text));
      set(translated(text));
    };
    app.add_option_function<std::string>(name, read)->group("");
  };
  add_deprecated("--checkpoint-segments", [](const std::string& text) { return text == "auto" ? "sqrt" : text; });
  if (!may_choose) return;
  add_deprecated("--checkpoint", [](const std::string& text) {
    if (text == "auto") return "auto";
    if (text == "none") return "1";
    throw ConfigError(fmt::format("--checkpoint {}: expected --recompute-segments N, sqrt or auto", text));
  });
}

void add_broadcast_option(CLI::App& app, Options& o, const std::string& group) {
  const CLI::Validator current = one_of({"half", "masters"});
  const auto set = [&o, current](const std::string& text) {
    if (text == "shadow") warn_renamed(o, "--broadcast shadow", "--broadcast half");
    const std::string value = text == "shadow" ? "half" : text;
    if (const std::string problem = current(value); !problem.empty()) throw CLI::ValidationError("--broadcast", problem);
    o.broadcast = value;
  };
  app.add_option_function<std::string>("--broadcast", set,
                                       "Under --reduce gpu0, what device 0 sends to the others: half (16 bits) or masters (f32) [half]")
      ->group(group);
}

}  // namespace vitrine::tools
