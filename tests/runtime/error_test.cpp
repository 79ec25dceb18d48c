// SPDX-License-Identifier: Apache-2.0
#include "runtime/error.h"

#include <new>

#include <gtest/gtest.h>

#include "tests/runtime/upper_settings.h"

namespace vitrine {
namespace {

template <class E, class Thrown>
void expect_kept(const Thrown& thrown, const std::string& message) {
  try {
    rethrow_with_prefix(std::make_exception_ptr(thrown), "cpu:1: ");
    FAIL() << "nothing was thrown";
  } catch (const E& e) {
    EXPECT_EQ(typeid(e), typeid(E));
    EXPECT_EQ(std::string(e.what()), message);
  }
}

template <class E>
void expect_same_class() {
  const E error("bad thing");
  expect_kept<E>(error, "cpu:1: bad thing");
}

TEST(Error, PrefixKeepsTheClass) {
  expect_same_class<ShapeError>();
  expect_same_class<DtypeError>();
  expect_same_class<DeviceError>();
  expect_same_class<OutOfMemory>();
  expect_same_class<UnsupportedError>();
  expect_same_class<OrderError>();
  expect_same_class<CudaError>();
  expect_same_class<CommError>();
  expect_same_class<DataError>();
  expect_same_class<ConfigError>();
  expect_same_class<DivergedError>();
  expect_same_class<std::invalid_argument>();
  expect_same_class<std::out_of_range>();
  expect_same_class<std::logic_error>();
  expect_same_class<std::runtime_error>();
}

TEST(Error, PrefixOfForeignExceptions) {
  expect_kept<OutOfMemory>(std::bad_alloc(), "cpu:1: host memory is exhausted");
  expect_kept<std::runtime_error>(3, "cpu:1: an exception that is not a std::exception");
}

TEST(Error, PrefixKeepsTheFacts) {
  const OutOfMemory thrown({"too small; reserve more with ", propose(test::kWorkspaceBytes, "8MiB")},
                           {.memory = MemoryShortage::Memory::workspace, .user = "gemm", .needed_bytes = 65536});
  try {
    rethrow_with_prefix(std::make_exception_ptr(thrown), "cpu:1: ");
  } catch (const OutOfMemory& error) {
    EXPECT_STREQ(error.what(), "cpu:1: too small; reserve more with EngineConfig::workspace_bytes 8MiB");
    EXPECT_EQ(error.reason().parts(Reason::Part::Kind::proposed), thrown.reason().parts(Reason::Part::Kind::proposed));
    EXPECT_EQ(error.shortage().memory, MemoryShortage::Memory::workspace);
    EXPECT_EQ(error.shortage().user, "gemm");
    EXPECT_EQ(error.shortage().needed_bytes, 65536);
  }
}

TEST(Error, ReasonsOfAnyException) {
  EXPECT_EQ(reason_of(std::make_exception_ptr(DataError({"lower ", test::kBatchSize}))).parts().size(), 2U);
  EXPECT_EQ(reason_of(std::make_exception_ptr(std::runtime_error("why"))), "why");
  EXPECT_EQ(reason_of(std::make_exception_ptr(3)), "an exception of unknown type");
}

TEST(Error, KindsNameTheirClass) {
  EXPECT_STREQ(error_kind_name(ErrorKind::out_of_memory), "OutOfMemory");
  EXPECT_STREQ(error_kind_name(DataError("x").kind()), "DataError");
  EXPECT_STREQ(error_kind_name(ConfigError("x").kind()), "ConfigError");
  EXPECT_STREQ(error_kind_name(DivergedError("x").kind()), "DivergedError");
}

TEST(ErrorDeathTest, AssertNamesTheInvariant) {
  const int x = 1;
  EXPECT_DEATH(VITRINE_ASSERT(x == 2, "x must be two"), "error_test.cpp.*x must be two.*x == 2");
}

}  // namespace
}  // namespace vitrine
