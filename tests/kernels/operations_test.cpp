// SPDX-License-Identifier: Apache-2.0
// Of every operation in the table, for every storage type: the results equal a reference in double precision at any
// alignment and any number of threads, the same bits come in place and again, gradients are the differences of the
// forward operation, and arguments that do not fit are refused by name.
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <regex>
#include <set>

#include "runtime/error.h"
#include "tests/kernels/expect_error.h"
#include "tests/kernels/operation_cases.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"
#include "tests/support/paths.h"
#include "tests/support/seeds.h"
#include "tests/support/stored.h"

namespace vitrine::test {
namespace {

/// A case on a device: its arguments as they lie there, and as the reference has them.
class Call {
 public:
  /// Argument i begins (shift + i * step) % 4 elements after an aligned address; the first output begins where argument
  /// `over` does.
  Call(TestDevice& device, const OperationCase& c, DType dtype, int64_t shift = 0, int64_t step = 0,
       std::optional<size_t> over = {})
      : device_(device), case_(c) {
    for (const OperationArgument& a : c.arguments) {
      const DType type = a.dtype.value_or(dtype);
      const int64_t offset = (shift + step * static_cast<int64_t>(before.size())) % 4;
      const std::vector<float> content =
          a.content ? a.content(before, type) : std::vector<float>(static_cast<size_t>(a.shape.numel()), 77.0F);
      before.push_back({a.shape, {content.begin(), content.end()}});
      tensors_.emplace_back(device, type, a.shape, offset, content);
      views.push_back(tensors_.back());
    }
    place_.resize(views.size());
    std::iota(place_.begin(), place_.end(), size_t{0});
    if (over) {
      views[first_output()] = views[*over];
      place_[first_output()] = *over;
    }
  }

  size_t first_output() const {
    size_t i = 0;
    while (!case_.arguments[i].output) ++i;
    return i;
  }
  void run() const { case_.call(device_.ctx(), views); }
  std::vector<float> values(size_t i) const { return tensors_[place_[i]].values(); }
  /// The bits of all outputs.
  std::vector<std::vector<uint32_t>> results() const {
    std::vector<std::vector<uint32_t>> bits;
    for (size_t i = 0; i < views.size(); ++i) {
      if (case_.arguments[i].output) bits.push_back(tensors_[place_[i]].bits());
    }
    return bits;
  }

  std::vector<View> views;
  Arguments before;

 private:
  TestDevice& device_;
  const OperationCase& case_;
  std::vector<ShiftedStored> tensors_;
  std::vector<size_t> place_;  // of the tensor that an argument is
};

class OperationTest : public ::testing::TestWithParam<std::tuple<std::string, DType>> {
 protected:
  static constexpr int64_t kWorkspace = int64_t{1} << 20;
  OperationTest() { device.ctx().reserve_workspace(kWorkspace); }
  DType dtype() const { return std::get<1>(GetParam()); }
  /// Calls body(case) for every case of the operation until one fails.
  template <class Body>
  void for_each_case(const Body& body) {
    for (const OperationCase& c : operation_cases()) {
      if (c.name != std::get<0>(GetParam())) continue;
      SCOPED_TRACE(c.str());
      body(c);
      if (HasFailure()) return;
    }
  }
  /// Tolerances of an output: its own, and those of rounding to its dtype.
  std::pair<double, double> tolerance(const OperationArgument& a) const {
    const DType type = a.dtype.value_or(dtype());
    const bool is_half = type == DType::f16 || type == DType::bf16;
    return {a.relative + (is_half ? unit_roundoff(type) : 0), a.absolute + half_smallest(is_half ? type : DType::f32)};
  }
  void expect_result(const OperationArgument& a, const std::vector<float>& actual,
                     const std::vector<double>& expected) {
    // A number beyond those of the dtype is stored as infinity.
    std::vector<float> rounded(expected.begin(), expected.end());
    const DType type = a.dtype.value_or(dtype());
    if (type != DType::u8) rounded = stored(type, rounded);
    if (a.relative == 0 && a.absolute == 0) return expect_close(actual, rounded, 0, 0, a.name);
    std::vector<double> nearest = expected;
    for (size_t i = 0; i < nearest.size(); ++i)
      if (!std::isfinite(rounded[i])) nearest[i] = static_cast<double>(rounded[i]);
    const auto [relative, absolute] = tolerance(a);
    expect_close(actual, nearest, relative, absolute, a.name);
  }
  void expect_reference(const OperationCase& c, const Call& call) {
    Arguments expected = call.before;
    c.reference(expected);
    for (size_t i = 0; i < c.arguments.size(); ++i)
      if (c.arguments[i].output) expect_result(c.arguments[i], call.values(i), expected[i].values);
  }

  TestDevice device;
};
std::string case_name(const ::testing::TestParamInfo<std::tuple<std::string, DType>>& of) {
  return std::get<0>(of.param) + "_" + dtype_name(std::get<1>(of.param));
}
INSTANTIATE_TEST_SUITE_P(Of, OperationTest,
                         ::testing::Combine(::testing::ValuesIn(operation_names()), ::testing::ValuesIn(kStorageTypes)),
                         case_name);

TEST_P(OperationTest, EqualsTheReferenceAtAnyAlignment) {
  for_each_case([&](const OperationCase& c) {
    constexpr std::array<std::pair<int64_t, int64_t>, 4> kShifts = {{{0, 0}, {1, 1}, {3, 0}, {2, 3}}};
    for (size_t i = 0; i < kShifts.size(); i += kSeedStep) {
      const Call call(device, c, dtype(), kShifts[i].first, kShifts[i].second);
      call.run();
      expect_reference(c, call);
    }
  });
}

TEST_P(OperationTest, GivesTheSameBitsInPlaceAndAgain) {
  for_each_case([&](const OperationCase& c) {
    std::vector<std::optional<size_t>> places(c.in_place.begin(), c.in_place.end());
    places.emplace_back();
    for (int64_t shift = 0; shift < 4; shift += kSeedStep) {
      for (const std::optional<size_t>& over : places) {
        const Call apart(device, c, dtype(), shift), second(device, c, dtype(), shift, 0, over);
        apart.run();
        second.run();
        EXPECT_EQ(second.results(), apart.results()) << (over ? c.arguments[*over].name : "again");
      }
    }
  });
}

TEST_P(OperationTest, EqualsTheReferenceWithAnyNumberOfThreads) {
  if (on_gpu()) GTEST_SKIP() << "a GPU has no threads to choose";
  for (const int threads : {1, 3}) {
    TestDevice on(threads);
    on.ctx().reserve_workspace(kWorkspace);
    for_each_case([&](const OperationCase& c) {
      const Call call(on, c, dtype());
      call.run();
      expect_reference(c, call);
    });
  }
}

/// The backward operations whose cases have their forward operation.
class GradientTest : public OperationTest {};
INSTANTIATE_TEST_SUITE_P(Of, GradientTest,
                         ::testing::Combine(::testing::ValuesIn(operation_names(true)),
                                            ::testing::ValuesIn(kStorageTypes)),
                         case_name);

/// At up to 20 elements of the first output.
TEST_P(GradientTest, IsTheDifferenceOfTheForwardOperation) {
  constexpr double kStep = 1e-6;
  constexpr size_t kElements = 20;
  for_each_case([&](const OperationCase& c) {
    if (!c.forward) return;
    const Call call(device, c, dtype());
    call.run();
    const size_t output = call.first_output();
    size_t grad_y = 0;
    while (c.arguments[grad_y].name != std::string("grad_y")) ++grad_y;
    const std::vector<float> gradient = call.values(output);
    DoubleTensor x =
        c.x ? call.before[*c.x] : DoubleTensor{c.arguments[output].shape, std::vector<double>(gradient.size())};
    const auto loss_at = [&](size_t i, double step) {
      DoubleTensor moved = x;
      moved.values[i] += step;
      const DoubleTensor y = c.forward(call.before, moved);
      return std::inner_product(y.values.begin(), y.values.end(), call.before[grad_y].values.begin(), 0.0);
    };
    const auto [relative, absolute] = tolerance(c.arguments[output]);
    const size_t count = std::min(gradient.size(), kElements);
    for (size_t k = 0; k < count; ++k) {
      const size_t i = k * gradient.size() / count;
      const double old = c.arguments[output].content ? call.before[output].values[i] : 0,
                   expected = old + (loss_at(i, kStep) - loss_at(i, -kStep)) / (2 * kStep);
      ASSERT_NEAR(gradient[i], expected, absolute + relative * std::abs(expected) + 1e-5) << "element " << i;
    }
  });
}

/// Every argument in turn: of another dtype, of another shape, on the host, and every output over another argument.
TEST_P(OperationTest, RefusesEachArgumentThatDoesNotFit) {
  const std::string name = std::get<0>(GetParam()) + ": ";
  const auto c = std::find_if(operation_cases().rbegin(), operation_cases().rend(),
                              [&](const OperationCase& one) { return one.name == std::get<0>(GetParam()); });
  Call call(device, *c, dtype());
  std::vector<View>& views = call.views;
  const auto run = [&] { call.run(); };
  for (size_t i = 0; i < views.size(); ++i) {
    const View good = views[i];
    const OperationArgument& a = c->arguments[i];
    const std::string is = name + a.name + " is ";
    const bool any_float = c->name == "cast" || (i == 0 && !a.dtype);
    views[i].dtype = any_float || a.dtype == DType::f32 ? DType::i32
                     : good.dtype == DType::f32         ? DType::f16
                                                        : DType::f32;
    // The message may name another argument of the storage type, which this one then differs from.
    const std::string wrong = dtype_name(views[i].dtype);
    expect_contains(error_of<DtypeError>(run), a.dtype ? is + wrong + ", expected " : name, wrong);
    views[i] = good;
    views[i].device = DeviceId::host();
    expect_error<DeviceError>(is + "on host, expected " + device.ctx().device().str(), run);
    views[i] = good;
    views[i].shape = good.shape.with_last(good.shape[good.shape.rank() - 1] + 1);
    expect_error<ShapeError>(name, run);
    views[i] = good;
    for (size_t k = 0; a.output && k < views.size(); ++k) {
      if (k == i) continue;
      const bool in_place = std::count(c->in_place.begin(), c->in_place.end(), k) > 0;
      views[i].data = static_cast<std::byte*>(views[k].data) + (in_place ? size_of(good.dtype) : 0);
      expect_error<ShapeError>("share memory, expected separate tensors", run);
      views[i] = good;
    }
  }
}

/// An operation may work in place if its validation accepts that.
TEST(Operations, TableHasEveryOperationThatMayWorkInPlace) {
  const std::filesystem::path sources = test::source_path("kernels");
  if (!std::filesystem::exists(sources / "elementwise.cpp")) GTEST_SKIP() << "needs the sources of the operations";
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
  for (const OperationCase& c : operation_cases())
    if (!c.in_place.empty()) tested.insert(c.name);
  EXPECT_EQ(tested, expected);
}

}  // namespace
}  // namespace vitrine::test
