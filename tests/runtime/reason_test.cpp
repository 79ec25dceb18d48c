// SPDX-License-Identifier: Apache-2.0
#include "runtime/reason.h"

#include <set>
#include <string>

#include <gtest/gtest.h>

#include "runtime/error.h"

namespace vitrine {
namespace {

const char* starred(Setting setting) { return setting == Setting::split ? "*split*" : "*other*"; }

TEST(Reason, NamesSettingsAsTheReaderCallsThem) {
  const Reason reason({"4 samples: set ", propose(Setting::split, "gpu0=2"), " or ", Setting::scheme});
  EXPECT_EQ(reason.str(), "4 samples: set Scheme::split gpu0=2 or EngineConfig::scheme");
  EXPECT_EQ(reason.str(starred), "4 samples: set *split* gpu0=2 or *other*");
}

TEST(Reason, TextThatContainsANameIsText) {
  const Reason reason({"cannot read Scheme::split.txt; ", Setting::split});
  EXPECT_EQ(reason.str(starred), "cannot read Scheme::split.txt; *split*");
}

TEST(Reason, RemediesAreData) {
  const Reason reason({given(Setting::launch_rank, "4"), ": use ", propose(Setting::batch_size, 48), " or ", propose(Setting::split, "1,2")});
  using Parts = std::vector<Reason::Part>;
  EXPECT_EQ(reason.parts(Reason::Part::Kind::proposed), (Parts{propose(Setting::batch_size, "48"), propose(Setting::split, "1,2")}));
  EXPECT_EQ(reason.parts(Reason::Part::Kind::given), (Parts{given(Setting::launch_rank, "4")}));
}

TEST(Reason, SumsKeepTheirParts) {
  Reason reason = Reason("cpu:1: ") + Reason({"more ", propose(Setting::workspace_bytes, "8MiB")}) + "; " + "or less";
  EXPECT_EQ(reason, "cpu:1: more EngineConfig::workspace_bytes 8MiB; or less");
  EXPECT_EQ(reason.parts().size(), 3U) << "neighboring texts are one part";
  reason += reason;
  EXPECT_EQ(reason.parts(Reason::Part::Kind::proposed).size(), 2U);
  EXPECT_TRUE(Reason().empty());
  EXPECT_TRUE(Reason("").parts().empty());
}

TEST(Reason, EverySettingHasItsOwnName) {
  std::set<std::string> names;
  for (int s = 0; s < kSettingCount; ++s) names.insert(setting_name(static_cast<Setting>(s)));
  EXPECT_EQ(names.size(), static_cast<size_t>(kSettingCount));
}

}  // namespace
}  // namespace vitrine
