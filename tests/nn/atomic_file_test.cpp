// SPDX-License-Identifier: Apache-2.0
#include "nn/atomic_file.h"

#include <csignal>
#include <thread>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/nn/file_fixture.h"
#include "tests/support/error_of.h"

namespace vitrine::test {
namespace {

namespace fs = std::filesystem;

class AtomicFileTest : public FileTest {
 protected:
  /// The names of the files in the test's folder.
  std::vector<std::string> names() const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder_)) found.push_back(entry.path().filename().string());
    std::sort(found.begin(), found.end());
    return found;
  }
};

TEST_F(AtomicFileTest, AppearsWhenItIsComplete) {
  write("before");
  {
    AtomicFile file(path());
    file.write("after");
    EXPECT_EQ(content(path()), "before");
    file.commit();
    EXPECT_EQ(content(path()), "after");
  }
  EXPECT_EQ(content(path()), "after");
  { AtomicFile(path()).write("given up"); }
  EXPECT_EQ(content(path()), "after");
  EXPECT_EQ(names(), std::vector<std::string>{"file"});
}

// A process that is killed during a save leaves no .tmp file, if the file system has files without names, as those of
// Linux do.
TEST_F(AtomicFileTest, AKilledProcessLeavesNothing) {
  const int probe = open(folder_.c_str(), O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);
  if (probe < 0) GTEST_SKIP() << "the file system has no files without names: " << folder_;
  close(probe);
  write("before");
  const pid_t child = fork();
  if (child == 0) {
    AtomicFile file(path());
    file.write(std::string(100'000, 'x'));
    raise(SIGKILL);
  }
  int status = 0;
  waitpid(child, &status, 0);
  ASSERT_TRUE(WIFSIGNALED(status));
  EXPECT_EQ(names(), std::vector<std::string>{"file"});
  EXPECT_EQ(content(path()), "before");
}

mode_t mode_of(const std::string& path) {
  struct stat status {};
  EXPECT_EQ(stat(path.c_str(), &status), 0) << path;
  return status.st_mode & 0777;
}

TEST_F(AtomicFileTest, KeepsTheModeOfTheFileThatItReplaces) {
  const auto replace = [&](const std::string& name) {
    AtomicFile file(path(name));
    file.write("after");
    file.commit();
    return mode_of(path(name));
  };
  write("before");
  for (const mode_t mode : {0600U, 0640U, 0666U}) {
    ASSERT_EQ(chmod(path().c_str(), mode), 0);
    EXPECT_EQ(replace("file"), mode);
  }
  const mode_t mask = umask(027);
  EXPECT_EQ(replace("new"), 0640U);
  umask(mask);
}

TEST_F(AtomicFileTest, LongNamesAreWritten) {
  const std::string longest(255, 'n');
  AtomicFile file(path(longest));
  file.write("x");
  file.commit();
  EXPECT_EQ(names(), std::vector<std::string>{longest});
  EXPECT_EQ(mode_of(path(longest)) & 0600U, 0600U);
  expect_mentions(error_of<DataError>([&] { const AtomicFile longer(path(longest + "n")); }),
                  {longest, "File name too long"});
}

// A killed process leaves its file where files need a name, and a process of another container may have the same
// number.
TEST_F(AtomicFileTest, AFileThatWasLeftIsKept) {
  const std::string pid = std::to_string(getpid());
  const std::vector<std::string> left = {"file." + pid + ".tmp", "vitrine-" + pid + "-0.tmp",
                                         "vitrine-" + pid + "-1.tmp"};
  for (const std::string& name : left) std::ofstream(path(name)) << "left";
  AtomicFile file(path());
  file.write("new");
  file.commit();
  EXPECT_EQ(content(path()), "new");
  std::string temporary;
  const int descriptor = create_temporary(path(), temporary);
  ASSERT_GE(descriptor, 0);
  close(descriptor);
  EXPECT_EQ(temporary, path("vitrine-" + pid + "-2.tmp"));
  for (const std::string& name : left) EXPECT_EQ(content(path(name)), "left");
}

TEST_F(AtomicFileTest, ReportsProgress) {
  std::vector<int64_t> reported;
  AtomicFile file(path(), [&](int64_t bytes) { reported.push_back(bytes); });
  const std::vector<std::byte> part(size_t{33} << 20);
  file.write(part);
  file.write(part);
  file.commit();
  EXPECT_EQ(reported, (std::vector<int64_t>{int64_t{32} << 20, int64_t{65} << 20, int64_t{66} << 20}));
  EXPECT_EQ(fs::file_size(path()), size_t{66} << 20);
}

TEST_F(AtomicFileTest, KeepsASymbolicLink) {
  write("before");
  fs::create_directory(folder_ / "elsewhere");
  fs::create_symlink("../file", folder_ / "elsewhere" / "link");
  AtomicFile file(path("elsewhere/link"));
  file.write("after");
  file.commit();
  EXPECT_TRUE(fs::is_symlink(folder_ / "elsewhere" / "link"));
  EXPECT_EQ(content(path()), "after");
  AtomicFile made(path("elsewhere/new"));
  fs::create_symlink("target", folder_ / "dangling");
  AtomicFile through(path("dangling"));
  through.write("x");
  through.commit();
  EXPECT_EQ(content(path("target")), "x");
}

/// In /tmp another user can place a link that leads to a file of this user.
TEST_F(AtomicFileTest, RefusesALinkOfAnotherUserInASharedFolder) {
  constexpr uid_t kOther = 65534;
  write("before");
  ASSERT_EQ(symlink("file", path("planted").c_str()), 0);
  if (lchown(path("planted").c_str(), kOther, kOther) != 0) GTEST_SKIP() << "only root can make files of other users";
  const auto replace = [&] {
    AtomicFile file(path("planted"));
    file.write("after");
    file.commit();
  };
  ASSERT_EQ(chmod(folder_.c_str(), 01777), 0);
  std::string temporary;
  expect_mentions(error_of<DataError>(replace), {path("planted"), "a symbolic link of another user (number 65534)"});
  EXPECT_THROW(create_temporary(path("planted"), temporary), DataError);
  EXPECT_EQ(content(path()), "before");
  for (const mode_t mode : {0755U, 0777U}) {  // a folder of this user, and one in which others may replace files anyway
    ASSERT_EQ(chmod(folder_.c_str(), mode), 0);
    replace();
    EXPECT_EQ(content(path()), "after");
  }
}

TEST_F(AtomicFileTest, WritesDirectlyToPipesAndDevices) {
  ASSERT_EQ(mkfifo(path("pipe").c_str(), 0600), 0);
  std::string read;
  std::thread reader([&] { read = content(path("pipe")); });
  {
    AtomicFile file(path("pipe"));
    file.write("through the pipe");
    file.commit();
  }
  reader.join();
  EXPECT_EQ(read, "through the pipe");
  EXPECT_EQ(names(), std::vector<std::string>{"pipe"});
  expect_mentions(error_of<DataError>([&] { AtomicFile file(path("pipe")); }), {"pipe", "nobody reads from this pipe"});

  AtomicFile full("/dev/full");
  expect_mentions(error_of<DataError>([&] {
                    full.write("x");
                    full.commit();
                  }),
                  {"/dev/full", "No space left on device"});
  EXPECT_FALSE(fs::is_regular_file("/dev/full"));
}

}  // namespace
}  // namespace vitrine::test
