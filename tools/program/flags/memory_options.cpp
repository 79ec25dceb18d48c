// SPDX-License-Identifier: Apache-2.0
#include "tools/program/flags/memory_options.h"

#include <CLI/CLI.hpp>

#include "runtime/error.h"
#include "tools/program/flags/flag_values.h"
#include "tools/program/flags/renamed_flags.h"

namespace vitrine::tools {

void set_recompute_segments(Options& o, const std::string& text, bool may_choose) {
  o.choices.recompute_segments = text == "auto";
  if (o.choices.recompute_segments && !may_choose) {
    throw ConfigError(
        "--recompute-segments auto: compare runs every scheme with the same number of segments; give it, or sqrt");
  }
  o.recompute_segments = o.choices.recompute_segments ? "1" : text;
}

void add_recompute_options(CLI::App& app, Options& o, bool may_choose) {
  const auto set = [&o, may_choose](const std::string& text) { set_recompute_segments(o, text, may_choose); };
  const std::string help =
      "Activation checkpointing: keep only the inputs of N segments of the model, and compute the rest again in "
      "backward; sqrt: the square root of "
      "the number of its parts";
  app.add_option_function<std::string>("--recompute-segments", set,
                                       help + (may_choose ? "; auto: the fewest that fit" : ""))
      ->type_name(may_choose ? "N|sqrt|auto" : "N|sqrt")
      ->default_str("1")
      ->group("Training");
  if (!may_choose) return;
  const auto set_parts = [&o](const std::string& text) {
    o.choices.recompute = text == "auto";
    o.recompute = o.choices.recompute ? "" : text;
  };
  app.add_option_function<std::string>(
         "--recompute", set_parts,
         "Activation checkpointing of these parts of the model: each PART or run of parts FIRST-LAST keeps only its "
         "input; "
         "auto: those that cost least time, so that it fits (plan --frontier shows the choices)")
      ->type_name("PART,FIRST-LAST|auto")
      ->group("Training");
}

void add_broadcast_option(CLI::App& app, Options& o) {
  const CLI::Validator current = one_of({"half", "masters"});
  const auto set = [&o, current](const std::string& text) {
    const std::string value = current_broadcast(o, text);
    if (const std::string problem = current(value); !problem.empty())
      throw CLI::ValidationError("--broadcast", problem);
    o.broadcast = value;
  };
  app.add_option_function<std::string>(
      "--broadcast", set,
      "Under --reduce gpu0, what device 0 sends to the others: half (16 bits) or masters (f32) [half]");
}

}  // namespace vitrine::tools
