// SPDX-License-Identifier: Apache-2.0
#include "tools/program/process/attempts.h"

#include <string>

#include <gtest/gtest.h>

#include "runtime/error.h"
#include "tests/support/error_of.h"

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
  EXPECT_EQ(error_of<DataError>([&] { attempts.rethrow(); }), "first");
  Attempts none;
  none.rethrow();
}

}  // namespace
}  // namespace vitrine::tools
