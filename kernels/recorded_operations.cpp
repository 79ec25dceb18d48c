// SPDX-License-Identifier: Apache-2.0
#include "kernels/recorded_operations.h"

#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "runtime/error.h"

namespace vitrine {
namespace {

constexpr const char* kConvolution = "conv2d";
constexpr const char* kProduct = "product";

template <size_t count>
std::array<int64_t, count> numbers_of(std::istringstream& text, const std::string& line) {
  std::array<int64_t, count> numbers{};
  for (int64_t& number : numbers) text >> number;
  if (text.fail()) throw DataError(fmt::format("recorded operation '{}': expected {} numbers", line, count));
  return numbers;
}

}  // namespace

std::string RecordedConv2d::str() const {
  const char* const name = pass == Conv2dPass::forward         ? "conv2d_forward"
                           : pass == Conv2dPass::backward_data ? "conv2d_backward_data"
                                                               : "conv2d_backward_weight";
  return fmt::format("{} x {} w {} stride {} pad {}{}", name, x.str(), w.str(), config.stride, config.pad,
                     dtype == DType::f32 ? std::string() : fmt::format(", {}", dtype_name(dtype)));
}

void RecordedOperations::add(const RecordedConv2d& c) {
  convolutions.try_emplace({static_cast<int64_t>(c.pass), static_cast<int64_t>(c.dtype), c.x[0], c.x[1], c.x[2], c.x[3],
                            c.w[0], c.w[1], c.w[2], c.config.stride, c.config.pad, c.config.relu, c.bias, c.accumulate},
                           c);
}

std::vector<std::string> RecordedOperations::lines() const {
  std::vector<std::string> lines;
  for (const auto& [key, convolution] : convolutions)
    lines.push_back(fmt::format("{} {}", kConvolution, fmt::join(key, " ")));
  for (const auto& [p, unused] : products) {
    lines.push_back(fmt::format("{} {} {} {} {} {} {:d} {:d} {:d} {:d} {:d} {:d}", kProduct, p.m, p.n, p.k,
                                static_cast<int>(p.dtype), static_cast<int>(p.c_dtype), p.transpose_a, p.transpose_b,
                                p.bias, p.relu, p.accumulate, p.row_sums));
  }
  return lines;
}

void RecordedOperations::add_line(const std::string& line) {
  std::istringstream text(line);
  std::string kind;
  text >> kind;
  if (kind == kConvolution) {
    const auto n = numbers_of<14>(text, line);
    RecordedConv2d c;
    c.pass = static_cast<Conv2dPass>(n[0]);
    c.dtype = static_cast<DType>(n[1]);
    c.x = {n[2], n[3], n[4], n[5]};
    c.w = {n[6], n[7], n[8], n[5]};
    c.config = {n[9], n[10], n[11] != 0};
    c.bias = n[12] != 0;
    c.accumulate = n[13] != 0;
    c.y = conv2d_output_shape(c.config, c.x, c.w);
    add(c);
  } else if (kind == kProduct) {
    const auto n = numbers_of<11>(text, line);
    add(RecordedProduct{n[0], n[1], n[2], static_cast<DType>(n[3]), static_cast<DType>(n[4]), n[5] != 0, n[6] != 0,
                        n[7] != 0, n[8] != 0, n[9] != 0, n[10] != 0});
  } else {
    throw DataError(fmt::format("recorded operation '{}': expected {} or {}", line, kConvolution, kProduct));
  }
}

}  // namespace vitrine
