// SPDX-License-Identifier: Apache-2.0
#include "runtime/reason.h"

#include <string>

#include <gtest/gtest.h>

#include "runtime/error.h"
#include "runtime/settings.h"
#include "tests/runtime/upper_settings.h"

namespace vitrine {
namespace {

const char* starred(Setting setting) { return setting == test::kSplit ? "*split*" : "*other*"; }

TEST(Reason, NamesSettingsAsTheReaderCallsThem) {
  const Reason reason({"4 samples: set ", propose(test::kSplit, "gpu0=2"), " or ", test::kScheme});
  EXPECT_EQ(reason.str(), "4 samples: set Scheme::split gpu0=2 or EngineConfig::scheme");
  EXPECT_EQ(reason.str(starred), "4 samples: set *split* gpu0=2 or *other*");
}

TEST(Reason, TextThatContainsANameIsText) {
  const Reason reason({"cannot read Scheme::split.txt; ", test::kSplit});
  EXPECT_EQ(reason.str(starred), "cannot read Scheme::split.txt; *split*");
}

TEST(Reason, RemediesAreData) {
  const Reason reason({given(settings::kLaunchRank, "4"), ": use ", propose(test::kBatchSize, 48), " or ",
                       propose(test::kSplit, "1,2")});
  using Parts = std::vector<Reason::Part>;
  EXPECT_EQ(reason.parts(Reason::Part::Kind::proposed),
            (Parts{propose(test::kBatchSize, "48"), propose(test::kSplit, "1,2")}));
  EXPECT_EQ(reason.parts(Reason::Part::Kind::given), (Parts{given(settings::kLaunchRank, "4")}));
}

TEST(Reason, SumsKeepTheirParts) {
  Reason reason = Reason("cpu:1: ") + Reason({"more ", propose(test::kWorkspaceBytes, "8MiB")}) + "; " + "or less";
  EXPECT_EQ(reason, "cpu:1: more EngineConfig::workspace_bytes 8MiB; or less");
  EXPECT_EQ(reason.parts().size(), 3U) << "neighboring texts are one part";
  reason += reason;
  EXPECT_EQ(reason.parts(Reason::Part::Kind::proposed).size(), 2U);
  EXPECT_TRUE(Reason().empty());
  EXPECT_TRUE(Reason("").parts().empty());
}

TEST(Reason, NamesTheSettingsOfOthersWithoutKnowingThem) {
  const Reason reason({"lower ", propose(Setting("MyLayer::width"), 64), " or ", test::kSplit});
  const auto mine = [](Setting setting) { return setting == test::kSplit ? "split" : setting.name(); };
  EXPECT_EQ(reason.str(mine), "lower MyLayer::width 64 or split");
  EXPECT_EQ(reason.parts(Reason::Part::Kind::proposed).at(0).setting, "MyLayer::width");
}

TEST(Reason, KeepsTheNamesOfItsSettings) {
  Reason reason;
  {
    const std::string name = "a name that is too long for the object of a string";
    reason = {given(Setting(name.c_str()), "1")};
  }
  EXPECT_EQ(reason.str([](Setting setting) { return setting.name(); }),
            "a name that is too long for the object of a string 1");
}

}  // namespace
}  // namespace vitrine
