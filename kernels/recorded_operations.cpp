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

const char* pass_name(Conv2dPass pass) {
  static constexpr const char* kNames[] = {"conv2d_forward", "conv2d_backward_data", "conv2d_backward_weight"};
  return kNames[static_cast<int>(pass)];
}

std::string RecordedConv2d::str() const {
  return fmt::format("{} x {} w {} stride {} pad {}{}", pass_name(pass), x.str(), w.str(), config.stride, config.pad,
                     dtype == DType::f32 ? std::string() : fmt::format(", {}", dtype_name(dtype)));
}

std::string RecordedProduct::str() const {
  return fmt::format("a product of {} by {} by {}{}", m, k, n,
                     dtype == DType::f32 ? std::string() : fmt::format(", {}", dtype_name(dtype)));
}

RecordedConv2d::Key RecordedConv2d::key() const {
  return {static_cast<int64_t>(pass),
          static_cast<int64_t>(dtype),
          x[0],
          x[1],
          x[2],
          x[3],
          w[0],
          w[1],
          w[2],
          config.stride,
          config.pad,
          config.relu,
          bias,
          accumulate};
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
