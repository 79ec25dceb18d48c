// SPDX-License-Identifier: Apache-2.0
// Every operation that may write its result over an input gives the same bits in place and out of place, in all
// results.
#include <filesystem>
#include <fstream>
#include <functional>
#include <regex>
#include <set>

#include <fmt/format.h>

#include "kernels/batch_norm.h"
#include "kernels/cross_entropy.h"
#include "kernels/dropout.h"
#include "kernels/elementwise.h"
#include "kernels/gelu.h"
#include "kernels/relu.h"
#include "tests/support/paths.h"
#include "tests/support/stored.h"

namespace vitrine::test {
namespace {

/// The arguments of an operation besides the two that may be one: the same whenever it is called with one shape.
class Arguments {
 public:
  Arguments(TestDevice& device, DType dtype, const Shape& shape)
      : device_(device), dtype_(dtype), shape_(shape), columns_{shape[1]} {}

  ExecContext& ctx() { return device_.ctx(); }
  const Shape& shape() const { return shape_; }
  /// Of the shape and dtype of the operation.
  Tensor like() { return stored_tensor(device_, dtype_, shape_, random_stored(dtype_, shape_.numel(), ++seed_)); }
  /// (rows, columns) f32, or (columns).
  Tensor floats(int64_t rows) { return device_.random({rows, shape_[1]}, ++seed_, 0.5F, 2.0F); }
  Tensor floats() { return device_.random(columns_, ++seed_, 0.5F, 2.0F); }
  Tensor scalar(float value) { return device_.tensor({1}, std::vector<float>{value}); }
  Tensor targets(int32_t ignored) {
    std::vector<int32_t> values = random_integers<int32_t>(shape_[0], ++seed_, 0, shape_[1] - 1);
    for (size_t i = 2; i < values.size(); i += 3) values[i] = ignored;
    return device_.tensor({shape_[0]}, values);
  }
  /// A further f32 result, with content before the operation.
  View result(int64_t count) {
    results_.push_back(device_.guarded({count}, random_floats(count, ++seed_, 0.0F, 0.5F)));
    return results_.back();
  }
  std::vector<std::vector<uint32_t>> results() {
    std::vector<std::vector<uint32_t>> bits;
    for (const GuardedTensor& result : results_) bits.push_back(stored_bits(device_, result));
    return bits;
  }

 private:
  TestDevice& device_;
  DType dtype_;
  Shape shape_, columns_;
  uint64_t seed_ = 100;
  std::vector<GuardedTensor> results_;
};

struct Operation {
  std::string name, options;
  std::function<void(Arguments&, ConstView input, View output)> call;
};

/// Operations whose contract lets `output` be `input`, with the options that change what they read or write.
std::vector<Operation> operations() {
  std::vector<Operation> all{
      {"add", "over a", [](Arguments& a, ConstView x, View y) { add(a.ctx(), x, a.like(), y); }},
      {"add", "over b", [](Arguments& a, ConstView x, View y) { add(a.ctx(), a.like(), x, y); }},
      {"add", "over both", [](Arguments& a, ConstView x, View y) { add(a.ctx(), x, x, y); }},
      {"relu_forward", "", [](Arguments& a, ConstView x, View y) { relu_forward(a.ctx(), x, y); }},
      {"relu_backward", "", [](Arguments& a, ConstView x, View y) { relu_backward(a.ctx(), a.like(), x, y); }},
      {"gelu_forward", "", [](Arguments& a, ConstView x, View y) { gelu_forward(a.ctx(), x, y); }},
      {"gelu_backward", "", [](Arguments& a, ConstView x, View y) { gelu_backward(a.ctx(), a.like(), x, y); }},
      {"dropout", "",
       [](Arguments& a, ConstView x, View y) {
         dropout(a.ctx(), {.p = 0.3F, .seed = 5, .step = 2, .layer = 1}, x, y);
       }},
      {"batch_norm_backward_data", "",
       [](Arguments& a, ConstView x, View y) {
         batch_norm_backward_data(a.ctx(), a.like(), x, a.floats(2), a.floats(), a.floats(2), a.shape()[0], y);
       }},
  };
  for (const GradMode mode : {GradMode::overwrite, GradMode::accumulate}) {
    all.push_back({"relu_backward", mode == GradMode::accumulate ? "adds to the sums" : "sums",
                   [mode](Arguments& a, ConstView x, View y) {
                     relu_backward(a.ctx(), a.like(), x, y, a.result(a.shape()[1]), mode);
                   }});
  }
  for (const bool relu : {false, true}) {
    all.push_back({"batch_norm_forward", relu ? "ReLU" : "", [relu](Arguments& a, ConstView x, View y) {
                     batch_norm_forward(a.ctx(), {.relu = relu}, x, a.floats(2), a.floats(), a.floats(), y);
                   }});
  }
  for (const float smoothing : {0.0F, 0.1F, 1.0F}) {
    for (const bool scaled : {false, true}) {
      all.push_back({"softmax_cross_entropy", fmt::format("smoothing {}{}", smoothing, scaled ? ", loss scale" : ""),
                     [smoothing, scaled](Arguments& a, ConstView x, View y) {
                       const CrossEntropyConfig config{-1, 0.37F, smoothing};
                       softmax_cross_entropy(a.ctx(), config, x, a.targets(-1),
                                             scaled ? ConstView(a.scalar(64.0F)) : ConstView(), y,
                                             a.result(LossTotals::kCount));
                     }});
    }
  }
  return all;
}

class InPlaceTest : public DtypeTest {
 protected:
  InPlaceTest() { ctx().reserve_workspace(int64_t{1} << 20); }
};
INSTANTIATE_TEST_SUITE_P(Dtypes, InPlaceTest, ::testing::ValuesIn(kStorageTypes), dtype_test_name);

/// Lengths around those of packs and of the ways to share a row; aligned and not.
TEST_P(InPlaceTest, GivesTheBitsOfTheOperationOutOfPlace) {
  for (const Operation& operation : operations()) {
    for (const Shape& shape : {Shape{1, 1}, Shape{3, 7}, Shape{37, 24}, Shape{5, 1003}, Shape{2, 8203}}) {
      for (const int64_t offset : {0, 1, 3}) {
        const std::vector<float> values = random(shape.numel(), 7, -3, 3);
        const ShiftedStored apart = shifted(shape, offset), over = shifted(shape, offset, values);
        Arguments first(device, dtype(), shape), second(device, dtype(), shape);
        operation.call(first, shifted(shape, offset, values), apart);
        operation.call(second, over, over);
        const std::string what =
            fmt::format("{} ({}) of {} at {}", operation.name, operation.options, shape.str(), offset);
        expect_same_bits(over.bits(), apart.bits(), what);
        EXPECT_EQ(second.results(), first.results()) << "further results of " << what;
      }
    }
  }
}

/// An operation may work in place if its validation accepts that.
TEST(InPlace, ListHasEveryOperationThatMayWorkInPlace) {
  const std::filesystem::path sources = test::source_path("kernels");
  if (!std::filesystem::exists(sources / "relu.cpp")) GTEST_SKIP() << "needs the sources of the operations";
  std::set<std::string> expected, tested;
  for (const auto& file : std::filesystem::directory_iterator(sources)) {
    if (file.path().extension() != ".cpp" || file.path().filename() == "check.cpp") continue;
    std::ifstream stream(file.path());
    std::string name;
    for (std::string line; std::getline(stream, line);) {
      std::smatch found;
      if (std::regex_search(line, found, std::regex("kName = \"(\\w+)\""))) name = found[1];
      if (line.find("check::same_or_apart(kName") != std::string::npos) expected.insert(name);
    }
  }
  for (const Operation& operation : operations()) tested.insert(operation.name);
  EXPECT_EQ(tested, expected);
}

}  // namespace
}  // namespace vitrine::test
