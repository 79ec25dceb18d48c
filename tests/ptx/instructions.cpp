// SPDX-License-Identifier: Apache-2.0
// What each instruction does.
#include "tests/ptx/arithmetic.h"
#include "tests/ptx/memory.h"
#include "tests/ptx/parser.h"

namespace vitrine::ptx {

namespace {

template <class M>
Handler load_into(uint32_t bytes, Space space) {
  const auto pick = [space]<class D>() -> Handler {
    if constexpr (sizeof(D) < sizeof(M))
      return nullptr;
    else
      return space == Space::global   ? load<M, D, Space::global>
             : space == Space::shared ? load<M, D, Space::shared>
             : space == Space::local  ? load<M, D, Space::local>
                                      : load<M, D, Space::param>;
  };
  constexpr bool is_signed = std::is_signed_v<M>;
  if (bytes == 2) return pick.template operator()<std::conditional_t<is_signed, int16_t, uint16_t>>();
  if (bytes == 4) return pick.template operator()<std::conditional_t<is_signed, int32_t, uint32_t>>();
  return pick.template operator()<std::conditional_t<is_signed, int64_t, uint64_t>>();
}
template <class M>
Handler store_from(uint32_t bytes, Space space) {
  const auto pick = [space]<class S>() -> Handler {
    return space == Space::global  ? store<M, S, Space::global>
           : space == Space::local ? store<M, S, Space::local>
                                   : store<M, S, Space::shared>;
  };
  if (bytes == 2) return pick.template operator()<uint16_t>();
  if (bytes == 4) return pick.template operator()<uint32_t>();
  return pick.template operator()<uint64_t>();
}

template <class F>
const std::map<std::string_view, Handler>& comparisons() {
#define COMPARE(name, expression)                           \
  {                                                         \
    name, compare<F, [](F a, F b) { return (expression); }> \
  }
  static const std::map<std::string_view, Handler> table = [] {
    std::map<std::string_view, Handler> t = {COMPARE("eq", a == b), COMPARE("lt", a < b), COMPARE("le", a <= b),
                                             COMPARE("gt", a > b), COMPARE("ge", a >= b)};
    if constexpr (std::is_floating_point_v<F>) {
      t.insert({COMPARE("ne", a < b || a > b), COMPARE("equ", !(a < b || a > b)), COMPARE("neu", !(a == b)),
                COMPARE("ltu", !(a >= b)), COMPARE("leu", !(a > b)), COMPARE("gtu", !(a <= b)),
                COMPARE("geu", !(a < b)), COMPARE("num", a == a && b == b), COMPARE("nan", a != a || b != b)});
    } else {
      t.insert({COMPARE("ne", a != b), COMPARE("lo", a < b), COMPARE("ls", a <= b), COMPARE("hi", a > b),
                COMPARE("hs", a >= b)});
    }
    return t;
  }();
  return table;
}

template <class U>  // unsigned type of the width
Handler integer_operation(std::string_view op, bool is_signed) {
  using S = std::make_signed_t<U>;
  using W = std::conditional_t<sizeof(U) == 8, unsigned __int128, uint64_t>;
  using WS = std::conditional_t<sizeof(U) == 8, __int128, int64_t>;
#define INTEGER2(name, expression) \
  if (op == name) return binary<U, U, U, [](U a, U b) { return static_cast<U>(expression); }>
#define SIGNED2(name, expression)                                                               \
  if (op == name) {                                                                             \
    if (is_signed) return binary<S, S, S, [](S a, S b) { return static_cast<S>(expression); }>; \
    return binary<U, U, U, [](U a, U b) { return static_cast<U>(expression); }>;                \
  }
  INTEGER2("add", a + b);
  INTEGER2("sub", a - b);
  INTEGER2("mul.lo", static_cast<W>(a) * b);
  INTEGER2("and", a & b);
  INTEGER2("or", a | b);
  INTEGER2("xor", a ^ b);
  SIGNED2("min", a < b ? a : b)
  SIGNED2("max", a > b ? a : b)
  if (op == "mul.hi") {
    if (is_signed)
      return binary<S, S, S, [](S a, S b) { return static_cast<S>(static_cast<WS>(a) * b >> (sizeof(U) * 8)); }>;
    return binary<U, U, U, [](U a, U b) { return static_cast<U>(static_cast<W>(a) * b >> (sizeof(U) * 8)); }>;
  }
  if (op == "mad.lo") return ternary<U, U, U, [](U a, U b, U c) { return static_cast<U>(static_cast<W>(a) * b + c); }>;
  if (op == "div") return is_signed ? divide<S, false> : divide<U, false>;
  if (op == "rem") return is_signed ? divide<S, true> : divide<U, true>;
  if (op == "not") return unary<U, U, [](U a) { return static_cast<U>(~a); }>;
  if (op == "neg") return unary<U, U, [](U a) { return static_cast<U>(0 - a); }>;
  if (op == "abs")
    return unary<S, S, [](S a) { return static_cast<S>(a < 0 ? static_cast<S>(0 - static_cast<U>(a)) : a); }>;
  if (op == "mov") return unary<U, U, [](U a) { return a; }>;
  if (op == "selp") return select<U>;
  constexpr uint32_t kBits = sizeof(U) * 8;
  if (op == "shl")
    return binary<U, U, uint32_t, [](U a, uint32_t n) { return n >= kBits ? U{0} : static_cast<U>(a << n); }>;
  if (op == "shr") {
    if (is_signed)
      return binary<S, S, uint32_t, [](S a, uint32_t n) { return static_cast<S>(a >> (n >= kBits ? kBits - 1 : n)); }>;
    return binary<U, U, uint32_t, [](U a, uint32_t n) { return n >= kBits ? U{0} : static_cast<U>(a >> n); }>;
  }
  if (op == "popc") return unary<uint32_t, U, [](U a) { return static_cast<uint32_t>(std::popcount(a)); }>;
  if (op == "clz") return unary<uint32_t, U, [](U a) { return static_cast<uint32_t>(std::countl_zero(a)); }>;
  return nullptr;
}

template <class F>
Handler float_operation(std::string_view op) {
  using U = std::conditional_t<sizeof(F) == 4, uint32_t, uint64_t>;
#define FLOAT2(name, expression) \
  if (op == name || op == name ".rn") return binary<F, F, F, [](F a, F b) -> F { return (expression); }>
#define FLOAT1(name, expression) \
  if (op == name || op == name ".rn") return unary<F, F, [](F a) -> F { return (expression); }>
  FLOAT2("add", a + b);
  FLOAT2("sub", a - b);
  FLOAT2("mul", a * b);
  FLOAT2("div", a / b);
  FLOAT2("min", smallest(a, b));
  FLOAT2("max", largest(a, b));
  FLOAT2("copysign", std::copysign(b, a));
  FLOAT1("rcp", F{1} / a);
  FLOAT1("sqrt", std::sqrt(a));
  if (op == "neg") return unary<U, U, [](U a) { return static_cast<U>(a ^ (U{1} << (sizeof(U) * 8 - 1))); }>;
  if (op == "abs") return unary<U, U, [](U a) { return static_cast<U>(a & ~(U{1} << (sizeof(U) * 8 - 1))); }>;
  if (op == "fma.rn")
    return ternary<F, F, F, [](F a, F b, F c) -> F {
      return sizeof(F) == 4 ? __builtin_fmaf(a, b, c) : __builtin_fma(a, b, c);
    }>;
  if (op == "mov") return unary<U, U, [](U a) { return a; }>;
  if (op == "selp") return select<U>;
  if constexpr (sizeof(F) == 4) {
    if (op == "fma.rm") return fma_down;
    if (op == "ex2.approx.ftz")
      return unary<F, F, [](F a) {
        return flush(approximate(static_cast<float>(std::exp2(static_cast<double>(flush(a)))), std::nearbyint(a) == a));
      }>;
    if (op == "ex2.approx")
      return unary<F, F, [](F a) { return static_cast<float>(std::exp2(static_cast<double>(a))); }>;
    if (op == "lg2.approx" || op == "lg2.approx.ftz")
      return unary<F, F, [](F a) { return static_cast<float>(std::log2(static_cast<double>(a))); }>;
    if (op == "rsqrt.approx")
      return unary<F, F, [](F a) { return static_cast<float>(1.0 / std::sqrt(static_cast<double>(a))); }>;
    if (op == "div.full" || op == "div.approx") return binary<F, F, F, [](F a, F b) { return a / b; }>;
    if (op == "rcp.approx" || op == "rcp.approx.ftz") return unary<F, F, [](F a) { return 1.0F / a; }>;
    if (op == "tanh.approx") return unary<F, F, [](F a) { return std::tanh(a); }>;
  } else {
    if (op == "rcp.approx.ftz")  // 20 bits
      return unary<F, F, [](F a) {
        const uint64_t high = (std::bit_cast<uint64_t>(flush(1.0 / flush(a))) >> 32);
        return std::bit_cast<double>((high + (settings().approximate && std::isnormal(a) ? high * 7 % 3 - 1 : 0))
                                     << 32);
      }>;
  }
  return nullptr;
}

}  // namespace

void Parser::memory(Inst& inst, const std::vector<std::string_view>& parts,
                    const std::vector<std::string_view>& operands) {
  const bool loads = parts[0] == "ld";
  Space space = Space::global;
  Type type;
  bool spaced = false;
  for (size_t k = 1; k < parts.size(); ++k) {
    const std::string_view p = parts[k];
    if (p == "global")
      spaced = true;
    else if (p == "shared")
      space = Space::shared, spaced = true;
    else if (p == "param")
      space = Space::param, spaced = true;
    else if (p == "local")
      space = Space::local, spaced = true;
    else if (p == "volatile")
      inst.is_volatile = true;
    else if (p == "v2")
      inst.count = 2;
    else if (p == "v4")
      inst.count = 4;
    else if (p == "nc" || p == "cs" || p == "cg" || p == "ca" || p == "weak" || p == "relaxed" || p == "sys" ||
             p == "gpu")
      continue;
    else if (!parse_type(p, type))
      fail("unsupported access " + std::string(p));
  }
  if (!spaced) fail("generic addresses are not supported");
  Name::What what = Name::reg;
  address(operands[loads ? 0 + 1 : 0], inst, what);
  std::string_view values = operands[loads ? 0 : 1];
  std::vector<std::string_view> list{values};
  if (values[0] == '{') list = split(values.substr(1, values.size() - 2), ',');
  if (list.size() != inst.count) fail("an access of another length");
  uint32_t bytes = 0;
  for (size_t k = 0; k < list.size(); ++k) {
    const Operand o = operand(list[k], type, loads, true);
    inst.v[k] = o.offset;
    bytes = std::max(bytes, o.bytes);
  }
  if (what == Name::slot) {  // a parameter of an inlined function
    if (inst.imm != 0 || inst.count != 1) fail("an access within a parameter");
    inst.d = loads ? inst.v[0] : inst.a;
    if (!loads) inst.a = inst.v[0];
    inst.fn = type.bits == 64   ? unary<uint64_t, uint64_t, [](uint64_t x) { return x; }>
              : type.bits == 32 ? unary<uint32_t, uint32_t, [](uint32_t x) { return x; }>
                                : nullptr;
    return;
  }
  if (loads) {
    if (type.letter == 's') {
      inst.fn = type.bits == 8    ? load_into<int8_t>(bytes, space)
                : type.bits == 16 ? load_into<int16_t>(bytes, space)
                : type.bits == 32 ? load_into<int32_t>(bytes, space)
                                  : load_into<int64_t>(bytes, space);
    } else {
      inst.fn = type.bits == 8    ? load_into<uint8_t>(bytes, space)
                : type.bits == 16 ? load_into<uint16_t>(bytes, space)
                : type.bits == 32 ? load_into<uint32_t>(bytes, space)
                                  : load_into<uint64_t>(bytes, space);
    }
  } else if (space != Space::param) {
    inst.fn = type.bits == 8    ? store_from<uint8_t>(bytes, space)
              : type.bits == 16 ? store_from<uint16_t>(bytes, space)
              : type.bits == 32 ? store_from<uint32_t>(bytes, space)
                                : store_from<uint64_t>(bytes, space);
  }
}

void Parser::convert(Inst& inst, const std::vector<std::string_view>& parts) {
  std::string key;
  for (size_t k = 1; k < parts.size(); ++k) key += (k == 1 ? "" : ".") + std::string(parts[k]);
  // Registers may be wider than the types: a u8 lies in 16 bits or more.
  Type from, to;
  if (!parse_type(parts.back(), from) || !parse_type(parts[parts.size() - 2], to)) fail("cvt." + key);
  const std::string modifiers = key.substr(0, key.size() - parts.back().size() - parts[parts.size() - 2].size() - 1);
  const bool integers = (from.letter == 'u' || from.letter == 's') && (to.letter == 'u' || to.letter == 's');
  if (integers && modifiers.empty()) {
    const auto pick_to = [&]<class A>() -> Handler {
      const bool wide = to.letter == 's';
      switch (to.bits) {
        case 8:  // in a 16-bit register
          return wide ? unary<int16_t, A, [](A x) { return static_cast<int16_t>(static_cast<int8_t>(x)); }>
                      : unary<uint16_t, A, [](A x) { return static_cast<uint16_t>(static_cast<uint8_t>(x)); }>;
        case 16:
          return unary<uint16_t, A, [](A x) { return static_cast<uint16_t>(x); }>;
        case 32:
          return unary<uint32_t, A, [](A x) { return static_cast<uint32_t>(x); }>;
        default:
          return unary<uint64_t, A, [](A x) { return static_cast<uint64_t>(x); }>;
      }
    };
    const bool s = from.letter == 's';
    if (from.bits == 16) inst.fn = s ? pick_to.operator()<int16_t>() : pick_to.operator()<uint16_t>();
    if (from.bits == 32) inst.fn = s ? pick_to.operator()<int32_t>() : pick_to.operator()<uint32_t>();
    if (from.bits == 64) inst.fn = s ? pick_to.operator()<int64_t>() : pick_to.operator()<uint64_t>();
    if (from.bits == 8 && to.bits == 32) {
      inst.fn =
          s ? unary<uint32_t, uint16_t, [](uint16_t x) { return static_cast<uint32_t>(static_cast<int8_t>(x)); }>
            : unary<uint32_t, uint16_t, [](uint16_t x) { return static_cast<uint32_t>(static_cast<uint8_t>(x)); }>;
    }
    if (from.bits == 8 && to.bits == 16) {
      inst.fn =
          s ? unary<uint16_t, uint16_t, [](uint16_t x) { return static_cast<uint16_t>(static_cast<int8_t>(x)); }>
            : unary<uint16_t, uint16_t, [](uint16_t x) { return static_cast<uint16_t>(static_cast<uint8_t>(x)); }>;
    }
    return;
  }
#define TO_FLOAT(name, F, T)                                       \
  {                                                                \
    "rn." name, unary<F, T, [](T x) { return static_cast<F>(x); }> \
  }
#define TO_INT(name, I, F)                                                                 \
  {"rzi." name, unary<I, F, [](F x) { return to_integer<I, F>(std::trunc(x)); }>},         \
      {"rni." name, unary<I, F, [](F x) { return to_integer<I, F>(std::nearbyint(x)); }>}, \
      {"rmi." name, unary<I, F, [](F x) { return to_integer<I, F>(std::floor(x)); }>}, {   \
    "rpi." name, unary<I, F, [](F x) { return to_integer<I, F>(std::ceil(x)); }>           \
  }
  static const std::map<std::string, Handler> table = {
      TO_FLOAT("f32.u16", float, uint16_t),
      TO_FLOAT("f32.s16", float, int16_t),
      TO_FLOAT("f32.u32", float, uint32_t),
      TO_FLOAT("f32.s32", float, int32_t),
      TO_FLOAT("f32.u64", float, uint64_t),
      TO_FLOAT("f32.s64", float, int64_t),
      TO_FLOAT("f64.u32", double, uint32_t),
      TO_FLOAT("f64.s32", double, int32_t),
      TO_FLOAT("f64.u64", double, uint64_t),
      TO_FLOAT("f64.s64", double, int64_t),
      TO_FLOAT("f32.f64", float, double),
      {"rn.f32.u8", unary<float, uint16_t, [](uint16_t x) { return static_cast<float>(static_cast<uint8_t>(x)); }>},
      TO_INT("s32.f32", int32_t, float),
      TO_INT("u32.f32", uint32_t, float),
      TO_INT("s64.f32", int64_t, float),
      TO_INT("u64.f32", uint64_t, float),
      TO_INT("s32.f64", int32_t, double),
      TO_INT("u32.f64", uint32_t, double),
      TO_INT("s64.f64", int64_t, double),
      TO_INT("u64.f64", uint64_t, double),
      {"f64.f32", unary<double, float, [](float x) { return static_cast<double>(x); }>},
      {"sat.f32.f32", unary<float, float, [](float x) { return (x >= 1.0F  ? 1.0F
                                                                : x > 0.0F ? x
                                                                           : 0.0F); }>},
      {"rzi.f32.f32", unary<float, float, [](float x) { return std::trunc(x); }>},
      {"rzi.f64.f64", unary<double, double, [](double x) { return std::trunc(x); }>},
      {"rni.f32.f32", unary<float, float, [](float x) { return std::nearbyint(x); }>},
      {"rmi.f32.f32", unary<float, float, [](float x) { return std::floor(x); }>},
      {"rpi.f32.f32", unary<float, float, [](float x) { return std::ceil(x); }>},
      {"f32.f16", unary<float, uint16_t, [](uint16_t x) { return from_half(x); }>},
      {"rn.f16.f32", unary<uint16_t, float, [](float x) { return to_half(x); }>},
      {"f32.bf16", unary<float, uint16_t, [](uint16_t x) { return from_bf16(x); }>},
      {"rn.bf16.f32", unary<uint16_t, float, [](float x) { return to_bf16(x); }>},
  };
  const auto found = table.find(key);
  if (found != table.end()) inst.fn = found->second;
}

void Parser::integer_or_float(Inst& inst, const std::vector<std::string_view>& parts,
                              const std::vector<std::string_view>& operands) {
  Type type;
  if (!parse_type(parts.back(), type)) fail("unsupported instruction " + std::string(parts[0]));
  std::string op(parts[0]);
  for (size_t k = 1; k + 1 < parts.size(); ++k) op += "." + std::string(parts[k]);
  if (op == "cvta.to.global" || op == "cvta.global" || op == "cvta.local") op = "mov";

  if (op.rfind("setp.", 0) == 0) {
    const std::string_view relation = parts[1];
    const auto pick = [&]<class T>() -> Handler {
      const auto found = comparisons<T>().find(relation);
      return found == comparisons<T>().end() || parts.size() != 3 ? nullptr : found->second;
    };
    inst.d = operand(operands[0], {'p', 32}, true).offset;
    inst.a = operand(operands[1], type).offset;
    inst.b = operand(operands[2], type).offset;
    const bool s = type.letter == 's';
    if (type.letter == 'f')
      inst.fn = type.bits == 32 ? pick.operator()<float>() : pick.operator()<double>();
    else if (type.bits == 16)
      inst.fn = s ? pick.operator()<int16_t>() : pick.operator()<uint16_t>();
    else if (type.bits == 32)
      inst.fn = s ? pick.operator()<int32_t>() : pick.operator()<uint32_t>();
    else
      inst.fn = s ? pick.operator()<int64_t>() : pick.operator()<uint64_t>();
    return;
  }
  if (op == "mul.wide") {
    const Type wide{type.letter, type.bits * 2};
    inst.d = operand(operands[0], wide, true).offset;
    inst.a = operand(operands[1], type).offset;
    inst.b = operand(operands[2], type).offset;
    if (type.bits == 32) {
      inst.fn = type.letter == 's'
                    ? binary<int64_t, int32_t, int32_t, [](int32_t a, int32_t b) { return int64_t{a} * b; }>
                    : static_cast<Handler>(
                          binary<uint64_t, uint32_t, uint32_t, [](uint32_t a, uint32_t b) { return uint64_t{a} * b; }>);
    } else if (type.bits == 16) {
      inst.fn = type.letter == 's'
                    ? binary<int32_t, int16_t, int16_t, [](int16_t a, int16_t b) { return int32_t{a} * b; }>
                    : static_cast<Handler>(
                          binary<uint32_t, uint16_t, uint16_t, [](uint16_t a, uint16_t b) { return uint32_t{a} * b; }>);
    }
    return;
  }
  if (op == "mad.wide" && type.bits == 32) {
    const Type wide{type.letter, 64};
    inst.d = operand(operands[0], wide, true).offset;
    inst.a = operand(operands[1], type).offset;
    inst.b = operand(operands[2], type).offset;
    inst.c = operand(operands[3], wide).offset;
    inst.fn =
        type.letter == 's'
            ? ternary<int64_t, int32_t, int64_t,
                      [](int32_t a, int32_t b, int64_t c) {
                        return static_cast<int64_t>(static_cast<uint64_t>(int64_t{a} * b) + static_cast<uint64_t>(c));
                      }>
            : static_cast<Handler>(ternary<uint64_t, uint32_t, uint64_t,
                                           [](uint32_t a, uint32_t b, uint64_t c) { return uint64_t{a} * b + c; }>);
    return;
  }
  if (op == "mov" && (operands[0][0] == '{' || operands[1][0] == '{')) {
    const bool unpacks = operands[0][0] == '{';
    const std::string_view group = operands[unpacks ? 0 : 1];
    const Type half{'b', type.bits / 2};
    const auto list = split(group.substr(1, group.size() - 2), ',');
    if (list.size() != 2) fail("a vector of another length");
    inst.base_bytes = static_cast<uint8_t>(type.bits / 8);
    for (size_t k = 0; k < 2; ++k) {
      inst.v[k] = operand(list[k], half, unpacks).offset;
      if (inst.v[k] == kNone) inst.v[k] = allocate(32 * 4);  // "_"
    }
    if (unpacks)
      inst.a = operand(operands[1], type).offset;
    else
      inst.d = operand(operands[0], type, true).offset;
    inst.fn = unpacks ? unpack : pack;
    return;
  }
  if (type.letter == 'p') {
    inst.d = operand(operands[0], type, true).offset;
    inst.a = operand(operands[1], type).offset;
    if (operands.size() > 2) inst.b = operand(operands[2], type).offset;
    if (op == "and") inst.fn = predicates<[](uint32_t a, uint32_t b) { return a & b; }>;
    if (op == "or") inst.fn = predicates<[](uint32_t a, uint32_t b) { return a | b; }>;
    if (op == "xor") inst.fn = predicates<[](uint32_t a, uint32_t b) { return a ^ b; }>;
    if (op == "not") inst.fn = predicates<[](uint32_t a, uint32_t) { return ~a; }>;
    if (op == "mov") inst.fn = predicates<[](uint32_t a, uint32_t) { return a; }>;
    return;
  }
  const Type result = op == "popc" || op == "clz" ? Type{'u', 32} : type;
  inst.d = operand(operands[0], result, true).offset;
  uint32_t* const sources[] = {&inst.a, &inst.b, &inst.c};
  for (size_t k = 1; k < operands.size() && k < 4; ++k) {
    Type t = type;
    if (op == "selp" && k == 3) t = {'p', 32};
    if ((op == "shl" || op == "shr") && k == 2) t = {'u', 32};
    *sources[k - 1] = operand(operands[k], t).offset;
  }
  if (op == "prmt") {
    inst.fn = prmt;
  } else if (op == "bfe" && type.bits == 32 && type.letter == 'u') {
    inst.fn = ternary<uint32_t, uint32_t, uint32_t, [](uint32_t a, uint32_t b, uint32_t c) {
      const uint32_t at = b & 255U, length = c & 255U;
      return (at > 31 ? 0U : (a >> at) & (length > 31 ? kAll : (1U << length) - 1));
    }>;
  } else if (type.letter == 'f' && type.bits >= 32) {
    inst.fn = type.bits == 32 ? float_operation<float>(op) : float_operation<double>(op);
  } else if (type.bits == 16) {
    inst.fn = integer_operation<uint16_t>(op, type.letter == 's');
  } else if (type.bits == 32) {
    inst.fn = integer_operation<uint32_t>(op, type.letter == 's');
  } else if (type.bits == 64) {
    inst.fn = integer_operation<uint64_t>(op, type.letter == 's');
  }
}

void Parser::statement(std::string_view s) {
  Inst inst;
  if (s[0] == '@') {
    const size_t end = s.find_first_of(" \t");
    std::string_view guard = s.substr(1, end - 1);
    if (guard[0] == '!') inst.negated = true, guard.remove_prefix(1);
    inst.guard = operand(guard, {'p', 32}).offset;
    s = trim(s.substr(end));
  }
  const size_t end = s.find_first_of(" \t\n");
  const std::string_view opcode = s.substr(0, end);
  const std::vector<std::string_view> parts = split(opcode, '.');
  const std::vector<std::string_view> operands =
      end == std::string_view::npos ? std::vector<std::string_view>{} : split(trim(s.substr(end)), ',');
  const std::string_view op = parts[0];
  const uint32_t used = used_bytes_;
  if (op == "bra") {
    inst.kind = Kind::branch;
    jumps_.back().emplace_back(kernel_.code.size(), std::string(operands[0]));
  } else if (op == "ret" || op == "exit") {
    if (op == "ret" && !returns_.empty()) {
      inst.kind = Kind::branch;
      returns_.back().push_back(kernel_.code.size());
    } else {
      inst.kind = Kind::exit;
    }
  } else if (opcode == "bar.warp.sync") {  // lanes meet as for a shuffle, and nothing moves
    inst.kind = Kind::shuffle;
    inst.v[0] = operand(operands[0], {'b', 32}).offset;
    inst.fn = [](Ctx&, const Inst&, uint32_t) {};
  } else if (op == "bar" || op == "barrier") {
    if (opcode != "bar.sync" || operands.size() != 1 || operands[0] != "0") fail("unsupported barrier");
    inst.kind = Kind::barrier;
  } else if (op == "shfl") {
    inst.kind = Kind::shuffle;
    const auto targets = split(operands[0], '|');
    const Type b32{'b', 32};
    inst.d = operand(targets[0], b32, true).offset;
    if (targets.size() > 1) inst.e = operand(targets[1], {'p', 32}, true).offset;
    inst.a = operand(operands[1], b32).offset;
    inst.b = operand(operands[2], b32).offset;
    inst.c = operand(operands[3], b32).offset;
    inst.v[0] = operand(operands[4], b32).offset;  // the lanes
    inst.imm = parts[2] == "up" ? 0 : parts[2] == "down" ? 1 : parts[2] == "bfly" ? 2 : 3;
    inst.fn = shuffle;
  } else if (op == "ld" || op == "st") {
    memory(inst, parts, operands);
  } else if (op == "atom" || op == "red") {
    Type type;
    parse_type(parts.back(), type);
    const std::string_view what = parts[parts.size() - 2];
    const size_t first = op == "atom" ? 1 : 0;
    if (std::find(parts.begin(), parts.end(), "global") == parts.end())
      fail("only atomics of global memory are supported");
    if (op == "atom") inst.d = operand(operands[0], type, true).offset;
    Name::What ignored = Name::reg;
    address(operands[first], inst, ignored);
    inst.b = operand(operands[first + 1], type).offset;
    if (operands.size() > first + 2) inst.c = operand(operands[first + 2], type).offset;
    if (type.bits == 32 && type.letter == 'f' && what == "add")
      inst.fn = atomic<float, [](float o, float b, float) { return o + b; }>;
    else if (type.bits == 32) {
      if (what == "add") inst.fn = atomic<uint32_t, [](uint32_t o, uint32_t b, uint32_t) { return o + b; }>;
      if (what == "exch") inst.fn = atomic<uint32_t, [](uint32_t, uint32_t b, uint32_t) { return b; }>;
      if (what == "cas") inst.fn = atomic<uint32_t, [](uint32_t o, uint32_t b, uint32_t c) { return o == b ? c : o; }>;
      if (what == "or") inst.fn = atomic<uint32_t, [](uint32_t o, uint32_t b, uint32_t) { return o | b; }>;
      if (what == "max" && type.letter == 'u')
        inst.fn = atomic<uint32_t, [](uint32_t o, uint32_t b, uint32_t) { return (o > b ? o : b); }>;
      if (what == "max" && type.letter == 's')
        inst.fn = atomic<int32_t, [](int32_t o, int32_t b, int32_t) { return (o > b ? o : b); }>;
    }
  } else if (op == "membar" || op == "fence") {
    inst.fn = nothing;
  } else if (op == "griddepcontrol") {
    if (parts.size() < 2 || parts[1] != "wait") fail("unsupported griddepcontrol");
    inst.fn = grid_wait;
  } else if (op == "call") {
    call(s.substr(end));
    return;
  } else if (op == "cvt") {
    Type from, to;
    if (!parse_type(parts.back(), from) || !parse_type(parts[parts.size() - 2], to))
      fail("unsupported " + std::string(opcode));
    const auto bits_of = [](const Type& t) { return static_cast<uint32_t>(std::max(t.bits, 16) / 8); };
    const Operand d = operand(operands[0], to, true, true), a = operand(operands[1], from, false, true);
    inst.d = d.offset;
    inst.a = a.offset;
    if (a.bytes > bits_of(from)) {  // the low part of a wider register
      Inst narrow;
      narrow.guard = inst.guard;
      narrow.negated = inst.negated;
      narrow.a = a.offset;
      narrow.d = inst.a = allocate(32 * bits_of(from));
      narrow.fn = a.bytes == 8 ? (bits_of(from) == 4
                                      ? unary<uint32_t, uint64_t, [](uint64_t x) { return static_cast<uint32_t>(x); }>
                                      : unary<uint16_t, uint64_t, [](uint64_t x) { return static_cast<uint16_t>(x); }>)
                               : unary<uint16_t, uint32_t, [](uint32_t x) { return static_cast<uint16_t>(x); }>;
      push(narrow);
    }
    if (d.bytes > bits_of(to)) fail("cvt into a wider register");
    convert(inst, parts);
  } else {
    integer_or_float(inst, parts, operands);
  }
  if (inst.fn == nullptr && inst.kind == Kind::plain) fail("unsupported instruction " + std::string(opcode));
  push(inst);
  if (used != kAll) used_bytes_ = kAll;
}

}  // namespace vitrine::ptx
