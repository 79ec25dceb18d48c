// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/support/expect_contains.h"
#include "tests/support/temp_folder.h"
#include "tests/tools/run_vitrine.h"

namespace vitrine::test {
namespace {

/// Runs a command line that must fail: nothing on stdout, a sentence on stderr.
void expect_failure(const std::vector<std::string>& arguments, int exit_code, const std::string& part) {
  const ChildResult result = run_vitrine(arguments);
  EXPECT_EQ(result.exit_code, exit_code) << result.error;
  EXPECT_EQ(result.output, "");
  expect_contains(result.error, part);
}

/// The same for a run, which may have described itself on stdout.
void expect_failure_of_run(const std::vector<std::string>& arguments, const std::string& part) {
  const ChildResult result = run_vitrine(arguments);
  EXPECT_EQ(result.exit_code, 1) << result.error;
  expect_contains(result.error, part);
}

TEST(ProgramErrors, UsageErrorsExitWithStatus2) {
  expect_failure({}, 2, "expected a command: train");
  expect_failure(words("compare --steps 1"), 2, "the first step is not timed");
  expect_failure(words("train --epoch 3"), 2, "did you mean --epochs?");
  expect_failure(words("train --epochs 1 --steps 2"), 2, "--epochs and --steps");
  expect_failure(words("train --data imagenet:x"), 2, "imagenet");
  expect_failure(words("train --devices cpu:x"), 2, "cpu:x");
  expect_failure(words("train --devices cpu:0-1 --split 1,2,3"), 2,
                 "--split 1,2,3: it has 3 weights for 2 devices; give one weight for each device");
  expect_failure(words("train --devices cpu:0-1 --mode balanced"), 2, "--split gpu0=N");
  expect_failure(words("train --devices cpu:0-1 --mode dp --output-device cpu:2"), 2, "cpu:0, cpu:1");
  expect_failure(words("train --devices cpu:0-1 --data synthetic:50 --threads-per-device 1,1,1"), 2,
                 "--threads-per-device: 3 values for 2 devices");
  expect_failure(words("train --devices meta:0 --data synthetic:50"), 2, "meta");
  expect_failure(words("train --data synthetic:50 --drop-last"), 2, "lower --batch-size");
  expect_failure({"eval"}, 2, "--weights");
}

TEST(ProgramErrors, CapacitiesLeaveRoomForCopiesInHostMemory) {
  const TempFolder folder;
  const std::string refusal = "are kept free for copies in host memory";
  // 192 GiB of weights, and as many bytes of gradients.
  const Arguments model = words("--model mlp --image-size 8192 --data synthetic:64 --devices cpu:0");
  expect_failure_of_run(with(words("train --no-eval --save {}", folder.str() + "/w.safetensors"), model), refusal);
  expect_failure_of_run(with(words("train --no-eval --hashes {}", folder.str() + "/h.jsonl"), model), refusal);
  expect_failure_of_run(with(words("compare --modes ddp --steps 2"), model), refusal);
}

/// The data, which would be opened next, does not exist.
TEST(ProgramErrors, OneCycleWithoutMomentumIsRefusedBeforeAnyWork) {
  const std::vector<std::string> one_cycle =
      words("train --lr-schedule one-cycle --data cifar10:/nonexistent --optimizer");
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), one_cycle.begin(), one_cycle.end());
    return more;
  };
  expect_failure(with({"sgd"}), 2, "sgd does not have without --momentum; give one, for example --momentum 0.9");
  expect_failure(with(words("sgd --momentum 0")), 2, "--momentum 0.9");
  expect_failure(with(words("sgd --momentum 0.9")), 1, "/nonexistent");
  expect_failure(with({"adamw"}), 1, "/nonexistent");
}

TEST(ProgramErrors, AnInstructionSetThatIsNotThereIsNamed) {
  const ChildResult result = ChildProcess(vitrine_command(words("train --data synthetic:50")),
                                          ChildProcess::Streams::pipes, {"VITRINE_ISA=mmx"})
                                 .wait();
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_EQ(result.output, "");
  expect_contains(result.error, "VITRINE_ISA is 'mmx', but this build on this processor has only ");
}

TEST(ProgramErrors, FailuresExitWithStatus1) {
  expect_failure(words("train --data cifar10:/nonexistent"), 1, "/nonexistent");
  expect_failure(words("train --devices cuda:4000 --data synthetic:50"), 1, "cuda:4000: ");
  expect_failure(words("train --data synthetic:50 --init-weights /nonexistent.safetensors"), 1,
                 "vitrine: --init-weights /nonexistent.safetensors: it cannot be opened");
  expect_failure(words("eval --data synthetic:50 --weights /nonexistent.safetensors"), 1,
                 "vitrine: --weights /nonexistent.safetensors: it cannot be opened");
  expect_failure(words("train --devices cpu:0 --data synthetic:100 --device-memory 64KiB"), 1, "cpu:0");
}

TEST(ProgramErrors, ValuesThatDependOnDataAndModelAreNamedByTheirFlags) {
  expect_failure(words("train --model mlp --image-size 8 --data synthetic:50 --augment crop:40"), 2,
                 "vitrine: --augment crop:40: crop:40 is more than the ");
  expect_failure(words("train --model mlp --image-size 8 --data synthetic:50 --param-group x*:lr=0.1"), 2,
                 "vitrine: --param-group: no parameter matches 'x*'; the parameters are ");
  expect_failure(words("train --model mlp --image-size 8 --data synthetic:50 --freeze classifier.0.* --param-group "
                       "classifier.0.*:lr=0.1"),
                 2, "vitrine: --param-group: all parameters that match 'classifier.0.*' are frozen, such as ");
  expect_failure(words("plan --model wide-head --augment flip"), 2,
                 "vitrine: --augment flip: wide-head takes no images; leave it out\n");
  expect_failure(words("train --update-in-backward --hashes h.jsonl"), 2,
                 "--hashes needs the gradients of a step, which --update-in-backward frees; leave one of them out\n");
  const Arguments exact = words("plan --model resnet18-cifar --data synthetic:64 --exact --leaves 8 --no-eval");
  expect_failure(with(exact, words("--batch-norm-leaves 1 --accumulate 3")), 2, "; use --accumulate 2\n");
  EXPECT_EQ(run_vitrine(with(exact, words("--batch-norm-leaves 1 --accumulate 2"))).exit_code, 0) << "the remedy";
  expect_failure(with(exact, words("--accumulate 2")), 2, "; use --batch-norm-leaves 4\n");
  EXPECT_EQ(run_vitrine(with(exact, words("--accumulate 2 --batch-norm-leaves 4"))).exit_code, 0) << "the remedy";
}

TEST(ProgramErrors, ALastBatchOfOneSampleIsNamed) {
  for (const char* command : {"train", "plan"}) {
    const Arguments run = words("{} --model resnet18 --image-size 32 --data synthetic:5 --batch-size 4", command);
    expect_failure(
        run, 1,
        "or larger images. This is the last batch of an epoch, of 1 sample; leave it out with --drop-last, or "
        "use another batch size\n");
    EXPECT_EQ(run_vitrine(with(run, words("--drop-last"))).exit_code, 0) << "the remedy";
    const ChildResult full = run_vitrine(with(run, words("--batch-size 1")));
    expect_lacks(full.error, "last batch");
  }
}

TEST(ProgramErrors, AnUnknownLauncherIsNotASingleProcess) {
  const Arguments command = vitrine_command(words("plan --model mlp --data synthetic:50"));
  for (const auto& [size, status] : {std::pair{"2", 2}, {"1", 0}}) {
    const ChildResult result =
        ChildProcess(command, ChildProcess::Streams::pipes, {std::string("PMI_SIZE=") + size, "PMI_RANK=0"}).wait();
    EXPECT_EQ(result.exit_code, status) << result.error;
    if (status == 0) continue;
    expect_contains(result.error,
                    "vitrine: launch: PMI_SIZE=2, PMI_RANK=0 set, as by the mpiexec of MPICH or Intel MPI");
    expect_contains(result.error, "or give --rank and --world-size)");
  }
}

TEST(ProgramErrors, MissingGpusHaveOneExitStatusHoweverTheyAreNamed) {
  if (run_vitrine(words("info --json")).output.find("\"cuda:0\"") != std::string::npos)
    GTEST_SKIP() << "there is a GPU";
  for (const std::string command : {"train", "compare", "collectives", "eval"}) {
    std::vector<ChildResult> results;
    for (const char* devices : {"cuda:0", "cuda:all", "cuda:0-1"}) {
      std::vector<std::string> arguments = {command, "--devices", devices};
      if (command == "eval") arguments = with(arguments, words("--weights w.safetensors"));
      results.push_back(run_vitrine(arguments));
      EXPECT_EQ(results.back().exit_code, 1) << results.back().error;
    }
    const auto reason = [](const ChildResult& result) { return result.error.substr(result.error.find(": ", 9)); };
    for (const ChildResult& result : results) EXPECT_EQ(reason(result), reason(results[0])) << command;
  }
}

TEST(ProgramErrors, WinogradIsRefusedWhereNothingWouldUseIt) {
  for (const char* command : {"train", "plan"}) {
    expect_failure(words("{} --winograd --precision bf16", command), 2,
                   "--winograd is for convolutions of f32; leave it out, or use --precision fp32");
  }
  expect_failure(words("compare --winograd --precisions fp16,bf16"), 2, "--winograd is for convolutions of f32");
  expect_failure(words("plan --winograd --devices cuda:0"), 2, "--winograd: cuDNN chooses the algorithms of GPUs");
}

TEST(ProgramErrors, SizesBeyondAPlanHaveRemedies) {
  expect_failure(words("plan --image-size 20000 --no-eval"), 1, "the most that a plan can represent");
  expect_failure(words("train --image-size 20000 --steps 1 --no-eval"), 1, "--image-size");
}

TEST(ProgramErrors, MoreCpuDevicesThanAProcessCanHaveAreRefusedAtOnce) {
  for (const char* command : {"train", "plan", "compare", "collectives"}) {
    expect_failure({command, "--devices", "cpu:0-3000"}, 2,
                   "3001 CPU devices, but a process has at most 64; use fewer, or start several processes with mpirun");
  }
}

TEST(ProgramErrors, AnEmptyValueIsRefused) {
  for (const char* option : {"--save", "--report", "--init-weights", "--log", "--tensorboard", "--checkpoint-dir"}) {
    expect_failure({"train", option, "", "--steps", "1"}, 2, std::string(option) + ": the value is empty");
  }
}

TEST(ProgramErrors, AFileThatHoldsNoWeightsIsNamedWithItsOption) {
  expect_failure(words("train --data synthetic:50 --init-weights /etc/passwd"), 1,
                 "vitrine: --init-weights /etc/passwd: expected a safetensors file, found a text that begins with ");
  expect_failure(words("eval --data synthetic:50 --weights /etc/passwd"), 1,
                 "vitrine: --weights /etc/passwd: expected a safetensors file, found a text that begins with ");
}

TEST(ProgramErrors, AFolderIsNotAFileOfWeights) {
  expect_failure(words("train --init-weights /proc/self/fd --steps 1"), 1, "/proc/self/fd");
}

TEST(ProgramErrors, UnwritableFilesAreReportedBeforeTraining) {
  const std::string folder = std::filesystem::temp_directory_path().string();
  expect_failure(words("train --data synthetic:100 --save /nonexistent/w.safetensors"), 1,
                 "--save /nonexistent/w.safetensors");
  expect_failure(words("train --data synthetic:100 --save {}", folder), 1, "it is a folder");
  expect_failure(words("train --data synthetic:100 --trace /nonexistent/t.json"), 1, "--trace");
  expect_failure(words("train --data synthetic:100 --report /nonexistent/r.html"), 1, "--report /nonexistent/r.html");
  expect_failure(words("train --data synthetic:100 --memory-history /nonexistent/m.json"), 1, "--memory-history");
  expect_failure(words("compare --data synthetic:100 --report /nonexistent/r.html"), 1, "--report /nonexistent/r.html");
}

TEST(ProgramErrors, MessagesNameTheFlagAndTheRemedy) {
  const Arguments small = words("--model mlp --image-size 8 --data synthetic:32");
  const auto train = [&](const Arguments& more) { return with(with({"train"}, small), more); };
  expect_failure(train(words("--report --steps 1")), 2, "--report: expected a value: --report FILE.html\n");
  expect_failure(train(words("--steps=")), 2, "--steps: expected a value: --steps ");
  expect_failure(train(words("--json out.json")), 2,
                 "--json takes no value, got 'out.json'; it prints on stdout: write --json > out.json\n");
  expect_failure(words("plan --devices cuda:0 --batch-size max"), 2,
                 "--batch-size max: the capacity of cuda:0 is not known here; give it, as --device-memory 8GiB\n");
  expect_failure(words("compare --modes dp,dpp"), 2, "got 'dpp'; did you mean dp or ddp?");
  expect_failure(
      words("train --data cifar10"), 2,
      "--data cifar10: expected cifar10:DIR, where DIR is the folder of the data set; tools/get_data cifar10 "
      "DIR downloads it\n");
  expect_failure(words("train --data cifar"), 2, "--data cifar: expected cifar10:DIR, ");
  expect_failure(words("plan --model alexnet --image-size 7"), 1,
                 "--image-size 7: alexnet needs images of at least 63x63, got 7x7; use --image-size 63\n");
  EXPECT_EQ(run_vitrine(words("plan --model alexnet --image-size 63")).exit_code, 0) << "the remedy helps";
}

TEST(ProgramErrors, FilesOfPyTorchAreExplained) {
  const TempFolder folder;
  const std::string file = folder.str() + "/w.pth";
  const Arguments small = words("train --model mlp --image-size 8 --data synthetic:32 --steps 1");
  const std::string convert = "; convert it with docs/examples/convert_weights.py\n";
  const std::string zip = "PK\x03\x04" + std::string(22, '\0') + '\x10' + std::string(3, '\0') + "archive/data.pkl";
  for (const auto& [begin, name] : {std::pair<std::string, std::string>{zip, "a file of torch.save (a PyTorch pickle)"},
                                    {"\x80\x02", "a Python pickle"},
                                    {"\x80\x05", "a Python pickle"}}) {
    std::ofstream(file, std::ios::binary) << begin << std::string(100, '\0');
    expect_failure_of_run(with(small, words("--init-weights {}", file)),
                          file + ": expected a safetensors file, found " + name + convert);
  }
  const std::string folder_of_hub = folder.str() + "/hub";
  std::filesystem::create_directory(folder_of_hub);
  expect_failure_of_run(with(small, words("--init-weights {}", folder_of_hub)),
                        "expected a checkpoint, model.safetensors or model.safetensors.index.json in this folder");
  std::ofstream(folder_of_hub + "/pytorch_model.bin") << zip;
  expect_failure_of_run(with(small, words("--init-weights {}", folder_of_hub)),
                        "found pytorch_model.bin, a file of torch.save" + convert);
  // DistributedDataParallel puts "module." before every name.
  const std::string saved = folder.str() + "/w.safetensors";
  ASSERT_EQ(run_vitrine(with(small, words("--save {}", saved))).exit_code, 0);
  expect_failure_of_run(words("train --model lenet5 --data synthetic:32 --steps 1 --init-weights {}", saved),
                        "; no name fits: the weights are another model's\n");
  std::string bytes = content(saved);
  uint64_t size = 0;
  std::memcpy(&size, bytes.data(), sizeof(size));
  const auto header = nlohmann::ordered_json::parse(bytes.substr(8, size));
  nlohmann::ordered_json wrapped;
  for (const auto& [name, tensor] : header.items()) wrapped[(name == "__metadata__" ? "" : "module.") + name] = tensor;
  const std::string text = wrapped.dump(), values = bytes.substr(8 + size);
  size = text.size();
  std::memcpy(bytes.data(), &size, sizeof(size));
  std::ofstream(saved, std::ios::binary) << bytes.substr(0, 8) << text << values;
  for (const Arguments& command : {with(small, words("--init-weights {}", saved)),
                                   words("eval --model mlp --image-size 8 --data synthetic:32 --weights {}", saved)}) {
    const ChildResult result = run_vitrine(command);
    EXPECT_EQ(result.exit_code, 0) << result.error;
    expect_contains(result.error, "loaded 6 of 6 parameters, without 'module.' before their names\n");
  }
}

TEST(ProgramErrors, AFolderOfHuggingFaceIsRead) {
  const TempFolder folder;
  const std::string saved = folder.str() + "/model.safetensors";
  const Arguments small = words("train --model mlp --image-size 8 --data synthetic:32 --steps 1");
  ASSERT_EQ(run_vitrine(with(small, words("--save {}", saved))).exit_code, 0);
  const auto read = [&](const std::string& path) {
    const ChildResult result = run_vitrine(with(small, words("--init-weights {}", path)));
    EXPECT_EQ(result.exit_code, 0) << result.error;
  };
  read(folder.str());
  std::filesystem::rename(saved, folder.str() + "/model-00001-of-00001.safetensors");
  const std::string index = saved + ".index.json";
  std::ofstream(index) << R"({"weight_map": {"classifier.0.weight": "model-00001-of-00001.safetensors"}})";
  read(folder.str());
  read(index);
}

TEST(ProgramErrors, FilesOfOtherKindsAreNamedWithARemedy) {
  const TempFolder folder;
  const std::string file = folder.str() + "/m.json";
  std::ofstream(file) << "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n";
  expect_failure_of_run(words("plan --model {}", file),
                        file + ": expected JSON, found a Git LFS pointer; fetch the file itself with git lfs pull\n");
  std::ofstream(file) << "<!DOCTYPE html><html></html>";
  expect_failure_of_run(words("plan --model {}", file), "found an HTML page; the download failed");
}

TEST(ProgramErrors, ModelFilesThatAreNotJsonAreLocated) {
  const TempFolder folder;
  const std::string file = folder.str() + "/m.json";
  for (const auto& [text, problem] :
       {std::pair<std::string, std::string>{"{\"input\":\n [1,,2]}", "line 2, column 5: found ',', expected a value"},
        {"{\"a\": [1] \"b\": 2}", "line 1, column 13: found a string, expected '}'"},
        {"{'a': 1}", "line 1, column 2: found '{'', expected a string in double quotes"},
        {"{\"a\": 1e999}", "a number is too large: '1e999'"},
        {"", "line 1, column 1: found the end, expected a value"},
        {"\xff", "line 1, column 1: found '\\xff'"}}) {
    std::ofstream(file) << text;
    const ChildResult result = run_vitrine(words("plan --model {}", file));
    expect_lacks(result.error, "exception");
    expect_contains(result.error, file + ": it is not JSON: " + problem);
  }
  std::ofstream(file) << std::string(100, '[');
  expect_failure_of_run(words("plan --model {}", file), "vitrine: " + file + ": it is nested deeper than 64 levels\n");
}

TEST(ProgramErrors, ForeignTextIsCutAndEscaped) {
  const TempFolder folder;
  const std::string file = folder.str() + "/m.json", name(10'000, 'x');
  for (const std::string& text :
       {"{\"input\": [3, 8, 8], \"layers\": [], \"" + name + "\": 1}",
        "{\"input\": [3, 8, 8], \"layers\": [{\"type\": \"" + name + "\"}]}",
        "{\"input\": [3, 8, 8], \"layers\": [{\"type\": \"ReLU\", \"" + name + "\": 1}]}", name}) {
    std::ofstream(file) << text;
    const ChildResult result = run_vitrine(words("plan --model {}", file));
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_LT(result.error.size(), 1000U) << result.error;
  }
  const std::string escape = "\x1b[31m";
  for (const Arguments& arguments : {words("plan --model {}", folder.str() + "/" + escape + ".json"),
                                     words("plan --mode {}", escape),
                                     {"plan", escape},
                                     words("train --data {}", "cifar10:" + escape),
                                     words("eval --weights {}", escape)}) {
    const ChildResult result = run_vitrine(arguments);
    expect_lacks(result.error, "\x1b");
    expect_contains(result.error, "\\x1b[31m");
  }
  for (const char* variable : {"VITRINE_ISA", "OMPI_COMM_WORLD_SIZE", "RANK"}) {
    const ChildResult result = ChildProcess(vitrine_command(words("train --data synthetic:8")),
                                            ChildProcess::Streams::pipes, {variable + ("=" + escape + name)})
                                   .wait();
    EXPECT_NE(result.exit_code, 0) << variable;
    expect_lacks(result.error, "\x1b");
    EXPECT_LT(result.error.size(), 1000U) << result.error;
  }
}

}  // namespace
}  // namespace vitrine::test
