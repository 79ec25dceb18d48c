// SPDX-License-Identifier: Apache-2.0
// For each kind of error that names settings: the library's words and the program's words.
#include "tools/program/flags/advice.h"

#include <cstring>
#include <functional>
#include <set>
#include <span>

#include <gtest/gtest.h>

#include "data/settings.h"
#include "kernels/check.h"
#include "nn/parallel/engine.h"
#include "nn/parallel/plan/remedies.h"
#include "nn/parallel/settings.h"
#include "nn/settings.h"
#include "runtime/device.h"
#include "runtime/error.h"
#include "runtime/process_group/launch.h"
#include "runtime/settings.h"
#include "tests/parallel/random_model.h"
#include "tests/support/expect_contains.h"
#include "tests/support/text.h"
#include "tools/program/flags/options.h"

namespace vitrine::tools {
namespace {

using test::random_model;
using test::small_config;
using test::test_group;

struct Words {
  std::string library, program;
};

template <class E>
Words words_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const E& error) {
    return {error.what(), in_program_words(error)};
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

TEST(Advice, EverySettingHasAFlagOfTheProgram) {
  std::string help;
  for (const char* command : {"train", "plan", "eval"}) help += parse_command_line({command, "--help"}).output;
  std::vector<Setting> all;
  for (const std::span<const Setting> layer : {std::span<const Setting>(settings::kRuntimeSettings),
                                               {settings::kDataSettings},
                                               {settings::kModelSettings},
                                               {settings::kEngineSettings}}) {
    all.insert(all.end(), layer.begin(), layer.end());
  }
  std::set<std::string> names;
  for (const Setting setting : all) {
    EXPECT_TRUE(names.insert(setting.name()).second) << setting.name() << " is declared twice";
    const std::string flag = flag_of(setting);
    bool found = false;
    for (size_t at = help.find(flag); at != std::string::npos; at = help.find(flag, at + 1)) {
      found = found || std::strchr(" ,\n", help[at + flag.size()]) != nullptr;
    }
    EXPECT_TRUE(found) << setting.name() << ": no command has the option " << flag;
  }
}

TEST(Advice, ASettingWithoutAFlagKeepsItsName) {
  EXPECT_EQ(in_program_words({"lower ", Setting("MyLayer::width"), " or ", settings::kBatchSize}),
            "lower MyLayer::width or --batch-size");
}

TEST(Advice, TextThatContainsTheNameOfASettingStaysAsItIs) {
  const DataError error({"cannot read EngineConfig::batch_size.idx; lower ", settings::kBatchSize});
  EXPECT_EQ(in_program_words(error), "cannot read EngineConfig::batch_size.idx; lower --batch-size");
  EXPECT_EQ(in_program_words(std::runtime_error("EngineConfig::batch_size")), "EngineConfig::batch_size")
      << "not an error of the library";
}

TEST(Advice, OutOfMemoryProposesWhatFits) {
  const Model model = random_model(1);
  EngineConfig config = small_config(model, 24);
  DeviceGroupOptions options = test_group(2);
  options.memory_bytes.clear();
  for (const DevicePlan& plan : plan_memory(model, DeviceGroup(test_group(2)), config, {{24}, {}}))
    options.memory_bytes.push_back(plan.peak_bytes - 256);
  DeviceGroup group(options);
  try {
    const Engine engine(model, group, config, {{24}, {}});
    FAIL() << "it was not refused";
  } catch (const OutOfMemory& error) {
    const std::vector<Remedy> remedies = find_remedies(PlanSearch(model, group, config, {{24}, {}}));
    ASSERT_FALSE(remedies.empty());
    const Reason::Part& batch = remedies.back().at(0);
    EXPECT_EQ(batch.setting, settings::kBatchSize);
    expect_contains(error.what(), "What would fit: ", "EngineConfig::batch_size " + batch.text);
    expect_contains(in_program_words(error), "What would fit: ", "--batch-size " + batch.text);
    expect_lacks(in_program_words(error), "::");
    // Those who follow the data fit.
    config.batch_size = std::stoll(batch.text);
    EXPECT_NO_THROW(Engine(model, group, config, {{config.batch_size}, {}}));
    const MemoryShortage& shortage = error.shortage();
    EXPECT_EQ(shortage.memory, MemoryShortage::Memory::device);
    EXPECT_TRUE(shortage.device == group[0].name() || shortage.device == group[1].name()) << shortage.device;
    EXPECT_EQ(shortage.capacity_bytes, group[shortage.device == group[0].name() ? 0 : 1].pool().capacity_bytes());
    EXPECT_GT(shortage.needed_bytes, 0);
    EXPECT_FALSE(shortage.phase.empty());
    int64_t held = 0;
    for (const int64_t bytes : shortage.by_category) held += bytes;
    EXPECT_EQ(held, shortage.allocated_bytes);
  }
}

TEST(Advice, CompareProposesOnlyWhatItHasFlagsFor) {
  const auto advice = [](const std::vector<Remedy>& remedies) {
    Reason text = Reason("cpu:0 is full.\n") + Reason(kFirstRemedy);
    for (size_t r = 0; r < remedies.size(); ++r) {
      if (r > 0) text += kNextRemedy;
      for (size_t i = 0; i < remedies[r].size(); ++i) text += Reason({i == 0 ? "" : " ", remedies[r][i]});
    }
    return in_words_with_modes(text);
  };
  const Remedy batch = {propose(settings::kBatchSize, 32)}, split = {propose(settings::kSplit, "1,3")},
               scheme = {propose(settings::kScheme, "dp"), propose(settings::kAccumulate, 2)},
               axes = {propose(settings::kStaging, "host"), propose(settings::kReduce, "device0")};
  EXPECT_EQ(advice({batch, split, scheme}),
            "cpu:0 is full.\nWhat would fit: --batch-size 32; or --modes dp --accumulate 2");
  EXPECT_EQ(advice({split, batch}), "cpu:0 is full.\nWhat would fit: --batch-size 32");
  expect_contains(advice({split, axes}), "leave this mode out of --modes");
  expect_lacks(advice({split, axes}), "What would fit");
  EXPECT_EQ(in_words_with_modes({"lower ", settings::kBatchSize}), "lower --batch-size");
}

TEST(Advice, ASmallWorkspaceNamesTheBytesAndTheSetting) {
  if (test::on_gpu()) GTEST_SKIP() << "kernels of a GPU throw at issue";
  DeviceGroup group(test_group(1));
  ExecContext& ctx = group[0].compute();
  ctx.reserve_workspace(1000, settings::kWorkspaceBytes);
  const LayerScope layer(ctx, "classifier.1");
  ctx.dispatch({"gemm", {}, {}}, [&ctx] { check::throw_small_workspace(ctx, "gemm", "f16", 65536, int64_t{8} << 20); });
  try {
    ctx.stream().synchronize();
    FAIL() << "it was not refused";
  } catch (const OutOfMemory& error) {
    const std::string start =
        "layer 'classifier.1': gemm: f16 needs a workspace of at least 65536 bytes, but 1000 bytes are reserved; "
        "reserve more with ";
    EXPECT_EQ(error.what(), start + "EngineConfig::workspace_bytes 8192KiB");
    EXPECT_EQ(in_program_words(error), start + "--workspace 8192KiB");
    const MemoryShortage& shortage = error.shortage();
    EXPECT_EQ(shortage.memory, MemoryShortage::Memory::workspace);
    EXPECT_EQ(shortage.device, "cpu:0");
    EXPECT_EQ(shortage.user, "gemm");
    EXPECT_EQ(shortage.layer, "classifier.1");
    EXPECT_EQ(shortage.needed_bytes, 65536);
    EXPECT_EQ(shortage.capacity_bytes, 1000);
    EXPECT_EQ(error.reason().parts(Reason::Part::Kind::proposed),
              std::vector{propose(settings::kWorkspaceBytes, "8192KiB")});
  }
}

TEST(Advice, ABadSettingIsNamedWithItsValue) {
  const auto nothing = [](const char*) -> const char* { return nullptr; };
  Words words = words_of<ConfigError>([&] { detect_launch({4, 4, {}}, nothing); });
  EXPECT_EQ(words.library,
            "launch: LaunchFlags::rank 4: expected an integer from 0 to 3, as LaunchFlags::world_size 4; correct it");
  EXPECT_EQ(words.program, "launch: --rank 4: expected an integer from 0 to 3, as --world-size 4; correct it");

  words = words_of<ConfigError>([] { validate_split(scheme_preset("balanced").split, 8, 2); });
  expect_contains(words.library, "set Scheme::split gpu0=N, N samples per step");
  expect_contains(words.program, "set --split gpu0=N, N samples per step");

  words = words_of<ConfigError>([] { make_optimizer_config("sgd", 0.1, {}, true, {}); });
  expect_contains(words.library, "for example SgdConfig::momentum 0.9");
  expect_contains(words.program, "for example --momentum 0.9");
}

TEST(Advice, CommandLinesAreRefusedInTheProgramsWords) {
  const std::string error = parse_command_line(words("train --nesterov --optimizer sgd")).error;
  expect_contains(error, "--momentum 0.9");
  expect_lacks(error, "::");
}

}  // namespace
}  // namespace vitrine::tools
