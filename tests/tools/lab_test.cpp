// SPDX-License-Identifier: Apache-2.0
// vitrine lab: every planted bug does harm, and there is none by default.
#include <algorithm>
#include <cctype>
#include <fstream>
#include <limits>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/data/temp_folder.h"
#include "tests/support/expect_contains.h"
#include "tests/support/paths.h"
#include "tests/tools/run_vitrine.h"
#include "tools/program/learn/experiment.h"
#include "tools/program/learn/problem.h"
#include "tools/program/render/lab_report.h"

namespace vitrine::test {
namespace {

using Json = nlohmann::json;
using tools::lab::Experiment;
using tools::lab::Result;

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

/// Column 1 (with the bug) or 2 (without) of an experiment's row in docs/lab.md.
std::string documented(const std::string& name, size_t column) {
  const std::string page = read_file(test::source_path("docs/lab.md"));
  const size_t begin = page.find(fmt::format("\n| [{0}](#{0}) |", name)) + 1;
  std::istringstream row(page.substr(begin, page.find('\n', begin) - begin));
  std::string cell;
  for (size_t i = 0; i <= column + 1; ++i) std::getline(row, cell, '|');
  return cell;
}

class Lab : public ::testing::TestWithParam<std::string> {};

TEST_P(Lab, DoesHarmWhenPlantedAndNoneByDefault) {
  const Experiment& experiment = tools::lab::experiment(GetParam());
  const Result result = tools::lab::run(experiment);
  ASSERT_EQ(result.planted.size(), experiment.settings.size());
  EXPECT_GT(result.planted.back(), experiment.harm);
  for (size_t i = 0; i < result.without.size(); ++i) {
    EXPECT_LE(result.without[i], experiment.noise) << experiment.settings[i];
    EXPECT_GE(result.without[i], 0.0) << experiment.settings[i];
  }
  EXPECT_TRUE(result.as_stated());
  EXPECT_LT(100 * experiment.noise, experiment.harm) << "harm stands out from noise";
  EXPECT_EQ(*std::ranges::max_element(result.planted), result.planted.back()) << "the last setting is the most severe";
  EXPECT_NEAR(std::stod(documented(experiment.name, 1)), result.planted.back(), 0.06 * result.planted.back());
  EXPECT_EQ(documented(experiment.name, 2), *std::ranges::max_element(result.without) == 0.0 ? " 0 " : " rounding ");
}

INSTANTIATE_TEST_SUITE_P(Bugs, Lab, ::testing::ValuesIn(tools::lab::experiment_names()), [](const auto& param) {
  std::string name = param.param;
  std::ranges::replace(name, '-', '_');
  return name;
});

TEST(LabExperiments, AreFourteenWithNamesTextsAndLinksOfTheirOwn) {
  std::set<std::string> names, links;
  for (const Experiment& e : tools::lab::experiments()) {
    names.insert(e.name);
    links.insert(e.link);
    const std::string name = e.name;
    EXPECT_TRUE(std::ranges::all_of(name, [](unsigned char c) { return std::isalnum(c) != 0 || c == '-'; })) << name;
    EXPECT_EQ(std::string(e.question).back(), '?') << e.name;
    EXPECT_EQ(std::string(e.link).rfind("https://", 0), 0U) << e.name;
    EXPECT_GE(e.settings.size(), 2U) << e.name;
  }
  EXPECT_EQ(names.size(), 14U);
  EXPECT_EQ(links.size(), 14U);
}

TEST(LabExperiments, AreDocumented) {
  const std::string page = read_file(test::source_path("docs/lab.md"));
  for (const Experiment& e : tools::lab::experiments()) {
    for (const std::string& part :
         {fmt::format("\n## {}\n", e.name), fmt::format("\n| [{0}](#{0}) |", e.name), fmt::format("]({})", e.link)}) {
      expect_contains(page, part);
    }
  }
}

TEST(LabResults, ReportWhatDoesNotShowWhatItStates) {
  Experiment experiment = tools::lab::experiment("divided-twice");
  experiment.wrongness = [](size_t, bool planted) { return planted ? 0.8 : 0.0; };
  EXPECT_TRUE(tools::lab::run(experiment).as_stated());
  experiment.wrongness = [](size_t, bool) { return 0.8; };  // wrong also without the bug
  EXPECT_FALSE(tools::lab::run(experiment).as_stated());
  experiment.wrongness = [](size_t, bool) { return 0.0; };  // a bug without harm
  EXPECT_FALSE(tools::lab::run(experiment).as_stated());
  experiment.wrongness = [](size_t, bool planted) { return planted ? 0.8 : std::numeric_limits<double>::quiet_NaN(); };
  EXPECT_FALSE(tools::lab::run(experiment).as_stated());
}

TEST(LabResults, DistancesAreRelativeToTheWayOfTheReference) {
  const std::vector<float> x = {1, 4}, reference = {1, 1}, origin = {1, 0};
  EXPECT_DOUBLE_EQ(tools::lab::relative_distance(x, reference, origin), 3.0);
  EXPECT_DOUBLE_EQ(tools::lab::relative_distance(reference, reference), 0.0);
}

TEST(LabProgram, PrintsATableOfAllWithoutAChartThatMixesUnits) {
  const ChildResult result = run_vitrine({"lab"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  EXPECT_EQ(result.error, "");
  for (const Experiment& e : tools::lab::experiments()) expect_contains(result.output, fmt::format("\n{}  ", e.name));
  expect_lacks(result.output, "##");
}

TEST(LabProgram, BarsOfOneBugAreAsLongAsItsNumbers) {
  const std::string output = run_vitrine({"lab", "missing-event"}).output;
  const auto bar_of = [&](const std::string& number) {
    const size_t end = output.find(fmt::format("# {}\n", number));
    return end == std::string::npos ? 0 : end + 1 - output.find_last_of(" \n", end) - 1;
  };
  EXPECT_EQ(bar_of("1"), 15U) << output;
  EXPECT_EQ(bar_of("2"), 30U);
  EXPECT_EQ(bar_of("4"), 60U);
}

TEST(LabProgram, PrintsThePagesOfTheNamedBugs) {
  const ChildResult result = run_vitrine({"lab", "missing-event", "divided-twice"});
  EXPECT_EQ(result.exit_code, 0) << result.error;
  const size_t second = result.output.find("\ndivided-twice\n");
  ASSERT_NE(second, std::string::npos) << result.output;
  const std::string page = result.output.substr(second);
  expect_contains(page, "Who divides by the number of devices?",
                  "What is wrong: ", "one device's||, by devices: # with the bug, - without it",
                  "How to notice it in PyTorch: ", "Where it happened: https://");
  expect_lacks(result.output, "average-of-averages");
}

TEST(LabProgram, ListsWithoutRunning) {
  const ChildResult result = run_vitrine(words("lab --list"));
  EXPECT_EQ(result.exit_code, 0) << result.error;
  for (const Experiment& e : tools::lab::experiments()) expect_contains(result.output, e.name);
  expect_lacks(result.output, "with the bug");
}

TEST(LabProgram, SuggestsTheNameThatWasMeant) {
  const ChildResult result = run_vitrine({"lab", "divided-twise"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.output, "");
  expect_contains(result.error, "got 'divided-twise'; did you mean divided-twice?");
  EXPECT_EQ(run_vitrine(words("lab --list divided-twice")).exit_code, 2);
}

TEST(LabProgram, JsonHasTheNumbersOfThePage) {
  const ChildResult result = run_vitrine(words("lab divided-twice --json"));
  EXPECT_EQ(result.exit_code, 0) << result.error;
  const Json json = Json::parse(result.output);
  ASSERT_EQ(json["experiments"].size(), 1U);
  const Json& e = json["experiments"][0];
  EXPECT_EQ(e["name"], "divided-twice");
  EXPECT_TRUE(e["as_stated"].get<bool>());
  ASSERT_EQ(e["settings"].size(), 3U);
  for (size_t i = 0; i < 3; ++i)
    EXPECT_NEAR(e["settings"][i]["planted"].get<double>(), 1.0 - 1.0 / static_cast<double>(2 + i), 1e-5);
  EXPECT_EQ(e["planted"], e["settings"][2]["planted"]);
}

TEST(LabProgram, WritesAPage) {
  const TempFolder folder;
  const std::string file = (folder.path() / "lab.html").string();
  const ChildResult result = run_vitrine(words("lab missing-event --report {}", file));
  EXPECT_EQ(result.exit_code, 0) << result.error;
  expect_contains(result.output, "The report is in " + file);
  const std::string page = read_file(file);
  expect_contains(page, "<h2>missing-event</h2>", "data-chart=\"lab\"", "\"planted\":", ">date</th>", ">host</th>",
                  ">processor</th>");
  EXPECT_EQ(run_vitrine(words("lab missing-event --report /nonexistent/lab.html")).exit_code, 1);
}

}  // namespace
}  // namespace vitrine::test
