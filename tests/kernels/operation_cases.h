// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/exec_context.h"
#include "tests/support/layer_reference.h"

/// One table of the operations on tensors: what operations_test.cpp makes of a row is written in its first lines.
namespace vitrine::test {

using Arguments = std::vector<DoubleTensor>;

struct OperationArgument {
  const char* name;
  Shape shape;
  std::optional<DType> dtype = {};  // none: the storage type that is tested
  bool output = false;
  /// Of an output: |result - reference| <= absolute + relative * |reference|, and the rounding to its dtype. Both 0:
  /// the reference itself, rounded to f32 and then to the dtype.
  double relative = 0, absolute = 0;
  /// Content before the operation, from the arguments before it. Without it: random numbers in [-1, 1] as input, and as
  /// output a number that a test recognizes.
  std::function<std::vector<float>(const Arguments&, DType)> content = {};
};

struct OperationCase {
  std::string name = {};  // of the operation, as its messages have it
  std::string options = {};
  std::vector<OperationArgument> arguments = {};
  std::function<void(ExecContext&, const std::vector<View>&)> call = {};
  /// Replaces the outputs, which hold their content before the operation, by the results in double precision.
  std::function<void(Arguments&)> reference = {};
  /// Inputs that the first output may be written over.
  std::vector<size_t> in_place = {};
  /// Of a backward operation: the forward operation as a function of x, and the argument that x is; none: x is 0, since
  /// forward is linear. The first output is the gradient by x, and the argument "grad_y" that by the result.
  std::function<DoubleTensor(const Arguments&, const DoubleTensor& x)> forward = {};
  std::optional<size_t> x = {};

  std::string str() const;
};

const std::vector<OperationCase>& operation_cases();
/// The names of the operations in the cases, or of those alone whose cases have `forward`.
std::vector<std::string> operation_names(bool with_forward = false);

}  // namespace vitrine::test
