// SPDX-License-Identifier: Apache-2.0
// The keys of every command's JSON are those that docs/json.md lists.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "runtime/text.h"
#include "tests/data/temp_folder.h"
#include "tests/support/paths.h"
#include "tests/tools/run_json.h"

namespace vitrine::test {
namespace {

using Json = nlohmann::json;
using Keys = std::set<std::string>;

const Arguments kShort =
    words("--model lenet5 --image-size 12 --data synthetic:60 --threads-per-device 1 --batch-size 20");

/// The name of a key in the documentation: a placeholder where names vary.
std::string documented_name(const std::string& parent, const std::string& name) {
  if (parent == "modes" || parent == "refused") return "MODE";
  if (parent == "cuda.features") return "VARIABLE";
  if (parent == "libraries") return "LIBRARY";
  if (parent == "missing") return "PART";
  if (parent.ends_with("staging_bytes")) return "BUFFER";
  if (parent.ends_with("outside_bytes_by_owner")) return "OWNER";
  return parent.ends_with("peak_bytes_by_category") ? "CATEGORY" : name;
}

/// Adds the paths of all values that are neither arrays nor objects, or are empty ones: "devices[].peak_bytes".
void add_keys(const Json& json, const std::string& path, Keys& keys) {
  if (json.is_array()) {
    if (json.empty()) keys.insert(path + "[]");
    for (const Json& element : json) add_keys(element, path + "[]", keys);
  } else if (json.is_object() && !json.empty()) {
    for (const auto& [name, value] : json.items())
      add_keys(value, (path.empty() ? "" : path + ".") + documented_name(path, name), keys);
  } else {
    keys.insert(path);
  }
}

bool is_below(const std::string& path, const std::string& parent) {
  return path.starts_with(parent + ".") || path.starts_with(parent + "[]");
}

/// The keys of all outputs. What is null or empty in one of them and not in another counts as filled.
Keys keys_of(const std::vector<Json>& outputs) {
  Keys all;
  for (const Json& output : outputs) add_keys(output, "", all);
  Keys keys;
  for (const std::string& key : all) {
    if (std::ranges::none_of(all, [&](const std::string& other) { return is_below(other, key); })) keys.insert(key);
  }
  return keys;
}

/// Keys that `compare` has for each scheme.
constexpr const char* kMeasured[] = {"devices[]", "phases[]", "waits[]", "communication[]", "exact_price."};

/// "a.{b,c}": a.b and a.c.
std::vector<std::string> expanded(const std::string& key) {
  const size_t open = key.find('{'), close = key.find('}');
  if (open == std::string::npos) return {key};
  std::vector<std::string> keys;
  for (const std::string& name : split_text(key.substr(open + 1, close - open - 1), ','))
    keys.push_back(key.substr(0, open) + name + key.substr(close + 1));
  return keys;
}

/// Rows of the tables: `key`, commands, meaning; without commands where the title of the section names them.
Keys documented_keys(const std::string& command) {
  std::ifstream file(test::source_path("docs/json.md"));
  EXPECT_TRUE(file);
  Keys keys;
  std::string section;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("## ")) section = line.substr(3);
    if (!line.starts_with("| `")) continue;
    const size_t end = line.find("` | ", 3), next = line.find(" | ", end + 4);
    std::istringstream commands(next == std::string::npos ? section : line.substr(end + 4, next - end - 4));
    const std::set<std::string> words(std::istream_iterator<std::string>(commands), {});
    if (!words.contains(command)) continue;
    for (std::string key : expanded(line.substr(3, end - 3))) {
      const bool of_a_mode = std::any_of(std::begin(kMeasured), std::end(kMeasured),
                                         [&](const char* name) { return key.starts_with(name); });
      if (command == "compare" && of_a_mode) key.insert(0, "modes.MODE.");
      EXPECT_TRUE(keys.insert(key).second) << key << " is listed twice";
    }
  }
  return keys;
}

/// may_be_empty  arrays whose elements no output here has
void expect_documented(const std::string& command, const std::vector<Json>& outputs, const Keys& may_be_empty = {}) {
  const Keys printed = keys_of(outputs), documented = documented_keys(command);
  const auto is_empty_here = [&](const std::string& key) {
    return std::ranges::any_of(may_be_empty, [&](const std::string& array) {
      return printed.contains(array) && (key == array || is_below(key, array));
    });
  };
  for (const std::string& key : printed)
    EXPECT_TRUE(documented.contains(key) || is_empty_here(key)) << key << " is not in docs/json.md";
  for (const std::string& key : documented)
    EXPECT_TRUE(printed.contains(key) || is_empty_here(key)) << key << " of docs/json.md is not printed";
}

TEST(JsonKeys, OfTrainAndEvalAreDocumented) {
  const TempFolder folder;
  const std::string weights = (folder.path() / "w.safetensors").string();
  const Arguments train = with(with({"train"}, kShort), words("--devices cpu:0-1"));
  const Arguments half = with(train, words("--steps 3 --no-eval --precision fp16 --optimizer sgd --momentum 0.9"));
  expect_documented("train",
                    {json_of(with(train, words("--epochs 1 --split auto --save {} --confusion --checkpoint-dir {}",
                                               weights, (folder.path() / "run").string()))),
                     json_of(with(half, words("--loss-scale-growth-interval 1 --clip-norm 1"))),
                     json_of(with(half, words("--loss-scale 1e12"))), json_of(with(half, words("--exact")))},
                    {"convolutions[]", "tuned_plans"});
  expect_documented("eval", {json_of(with(with({"eval"}, kShort), words("--confusion --weights {}", weights)))});
}

TEST(JsonKeys, OfPlanAreDocumented) {
  const Arguments plan = with(with({"plan"}, kShort), words("--devices cpu:0-1"));
  const Json refused = json_of(with(plan, words("--optimizer sgd --device-memory 64KiB")), 1);
  EXPECT_EQ(refused["fits"], false);
  EXPECT_TRUE(refused["remedies"].is_string());
  expect_documented("plan", {json_of(with(plan, words("--split auto --checkpoint-dir run"))),
                             json_of(with(plan, words("--frontier"))), json_of(with(plan, words("--exact"))), refused});
}

TEST(JsonKeys, OfCompareAreDocumented) {
  const Arguments compare =
      with(with({"compare"}, kShort), words("--devices cpu:0-1 --steps 3 --rounds 1 --modes dp,ddp"));
  const Json both = json_of(compare);
  const auto peak = [&](const char* mode) {
    return both["modes"][mode]["devices"][0]["planned_peak_bytes"].get<int64_t>();
  };
  ASSERT_LT(peak("ddp"), peak("dp"));
  const std::string memory = std::to_string((peak("ddp") + peak("dp")) / 2);
  expect_documented("compare", {json_of(with(compare, words("--exact"))),
                                json_of(with(compare, words("--workspace 1MiB --device-memory {}", memory))),
                                json_of(with(compare, words("--precisions fp32,fp16 --optimizer sgd")))});
}

TEST(JsonKeys, OfCollectivesAreDocumented) {
  const Arguments small = words("--devices cpu:0-1 -b 48 -e 48 -n 2 -w 0");
  expect_documented("collectives", {json_of(with({"collectives", "all_reduce", "alltoall"}, small)),
                                    json_of(with(words("collectives scatter --counts 4,8"), small))});
}

TEST(JsonKeys, OfVerifyAreDocumented) {
  const std::string run = "--model lenet5 --image-size 12 --data synthetic:60 --batch-size 20 --no-eval --steps 2 ";
  expect_documented("verify",
                    {json_of({"verify", "--a", run + "--devices cpu:0", "--b", run + "--devices cpu:0-2"}, 1)});
}

TEST(JsonKeys, OfLabAreDocumented) { expect_documented("lab", {json_of({"lab", "missing-event"})}); }

TEST(JsonKeys, OfInfoAreDocumented) {
  expect_documented("info", {json_of({"info"})}, {"cuda.gpus[]", "cuda.gpus[].peers[]", "missing"});
}

}  // namespace
}  // namespace vitrine::test
