// SPDX-License-Identifier: Apache-2.0
#include "runtime/device_id.h"

#include <utility>

#include <gtest/gtest.h>

#include "runtime/error.h"
#include "tests/support/error_of.h"

namespace vitrine {
namespace {

std::string expand(std::string_view text, int cuda_count = 0) {
  std::string out;
  for (const DeviceId& device : parse_device_list(text, cuda_count)) {
    if (!out.empty()) out += ' ';
    out += device.str();
  }
  return out;
}

std::string message_of(std::string_view text, int cuda_count = 0) {
  return error_of<ConfigError>([&] { parse_device_list(text, cuda_count); });
}

TEST(DeviceList, Expands) {
  EXPECT_EQ(expand("cpu:0"), "cpu:0");
  EXPECT_EQ(expand("cpu:0-3"), "cpu:0 cpu:1 cpu:2 cpu:3");
  EXPECT_EQ(expand("cpu:3,cpu:0-1"), "cpu:3 cpu:0 cpu:1");
  EXPECT_EQ(expand("cuda:0,cuda:0"), "cuda:0 cuda:0");
  EXPECT_EQ(expand("cuda:all", 3), "cuda:0 cuda:1 cuda:2");
  EXPECT_EQ(expand("cuda:all,cuda:1", 2), "cuda:0 cuda:1 cuda:1");
  EXPECT_EQ(parse_device_list("meta:0-63", 0).size(), 64U);
}

TEST(DeviceList, NamesTheInvalidPart) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "empty"},
      {"cpu:0,", "item \"\""},
      {"gpu:0", "GPUs are called cuda, such as cuda:0"},
      {"cpu", "no index; write cpu:0"},
      {"cpu:0,1", "item \"1\""},
      {"cpu:", "not an index"},
      {"cpu:x", "\"x\" is not an index"},
      {"cpu:-1", "not an index"},
      {"cpu:0--1", "not an index"},
      {"cpu:1-", "not an index"},
      {"cpu:0-99999", "not an index"},
      {"cpu:99999999999999999999", "not an index"},
      {"cpu:3-1", "ends before it begins"},
      {"cpu:0, cpu:1", "item \" cpu:1\""},
      {"cpu:0,cuda:0", "mixes backends"},
      {"cpu:0-2,cpu:1", "cpu:1 is listed twice"},
      {"meta:0,meta:0", "meta:0 is listed twice"},
      {"cpu:all", "goes with cuda only"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_NE(message_of(text).find(expected), std::string::npos) << text << ": " << message_of(text);
  }
}

TEST(DeviceList, AllGpusWithoutAGpuAreUnsupportedLikeASingleOne) {
  const std::string message = error_of<UnsupportedError>([&] { parse_device_list("cuda:all", 0); });
  EXPECT_EQ(message.rfind("cuda:all: ", 0), 0U) << message;
}

TEST(DeviceId, Names) {
  EXPECT_EQ(DeviceId::host().str(), "host");
  EXPECT_EQ((DeviceId{Backend::cuda, 2}.str()), "cuda:2");
  EXPECT_TRUE(DeviceId::host().is_host());
  EXPECT_FALSE((DeviceId{Backend::cpu, 0}.is_host()));
}

}  // namespace
}  // namespace vitrine
