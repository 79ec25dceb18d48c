// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/expect_contains.h"
#include "tests/support/limited_memory.h"
#include "tests/tools/run_vitrine.h"

namespace vitrine::test {
namespace {

using Json = nlohmann::json;

/// The most memory that the program has resident, in bytes.
int64_t peak_bytes(const Arguments& arguments) {
  Arguments command = vitrine_command(arguments);
  std::vector<char*> argv;
  for (std::string& argument : command) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    const int nowhere = open("/dev/null", O_WRONLY);
    if (nowhere >= 0) dup2(nowhere, STDOUT_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  int status = -1;
  rusage usage{};
  EXPECT_EQ(wait4(child, &status, 0, &usage), child);
  EXPECT_EQ(status, 0);
  return int64_t{usage.ru_maxrss} * 1024;
}

TEST(Collectives, AreCorrectInEveryTypeAndNumberOfRanks) {
  for (const char* devices : {"cpu:0", "cpu:0-2", "cpu:0-3"}) {
    for (const char* type : {"float", "half", "bfloat16", "int32"}) {
      const ChildResult result = run_vitrine(
          words("collectives --json --devices {} -b 24 -e 100K -f 7 -n 2 -w 1 -d {} --root 0", devices, type));
      ASSERT_EQ(result.exit_code, 0) << result.error;
      const Json json = Json::parse(result.output);
      EXPECT_EQ(json["wrong"], 0) << devices << " " << type;
      const bool integers = std::string(type) == "int32";  // which tree_all_reduce does not add
      EXPECT_EQ(json["results"].size(), (integers ? 10U : 11U) * 5U);
      for (const Json& row : json["results"]) {
        const std::string name = row["collective"];
        EXPECT_EQ(row["in_place"].is_null(), name == "alltoall" || name == "sendrecv");
        for (const char* way : {"out_of_place", "in_place"}) {
          if (row[way].is_null()) continue;
          EXPECT_LE(row[way]["min_us"], row[way]["median_us"]);
          EXPECT_LE(row[way]["median_us"], row[way]["p99_us"]);
          EXPECT_EQ(row[way]["wrong"], 0) << row;
          EXPECT_GT(row[way]["time_us"].get<double>(), 0.0);
          EXPECT_EQ(row[way]["busbw"].is_null(), std::string(devices) == "cpu:0") << "one rank has no bus";
        }
      }
    }
  }
}

TEST(Collectives, TakeNcclTestsCounts) {
  const auto ranks = [](const std::string& flags) {
    const ChildResult result =
        ChildProcess(vitrine_command(words("collectives all_reduce -b 8K -n 2 -w 0 --json " + flags)),
                     ChildProcess::Streams::pipes, {"CUDA_VISIBLE_DEVICES="})
            .wait();
    EXPECT_EQ(result.exit_code, 0) << result.error;
    const Json json = Json::parse(result.output);
    EXPECT_EQ(json["wrong"].is_null(), flags.ends_with("-c 0"));
    return json["config"]["ranks"].get<int>();
  };
  EXPECT_EQ(ranks("-g 3 -c 5"), 3);
  EXPECT_EQ(ranks("-t 2 -g 2 -c 0"), 4);
  expect_contains(run_vitrine(words("collectives -g 2 --devices cpu:0")).error, "leave it, or them, out");
}

TEST(Collectives, HaveNcclTestsOperators) {
  for (const char* op : {"min", "max", "avg"}) {
    for (const char* type : {"float", "bfloat16", "int32"}) {
      const ChildResult result =
          run_vitrine(words("collectives reduce all_reduce reduce_scatter gpu0_star --json --devices cpu:0-2 -b 12K -n "
                            "2 -w 0 -d {} -o {}",
                            type, op));
      ASSERT_EQ(result.exit_code, 0) << result.error;
      const Json json = Json::parse(result.output);
      EXPECT_EQ(json["wrong"], 0) << op << " " << type;
      EXPECT_EQ(json["results"][0]["redop"], op);
      EXPECT_GT(json["avg_busbw"].get<double>(), 0.0);
    }
  }
}

TEST(Collectives, ReportWhereTheyRanAndScatterUnevenParts) {
  const ChildResult result =
      run_vitrine(words("collectives --json --devices cpu:0-3 --counts 8,19,0,18 -b 180K -n 2 -w 0 -r 1"));
  ASSERT_EQ(result.exit_code, 0) << result.error;
  const Json json = Json::parse(result.output);
  EXPECT_EQ(json["wrong"], 0);
  EXPECT_FALSE(json["config"]["version"].get<std::string>().empty());
  EXPECT_FALSE(json["config"]["host"].get<std::string>().empty());
  EXPECT_EQ(json["config"]["threads"].size(), 4U);
  ASSERT_EQ(json["results"].size(), 2U);
  for (const Json& row : json["results"]) {
    EXPECT_EQ(row["counts"], Json::parse("[8,19,0,18]"));
    EXPECT_EQ(row["count"], 180 * 1024 / 4 / 45 * 19);
    EXPECT_NEAR(row["out_of_place"]["busbw"].get<double>() / row["out_of_place"]["algbw"].get<double>(), 1 - 19.0 / 45,
                1e-9);
  }
  const ChildResult few = run_vitrine(words("collectives --devices cpu:0-3 --counts 8,19"));
  EXPECT_EQ(few.exit_code, 2);
  expect_contains(few.error, "--counts: 2 values for 4 ranks");
}

// 1 KiB are 256 elements: 5 times 45, and 31 that stay unused.
TEST(Collectives, CountTheBytesThatTheyUse) {
  const Arguments quick = words("collectives --devices cpu:0-3 -n 2 -w 0");
  const ChildResult result = run_vitrine(with(quick, words("gather --json --counts 8,19,0,18 -b 1K")));
  ASSERT_EQ(result.exit_code, 0) << result.error;
  const Json row = Json::parse(result.output)["results"][0];
  EXPECT_EQ(row["size"], 900);
  EXPECT_EQ(row["count"], 95);
  EXPECT_NEAR(row["out_of_place"]["algbw"].get<double>(), 900 / row["out_of_place"]["time_us"].get<double>() * 1e-3,
              1e-9);

  const ChildResult small = run_vitrine(with(quick, words("all_gather --json -b 8 -e 32")));
  ASSERT_EQ(small.exit_code, 0) << small.error;
  const Json measured = Json::parse(small.output)["results"];
  ASSERT_EQ(measured.size(), 1U);
  EXPECT_EQ(measured[0]["size"], 32);
  expect_contains(small.error,
                  "smaller sizes are left out: all_gather on 4 ranks needs at least 16 bytes, one element per rank");

  const ChildResult none = run_vitrine(with(quick, words("gather --counts 1073741824,1,0,0 -b 1M")));
  EXPECT_EQ(none.exit_code, 2);
  expect_contains(none.error, "-e 1048576: no size can be measured: gather on 4 ranks needs at least 4294967300 bytes");
}

TEST(Collectives, RefuseMoreMemoryThanTheMachineHas) {
  const ChildResult result = run_vitrine(words("collectives all_reduce --devices cpu:0-1 -b 100000G -n 1"));
  EXPECT_EQ(result.exit_code, 1);
  expect_contains(result.error, "of the machine's available memory there is", "the largest size that fits is -e ");
}

// Filling and checking a buffer takes a few MiB, not copies of the buffer.
TEST(Collectives, TakeTheMemoryThatTheyCount) {
  if (!kMemoryCanBeLimited) GTEST_SKIP() << "a sanitizer needs memory of its own";
  const Arguments quick = words("collectives broadcast --devices cpu:0 -d half -n 1 -w 0");
  const int64_t tiny = peak_bytes(with(quick, words("-b 8"))), mib = int64_t{1} << 20;
  EXPECT_LE(peak_bytes(with(quick, words("-b 16M"))), tiny + 2 * 16 * mib + 16 * mib);
}

TEST(Collectives, TableAndErrors) {
  const ChildResult result =
      run_vitrine(words("collectives all_reduce reduce_broadcast --devices cpu:0-1 -b 1M -n 2 -c 0 -r 1"));
  EXPECT_EQ(result.exit_code, 0) << result.error;
  expect_contains(result.output, "2 ranks on cpu:0, cpu:1", "all_reduce", "reduce_broadcast", "1,048,576", "262,144",
                  "busbw", "#wrong", "median", "p99", "Avg bus bandwidth: ");
  EXPECT_EQ(result.output.find("was right"), std::string::npos) << "nothing was checked";
  const ChildResult root = run_vitrine(words("collectives --devices cpu:0-1 -r 2"));
  EXPECT_EQ(root.exit_code, 2);
  expect_contains(root.error, "there are ranks 0 to 1");
}

}  // namespace
}  // namespace vitrine::test
