// SPDX-License-Identifier: Apache-2.0
// Values that must be equal on all processes are compared, and the ranks that differ are named.
#include "runtime/process_group/agreement.h"

#include <gtest/gtest.h>

#include "runtime/error.h"
#include "tests/runtime/processes.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test {
namespace {

AgreementFields fields(const std::string& batch, const std::string& model = "mlp") {
  return {{"--batch-size", batch}, {"--model", model}};
}

TEST(Disagreement, IsNotReportedForEqualFields) {
  EXPECT_EQ(describe_disagreement({fields("64")}), "");
  EXPECT_EQ(describe_disagreement({fields("64"), fields("64"), fields("64")}), "");
  EXPECT_EQ(describe_disagreement({{}, {}}), "");
  EXPECT_EQ(describe_disagreement({{{"a", "1"}, {"b", "2"}}, {{"b", "2"}, {"a", "1"}}}), "");
}

TEST(Disagreement, NamesTheMinorityAndBothValues) {
  EXPECT_EQ(describe_disagreement({fields("64"), fields("32"), fields("64")}),
            "rank 1 has --batch-size 32, where ranks 0, 2 have 64");
  EXPECT_EQ(describe_disagreement({fields("32"), fields("64"), fields("64")}),
            "rank 0 has --batch-size 32, where ranks 1, 2 have 64");
}

TEST(Disagreement, InATieTheLowestRankDefinesTheExpectedValue) {
  EXPECT_EQ(describe_disagreement({fields("64"), fields("32")}), "rank 1 has --batch-size 32, where rank 0 has 64");
  EXPECT_EQ(describe_disagreement({fields("32"), fields("64"), fields("64"), fields("32")}),
            "ranks 1, 2 have --batch-size 64, where ranks 0, 3 have 32");
}

TEST(Disagreement, ListsEveryFieldThatDiffers) {
  EXPECT_EQ(
      describe_disagreement({fields("64"), fields("64", "vgg16"), fields("32")}),
      "rank 2 has --batch-size 32, where ranks 0, 1 have 64; rank 1 has --model vgg16, where ranks 0, 2 have mlp");
}

TEST(Disagreement, TreatsAMissingFieldAsNothing) {
  EXPECT_EQ(describe_disagreement({fields("64"), fields("64"), {{"--batch-size", "64"}}}),
            "rank 2 has no --model, where ranks 0, 1 have mlp");
  EXPECT_EQ(describe_disagreement({{{"--save", "set"}}, {{"--save", "nothing"}}}),
            "rank 1 has no --save, where rank 0 has it");
}

TEST(Agreement, PassesForEqualProcesses) {
  run_processes(3, [](ProcessGroup& process_group) {
    require_agreement(process_group, "how they train", fields("64"));
    EXPECT_TRUE(process_group.all_equal("more", "x"));
    process_group.close();
  });
}

TEST(Agreement, ADisagreementIsTheSameConfigErrorOnAllRanksAndClosesTheGroup) {
  std::vector<std::string> texts(4);
  run_processes(4, [&](ProcessGroup& process_group) {
    texts[static_cast<size_t>(process_group.rank())] = error_of<ConfigError>(
        [&] { require_agreement(process_group, "how they train", fields(process_group.rank() == 2 ? "100" : "64")); });
    EXPECT_TRUE(process_group.closed());
    EXPECT_EQ(process_group.failure(), "");
  });
  EXPECT_EQ(texts[0],
            "the processes disagree in how they train: rank 2 has --batch-size 100, where ranks 0, 1, 3 have 64; start "
            "all of them with the same options");
  EXPECT_EQ(texts, std::vector<std::string>(4, texts[0]));
}

TEST(Agreement, TheOrderOfFieldsDoesNotMatter) {
  run_processes(2, [](ProcessGroup& process_group) {
    const AgreementFields a = {{"a", "1"}, {"b", "2"}}, b = {{"b", "2"}, {"a", "1"}};
    require_agreement(process_group, "fields", process_group.rank() == 0 ? a : b);
    process_group.close();
  });
}

TEST(Disagreement, NamesManyRanksAsRanges) {
  std::vector<AgreementFields> all(300, fields("64"));
  all[77] = fields("32");
  EXPECT_EQ(describe_disagreement(all), "rank 77 has --batch-size 32, where ranks 0 to 76, 78 to 299 have 64");
  for (size_t r = 0; r < 300; r += 2) all[r] = fields("32");
  EXPECT_EQ(describe_disagreement(all),
            "ranks 1, 3, 5, 7, 9, 11, 13, 15, ... (149 ranks) have --batch-size 64, where ranks 0, 2, 4, 6, 8, 10, 12, "
            "14, ... (151 ranks) have 32");
}

TEST(Agreement, ValuesMayContainAnyBytes) {
  run_processes(2, [&](ProcessGroup& process_group) {
    require_agreement(process_group, "odd values",
                      {{"empty", ""}, {"", "no name"}, {"lines", "a\nb"}, {"zero", std::string("a\0b", 3)}});
    process_group.close();
  });
}

}  // namespace
}  // namespace vitrine::test
