// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "kernels/implementations.h"
#include "runtime/cpu/parallel.h"

namespace vitrine::cpu {
namespace {

// Eight channels at a time, in the compiler's own vectors: the position of a maximum is chosen with the same mask as its value.
constexpr int64_t kLanes = 8;
using Floats = float __attribute__((vector_size(kLanes * sizeof(float))));
using Ints = int32_t __attribute__((vector_size(kLanes * sizeof(int32_t))));

// The compiler takes conversions between bytes and lanes apart, element by element; with AVX2 they are one or two instructions.
inline void load_bytes(const uint8_t* from, Ints& to) {
#ifdef __AVX2__
  to = reinterpret_cast<Ints>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
  uint8_t narrow __attribute__((vector_size(kLanes)));
  std::memcpy(&narrow, from, sizeof narrow);
  to = __builtin_convertvector(narrow, Ints);
#endif
}

inline void store_bytes(const Ints& from, uint8_t* to) {
#ifdef __AVX2__
  const auto wide = reinterpret_cast<__m256i>(from);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
#else
  using Bytes = uint8_t __attribute__((vector_size(kLanes)));
  const Bytes narrow = __builtin_convertvector(from, Bytes);
  std::memcpy(to, &narrow, sizeof narrow);
#endif
}

constexpr int64_t kGrainElements = 8192;
int64_t grain_rows(int64_t row_elements) { return std::max<int64_t>(1, kGrainElements / std::max<int64_t>(1, row_elements)); }

struct Range {
  int64_t begin;
  int64_t end;
};

/// Windows of fixed size and stride along one axis.
struct FixedWindows {
  int64_t window, stride, pad, size, count;  // count windows over size elements
  Range elements_of(int64_t i) const { return {std::max<int64_t>(0, i * stride - pad), std::min(size, i * stride - pad + window)}; }
  Range windows_of(int64_t element) const {
    const int64_t at = element + pad;
    return {at < window ? 0 : (at - window) / stride + 1, std::min(count, at / stride + 1)};
  }
  int64_t divisor(int64_t) const { return window; }
};

/// The windows [floor(i * size / count), ceil((i + 1) * size / count)) along one axis.
struct AdaptiveWindows {
  int64_t size, count;
  Range elements_of(int64_t i) const { return {i * size / count, ((i + 1) * size + count - 1) / count}; }
  Range windows_of(int64_t element) const { return {element * count / size, ((element + 1) * count + size - 1) / size}; }
  int64_t divisor(int64_t i) const { return elements_of(i).end - elements_of(i).begin; }
};

/// The maximum of one window for `channels` channels from `x` (which points at the first element of the image and channel).
template <bool kKeepIndices>
void max_of_window(const float* x, int64_t row_stride, int64_t channels, const FixedWindows& vertical, const FixedWindows& horizontal, int64_t p,
                   int64_t q, float* y, uint8_t* indices) {
  const Range h = vertical.elements_of(p);
  const Range w = horizontal.elements_of(q);
  const int64_t h0 = p * vertical.stride - vertical.pad;
  const int64_t w0 = q * horizontal.stride - horizontal.pad;
  int64_t c = 0;
  for (; c + kLanes <= channels; c += kLanes) {
    Floats best;
    std::memcpy(&best, x + h.begin * row_stride + w.begin * channels + c, sizeof best);
    Ints where = Ints{} + static_cast<int32_t>((h.begin - h0) * horizontal.window + w.begin - w0);
    for (int64_t i = h.begin; i < h.end; ++i) {
      for (int64_t j = w.begin; j < w.end; ++j) {
        Floats value;
        std::memcpy(&value, x + i * row_stride + j * channels + c, sizeof value);
        const Ints wins = (value > best) | (value != value);
        best = wins ? value : best;
        if constexpr (kKeepIndices) where = wins ? Ints{} + static_cast<int32_t>((i - h0) * horizontal.window + j - w0) : where;
      }
    }
    std::memcpy(y + c, &best, sizeof best);
    if constexpr (kKeepIndices) store_bytes(where, indices + c);
  }
  for (; c < channels; ++c) {
    float best = x[h.begin * row_stride + w.begin * channels + c];
    int64_t where = (h.begin - h0) * horizontal.window + w.begin - w0;
    for (int64_t i = h.begin; i < h.end; ++i) {
      for (int64_t j = w.begin; j < w.end; ++j) {
        const float value = x[i * row_stride + j * channels + c];
        if (!(value > best) && value == value) continue;
        best = value;
        where = (i - h0) * horizontal.window + j - w0;
      }
    }
    y[c] = best;
    if constexpr (kKeepIndices) indices[c] = static_cast<uint8_t>(where);
  }
}

template <bool kKeepIndices>
void max_forward(const Pool2dConfig& config, const ConstView& x, const View& y, const View& indices) {
  const int64_t channels = x.shape[3];
  const int64_t rows = y.shape[1];
  const int64_t columns = y.shape[2];
  const FixedWindows vertical{config.window, config.stride, config.pad, x.shape[1], rows};
  const FixedWindows horizontal{config.window, config.stride, config.pad, x.shape[2], columns};
  const int64_t row_stride = x.shape[2] * channels;
  parallel_for(y.shape[0] * rows, grain_rows(columns * channels), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const float* image = x.as<float>() + row / rows * x.shape[1] * row_stride;
      for (int64_t q = 0; q < columns; ++q) {
        const int64_t at = (row * columns + q) * channels;
        max_of_window<kKeepIndices>(image, row_stride, channels, vertical, horizontal, row % rows, q, y.as<float>() + at,
                                    kKeepIndices ? indices.as<uint8_t>() + at : nullptr);
      }
    }
  });
}

/// Sums what the windows around one element send to it: grad_y where the window's index names the element's position.
void gather_max_gradient(const float* grad_y, const uint8_t* indices, int64_t row_stride, int64_t channels, const FixedWindows& vertical,
                         const FixedWindows& horizontal, int64_t h, int64_t w, float* grad_x) {
  const Range ps = vertical.windows_of(h);
  const Range qs = horizontal.windows_of(w);
  const auto position = [&](int64_t p, int64_t q) {
    return static_cast<int32_t>((h + vertical.pad - p * vertical.stride) * horizontal.window + w + horizontal.pad - q * horizontal.stride);
  };
  int64_t c = 0;
  for (; c + kLanes <= channels; c += kLanes) {
    Floats sum{};
    for (int64_t p = ps.begin; p < ps.end; ++p) {
      for (int64_t q = qs.begin; q < qs.end; ++q) {
        const int64_t at = p * row_stride + q * channels + c;
        Ints where;
        Floats gradient;
        load_bytes(indices + at, where);
        std::memcpy(&gradient, grad_y + at, sizeof gradient);
        sum += where == position(p, q) ? gradient : Floats{};
      }
    }
    std::memcpy(grad_x + c, &sum, sizeof sum);
  }
  for (; c < channels; ++c) {
    float sum = 0.0F;
    for (int64_t p = ps.begin; p < ps.end; ++p) {
      for (int64_t q = qs.begin; q < qs.end; ++q) {
        const int64_t at = p * row_stride + q * channels + c;
        if (indices[at] == position(p, q)) sum += grad_y[at];
      }
    }
    grad_x[c] = sum;
  }
}

template <class Windows>
void mean_forward(const ConstView& x, const View& y, const Windows& vertical, const Windows& horizontal) {
  const int64_t channels = x.shape[3];
  const int64_t rows = y.shape[1];
  const int64_t columns = y.shape[2];
  const int64_t row_stride = x.shape[2] * channels;
  parallel_for(y.shape[0] * rows, grain_rows(columns * channels), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t p = row % rows;
      const float* image = x.as<float>() + row / rows * x.shape[1] * row_stride;
      const Range hs = vertical.elements_of(p);
      for (int64_t q = 0; q < columns; ++q) {
        float* out = y.as<float>() + (row * columns + q) * channels;
        const Range ws = horizontal.elements_of(q);
        std::fill_n(out, channels, 0.0F);
        for (int64_t h = hs.begin; h < hs.end; ++h) {
          for (int64_t w = ws.begin; w < ws.end; ++w) {
            const float* in = image + h * row_stride + w * channels;
#pragma omp simd
            for (int64_t c = 0; c < channels; ++c) out[c] += in[c];
          }
        }
        const auto divisor = static_cast<float>(vertical.divisor(p) * horizontal.divisor(q));
#pragma omp simd
        for (int64_t c = 0; c < channels; ++c) out[c] /= divisor;
      }
    }
  });
}

template <class Windows>
void mean_backward(const ConstView& grad_y, const View& grad_x, const Windows& vertical, const Windows& horizontal) {
  const int64_t channels = grad_x.shape[3];
  const int64_t rows = grad_x.shape[1];
  const int64_t columns = grad_x.shape[2];
  const int64_t row_stride = grad_y.shape[2] * channels;
  parallel_for(grad_x.shape[0] * rows, grain_rows(columns * channels), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t h = row % rows;
      const float* image = grad_y.as<float>() + row / rows * grad_y.shape[1] * row_stride;
      const Range ps = vertical.windows_of(h);
      for (int64_t w = 0; w < columns; ++w) {
        float* out = grad_x.as<float>() + (row * columns + w) * channels;
        const Range qs = horizontal.windows_of(w);
        std::fill_n(out, channels, 0.0F);
        for (int64_t p = ps.begin; p < ps.end; ++p) {
          for (int64_t q = qs.begin; q < qs.end; ++q) {
            const float* in = image + p * row_stride + q * channels;
            const float share = 1.0F / static_cast<float>(vertical.divisor(p) * horizontal.divisor(q));
#pragma omp simd
            for (int64_t c = 0; c < channels; ++c) out[c] += in[c] * share;
          }
        }
      }
    }
  });
}

}  // namespace

void max_pool2d_forward(ExecContext&, const Pool2dConfig& config, ConstView x, View y, View indices) {
  if (indices) {
    max_forward<true>(config, x, y, indices);
  } else {
    max_forward<false>(config, x, y, indices);
  }
}

void max_pool2d_backward(ExecContext&, const Pool2dConfig& config, ConstView grad_y, ConstView indices, View grad_x) {
  const int64_t channels = grad_x.shape[3];
  const int64_t rows = grad_x.shape[1];
  const int64_t columns = grad_x.shape[2];
  const FixedWindows vertical{config.window, config.stride, config.pad, rows, grad_y.shape[1]};
  const FixedWindows horizontal{config.window, config.stride, config.pad, columns, grad_y.shape[2]};
  const int64_t row_stride = grad_y.shape[2] * channels;
  parallel_for(grad_x.shape[0] * rows, grain_rows(columns * channels), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      const int64_t image = row / rows * grad_y.shape[1] * row_stride;
      for (int64_t w = 0; w < columns; ++w) {
        gather_max_gradient(grad_y.as<float>() + image, indices.as<uint8_t>() + image, row_stride, channels, vertical, horizontal, row % rows, w,
                            grad_x.as<float>() + (row * columns + w) * channels);
      }
    }
  });
}

void avg_pool2d_forward(ExecContext&, const Pool2dConfig& config, ConstView x, View y) {
  mean_forward(x, y, FixedWindows{config.window, config.stride, config.pad, x.shape[1], y.shape[1]},
               FixedWindows{config.window, config.stride, config.pad, x.shape[2], y.shape[2]});
}

void avg_pool2d_backward(ExecContext&, const Pool2dConfig& config, ConstView grad_y, View grad_x) {
  mean_backward(grad_y, grad_x, FixedWindows{config.window, config.stride, config.pad, grad_x.shape[1], grad_y.shape[1]},
                FixedWindows{config.window, config.stride, config.pad, grad_x.shape[2], grad_y.shape[2]});
}

void adaptive_avg_pool2d_forward(ExecContext&, ConstView x, View y) {
  mean_forward(x, y, AdaptiveWindows{x.shape[1], y.shape[1]}, AdaptiveWindows{x.shape[2], y.shape[2]});
}

void adaptive_avg_pool2d_backward(ExecContext&, ConstView grad_y, View grad_x) {
  mean_backward(grad_y, grad_x, AdaptiveWindows{grad_x.shape[1], grad_y.shape[1]}, AdaptiveWindows{grad_x.shape[2], grad_y.shape[2]});
}

}  // namespace vitrine::cpu
