// SPDX-License-Identifier: Apache-2.0
// Flags of the training recipe, the confusion matrix, and what --log and --tensorboard write.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "runtime/error.h"
#include "tests/data/temp_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"
#include "tests/support/text.h"
#include "tools/program/flags/options.h"
#include "tools/program/record/confusion.h"
#include "tools/program/run/run_log.h"

namespace vitrine::tools {
namespace {

using Json = nlohmann::json;

Options train_options(const std::vector<std::string>& arguments) {
  std::vector<std::string> all = {"train"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  const CommandLine line = parse_command_line(all);
  EXPECT_TRUE(line.options.has_value()) << line.error;
  return line.options.value_or(Options{});
}

void expect_usage_error(const std::vector<std::string>& arguments, const std::string& part) {
  std::vector<std::string> all = {"train"};
  all.insert(all.end(), arguments.begin(), arguments.end());
  const CommandLine line = parse_command_line(all);
  EXPECT_EQ(line.exit_code, kExitUsage) << arguments.back();
  expect_contains(line.error, part);
}

TEST(Recipe, AugmentationIsAList) {
  EXPECT_FALSE(resolve_augmentation(train_options({}).recipe).any());
  const Augmentation all = resolve_augmentation(train_options(words("--augment flip,crop:4,cutout:8")).recipe);
  EXPECT_TRUE(all.flip);
  EXPECT_EQ(all.crop_padding, 4);
  EXPECT_EQ(all.cutout, 8);
  EXPECT_FALSE(resolve_augmentation(train_options(words("--augment crop:2")).recipe).flip);
  for (const char* text : {"mirror", "crop", "crop:", "crop:0", "crop:x", "cutout:-1", "flip:1", "flip,flip",
                           "crop:1,crop:2", "flip,", ",flip"}) {
    expect_usage_error(words("--augment {}", text), "--augment " + std::string(text));
  }
  expect_usage_error(words("--augment flip --preprocess host"), "--preprocess host");
  EXPECT_EQ(train_options(words("--augment none")).recipe.augment, "");
}

TEST(Recipe, AugmentationFitsTheImages) {
  const auto message = [](const char* augment, int64_t stored, int64_t input) {
    return error_of<ConfigError>(
        [&] { check_augmentation(train_options(words("--augment {}", augment)).recipe, stored, input); });
  };
  EXPECT_EQ(message("crop:32,cutout:28", 32, 28), "");
  EXPECT_EQ(message("flip,crop:33", 32, 28),
            "--augment flip,crop:33: crop:33 is more than the 32 pixels of the data set's images; use crop:32 or less");
  EXPECT_EQ(message("cutout:29", 32, 28),
            "--augment cutout:29: cutout:29 is more than the 28 pixels of the model's input; use cutout:28 or less");
}

TEST(Recipe, ParameterGroups) {
  const RecipeOptions recipe =
      train_options(words("--no-decay norms,biases --param-group classifier.*:lr=0.02,weight-decay=0.5 --param-group "
                          "*.weight:weight-decay=0 --lr 0.01"))
          .recipe;
  const std::vector<ParameterGroup> groups = resolve_parameter_groups(recipe, 0.01);
  ASSERT_EQ(groups.size(), 4U);
  EXPECT_EQ(groups[0].kind, ParameterGroup::Kind::norms);
  EXPECT_EQ(groups[0].weight_decay, 0.0);
  EXPECT_FALSE(groups[0].lr_factor);
  EXPECT_EQ(groups[1].kind, ParameterGroup::Kind::biases);
  EXPECT_EQ(groups[2].pattern, "classifier.*");
  EXPECT_EQ(groups[2].lr_factor, 2.0);
  EXPECT_EQ(groups[2].weight_decay, 0.5);
  EXPECT_EQ(groups[3].pattern, "*.weight");
  EXPECT_FALSE(groups[3].lr_factor);
  EXPECT_THROW(resolve_parameter_groups(recipe, 0.0), ConfigError);
  for (const char* text : {"classifier.*", ":lr=1", "x:", "x:lr", "x:lr=", "x:lr=a", "x:lr=-1", "x:rate=1", "x:lr=inf",
                           "*:lr=0.1,lr=0.2", "*:weight-decay=0,weight-decay=0", "*:weight-decay=0,"}) {
    expect_usage_error(words("--param-group {}", text), "--param-group " + std::string(text));
  }
  expect_usage_error(words("--no-decay weights"), "norms, biases");
  EXPECT_TRUE(train_options(words("--no-decay none")).recipe.no_decay.empty());
  expect_usage_error(words("--no-decay norms,none"), "--no-decay norms,none: none excludes the others");
  expect_usage_error(words("--confusion --no-eval"), "--confusion counts predictions on the test set, but --no-eval");
}

TEST(Recipe, RangesOfNumbers) {
  EXPECT_EQ(train_options(words("--label-smoothing 0.1")).recipe.label_smoothing, 0.1);
  EXPECT_EQ(train_options(words("--ema 0.999")).recipe.ema, 0.999);
  expect_usage_error(words("--label-smoothing 1.5"), "--label-smoothing");
  for (const char* text : {"0", "1", "-1", "x"}) expect_usage_error(words("--ema {}", text), "--ema");
  EXPECT_EQ(averages_path("a/b.safetensors"), "a/b.ema.safetensors");
  EXPECT_EQ(averages_path("model"), "model.ema.safetensors");
}

TEST(Recipe, NormalizationHasAsManyNumbersAsChannels) {
  Dataset set;
  set.channels = 3;
  set.mean = {0.1F, 0.2F, 0.3F};
  set.std = {0.4F, 0.5F, 0.6F};
  EXPECT_EQ(resolve_normalization("", set).mean, set.mean);
  const Normalization given = resolve_normalization("0.5,0.25,-1/1,2,4", set);
  EXPECT_EQ(given.mean[2], -1.0F);
  EXPECT_EQ(given.std[1], 2.0F);
  for (const char* text : {"0.5/0.5", "1,2,3", "1,2,3/1,2,0", "1,2,3/1,2,x", "1,2,3/1,2,3/1", "1,2,3/1,2,3/",
                           "1,2,3/1,2,3,", "1,2,nan/1,2,3"}) {
    EXPECT_THROW(resolve_normalization(text, set), ConfigError) << text;
  }
  const auto error = [&](const char* text) { return error_of<ConfigError>([&] { resolve_normalization(text, set); }); };
  expect_contains(error("0/1"), "'0' has 1 number;");
  expect_contains(error("123.675,116.28,103.53/58.395,57.12,57.375"),
                  "a mean above 1 is of pixels from 0 to 255; divided by 255 it is --normalize "
                  "0.485,0.456,0.406/0.229,0.224,0.225; expected");
}

/// 6 samples of 3 classes; one has no prediction.
ConfusionMatrix small_matrix() {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  ConfusionMatrix matrix(3);
  matrix.add(std::vector<int32_t>{0, 0, 1, 2}, std::vector<float>{5, 1, 1, 0, 2, 2, 0, 3, 1, kNan, 0, 0});
  matrix.add(std::vector<int32_t>{2, 2}, std::vector<float>{0, 0, 9, 9, 0, 0});
  return matrix;
}

TEST(Confusion, CountsPredictionsByClass) {
  const ConfusionMatrix matrix = small_matrix();
  EXPECT_EQ(matrix.json().dump(), "[[1,1,0],[0,1,0],[1,0,1]]");  // of equal logits the first one is predicted
  const std::string table = matrix.report({"ant", "bee", "cat"}, Style());
  for (const char* part : {"ant", "bee", "cat", "row for each class"}) expect_contains(table, part);
}

TEST(Confusion, OfManyClassesTheMostFrequentAreShown) {
  constexpr int64_t kClasses = 30;
  ConfusionMatrix matrix(kClasses);
  std::vector<float> logits(kClasses, 0.0F);
  logits[7] = 1.0F;
  for (int32_t label : {3, 3, 3, 12, 7}) matrix.add(std::vector<int32_t>{label}, logits);
  const std::string report = matrix.report({}, Style());
  const size_t first = report.find("\n3 "), second = report.find("\n12 ");
  EXPECT_NE(first, std::string::npos) << report;
  EXPECT_NE(second, std::string::npos) << report;
  EXPECT_LT(first, second) << report;
}

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

void write_log(const std::string& path) {
  RunLog log({.tensorboard = "",
              .file = path,
              .facts = {},
              .config = {{"model", "mlp"}},
              .devices = {"cpu:0"},
              .run_id = "r1"});
  log.add_step({1, 1, 2.5, 0.01, {}});
  log.add_step({2, 1, std::numeric_limits<double>::quiet_NaN(), 0.01, 1024.0});
  DeviceRecord device;
  device.device = "cpu:0";
  device.pool.peak_bytes = 1000;
  device.pool.peak_by_category[static_cast<size_t>(Category::parameters)] = 600;
  EpochRecord epoch;
  epoch.last_step = 2, epoch.epoch = 1;
  epoch.totals.loss_sum = 2.25, epoch.totals.valid = 1;
  epoch.samples = 1281, epoch.seconds = 2.0;
  epoch.test_accuracy = 0.75;
  log.add_epoch(epoch, {device}, "");
  log.close_file();
}

TEST(Log, JsonLines) {
  const test::TempFolder folder;
  const std::string path = folder.str() + "/log.jsonl";
  write_log(path);
  const std::vector<std::string> lines = lines_of(path);
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(Json::parse(lines[0]), (Json{{"kind", "run"}, {"run_id", "r1"}, {"config", {{"model", "mlp"}}}}));
  const Json step = Json::parse(lines[1]), nan = Json::parse(lines[2]), epoch = Json::parse(lines[3]);
  EXPECT_EQ(step["kind"], "step");
  EXPECT_EQ(step["step"], 1);
  EXPECT_EQ(step["loss"], 2.5);
  EXPECT_EQ(step["lr"], 0.01);
  EXPECT_TRUE(step["loss_scale"].is_null());
  EXPECT_GE(step["seconds"].get<double>(), 0.0);
  EXPECT_TRUE(nan["loss"].is_null());
  EXPECT_EQ(nan["loss_scale"], 1024.0);
  EXPECT_EQ(epoch["kind"], "epoch");
  EXPECT_EQ(epoch["test_accuracy"], 0.75);
  EXPECT_TRUE(epoch["test_loss"].is_null());
  EXPECT_EQ(epoch["memory"]["cpu:0"]["peak"], 1000);
  EXPECT_EQ(epoch["memory"]["cpu:0"]["parameters"], 600);
}

TEST(Log, CsvHasAColumnForEachValue) {
  const test::TempFolder folder;
  const std::string path = folder.str() + "/log.csv";
  write_log(path);
  const std::vector<std::string> lines = lines_of(path);
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_EQ(lines[0].substr(0, lines[0].find(",memory")),
            "kind,step,epoch,seconds,loss,lr,loss_scale,samples_per_second,test_loss,test_accuracy,test_top5_accuracy,"
            "samples,train_seconds");
  EXPECT_TRUE(lines[0].ends_with(",run_id"));
  EXPECT_TRUE(lines[1].ends_with(",r1"));
  for (const std::string& line : lines)
    EXPECT_EQ(std::count(line.begin(), line.end(), ','), std::count(lines[0].begin(), lines[0].end(), ',')) << line;
  EXPECT_EQ(lines[1].substr(0, 9), "step,1,1,");
  expect_contains(lines[1], ",2.5,0.01,,,");
  expect_contains(lines[2], ",nan,0.01,1024,,");
  expect_contains(lines[3], ",2.25,,,640.5,,0.75,,1281,2,1000,600,");
}

RunLog::Target continued(const std::string& path, const std::string& run_id) {
  return {.tensorboard = "",
          .file = path,
          .facts = {},
          .config = Json::object(),
          .devices = {"cpu:0"},
          .steps_before = 1,
          .run_id = run_id};
}

TEST(Log, OnlyTheSameRunContinuesIt) {
  const test::TempFolder folder;
  for (const char* name : {"/log.jsonl", "/log.csv"}) {
    const std::string path = folder.str() + name;
    write_log(path);
    const std::vector<std::string> before = lines_of(path);
    expect_contains(error_of<DataError>([&] { RunLog log(continued(path, "r2")); }),
                    "--log " + path + ": its rows belong to another run");
    EXPECT_EQ(lines_of(path), before);
    RunLog(continued(path, "r1")).close_file();
    EXPECT_EQ(lines_of(path)[1], before[1]);
  }
  const std::string foreign = folder.str() + "/foreign.jsonl";
  std::ofstream(foreign) << "{\"loss\": 1}\n";
  EXPECT_THROW(RunLog(continued(foreign, "r1")), DataError);
}

TEST(Log, TwoRunsDoNotWriteOne) {
  const test::TempFolder folder;
  for (const char* name : {"/log.jsonl", "/log.csv"}) {
    const std::string path = folder.str() + name;
    write_log(path);
    RunLog first(continued(path, "r1"));
    const std::vector<std::string> before = lines_of(path);
    expect_contains(error_of<DataError>([&] { RunLog second(continued(path, "r1")); }),
                    "--log " + path + ": another run is writing it; name another file");
    EXPECT_EQ(lines_of(path), before);
    first.close_file();
  }
}

TEST(Log, ADamagedFirstRowIsLeftOut) {
  const test::TempFolder folder;
  const std::string path = folder.str() + "/log.jsonl";
  const std::string rest = "{\"kind\":\"step\",\"step\":1,\"seconds\":2.5}\n";
  const std::string damaged = "{\"k?nd\":\"run,\"run_id\":\"r1\"}\n";
  std::ofstream(path) << damaged << rest;
  RunLog(continued(path, "r1")).close_file();
  const std::vector<std::string> lines = lines_of(path);
  ASSERT_EQ(lines.size(), 2U);
  EXPECT_EQ(lines[0] + "\n", rest);
  EXPECT_EQ(Json::parse(lines[1])["run_id"], "r1");
  std::ofstream(path) << damaged << rest << "{\"kind\":\"run\",\"run_id\":\"r2\"}\n";
  EXPECT_THROW(RunLog(continued(path, "r1")), DataError);
}

TEST(Log, SecondsGoOnWhereTheRunWasInterrupted) {
  const test::TempFolder folder;
  const std::string jsonl = folder.str() + "/log.jsonl", csv = folder.str() + "/log.csv";
  for (const std::string& path : {jsonl, csv}) write_log(path);
  std::ofstream(jsonl)
      << "{\"kind\":\"run\",\"run_id\":\"r1\",\"config\":{}}\n{\"kind\":\"step\",\"step\":1,\"seconds\":100.5}\n"
         "{\"kind\":\"step\",\"step\":2,\"seconds\":900.0}\n";
  const std::string header = lines_of(csv)[0];
  const std::string rest(static_cast<size_t>(std::count(header.begin(), header.end(), ',')) - 3, ',');
  std::ofstream(csv) << header << "\nstep,1,1,100.5" << rest << "r1\nstep,2,1,900" << rest << "r1\n";
  for (const std::string& path : {jsonl, csv}) {
    RunLog log(continued(path, "r1"));
    log.add_step({2, 1, 2.5, 0.01, {}});
    log.close_file();
    const std::string last = lines_of(path).back();
    const double seconds = path == jsonl ? Json::parse(last)["seconds"].get<double>()
                                         : std::stod(last.substr(std::string("step,2,1,").size()));
    EXPECT_GE(seconds, 100.5) << last;
    EXPECT_LT(seconds, 500.0) << "the row of a step after the checkpoint counted: " << last;
  }
}

TEST(Log, FlushHandsRowsToTheSystem) {
  const test::TempFolder folder;
  const std::string path = folder.str() + "/log.jsonl";
  RunLog log(
      {.tensorboard = "", .file = path, .facts = {}, .config = Json::object(), .devices = {"cpu:0"}, .run_id = "r1"});
  log.add_step({1, 1, 2.5, 0.01, {}});
  log.flush();
  EXPECT_EQ(lines_of(path).size(), 2U);
}

TEST(Log, RefusesOtherFormatsAndFoldersThatAreMissing) {
  expect_usage_error(words("--log run.txt"), ".jsonl");
  EXPECT_THROW(RunLog({.tensorboard = "", .file = "/no/such/folder/x.csv", .facts = {}}), DataError);
}

}  // namespace
}  // namespace vitrine::tools
