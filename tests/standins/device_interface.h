// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>

#include <cuda_runtime_api.h>
#include <math.h>
#include <vector_functions.h>
#include <vector_types.h>

#include "runtime/cuda/check.h"
#include "tests/standins/launch.h"

/// The names that device code uses when it is compiled as C++ for the host: only those of CUDA that kernels use.
/// Included by runtime/cuda/launch.cuh in place of nvcc's built-in declarations.

#undef __global__
#undef __device__
#undef __host__
#undef __constant__
#undef __shared__
#undef __launch_bounds__
#undef __forceinline__
#define __global__
#define __device__
#define __host__
#define __constant__
#define __shared__ \
  static thread_local  // the threads of a block run on one host thread, and blocks run one after the other
#define __launch_bounds__(...)
#define __forceinline__ inline __attribute__((always_inline))

#define threadIdx (::vitrine::standins::thread_index)
#define blockIdx (::vitrine::standins::block_index)
#define blockDim (::vitrine::standins::block_dimensions)
#define gridDim (::vitrine::standins::grid_dimensions)
inline constexpr int warpSize = 32;

// Barriers, shuffles, votes.

inline void __syncthreads() { vitrine::standins::barrier("__syncthreads"); }
inline void __syncwarp(unsigned mask = ~0U) {
  vitrine::standins::meet_in_warp(vitrine::standins::WarpOperation::barrier, mask, 0, 0);
}

namespace vitrine::standins {

template <class T>
T shuffle(unsigned mask, T value, unsigned source_lane) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= 8, "shuffles move values of up to 8 bytes");
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = meet_in_warp(WarpOperation::shuffle, mask, bits, source_lane);
  std::memcpy(static_cast<void*>(&value), &bits, sizeof value);
  return value;
}

/// The lane `wanted` if it lies in this lane's section of `width` lanes, else this lane.
inline unsigned within_section(unsigned wanted, unsigned width) {
  const unsigned own = lane();
  return wanted / width == own / width ? wanted : own;
}

}  // namespace vitrine::standins

template <class T>
T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  const auto w = static_cast<unsigned>(width);
  return vitrine::standins::shuffle(mask, value, vitrine::standins::lane() / w * w + static_cast<unsigned>(source) % w);
}
template <class T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = 32) {
  const unsigned wanted = vitrine::standins::lane() ^ static_cast<unsigned>(lane_mask);
  return vitrine::standins::shuffle(mask, value,
                                    vitrine::standins::within_section(wanted, static_cast<unsigned>(width)));
}
template <class T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return vitrine::standins::shuffle(
      mask, value, vitrine::standins::within_section(vitrine::standins::lane() + delta, static_cast<unsigned>(width)));
}
template <class T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return vitrine::standins::shuffle(
      mask, value, vitrine::standins::within_section(vitrine::standins::lane() - delta, static_cast<unsigned>(width)));
}

inline unsigned __ballot_sync(unsigned mask, int predicate) {
  return static_cast<unsigned>(vitrine::standins::meet_in_warp(vitrine::standins::WarpOperation::ballot, mask,
                                                               static_cast<uint64_t>(predicate != 0), 0));
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate == 0) == 0; }
inline int __syncthreads_or(int predicate) {
  __shared__ int any;
  __syncthreads();
  any = 0;
  __syncthreads();
  if (predicate != 0) std::atomic_ref(any).store(1, std::memory_order_relaxed);
  __syncthreads();
  return any;
}
inline int __syncthreads_and(int predicate) { return __syncthreads_or(predicate == 0) == 0; }

// Memory. All threads of a kernel run on one host thread; other streams and the host may access the memory
// concurrently.

inline void __threadfence() { std::atomic_signal_fence(std::memory_order_seq_cst); }
inline void __threadfence_block() { std::atomic_signal_fence(std::memory_order_seq_cst); }
inline void __threadfence_system() { std::atomic_signal_fence(std::memory_order_seq_cst); }
template <class T>
T __ldg(const T* p) {
  return *p;
}
template <class T>
T __ldcs(const T* p) {
  return *p;
}
template <class T>
void __stcs(T* p, T value) {
  *p = value;
}
template <class T>
T atomicAdd(T* p, std::type_identity_t<T> value) {
  return std::atomic_ref(*p).fetch_add(value, std::memory_order_relaxed);
}
template <class T>
T atomicExch(T* p, std::type_identity_t<T> value) {
  return std::atomic_ref(*p).exchange(value, std::memory_order_acq_rel);
}
template <class T>
T atomicExch_system(T* p, std::type_identity_t<T> value) {
  return atomicExch(p, value);
}
template <class T>
T atomicCAS(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  std::atomic_ref(*p).compare_exchange_strong(expected, value, std::memory_order_acq_rel);
  return expected;
}
template <class T>
T atomicCAS_system(T* p, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  return atomicCAS(p, expected, value);
}
template <class T>
T atomicMax(T* p, std::type_identity_t<T> value) {
  T seen = std::atomic_ref(*p).load(std::memory_order_relaxed);
  while (seen < value && !std::atomic_ref(*p).compare_exchange_weak(seen, value, std::memory_order_relaxed)) continue;
  return seen;
}
template <class T>
T atomicOr(T* p, std::type_identity_t<T> value) {
  return std::atomic_ref(*p).fetch_or(value, std::memory_order_relaxed);
}

// Arithmetic. The compiler contracts nothing here (-ffp-contract=off, see cmake/VitrineTargets.cmake), so each of these
// rounds once.

inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float a) { return 1.0F / a; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
inline double __dmul_rn(double a, double b) { return a * b; }
inline double __dadd_rn(double a, double b) { return a + b; }
inline double __dsub_rn(double a, double b) { return a - b; }
inline double __ddiv_rn(double a, double b) { return a / b; }
inline float rsqrtf(float a) { return 1.0F / std::sqrt(a); }
inline unsigned __umulhi(unsigned a, unsigned b) { return static_cast<unsigned>(uint64_t{a} * b >> 32); }
inline unsigned __float_as_uint(float a) { return std::bit_cast<unsigned>(a); }
inline int __float_as_int(float a) { return std::bit_cast<int>(a); }
inline float __uint_as_float(unsigned a) { return std::bit_cast<float>(a); }
inline float __int_as_float(int a) { return std::bit_cast<float>(a); }
inline int __float2int_rn(float a) { return static_cast<int>(std::nearbyint(a)); }
inline float __int2float_rn(int a) { return static_cast<float>(a); }
inline float __uint2float_rn(unsigned a) { return static_cast<float>(a); }
inline int __popc(unsigned a) { return std::popcount(a); }
inline int __clz(int a) { return std::countl_zero(static_cast<unsigned>(a)); }
inline int __ffs(int a) { return a == 0 ? 0 : std::countr_zero(static_cast<unsigned>(a)) + 1; }

template <class T>
constexpr T min(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return std::fmin(a, b);
  return b < a ? b : a;
}
template <class T>
constexpr T max(T a, T b) {
  if constexpr (std::is_floating_point_v<T>) return std::fmax(a, b);
  return a < b ? b : a;
}

namespace vitrine::standins {

template <class... Params, class... Args>
void launch_on(Threads threads, cudaStream_t stream, void (*kernel)(Params...), dim3 grid, dim3 block,
               const Args&... args) {
  const auto pointer_in = [](const auto& parameter) -> const void* {
    if constexpr (std::is_pointer_v<std::remove_cvref_t<decltype(parameter)>>) return parameter;
    return nullptr;
  };
  std::tuple<std::remove_cv_t<Params>...> parameters(static_cast<Params>(args)...);
  const auto pointers = std::apply(
      [&](const auto&... p) {
        return std::array<const void*, sizeof...(Params) + 1>{pointer_in(p)..., nullptr};
      },
      parameters);
  VITRINE_CUDA_CHECK(queue_kernel(stream, grid, block, threads, reinterpret_cast<const void*>(kernel), pointers,
                                  [kernel, parameters] { std::apply(kernel, parameters); }));
}

}  // namespace vitrine::standins

namespace vitrine::cuda {

/// A stream's kernels run one after the other, so there is nothing to wait for.
inline void wait_for_earlier_work() {}

template <class... Params, class... Args>
void launch(cudaStream_t stream, void (*kernel)(Params...), dim3 grid, dim3 block, Args... args) {
  standins::launch_on(standins::Threads::independent, stream, kernel, grid, block, args...);
}

template <class... Params, class... Args>
void launch_cooperating(cudaStream_t stream, void (*kernel)(Params...), dim3 grid, dim3 block, Args... args) {
  standins::launch_on(standins::Threads::cooperating, stream, kernel, grid, block, args...);
}

}  // namespace vitrine::cuda
