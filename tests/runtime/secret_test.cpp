// SPDX-License-Identifier: Apache-2.0
// Sources of a run's secret, and which files are trusted with it.
#include <filesystem>
#include <fstream>
#include <map>

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/error.h"
#include "runtime/process_group/launch.h"
#include "runtime/process_group/rendezvous.h"
#include "tests/data/temp_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test {
namespace {

const std::string kSecret = "5f2c9b7d1e8a4c60";

Environment environment(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

class Secrets : public ::testing::Test {
 protected:
  std::string write(const std::string& content, mode_t mode = 0600) const {
    const std::string path = (folder_.path() / "secret").string();
    std::filesystem::remove(path);
    std::ofstream(path) << content;
    chmod(path.c_str(), mode);
    return path;
  }
  void expect_refused(std::map<std::string, std::string> variables, const std::string& why) const {
    const std::string message = error_of<ConfigError>([&] { find_secret(environment(std::move(variables))); });
    expect_contains(message, why);
    EXPECT_EQ(message.find(kSecret.substr(0, 6)), std::string::npos) << "a message contains the secret: " << message;
  }
  TempFolder folder_;
};

TEST_F(Secrets, ComeFromAVariableOrAFile) {
  EXPECT_EQ(find_secret(environment({})), "");
  EXPECT_EQ(find_secret(environment({{"VITRINE_SECRET", ""}, {"VITRINE_SECRET_FILE", ""}})), "");
  EXPECT_EQ(find_secret(environment({{"VITRINE_SECRET", kSecret}})), kSecret);
  EXPECT_EQ(find_secret(environment({{"VITRINE_SECRET_FILE", write(" " + kSecret + "\r\n")}})), kSecret);
  EXPECT_EQ(find_secret(environment({{"VITRINE_SECRET_FILE", write(kSecret, 0400)}})), kSecret);
}

TEST_F(Secrets, AVariableAndAFileAtOnceAreRefused) {
  expect_refused({{"VITRINE_SECRET", kSecret}, {"VITRINE_SECRET_FILE", write(kSecret)}},
                 "VITRINE_SECRET and VITRINE_SECRET_FILE are both set");
}

TEST_F(Secrets, ShortSecretsAreRefused) {
  expect_refused({{"VITRINE_SECRET", kSecret.substr(1)}},
                 "VITRINE_SECRET: the secret has 15 bytes, expected at least 16");
  expect_refused({{"VITRINE_SECRET_FILE", write("12345\n")}}, "VITRINE_SECRET_FILE: the secret has 5 bytes");
  expect_refused({{"VITRINE_SECRET_FILE", write(" \n")}}, "the file is empty");
}

TEST_F(Secrets, FilesThatOthersMayOpenAreRefused) {
  for (const mode_t mode : {0640, 0604, 0620, 0602, 0644, 0666, 0610, 0601}) {
    const std::string path = write(kSecret, mode);
    expect_refused({{"VITRINE_SECRET_FILE", path}}, "so other users may open it; use: chmod 600 " + path);
  }
}

TEST_F(Secrets, FilesOfOtherUsersAndOtherKindsAreRefused) {
  expect_refused({{"VITRINE_SECRET_FILE", "/no/such/file"}},
                 "VITRINE_SECRET_FILE=/no/such/file: cannot read it (No such file or directory)");
  expect_refused({{"VITRINE_SECRET_FILE", "/dev/zero"}}, "it is not a regular file");
  const std::string fifo = (folder_.path() / "fifo").string();
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  expect_refused({{"VITRINE_SECRET_FILE", fifo}}, "it is not a regular file");
  expect_refused({{"VITRINE_SECRET_FILE", write(std::string(5000, 'x'))}}, "it has 5000 bytes, expected at most 4096");
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file to another user";
  const std::string path = write(kSecret);
  ASSERT_EQ(chown(path.c_str(), 12345, 12345), 0);
  expect_refused({{"VITRINE_SECRET_FILE", path}}, "it belongs to another user (number 12345)");
}

TEST_F(Secrets, APrivateFileReplacesALinkInsteadOfFollowingIt) {
  const std::string target = write("the user's"), link = (folder_.path() / "link").string();
  std::filesystem::create_symlink(target, link);
  EXPECT_EQ(process_group::write_private_file(link, "mine"), "");
  EXPECT_FALSE(std::filesystem::is_symlink(link));
  std::string problem;
  EXPECT_EQ(process_group::read_private_file(target, 100, problem), "the user's");
  EXPECT_EQ(process_group::read_private_file(link, 100, problem), "mine");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 2) << "no temporary file is left";
}

}  // namespace
}  // namespace vitrine::test
