// SPDX-License-Identifier: Apache-2.0
// What each instruction does: a table with one function of the values of a lane for each.
#include <bit>
#include <cmath>
#include <limits>
#include <type_traits>
#include <utility>

#include <immintrin.h>

#include "tests/ptx/findings.h"

namespace vitrine::ptx {

namespace {

/// The values of a register. A bool is a bit of a predicate.
template <class T>
struct Values {
  Values(Context& c, uint32_t offset) : of(at<T>(c, offset)) {}
  T operator[](int lane) const { return of[lane]; }
  const T* of;
};
template <>
struct Values<bool> {
  Values(Context& c, uint32_t offset) : of(*at<uint32_t>(c, offset)) {}
  bool operator[](int lane) const { return (of >> lane & 1U) != 0; }
  uint32_t of;
};

template <class F, class D, class... A>
void apply(Context& c, uint32_t result, uint32_t lanes, const Values<A>... values) {
  if constexpr (std::is_same_v<D, bool>) {
    uint32_t bits = 0, &d = *at<uint32_t>(c, result);
    for (int l = 0; l < 32; ++l) bits |= static_cast<uint32_t>(F{}(values[l]...)) << l;
    d = (d & ~lanes) | (bits & lanes);
  } else if (D* const d = at<D>(c, result); lanes == kAll) {
#pragma GCC ivdep
    for (int l = 0; l < 32; ++l) d[l] = F{}(values[l]...);
  } else {
    for (const int l : Lanes{lanes}) d[l] = F{}(values[l]...);
  }
}
/// Operand 0 becomes F(operand 1, operand 2, ...).
template <class F, class D, class... A>
void compute(Context& c, const Instruction& i, uint32_t lanes) {
  const auto operands = [&]<size_t... K>(std::index_sequence<K...>) {
    apply<F, D, A...>(c, i.operands[0], lanes, Values<A>(c, i.operands[K + 1])...);
  };
  operands(std::index_sequence_for<A...>());
}

/// Division by zero has no defined result: it is reported.
template <class T, bool kRemainder>
void divide(Context& c, const Instruction& i, uint32_t lanes) {
  T* const d = at<T>(c, i.operands[0]);
  const T *const a = at<T>(c, i.operands[1]), *const b = at<T>(c, i.operands[2]);
  for (const int l : Lanes{lanes}) {
    if (b[l] == 0) report(c, i, l, 0, "division by zero");
    if (b[l] == 0 || (std::is_signed_v<T> && b[l] == static_cast<T>(-1)))
      d[l] = kRemainder ? T{0} : static_cast<T>(0 - static_cast<std::make_unsigned_t<T>>(a[l]));
    else
      d[l] = kRemainder ? a[l] % b[l] : a[l] / b[l];
  }
}

void nothing(Context&, const Instruction&, uint32_t) {}
void grid_wait(Context& c, const Instruction&, uint32_t lanes) { c.warp->waited |= lanes; }

// d|in_range = a of the lane whose number differs in the bits b
void shuffle(Context& c, const Instruction& i, uint32_t lanes) {
  uint32_t *const d = at<uint32_t>(c, i.operands[0]), &in_range = *at<uint32_t>(c, i.operands[1]);
  const uint32_t *const b = at<uint32_t>(c, i.operands[3]), *const limits = at<uint32_t>(c, i.operands[4]);
  std::array<uint32_t, 32> a;
  std::copy_n(at<uint32_t>(c, i.operands[2]), 32, a.begin());
  for (const int l : Lanes{lanes}) {
    const auto lane = static_cast<uint32_t>(l), segment = limits[l] >> 8 & 31U;
    const uint32_t most = (lane & segment) | (limits[l] & 31U & ~segment), from = lane ^ (b[l] & 31U);
    const uint32_t source = from <= most ? from : lane;
    if ((lanes >> source & 1U) == 0)
      report(c, i, l, kIllegalInstruction, "shuffle from lane %u, which takes no part", source);
    d[l] = a[source];
    in_range = (in_range & ~(1U << l)) | static_cast<uint32_t>(from <= most) << l;
  }
}

template <class T>
T flush(T x) {
  return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(T{0}, x) : x;
}
/// With VITRINE_PTX_APPROXIMATE=1, results of approximate functions are off by up to two units in the last place, as
/// those of a GPU may be.
float approximate(float x, bool exact) {
  if (!settings().approximate || exact || !std::isnormal(x)) return x;
  const auto bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>(bits + (bits * 2654435761U >> 16) % 5 - 2);
}
double approximate_inverse(double x) {  // 20 bits
  const uint64_t high = std::bit_cast<uint64_t>(flush(1.0 / flush(x))) >> 32;
  return std::bit_cast<double>((high + (settings().approximate && std::isnormal(x) ? high * 7 % 3 - 1 : 0)) << 32);
}
template <class F>
F largest(F a, F b) {
  return std::isnan(a) ? b : std::isnan(b) ? a : a == b ? (std::signbit(a) ? b : a) : a > b ? a : b;
}
/// Rounds down.
float fma_down(float a, float b, float c) {
  const double product = static_cast<double>(a) * b, sum = product + c, rest = sum - product;
  const double error = (product - (sum - rest)) + (c - rest);  // of the sum; the product is exact
  const auto nearest = static_cast<float>(sum);
  const bool above = nearest > sum || (nearest == sum && error < 0);
  const auto bits = std::bit_cast<uint32_t>(nearest), below = nearest > 0 ? bits - 1 : (bits | 1U << 31) + 1;
  return above ? std::bit_cast<float>(below) : nearest;
}
uint32_t permute(uint32_t a, uint32_t b, uint32_t selection) {
  const uint64_t both = static_cast<uint64_t>(b) << 32 | a;
  uint32_t result = 0;
  for (int k = 0; k < 4; ++k) {
    const uint32_t choice = selection >> (4 * k) & 15U, byte = both >> (8 * (choice & 7U)) & 255U;
    result |= ((choice & 8U) == 0 ? byte : (byte & 128U) != 0 ? 255U : 0U) << (8 * k);
  }
  return result;
}

uint16_t to_bf16(float f) {
  if (std::isnan(f)) return 0x7FFF;
  const auto u = std::bit_cast<uint32_t>(f);
  return static_cast<uint16_t>((u + 0x7FFFU + (u >> 16 & 1U)) >> 16);
}
/// Clamps; NaN becomes 0, or the smallest number where one side has 64 bits.
template <class I, class F>
I truncated(F value) {
  if (std::isnan(value)) return sizeof(I) < 8 && sizeof(F) < 8 ? I{0} : static_cast<I>(uint64_t{1} << 63);
  const F limit = std::ldexp(F{1}, std::numeric_limits<I>::digits);
  if (value >= limit) return std::numeric_limits<I>::max();
  if (value < (std::is_signed_v<I> ? -limit : F{0})) return std::numeric_limits<I>::min();
  return static_cast<I>(value);
}

class Table {
 public:
  void add(const std::string& name, auto function) { all[name] = of(&decltype(function)::operator()); }
  Operations all;

 private:
  template <class F, class D, class... A>
  static Operation of(D (F::*)(A...) const) {
    return {compute<F, D, A...>, Kind::plain, {sizeof(D), sizeof(A)...}};
  }
};

template <class T>
std::string name_of() {
  return (std::is_floating_point_v<T> ? ".f" : std::is_signed_v<T> ? ".s" : ".u") + std::to_string(8 * sizeof(T));
}

template <class T>
void add_moves_and_comparisons(Table& t, const std::string& type) {
  t.add("mov" + type, [](T a) { return a; });
  t.add("selp" + type, [](T a, T b, bool first) { return first ? a : b; });
  t.add("setp.eq" + type, [](T a, T b) { return a == b; });
  t.add("setp.lt" + type, [](T a, T b) { return a < b; });
  t.add("setp.le" + type, [](T a, T b) { return a <= b; });
  t.add("setp.gt" + type, [](T a, T b) { return a > b; });
  t.add("setp.ge" + type, [](T a, T b) { return a >= b; });
  t.add("setp.ne" + type, [](T a, T b) { return a < b || a > b; });
}

template <class T>
void add_integers(Table& t, const std::string& type) {
  using U = std::make_unsigned_t<T>;
  using Product = std::conditional_t<sizeof(T) == 2, uint32_t, U>;
  constexpr uint32_t kBits = 8 * sizeof(T);
  add_moves_and_comparisons<T>(t, type);
  t.add("add" + type, [](T a, T b) { return static_cast<T>(static_cast<U>(a) + static_cast<U>(b)); });
  t.add("sub" + type, [](T a, T b) { return static_cast<T>(static_cast<U>(a) - static_cast<U>(b)); });
  t.add("mul.lo" + type, [](T a, T b) { return static_cast<T>(static_cast<Product>(a) * static_cast<Product>(b)); });
  t.add("mad.lo" + type, [](T a, T b, T c) {
    return static_cast<T>(static_cast<Product>(a) * static_cast<Product>(b) + static_cast<Product>(c));
  });
  t.add("and" + type, [](T a, T b) { return static_cast<T>(a & b); });
  t.add("or" + type, [](T a, T b) { return static_cast<T>(a | b); });
  t.add("xor" + type, [](T a, T b) { return static_cast<T>(a ^ b); });
  t.add("not" + type, [](T a) { return static_cast<T>(~a); });
  t.add("neg" + type, [](T a) { return static_cast<T>(0 - static_cast<U>(a)); });
  t.add("min" + type, [](T a, T b) { return a < b ? a : b; });
  t.add("max" + type, [](T a, T b) { return a > b ? a : b; });
  t.add("shl" + type, [](T a, uint32_t n) { return static_cast<T>(n < kBits ? static_cast<U>(a) << n : 0); });
  t.add("shr" + type, [](T a, uint32_t n) { return static_cast<T>(n < kBits ? a >> n : a < 0 ? -1 : 0); });
  t.all["div" + type] = {divide<T, false>, Kind::plain, {sizeof(T), sizeof(T), sizeof(T)}};
  t.all["rem" + type] = {divide<T, true>, Kind::plain, {sizeof(T), sizeof(T), sizeof(T)}};
}

template <class W, class T>  // W: twice as wide
void add_wide(Table& t) {
  t.add("mul.wide" + name_of<T>(), [](T a, T b) { return static_cast<W>(W{a} * b); });
  t.add("mad.wide" + name_of<T>(), [](T a, T b, W c) { return static_cast<W>(W{a} * b + c); });
}
template <class W, class T>  // a register of two others
void add_pairs(Table& t) {
  const std::string type = ".b" + std::to_string(8 * sizeof(W));
  t.add("pack" + type, [](T low, T high) { return W{high} << (8 * sizeof(T)) | low; });
  t.add("low" + type, [](W a) { return static_cast<T>(a); });
  t.add("high" + type, [](W a) { return static_cast<T>(a >> (8 * sizeof(T))); });
}

template <class F>
void add_floats(Table& t) {
  const std::string type = name_of<F>();
  add_moves_and_comparisons<F>(t, type);
  t.add("setp.equ" + type, [](F a, F b) { return !(a < b || a > b); });
  t.add("setp.neu" + type, [](F a, F b) { return !(a == b); });
  t.add("setp.ltu" + type, [](F a, F b) { return !(a >= b); });
  t.add("setp.leu" + type, [](F a, F b) { return !(a > b); });
  t.add("setp.gtu" + type, [](F a, F b) { return !(a <= b); });
  t.add("setp.geu" + type, [](F a, F b) { return !(a < b); });
  t.add("setp.nan" + type, [](F a, F b) { return std::isnan(a) || std::isnan(b); });
  t.add("add" + type, [](F a, F b) { return a + b; });
  t.add("sub" + type, [](F a, F b) { return a - b; });
  t.add("mul" + type, [](F a, F b) { return a * b; });
  t.add("div" + type, [](F a, F b) { return a / b; });
  t.add("fma" + type, [](F a, F b, F c) { return std::fma(a, b, c); });
  t.add("min" + type, [](F a, F b) { return -largest<F>(-a, -b); });
  t.add("max" + type, [](F a, F b) { return largest<F>(a, b); });
  t.add("neg" + type, [](F a) { return -a; });
  t.add("abs" + type, [](F a) { return std::fabs(a); });
  t.add("copysign" + type, [](F a, F b) { return std::copysign(b, a); });
  t.add("rcp" + type, [](F a) { return F{1} / a; });
  t.add("sqrt" + type, [](F a) { return std::sqrt(a); });
}

template <class... T>
void for_each_type(auto function) {
  (function.template operator()<T>(), ...);
}
template <class T>  // 8 bits lie in a register of 16
using Register = std::conditional_t<sizeof(T) == 1, std::conditional_t<std::is_signed_v<T>, int16_t, uint16_t>, T>;

void add_conversions(Table& t) {
  const auto for_each_integer = [](auto function) {
    for_each_type<uint8_t, int8_t, uint16_t, int16_t, uint32_t, int32_t, uint64_t, int64_t>(function);
  };
  for_each_integer([&]<class From>() {
    for_each_integer([&]<class To>() {
      t.add("cvt" + name_of<To>() + name_of<From>(),
            [](Register<From> x) { return static_cast<Register<To>>(static_cast<To>(static_cast<From>(x))); });
    });
    for_each_type<float, double>([&]<class F>() {
      t.add("cvt" + name_of<F>() + name_of<From>(),
            [](Register<From> x) { return static_cast<F>(static_cast<From>(x)); });
      t.add("cvt.rzi" + name_of<From>() + name_of<F>(), [](F x) -> Register<From> { return truncated<From>(x); });
    });
  });
  t.add("cvt.f64.f32", [](float x) { return static_cast<double>(x); });
  t.add("cvt.f32.f64", [](double x) { return static_cast<float>(x); });
  t.add("cvt.rzi.f64.f64", [](double x) { return std::trunc(x); });
  t.add("cvt.sat.f32.f32", [](float x) { return x >= 1.0F ? 1.0F : x > 0.0F ? x : 0.0F; });
  t.add("cvt.f32.f16", [](uint16_t x) { return _cvtsh_ss(x); });
  t.add("cvt.f16.f32", [](float x) { return static_cast<uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT)); });
  t.add("cvt.f32.bf16", [](uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); });
  t.add("cvt.bf16.f32", [](float x) { return to_bf16(x); });
}

Operations make_operations() {
  Table t;
  for_each_type<uint16_t, int16_t, uint32_t, int32_t, uint64_t, int64_t>([&]<class T>() {
    add_integers<T>(t, name_of<T>());
    if (std::is_unsigned_v<T>) add_integers<T>(t, ".b" + std::to_string(8 * sizeof(T)));
  });
  add_wide<int32_t, int16_t>(t);
  add_wide<uint32_t, uint16_t>(t);
  add_wide<int64_t, int32_t>(t);
  add_wide<uint64_t, uint32_t>(t);
  add_pairs<uint32_t, uint16_t>(t);
  add_pairs<uint64_t, uint32_t>(t);
  add_floats<float>(t);
  add_floats<double>(t);
  add_conversions(t);
  t.add("mov.pred", [](bool a) { return a; });
  t.add("not.pred", [](bool a) { return !a; });
  t.add("and.pred", [](bool a, bool b) { return a && b; });
  t.add("or.pred", [](bool a, bool b) { return a || b; });
  t.add("xor.pred", [](bool a, bool b) { return a != b; });
  t.add("cvta.to.global.u64", [](uint64_t a) { return a; });
  t.add("prmt.b32", [](uint32_t a, uint32_t b, uint32_t selection) { return permute(a, b, selection); });
  t.add("fma.rm.f32", [](float a, float b, float c) { return fma_down(a, b, c); });
  t.add("ex2.approx.f32", [](float a) { return static_cast<float>(std::exp2(static_cast<double>(a))); });
  t.add("ex2.approx.ftz.f32", [](float a) {
    return flush(approximate(static_cast<float>(std::exp2(static_cast<double>(flush(a)))), std::nearbyint(a) == a));
  });
  t.add("rcp.approx.ftz.f64", [](double a) { return approximate_inverse(a); });
  for (const char* const fence : {"membar", "membar.gl"}) t.all[fence] = {nothing, Kind::plain, {}};
  t.all["griddepcontrol.wait"] = {grid_wait, Kind::plain, {}};
  for (const char* const end : {"ret", "exit"}) t.all[end] = {nullptr, Kind::exit, {}};
  t.all["bar.sync"] = {nullptr, Kind::barrier, {4}};
  t.all["bar.warp.sync"] = {nothing, Kind::meeting, {4}};
  t.all["shfl.sync.bfly.b32"] = {shuffle, Kind::meeting, {4, 1, 4, 4, 4, 4}};
  define_accesses(t.all);
  return std::move(t.all);
}

}  // namespace

const Operations& operations() {
  static const auto* const all = new Operations(make_operations());  // until the process ends
  return *all;
}

}  // namespace vitrine::ptx
