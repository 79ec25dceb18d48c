// SPDX-License-Identifier: Apache-2.0
// Compiled for several instruction sets, see kernels/cpu/levels.h.
#include <algorithm>
#include <array>
#include <cstring>
#include <tuple>
#include <type_traits>

#include "kernels/pool2d.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/portable.h"
#include "kernels/cpu/storage.h"
#include "runtime/cpu/parallel.h"
#include "runtime/exec_context.h"

namespace vitrine::cpu::VITRINE_CPU_LEVEL {
namespace {

// kLanes channels at a time: one mask selects the maximum and its position.
using Ints = int32_t __attribute__((vector_size(kLanes * sizeof(int32_t))));

// The compiler splits conversions between bytes and lanes into elements; with AVX2 they are one or two instructions.
inline void load_bytes(const uint8_t* from, Ints& to) {
#ifdef __AVX512BW__
  to = reinterpret_cast<Ints>(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#elif defined(__AVX2__)
  to = reinterpret_cast<Ints>(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from))));
#else
  uint8_t narrow __attribute__((vector_size(kLanes)));
  std::memcpy(&narrow, from, sizeof narrow);
  to = __builtin_convertvector(narrow, Ints);
#endif
}
inline void load_bytes(const uint8_t* from, int32_t& to) { to = *from; }

inline void store_bytes(const Ints& from, uint8_t* to) {
#ifdef __AVX512BW__
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(reinterpret_cast<__m512i>(from)));
#elif defined(__AVX2__)
  const auto wide = reinterpret_cast<__m256i>(from);
  const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(wide), _mm256_extracti128_si256(wide, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packus_epi16(words, words));
#else
  using Bytes = uint8_t __attribute__((vector_size(kLanes)));
  const Bytes narrow = __builtin_convertvector(from, Bytes);
  std::memcpy(to, &narrow, sizeof narrow);
#endif
}
inline void store_bytes(int32_t from, uint8_t* to) { *to = static_cast<uint8_t>(from); }

/// Type of window positions that matches the type of values.
template <class Value>
using PositionsOf = std::conditional_t<std::is_same_v<Value, FloatLanes>, Ints, int32_t>;

/// The bits of as many stored values as a vector has.
using ShortLanes = uint16_t __attribute__((vector_size(kLanes * sizeof(float))));
template <class T>
using StoredLanes = std::conditional_t<sizeof(T) == 2, ShortLanes, BitLanes>;

/// As many bytes as lanes, each in a lane.
inline void load_bytes(const uint8_t* from, BitLanes& to) {
  Ints wide;
  load_bytes(from, wide);
  to = reinterpret_cast<BitLanes>(wide);
}
inline void load_bytes(const uint8_t* from, ShortLanes& to) {
#ifdef __AVX512BW__
  to = reinterpret_cast<ShortLanes>(_mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
#elif defined(__AVX2__)
  to = reinterpret_cast<ShortLanes>(_mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
#else
  uint8_t narrow __attribute__((vector_size(sizeof(ShortLanes) / 2)));
  std::memcpy(&narrow, from, sizeof narrow);
  to = __builtin_convertvector(narrow, ShortLanes);
#endif
}

constexpr int64_t kPoolGrain = 8192;
int64_t grain_rows(int64_t row_elements) {
  return std::max<int64_t>(1, kPoolGrain / std::max<int64_t>(1, row_elements));
}

struct Range {
  int64_t begin;
  int64_t end;
};

/// Windows of fixed size and stride along one axis.
struct FixedWindows {
  int64_t window, stride, pad, size, count;  // count windows over size elements
  Range elements_of(int64_t i) const {
    return {std::max<int64_t>(0, i * stride - pad), std::min(size, i * stride - pad + window)};
  }
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
  Range windows_of(int64_t element) const {
    return {element * count / size, ((element + 1) * count + size - 1) / size};
  }
  int64_t divisor(int64_t i) const { return elements_of(i).end - elements_of(i).begin; }
};

/// The windows along an axis (1: H, 2: W) of a pool between images of shape `large` and `small`.
FixedWindows fixed_windows(const Pool2dConfig& config, const Shape& large, const Shape& small, int axis) {
  return {config.window, config.stride, config.pad, large[axis], small[axis]};
}
AdaptiveWindows adaptive_windows(const Shape& large, const Shape& small, int axis) {
  return {large[axis], small[axis]};
}

/// A position (image, row, column) of the tensor that is written, and its offset there, in elements.
struct Place {
  int64_t image, row, column, offset;
};

/// Calls body(Place) for all positions of a tensor of shape `written`, in parallel by rows.
template <class Body>
void for_places(const Shape& written, const Body& body) {
  const int64_t rows = written[1], columns = written[2], channels = written[3];
  parallel_for(written[0] * rows, grain_rows(columns * channels), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t column = 0; column < columns; ++column)
        body(Place{row / rows, row % rows, column, (row * columns + column) * channels});
    }
  });
}

/// The first element of an image.
template <class T>
const T* image_of(const ConstView& images, int64_t image) {
  return images.as<T>() + image * (images.shape[1] * images.shape[2] * images.shape[3]);
}
int64_t row_stride_of(const ConstView& images) { return images.shape[2] * images.shape[3]; }

/// Calls body(values, c) for groups of channels that begin at c: `values` is a zero array of as many vectors as one
/// pass over a window takes, then of one vector, and at the end of one float. Several vectors share what it costs to
/// walk over the window; more of them would not fit in registers.
template <class T, class Body>
void for_channel_groups(int64_t channels, const Body& body) {
  constexpr int64_t kVectors = std::is_same_v<T, float> ? 2 : 4;
  int64_t c = 0;
  for (; c + kVectors * kLanes <= channels; c += kVectors * kLanes) {
    std::array<FloatLanes, kVectors> zeros{};
    body(zeros, c);
  }
  for (; c + kLanes <= channels; c += kLanes) {
    std::array<FloatLanes, 1> zeros{};
    body(zeros, c);
  }
  for (; c < channels; ++c) {
    std::array<float, 1> zeros{};
    body(zeros, c);
  }
}

/// Computes the maxima of one window; `x` points to the image.
template <bool kKeepIndices, class T>
void max_of_window(const T* x, int64_t row_stride, int64_t channels, const FixedWindows& vertical,
                   const FixedWindows& horizontal, int64_t p, int64_t q, bool relu, T* y, uint8_t* indices) {
  const Range h = vertical.elements_of(p);
  const Range w = horizontal.elements_of(q);
  const int64_t window = horizontal.window;
  const int64_t first =
      (h.begin - p * vertical.stride + vertical.pad) * window + w.begin - q * horizontal.stride + horizontal.pad;
  const T* const corner = x + h.begin * row_stride + w.begin * channels;
  for_channel_groups<T>(channels, [=](auto& best, int64_t c) {
    using Value = typename std::remove_reference_t<decltype(best)>::value_type;
    using Positions = PositionsOf<Value>;
    constexpr int64_t kStep = std::is_same_v<Value, FloatLanes> ? kLanes : 1;
    constexpr auto kVectors = static_cast<int64_t>(std::tuple_size_v<std::remove_reference_t<decltype(best)>>);
    const T* row = corner + c;
    auto row_position = static_cast<int32_t>(first);
    std::array<Positions, kVectors> where;
    for (int64_t v = 0; v < kVectors; ++v) {
      load(row + v * kStep, best[static_cast<size_t>(v)]);
      where[static_cast<size_t>(v)] = Positions{} + row_position;
    }
    for (int64_t i = h.begin; i < h.end; ++i) {
      const T* at = row;
      int32_t position = row_position;
      for (int64_t j = w.begin; j < w.end; ++j) {
        for (int64_t v = 0; v < kVectors; ++v) {
          auto& most = best[static_cast<size_t>(v)];
          auto& where_most = where[static_cast<size_t>(v)];
          Value value;
          load(at + v * kStep, value);
          const auto wins = (value > most) | (value != value);
          most = wins ? value : most;
          if constexpr (kKeepIndices) where_most = wins ? Positions{} + position : where_most;
        }
        at += channels;
        ++position;
      }
      row += row_stride;
      row_position += static_cast<int32_t>(window);
    }
    for (int64_t v = 0; v < kVectors; ++v) {
      Value most = best[static_cast<size_t>(v)];
      Positions where_most = where[static_cast<size_t>(v)];
      if (relu) {
        if constexpr (kKeepIndices) where_most = most > 0.0F ? where_most : Positions{} + int32_t{kCutOff};
        most = most <= 0.0F ? Value{} : most;  // NaN compares false and stays NaN
      }
      store(most, y + c + v * kStep);
      if constexpr (kKeepIndices) store_bytes(where_most, indices + c + v * kStep);
    }
  });
}

template <bool kKeepIndices, class T>
void max_forward(const Pool2dConfig& config, const ConstView& x, const View& y, const View& indices, bool relu) {
  const FixedWindows vertical = fixed_windows(config, x.shape, y.shape, 1),
                     horizontal = fixed_windows(config, x.shape, y.shape, 2);
  for_places(y.shape, [&](const Place& at) {
    max_of_window<kKeepIndices>(image_of<T>(x, at.image), row_stride_of(x), x.shape[3], vertical, horizontal, at.row,
                                at.column, relu, y.as<T>() + at.offset,
                                kKeepIndices ? indices.as<uint8_t>() + at.offset : nullptr);
  });
}

/// Sums grad_y over the windows that contain an element and whose index is the element's position.
template <class T>
void gather_max_gradient(const T* grad_y, const uint8_t* indices, int64_t row_stride, int64_t channels,
                         const FixedWindows& vertical, const FixedWindows& horizontal, int64_t h, int64_t w,
                         T* grad_x) {
  const Range ps = vertical.windows_of(h);
  const Range qs = horizontal.windows_of(w);
  // The element's position in the first window, and how much smaller it is in the window below and in the window to the
  // right.
  const int64_t first = (h + vertical.pad - ps.begin * vertical.stride) * horizontal.window + w + horizontal.pad -
                        qs.begin * horizontal.stride;
  const auto below = static_cast<int32_t>(vertical.stride * horizontal.window),
             right = static_cast<int32_t>(horizontal.stride);
  const int64_t corner = ps.begin * row_stride + qs.begin * channels;
  for_channel_groups<T>(channels, [=](auto& sums, int64_t c) {
    using Value = typename std::remove_reference_t<decltype(sums)>::value_type;
    constexpr int64_t kStep = std::is_same_v<Value, FloatLanes> ? kLanes : 1;
    int64_t row = corner + c;
    auto row_position = static_cast<int32_t>(first);
    for (int64_t p = ps.begin; p < ps.end; ++p) {
      int64_t at = row;
      int32_t position = row_position;
      for (int64_t q = qs.begin; q < qs.end; ++q) {
        int64_t from = at;
        for (auto& sum : sums) {
          const Value zero{};
          Value gradient;
          PositionsOf<Value> where;
          load_bytes(indices + from, where);
          load(grad_y + from, gradient);
          sum += where == position ? gradient : zero;
          from += kStep;
        }
        at += channels;
        position -= right;
      }
      row += row_stride;
      row_position -= below;
    }
    int64_t to = c;
    for (auto& sum : sums) {
      store(sum, grad_x + to);
      to += kStep;
    }
  });
}

/// Computes out by sum(first, count, sums) for the channels [first, first + count): in place if the output is f32,
/// otherwise in a small buffer, from which the complete sums are rounded.
template <class T, class Sum>
void sum_channels(int64_t channels, T* out, const Sum& sum) {
  if constexpr (std::is_same_v<T, float>) {
    std::fill_n(out, channels, 0.0F);
    sum(0, channels, out);
  } else {
    constexpr int64_t kChannelsAtOnce = 256;
    float sums[kChannelsAtOnce];
    for (int64_t first = 0; first < channels; first += kChannelsAtOnce) {
      const int64_t count = std::min(kChannelsAtOnce, channels - first);
      std::fill_n(sums, count, 0.0F);
      sum(first, count, sums);
      narrow(sums, out + first, count);
    }
  }
}

template <class Windows>
void mean_forward(const ConstView& x, const View& y, const Windows& vertical, const Windows& horizontal) {
  const int64_t channels = x.shape[3], row_stride = row_stride_of(x);
  with_storage(x.dtype, [&]<class T>(T) {
    for_places(y.shape, [&](const Place& at) {
      const T* image = image_of<T>(x, at.image);
      const Range hs = vertical.elements_of(at.row), ws = horizontal.elements_of(at.column);
      const auto divisor = static_cast<float>(vertical.divisor(at.row) * horizontal.divisor(at.column));
      sum_channels(channels, y.as<T>() + at.offset, [=](int64_t first, int64_t count, float* sums) {
        for (int64_t h = hs.begin; h < hs.end; ++h) {
          for (int64_t w = ws.begin; w < ws.end; ++w) {
            const T* in = image + h * row_stride + w * channels + first;
            for_lanes(0, count, [=](auto& sum, int64_t c) {
              auto value = sum;
              load(in + c, value);
              load(sums + c, sum);
              store(sum + value, sums + c);
            });
          }
        }
        for_lanes(0, count, [=](auto& sum, int64_t c) {
          load(sums + c, sum);
          store(sum / divisor, sums + c);
        });
      });
    });
  });
}

template <class Windows>
void mean_backward(const ConstView& grad_y, const View& grad_x, const Windows& vertical, const Windows& horizontal) {
  const int64_t channels = grad_x.shape[3], row_stride = row_stride_of(grad_y);
  with_storage(grad_y.dtype, [&]<class T>(T) {
    for_places(grad_x.shape, [&](const Place& at) {
      const T* image = image_of<T>(grad_y, at.image);
      const Range ps = vertical.windows_of(at.row), qs = horizontal.windows_of(at.column);
      sum_channels(channels, grad_x.as<T>() + at.offset, [=](int64_t first, int64_t count, float* sums) {
        for (int64_t p = ps.begin; p < ps.end; ++p) {
          for (int64_t q = qs.begin; q < qs.end; ++q) {
            const T* in = image + p * row_stride + q * channels + first;
            const float share = 1.0F / static_cast<float>(vertical.divisor(p) * horizontal.divisor(q));
            for_lanes(0, count, [=](auto& sum, int64_t c) {
              auto gradient = sum;
              load(in + c, gradient);
              load(sums + c, sum);
              store(sum + gradient * share, sums + c);
            });
          }
        }
      });
    });
  });
}

/// Writes a row of windows side by side, without padding: each gradient to the position of its maximum, zeros to the
/// others.
///   grad_x  the first row of the windows; row_length elements to the next one
template <class T>
void spread_max_gradient(const T* grad_y, const uint8_t* indices, int64_t windows, int64_t window, int64_t channels,
                         int64_t row_length, T* grad_x) {
  using Vector = StoredLanes<T>;
  constexpr int64_t kCount = sizeof(Vector) / sizeof(T);
  for (int64_t q = 0; q < windows; ++q) {
    T* const corner = grad_x + q * window * channels;
    int64_t c = 0;
    for (; c + kCount <= channels; c += kCount) {
      Vector where, gradient;
      load_bytes(indices + c, where);
      std::memcpy(&gradient, grad_y + c, sizeof gradient);
      for (int64_t i = 0; i < window; ++i) {
        for (int64_t j = 0; j < window; ++j) {
          const Vector here =
              where == static_cast<std::remove_reference_t<decltype(where[0])>>(i * window + j) ? gradient : Vector{};
          std::memcpy(corner + i * row_length + j * channels + c, &here, sizeof here);
        }
      }
    }
    for (; c < channels; ++c) {
      for (int64_t i = 0; i < window; ++i) {
        for (int64_t j = 0; j < window; ++j)
          corner[i * row_length + j * channels + c] = indices[c] == i * window + j ? grad_y[c] : T{};
      }
    }
    grad_y += channels;
    indices += channels;
  }
  const int64_t covered = windows * window * channels;
  for (int64_t i = 0; i < window; ++i) std::fill(grad_x + i * row_length + covered, grad_x + (i + 1) * row_length, T{});
}

/// For windows of at most kMostReluWindow that lie side by side, without padding. `sums` are the sums of grad_x: each
/// gradient is in one element of it, or cut off.
template <class T>
void max_backward_side_by_side(int64_t window, const ConstView& grad_y, const ConstView& indices, const View& grad_x,
                               float* sums, GradMode mode) {
  const int64_t rows = grad_y.shape[1], columns = grad_y.shape[2], channels = grad_y.shape[3];
  const int64_t height = grad_x.shape[1], row_length = grad_x.shape[2] * channels, small_row = columns * channels;
  const T* const from = grad_y.as<T>();
  const uint8_t* const where = indices.as<uint8_t>();
  T* const to = grad_x.as<T>();
  parallel_for(grad_y.shape[0] * rows, grain_rows(window * row_length), [=](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      T* const image = to + row / rows * height * row_length;
      const int64_t p = row % rows;
      spread_max_gradient(from + row * small_row, where + row * small_row, columns, window, channels, row_length,
                          image + p * window * row_length);
      if (p == rows - 1) std::fill(image + rows * window * row_length, image + height * row_length, T{});
    }
  });
  if (sums == nullptr) return;
  sum_columns(grad_y.numel() / channels, channels, sums, mode, [=](int64_t row, int64_t channel, auto& gradient) {
    PositionsOf<std::remove_reference_t<decltype(gradient)>> position;
    load_bytes(where + row * channels + channel, position);
    load(from + row * channels + channel, gradient);
    gradient = position != int32_t{kCutOff} ? gradient : std::remove_reference_t<decltype(gradient)>{};
  });
}

template <class T>
void max_backward(const Pool2dConfig& config, const ConstView& grad_y, const ConstView& indices, const View& grad_x) {
  const FixedWindows vertical = fixed_windows(config, grad_x.shape, grad_y.shape, 1);
  const FixedWindows horizontal = fixed_windows(config, grad_x.shape, grad_y.shape, 2);
  for_places(grad_x.shape, [&](const Place& at) {
    gather_max_gradient(image_of<T>(grad_y, at.image), image_of<uint8_t>(indices, at.image), row_stride_of(grad_y),
                        grad_x.shape[3], vertical, horizontal, at.row, at.column, grad_x.as<T>() + at.offset);
  });
}

}  // namespace

void max_pool2d_forward(ExecContext&, const Pool2dConfig& config, ConstView x, View y, View indices, bool relu) {
  with_storage(x.dtype, [&]<class T>(T) {
    if (indices) {
      max_forward<true, T>(config, x, y, indices, relu);
    } else {
      max_forward<false, T>(config, x, y, indices, relu);
    }
  });
}

void max_pool2d_backward(ExecContext&, const Pool2dConfig& config, ConstView grad_y, ConstView indices, View grad_x,
                         View sums, GradMode mode) {
  if (config.stride == config.window && config.pad == 0 && config.window <= kMostReluWindow) {
    with_storage(grad_y.dtype, [&]<class T>(T) {
      max_backward_side_by_side<T>(config.window, grad_y, indices, grad_x, sums ? sums.as<float>() : nullptr, mode);
    });
    return;
  }
  with_storage(grad_y.dtype, [&]<class T>(T) { max_backward<T>(config, grad_y, indices, grad_x); });
  if (sums) portable::column_sums(grad_x, sums.as<float>(), mode);
}

void avg_pool2d_forward(ExecContext&, const Pool2dConfig& config, ConstView x, View y) {
  mean_forward(x, y, fixed_windows(config, x.shape, y.shape, 1), fixed_windows(config, x.shape, y.shape, 2));
}

void avg_pool2d_backward(ExecContext&, const Pool2dConfig& config, ConstView grad_y, View grad_x) {
  mean_backward(grad_y, grad_x, fixed_windows(config, grad_x.shape, grad_y.shape, 1),
                fixed_windows(config, grad_x.shape, grad_y.shape, 2));
}

void adaptive_avg_pool2d_forward(ExecContext&, ConstView x, View y) {
  mean_forward(x, y, adaptive_windows(x.shape, y.shape, 1), adaptive_windows(x.shape, y.shape, 2));
}

void adaptive_avg_pool2d_backward(ExecContext&, ConstView grad_y, View grad_x) {
  mean_backward(grad_y, grad_x, adaptive_windows(grad_x.shape, grad_y.shape, 1),
                adaptive_windows(grad_x.shape, grad_y.shape, 2));
}

}  // namespace vitrine::cpu::VITRINE_CPU_LEVEL
