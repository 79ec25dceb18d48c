// SPDX-License-Identifier: Apache-2.0
#include "runtime/half.h"

#include "runtime/cpu/half_lanes.h"

namespace vitrine::cpu {

namespace {

template <class From, class To>
void convert(const From* from, To* to, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    FloatLanes lanes;
    load(from + i, lanes);
    store(lanes, to + i);
  }
  for (; i < count; ++i) to[i] = from_float<To>(to_float(from[i]));
}

}  // namespace

template <class T>
void widen(const T* from, float* to, int64_t count) {
  convert(from, to, count);
}

template <class T>
void narrow(const float* from, T* to, int64_t count) {
  convert(from, to, count);
}

template void widen(const float*, float*, int64_t);
template void widen(const Half*, float*, int64_t);
template void widen(const BFloat16*, float*, int64_t);
template void narrow(const float*, float*, int64_t);
template void narrow(const float*, Half*, int64_t);
template void narrow(const float*, BFloat16*, int64_t);

}  // namespace vitrine::cpu
