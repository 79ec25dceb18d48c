// SPDX-License-Identifier: Apache-2.0
#include "tools/program/run/attempts.h"

#include <string>

#include <gtest/gtest.h>

#include "runtime/error.h"

namespace vitrine::tools {
namespace {

TEST(Attempts, TryAllStepsAndThrowTheFirstError) {
  Attempts attempts;
  std::string done;
  EXPECT_TRUE(attempts.run([&] { done += "a"; }));
  EXPECT_FALSE(attempts.run([] { throw DataError("first"); }));
  EXPECT_TRUE(attempts.run([&] { done += "b"; }));
  testing::internal::CaptureStderr();
  EXPECT_FALSE(attempts.run([] { throw CommError("second"); }));
  EXPECT_FALSE(attempts.run([] { throw DataError("first"); }));
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "vitrine: second\n");
  EXPECT_EQ(done, "ab");
  try {
    attempts.rethrow();
    FAIL();
  } catch (const DataError& error) {
    EXPECT_STREQ(error.what(), "first");
  }
  Attempts none;
  none.rethrow();
}

}  // namespace
}  // namespace vitrine::tools
