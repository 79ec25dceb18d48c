// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/cpu/portable.h"
#include "runtime/cpu/parallel.h"

namespace vitrine::cpu::portable {
namespace {

constexpr int64_t kBlockFloats = int64_t{96} * 1024;  // of columns at a time, so that they stay in the cache of a core

// The matrix of columns: one row per output position (n, p, q), which holds its window in the order of the weights (r,
// s, c).
struct Columns {
  Columns(const Conv2dConfig& config, const Shape& x, const Shape& w)
      : stride(config.stride),
        pad(config.pad),
        height(x[1]),
        width(x[2]),
        channels(x[3]),
        window_height(w[1]),
        window_width(w[2]) {
    out_height = (height + 2 * pad - window_height) / stride + 1;
    out_width = (width + 2 * pad - window_width) / stride + 1;
    rows = x[0] * out_height * out_width;
    count = window_height * window_width * channels;
  }

  // A run of a window's row that lies inside the image: elements [begin, end) of the columns equal those at `source` of
  // the image.
  struct Run {
    int64_t begin, end, source;
  };
  Run run(int64_t row, int64_t r) const {
    const int64_t q = row % out_width;
    const int64_t p = row / out_width % out_height;
    const int64_t image = row / out_width / out_height;
    const int64_t h = p * stride - pad + r;
    const int64_t left = q * stride - pad;
    const int64_t line = r * window_width * channels;
    const int64_t first = std::max<int64_t>(0, -left);
    const int64_t last = std::min(window_width, width - left);
    if (h < 0 || h >= height || first >= last) return {line, line, 0};
    return {line + first * channels, line + last * channels, ((image * height + h) * width + left + first) * channels};
  }

  bool is_identity() const { return window_height == 1 && window_width == 1 && stride == 1 && pad == 0; }

  int64_t stride, pad, height, width, channels, window_height, window_width;
  int64_t out_height, out_width, rows, count;
};

struct Range {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

Range part_of(int64_t count, int64_t part, int64_t parts) { return {count * part / parts, count * (part + 1) / parts}; }

// Elements `columns` of rows [first_row, first_row + row_count), packed.
void gather(const Columns& geometry, const float* x, int64_t first_row, int64_t row_count, Range columns,
            float* packed) {
  const int64_t line = geometry.window_width * geometry.channels;
  for (int64_t i = 0; i < row_count; ++i, packed += columns.size()) {
    for (int64_t r = columns.begin / line; r * line < columns.end; ++r) {
      const Columns::Run run = geometry.run(first_row + i, r);
      const int64_t begin = std::max(columns.begin, r * line);
      const int64_t end = std::min(columns.end, (r + 1) * line);
      const int64_t inside_begin = std::clamp(run.begin, begin, end);
      const int64_t inside_end = std::clamp(run.end, inside_begin, end);
      std::fill(packed + (begin - columns.begin), packed + (inside_begin - columns.begin), 0.0F);
      if (inside_begin < inside_end) {
        std::memcpy(packed + (inside_begin - columns.begin), x + run.source + (inside_begin - run.begin),
                    static_cast<size_t>(inside_end - inside_begin) * sizeof(float));
      }
      std::fill(packed + (inside_end - columns.begin), packed + (end - columns.begin), 0.0F);
    }
  }
}

// Adds whole rows of columns to the image elements that they were copied from.
void scatter_add(const Columns& geometry, const float* packed, int64_t first_row, int64_t row_count, float* grad_x) {
  for (int64_t i = 0; i < row_count; ++i, packed += geometry.count) {
    for (int64_t r = 0; r < geometry.window_height; ++r) {
      const Columns::Run run = geometry.run(first_row + i, r);
      float* target = grad_x + run.source;
      for (int64_t j = run.begin; j < run.end; ++j) target[j - run.begin] += packed[j];
    }
  }
}

struct Blocking {
  float* arena;
  int64_t parts, rows;  // parts that run in parallel, rows of columns in each
};

Blocking block_workspace(const View& workspace, const Columns& geometry, int64_t max_parts) {
  const int64_t total_rows = workspace.bytes() / (geometry.count * size_of(DType::f32));
  const int64_t parts = std::min({static_cast<int64_t>(team_size()), total_rows, max_parts});
  return {static_cast<float*>(workspace.data), parts,
          std::min(total_rows / parts, std::max<int64_t>(1, kBlockFloats / geometry.count))};
}

template <class Body>
void for_each_part(int64_t parts, const Body& body) {
  parallel_for(parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) body(part);
  });
}

View as_matrix(const View& v) {
  return v.reshape({v.numel() / v.shape[v.shape.rank() - 1], v.shape[v.shape.rank() - 1]});
}

/// A window of one pixel: x, w and y are matrices with a row for each pixel or output.
void multiply_pixels(const Conv2dCall& c) {
  const View x = as_matrix(c.x), w = as_matrix(c.w), y = as_matrix(c.y);
  switch (c.pass) {
    case Conv2dPass::forward:
      return portable::linear_forward(x, w, c.bias, c.config.relu, y);
    case Conv2dPass::backward_data:
      return portable::linear_backward_data(y, w, x);
    case Conv2dPass::backward_weight:
      return portable::linear_backward_weight(x, y, w, c.bias, c.mode);
  }
}

void forward(const Columns& geometry, const Blocking& blocking, const Conv2dCall& c) {
  const int64_t outputs = c.w.shape[0];
  for_each_part(blocking.parts, [&](int64_t part) {
    float* columns = blocking.arena + part * blocking.rows * geometry.count;
    const Range rows = part_of(geometry.rows, part, blocking.parts);
    for (int64_t row = rows.begin; row < rows.end; row += blocking.rows) {
      const int64_t n = std::min(blocking.rows, rows.end - row);
      gather(geometry, c.x.as<float>(), row, n, {0, geometry.count}, columns);
      float* block = c.y.as<float>() + row * outputs;
      multiply(n, outputs, geometry.count, {columns, geometry.count, false}, {c.w.as<float>(), geometry.count, true},
               block, outputs, false);
      add_bias_relu(block, n, outputs, c.bias.as<float>(), c.config.relu);
    }
  });
}

/// One thread handles a whole image: windows overlap, and their sums must have a fixed order.
void backward_data(const Columns& geometry, const Blocking& blocking, const Conv2dCall& c) {
  const int64_t images = c.x.shape[0], outputs = c.w.shape[0];
  const int64_t image_rows = geometry.out_height * geometry.out_width, image_size = c.x.numel() / images;
  for_each_part(blocking.parts, [&](int64_t part) {
    float* columns = blocking.arena + part * blocking.rows * geometry.count;
    const Range range = part_of(images, part, blocking.parts);
    std::fill(c.x.as<float>() + range.begin * image_size, c.x.as<float>() + range.end * image_size, 0.0F);
    const int64_t end = range.end * image_rows;
    for (int64_t row = range.begin * image_rows; row < end; row += blocking.rows) {
      const int64_t n = std::min(blocking.rows, end - row);
      multiply(n, geometry.count, outputs, {c.y.as<float>() + row * outputs, outputs, false},
               {c.w.as<float>(), geometry.count, false}, columns, geometry.count, false);
      scatter_add(geometry, columns, row, n, c.x.as<float>());
    }
  });
}

/// Each thread owns some columns of the gradient and walks through all rows: no partial sums to reduce.
void backward_weight(const Columns& geometry, const Blocking& blocking, const Conv2dCall& c) {
  const int64_t outputs = c.w.shape[0];
  for_each_part(blocking.parts, [&](int64_t part) {
    const Range owned = part_of(geometry.count, part, blocking.parts);
    float* columns = blocking.arena + owned.begin * blocking.rows;
    float* target = c.w.as<float>() + owned.begin;
    for (int64_t row = 0; row < geometry.rows; row += blocking.rows) {
      const int64_t n = std::min(blocking.rows, geometry.rows - row);
      gather(geometry, c.x.as<float>(), row, n, owned, columns);
      multiply(outputs, owned.size(), n, {c.y.as<float>() + row * outputs, outputs, true},
               {columns, owned.size(), false}, target, geometry.count, row > 0 || c.mode == GradMode::accumulate);
    }
  });
  if (c.bias) column_sums(c.y, c.bias.as<float>(), c.mode);
}

}  // namespace

void conv2d(const ExecContext& ctx, const View& workspace, const Conv2dCall& c) {
  const Columns geometry(c.config, c.x.shape, c.w.shape);
  if (geometry.is_identity()) return multiply_pixels(c);
  require_workspace(ctx, workspace ? workspace.bytes() : 0, c.recorded());
  const int64_t most_parts = c.pass == Conv2dPass::forward         ? geometry.rows
                             : c.pass == Conv2dPass::backward_data ? c.x.shape[0]
                                                                   : geometry.count;
  const Blocking blocking = block_workspace(workspace, geometry, most_parts);
  constexpr std::array kPasses{&forward, &backward_data, &backward_weight};
  kPasses[static_cast<size_t>(c.pass)](geometry, blocking, c);
}

Conv2dBytes conv2d_bytes(const RecordedConv2d& convolution) {
  const Columns geometry(convolution.config, convolution.x, convolution.w);
  if (geometry.is_identity()) return {0, 0};
  const int64_t row = geometry.count * size_of(DType::f32);
  return {row, team_size() * std::max(row, kBlockFloats * size_of(DType::f32))};
}

void require_workspace(const ExecContext& ctx, int64_t bytes, const RecordedConv2d& c) {
  const int64_t needed = conv2d_bytes(c).least;
  if (bytes >= needed) return;
  const std::string what = fmt::format("x {} with a window of {} x {}", c.x.str(), c.w[1], c.w[2]);
  check::throw_small_workspace(ctx, pass_name(c.pass), what, needed, needed * 64 * team_size());
}

}  // namespace vitrine::cpu::portable
