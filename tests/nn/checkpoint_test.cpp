// SPDX-License-Identifier: Apache-2.0
#include "nn/checkpoint.h"

#include <algorithm>
#include <cctype>
#include <csignal>
#include <deque>

#include <fcntl.h>
#include <nlohmann/json.hpp>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "tests/nn/file_fixture.h"
#include "tests/support/error_of.h"

namespace vitrine::test {
namespace {

namespace fs = std::filesystem;

class Checkpoint : public FileTest {
 protected:
  /// Two files of two tensors; `seed` determines every byte.
  std::vector<CheckpointFile> files(uint64_t seed) {
    std::vector<CheckpointFile> result;
    for (const std::string name : {"model.safetensors", "optimizer.safetensors"}) {
      CheckpointFile& file = result.emplace_back(CheckpointFile{name, {}, {{"format", "pt"}}});
      for (const std::string tensor : {"a", "b"}) {
        const HostTensor& data = memory_.emplace_back(tensor_of({100, 7}, DType::f32, ++seed * 1000 + name.size()));
        file.tensors.push_back(
            {tensor, data.shape, data.dtype, [&data] { return std::span<const std::byte>(data.data); }});
      }
    }
    return result;
  }
  void write(const std::string& name, uint64_t seed, const std::string& state = R"({"step": 1})") {
    write_checkpoint(folder_.string(), name, files(seed), state);
  }
  std::vector<std::string> names(const fs::path& folder) const {
    std::vector<std::string> found;
    for (const auto& entry : fs::directory_iterator(folder)) found.push_back(entry.path().filename().string());
    std::sort(found.begin(), found.end());
    return found;
  }

 private:
  std::deque<HostTensor> memory_;
};

// What an attacker can put in place of state.json.
TEST_F(Checkpoint, AStateThatIsNestedWithoutEndOrNoFileIsRefused) {
  fs::create_directory(folder_ / "bad");
  const std::string state = path("bad/state.json");
  const auto message = [&] { return error_of<DataError>([&] { read_checkpoint(path("bad")); }); };
  for (const char* opening : {"[", "{\"a\":"}) {
    std::string nested;
    for (int i = 0; i < 100'000; ++i) nested += opening;
    std::ofstream(state) << nested;
    expect_mentions(message(), {state, "nested deeper than 64 levels"});
  }
  fs::remove(state);
  fs::create_symlink("/dev/zero", state);
  expect_mentions(message(), {state, "a device or pipe, expected a regular file"});
  fs::remove(state);
  ASSERT_EQ(mkfifo(state.c_str(), 0600), 0);
  expect_mentions(message(), {state, "a device or pipe, expected a regular file"});
  fs::remove(state);
  std::ofstream(state) << '{';
  fs::resize_file(state, int64_t{2} << 30);  // sparse
  expect_mentions(message(), {state, "it has 2147483648 bytes, expected at most 16777216"});
}

TEST_F(Checkpoint, HoldsWhatWasWritten) {
  const std::string state =
      R"({"step":12,"lr":0.1,"tiny":5e-324,"seed":18446744073709551615,"text":"a \"b\" \n ü","list":[1,null,true]})";
  write("step-00000012", 1, state);
  EXPECT_EQ(names(folder_), std::vector<std::string>{"step-00000012"});
  EXPECT_EQ(names(folder_ / "step-00000012"),
            (std::vector<std::string>{"model.safetensors", "optimizer.safetensors", "state.json"}));
  const std::string read = read_checkpoint(path("step-00000012"));
  EXPECT_EQ(nlohmann::json::parse(read), nlohmann::json::parse(state));
  EXPECT_EQ(read, nlohmann::ordered_json::parse(state).dump());
  const auto tensors = read_safetensors(path("step-00000012/optimizer.safetensors"));
  const auto expected = files(1);
  const auto bytes = expected[1].tensors[1].bytes();
  EXPECT_EQ(tensors.at("b").data, std::vector<std::byte>(bytes.begin(), bytes.end()));
}

TEST_F(Checkpoint, EveryDamageIsFound) {
  write("whole", 1);
  for (const std::string& name : names(folder_ / "whole")) {
    const std::string file = path("whole/" + name), before = content(file);
    const auto expect_damaged = [&](const std::string& after, const std::string& what) {
      std::ofstream(file, std::ios::binary) << after;
      const std::string message = error_of<DataError>([&] { read_checkpoint(path("whole")); });
      EXPECT_NE(message.find(file), std::string::npos) << what << " of " << name << ": " << message;
    };
    // White space in the JSON is not part of its content.
    for (size_t at = 0; at < before.size(); at += before.size() / 50) {
      std::string flipped = before;
      flipped[at] = static_cast<char>(flipped[at] ^ 1);
      if (name == "state.json" && std::isspace(static_cast<unsigned char>(before[at])) != 0) continue;
      expect_damaged(flipped, "byte " + std::to_string(at));
    }
    expect_damaged(before.substr(0, before.size() / 2), "the first half");
    expect_damaged(before.substr(0, before.size() - (name == "state.json" ? 3 : 1)), "all but the last bytes");
    expect_damaged("", "nothing");
    fs::remove(file);
    expect_mentions(error_of<DataError>([&] { read_checkpoint(path("whole")); }), {file});
    std::ofstream(file, std::ios::binary) << before;
  }
  read_checkpoint(path("whole"));
  EXPECT_THROW(read_checkpoint(path("absent")), DataError);
}

TEST_F(Checkpoint, SizesAloneAreCheckedOnRequest) {
  write("whole", 1);
  const std::string file = path("whole/model.safetensors"), before = content(file);
  std::string flipped = before;
  flipped.back() = static_cast<char>(flipped.back() ^ 1);
  std::ofstream(file, std::ios::binary) << flipped;
  read_checkpoint(path("whole"), false);
  EXPECT_THROW(read_checkpoint(path("whole")), DataError);
  fs::resize_file(file, 10);
  EXPECT_THROW(read_checkpoint(path("whole"), false), DataError);
  std::ofstream(file) << "version https://git-lfs.github.com/spec/v1\n";
  expect_mentions(error_of<DataError>([&] { read_checkpoint(path("whole"), false); }),
                  {file, "it is a Git LFS pointer; fetch the file itself with git lfs pull"});
}

TEST_F(Checkpoint, ReplacesAndRemovesAsAWhole) {
  write("step", 1, R"({"step": 1})");
  write("step", 2, R"({"step": 2})");
  EXPECT_EQ(read_checkpoint(path("step")), R"({"step":2})");
  EXPECT_EQ(names(folder_), std::vector<std::string>{"step"});
  // A file, or a folder that is no checkpoint, is replaced too.
  std::ofstream(path("other")) << "x";
  write("other", 3, R"({"step": 3})");
  EXPECT_EQ(read_checkpoint(path("other")), R"({"step":3})");
  remove_checkpoint(path("step"));
  EXPECT_EQ(names(folder_), std::vector<std::string>{"other"});
  EXPECT_THROW(remove_checkpoint(path("step")), DataError);
}

/// While it exists, files cannot grow beyond `bytes`: what a full disk does.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  FullDisk(const FullDisk&) = delete;
  FullDisk& operator=(const FullDisk&) = delete;

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

TEST_F(Checkpoint, AFullDiskLeavesTheOldOneAndNothingElse) {
  write("step", 1, R"({"step": 1})");
  {
    const FullDisk full(1000);
    expect_mentions(error_of<DataError>([&] { write("step", 2); }),
                    {"model.safetensors", "cannot be written", "free space"});
    EXPECT_THROW(write("next", 2), DataError);
  }
  EXPECT_EQ(names(folder_), std::vector<std::string>{"step"});
  EXPECT_EQ(read_checkpoint(path("step")), R"({"step":1})");
  EXPECT_THROW(write_checkpoint(path("absent"), "step", files(1), "{}"), DataError);
}

// Every instant of a save at which a process can be killed: after a number of bytes.
TEST_F(Checkpoint, AKilledSaveLeavesTheOldOneOrTheNewOne) {
  write("step", 1, R"({"step": 1})");
  bool replaced = false;
  for (int instant = 0; instant < 12; ++instant) {
    const pid_t child = fork();
    if (child == 0) {
      int calls = 0;
      std::vector<CheckpointFile> all = files(2);
      for (CheckpointFile& file : all) {
        for (TensorSource& tensor : file.tensors) {
          tensor.bytes = [&calls, instant, bytes = tensor.bytes] {
            if (calls++ == instant) raise(SIGKILL);
            return bytes();
          };
        }
      }
      int flushes = 4;
      write_checkpoint(folder_.string(), "step", all, R"({"step": 2})", [&](int64_t) {
        if (flushes++ == instant) raise(SIGKILL);
      });
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status) || (WIFEXITED(status) && WEXITSTATUS(status) == 0));
    replaced = WIFEXITED(status);
    EXPECT_EQ(read_checkpoint(path("step")), replaced ? R"({"step":2})" : R"({"step":1})");
  }
  EXPECT_TRUE(replaced);
  EXPECT_GT(names(folder_).size(), 1U);  // of the killed ones
  const CheckpointDirectory cleaned(folder_.string());
  EXPECT_EQ(names(folder_), (std::vector<std::string>{".lock", "step"}));
}

TEST_F(Checkpoint, TheNewestWholeOneIsFound) {
  EXPECT_TRUE(list_checkpoints(path("absent")).empty());
  for (const int64_t step : {3, 20, 100000000, 7})
    write(checkpoint_name(step), 1, R"({"step": )" + std::to_string(step) + "}");
  fs::create_directory(folder_ / "step-9");  // not a name of a checkpoint
  fs::create_directory(folder_ / "step-00000200x");
  std::ofstream(path("step-00000300")) << "a file";
  std::vector<int64_t> steps;
  for (const NamedCheckpoint& checkpoint : list_checkpoints(folder_.string())) steps.push_back(checkpoint.step);
  EXPECT_EQ(steps, (std::vector<int64_t>{3, 7, 20, 100000000}));
  std::vector<std::string> skipped;
  const auto newest = [&] {
    return newest_whole_checkpoint(folder_.string(), [&](const std::string& reason) { skipped.push_back(reason); });
  };
  EXPECT_EQ(newest()->path, path("step-100000000"));
  EXPECT_TRUE(skipped.empty());
  fs::resize_file(path("step-100000000/model.safetensors"), 5);
  fs::remove(path("step-00000020/state.json"));
  EXPECT_EQ(newest()->state_json, R"({"step":7})");
  ASSERT_EQ(skipped.size(), 2U);
  expect_mentions(skipped[0], {"step-100000000/model.safetensors", "5 bytes"});
  expect_mentions(skipped[1], {"step-00000020/state.json"});
}

TEST_F(Checkpoint, ALinkThatFailsLeavesNoTemporaryFile) {
  CheckpointDirectory directory(folder_.string());
  directory.point_link("newest", "step-00000001");
  directory.point_link("newest", "step-00000002");
  EXPECT_EQ(fs::read_symlink(path("newest")), "step-00000002");
  fs::create_directory(folder_ / "best");
  expect_mentions(error_of<DataError>([&] { directory.point_link("best", "step-00000002"); }),
                  {path("best"), "the link to step-00000002 cannot be made"});
  EXPECT_EQ(names(folder_), (std::vector<std::string>{".lock", "best", "newest"}));
}

TEST_F(Checkpoint, MissingDirectoriesAreMade) {
  const std::string deep = path("a/b/c/");
  {
    CheckpointDirectory directory(deep, 0.1);
    write_checkpoint(directory.path(), "step-00000001", files(1), "{}");
  }
  EXPECT_NO_THROW(read_checkpoint(path("a/b/c/step-00000001")));
  EXPECT_NO_THROW(CheckpointDirectory(path("a/b/c"), 0.1));
}

TEST_F(Checkpoint, ADirectoryHasOneWriter) {
  expect_mentions(error_of<DataError>([&] { CheckpointDirectory(FileTest::write("x")); }), {"it is a file"});
  expect_mentions(error_of<DataError>([&] { CheckpointDirectory("/proc/no/such/folder"); }),
                  {"/proc/no/such/folder", "no checkpoints can be written there"});
  fs::create_directory(folder_ / "linked");
  fs::create_symlink(path("victim"), folder_ / "linked" / ".lock");
  expect_mentions(error_of<DataError>([&] { CheckpointDirectory(path("linked")); }), {".lock is a symbolic link"});
  EXPECT_FALSE(fs::exists(path("victim")));
  // A checkpoint in a checkpoint would never be the newest one of its run.
  Checkpoint::write("step-00000007", 1);
  expect_mentions(
      error_of<DataError>([&] { CheckpointDirectory(path("step-00000007/")); }),
      {"it is a checkpoint itself", "name the folder that contains it, " + fs::canonical(folder_).string()});
  EXPECT_FALSE(fs::exists(path("step-00000007/.lock")));
  fs::create_directories(folder_ / "runs" / ".tmp-step-00000001-1");
  std::ofstream(path("runs/.tmp-link-1")) << "x";
  {
    const int descriptor = open((folder_ / "runs" / ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ASSERT_EQ(flock(descriptor, LOCK_EX), 0);
    expect_mentions(error_of<DataError>([&] { CheckpointDirectory(path("runs"), 0.1); }),
                    {path("runs"), "another process"});
    EXPECT_EQ(names(folder_ / "runs").size(), 3U);  // what may be in use is not removed
    close(descriptor);
  }
  CheckpointDirectory directory(path("runs"), 0.1);
  EXPECT_EQ(names(folder_ / "runs"), std::vector<std::string>{".lock"});
  write_checkpoint(directory.path(), "step-00000001", files(1), "{}");
  directory.point_link("best", "step-00000001");
  read_checkpoint(path("runs/best"));
  write_checkpoint(directory.path(), "step-00000002", files(1), R"({"step": 2})");
  directory.point_link("best", "step-00000002");
  EXPECT_EQ(read_checkpoint(path("runs/best")), R"({"step":2})");
}

}  // namespace
}  // namespace vitrine::test
