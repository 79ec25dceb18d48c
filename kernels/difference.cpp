// SPDX-License-Identifier: Apache-2.0
#include "kernels/difference.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/check.h"
#include "kernels/cpu/storage.h"
#include "kernels/run.h"
#include "runtime/cpu/parallel.h"

namespace vitrine {
namespace cpu {
namespace {

// The number of parts does not depend on the number of threads, so that the order of the sums is fixed.
constexpr int64_t kDifferenceParts = 256;
constexpr int64_t kDifferenceGrain = 16384;

struct Squares {
  double difference = 0.0, reference = 0.0;
};

void difference_norms(ExecContext&, ConstView x, ConstView reference, View norms) {
  const int64_t count = x.numel();
  const int64_t part_elements = std::max<int64_t>(1, (count + kDifferenceParts - 1) / kDifferenceParts);
  const int64_t parts = (count + part_elements - 1) / part_elements;
  const float* wanted = reference.as<float>();
  std::array<Squares, kDifferenceParts> sums{};
  with_storage(x.dtype, [&]<class T>(T) {
    const T* values = x.as<T>();
    parallel_for(parts, std::max<int64_t>(1, kDifferenceGrain / part_elements),
                 [&, values](int64_t begin, int64_t end) {
                   for (int64_t part = begin; part < end; ++part) {
                     Squares& sum = sums[static_cast<size_t>(part)];
                     for (int64_t i = part * part_elements; i < std::min(count, (part + 1) * part_elements); ++i) {
                       const auto exact = static_cast<double>(wanted[i]);
                       const double difference = static_cast<double>(to_float(values[i])) - exact;
                       sum.difference += difference * difference;
                       sum.reference += exact * exact;
                     }
                   }
                 });
  });
  Squares all;
  for (const Squares& sum : sums) {
    all.difference += sum.difference;
    all.reference += sum.reference;
  }
  norms.as<float>()[0] = static_cast<float>(std::sqrt(all.difference));
  norms.as<float>()[1] = static_cast<float>(std::sqrt(all.reference));
}

}  // namespace
}  // namespace cpu

namespace cuda {  // difference.cu
void difference_norms(ExecContext& ctx, ConstView x, ConstView reference, View norms);
}  // namespace cuda

void difference_norms(ExecContext& ctx, ConstView x, ConstView reference, View norms) {
  constexpr const char* kName = "difference_norms";
  check::rank(kName, "x", x, 1, "(n)");
  check::tensor(kName, "x", x, ctx);
  check::tensor(kName, "reference", reference, x.shape, DType::f32, ctx);
  check::tensor(kName, "norms", norms, {2}, DType::f32, ctx);
  check::no_overlap(kName, {"norms", norms}, {{"x", x}, {"reference", reference}});
  run(ctx, {kName, {x, reference}, {norms}}, cpu::difference_norms, VITRINE_IF_CUDA(cuda::difference_norms), x,
      reference, norms);
}

}  // namespace vitrine
