// SPDX-License-Identifier: Apache-2.0
// Instructions that access memory, each access checked.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "tests/ptx/findings.h"

namespace vitrine::ptx {

namespace {

/// Of all lanes.
std::array<uint64_t, 32> addresses(Context& c, const Instruction& i) {
  std::array<uint64_t, 32> result;
  const auto offset = static_cast<uint64_t>(i.offset);
  const auto* const wide = at<uint64_t>(c, i.operands[0]);
  const auto* const narrow = at<uint32_t>(c, i.operands[0]);
  for (size_t l = 0; l < 32; ++l)
    result[l] = i.address_bytes == 8 ? wide[l] + offset : narrow[l] + static_cast<uint32_t>(offset);
  return result;
}

/// Makes the region around p that the kernel may access the one that was used last. False, with a report, if there is
/// none.
bool find_region(Context& c, const Instruction& i, int lane, uint64_t p, uint32_t bytes, const char* what) {
  const auto known = std::find_if(c.regions.begin(), c.regions.end(),
                                  [&](const Region& r) { return p >= r.begin && p + bytes <= r.end; });
  if (known != c.regions.end()) return c.region = *known, true;
  Region region;
  const char* wrong = c.launch->find_region(p, region);
  if (wrong == nullptr && p + bytes > region.end) wrong = "beyond an allocation";
  if (wrong != nullptr) {
    report(c, i, lane, kIllegalAddress, "illegal %s %s: %u bytes at %#lx", what, wrong, bytes, p);
    return false;
  }
  c.region = c.regions.emplace_back(region);
  return true;
}

/// The memory of an instruction's space, and whether lanes may access it.
class Memory {
 public:
  Memory(Context& c, const Instruction& i, uint32_t bytes, const char* what)
      : context_(c), instruction_(i), bytes_(bytes), what_(what) {
    if (i.space == Space::shared) {
      use(0, c.shared.size(), c.shared.data());
    } else if (i.space == Space::local) {
      lane_bytes_ = c.kernel->local_bytes;
      use(0, lane_bytes_, at<std::byte>(c, c.kernel->local_offset));
    } else if (i.space == Space::param) {
      use(0, c.launch->parameters.size(), const_cast<std::byte*>(c.launch->parameters.data()));
    } else {
      use_region();
    }
  }

  /// Where the address lies on the host. Null, with a report, if the lane may not access it.
  [[gnu::always_inline]] std::byte* locate(int lane, uint64_t p) {
    const bool usual = (p & (bytes_ - 1)) == 0 && p - begin_ < places_ && (ready_ >> lane & 1U) != 0;
    if (!usual && !may_access(lane, p)) return nullptr;
    return origin_ + (p - begin_) + lane_bytes_ * static_cast<size_t>(lane);
  }

 private:
  void use(uint64_t begin, size_t size, std::byte* origin) {
    begin_ = begin;
    places_ = size < bytes_ ? 0 : size - bytes_ + 1;
    origin_ = origin;
  }
  void use_region() {
    const auto [begin, end] = context_.region;
    use(begin, end - begin, reinterpret_cast<std::byte*>(begin));
    ready_ = context_.warp->waited;
  }
  [[gnu::noinline]] bool may_access(int lane, uint64_t p) {
    if (p % bytes_ != 0) {
      report(context_, instruction_, lane, kMisaligned, "misaligned %s: %u bytes at %#lx", what_, bytes_, p);
      return false;
    }
    if (instruction_.space != Space::global) {
      constexpr const char* kSpaces[] = {"global", "shared", "parameter", "local"};
      report(context_, instruction_, lane, kIllegalAddress, "illegal %s of %s memory: %u bytes at %#lx", what_,
             kSpaces[static_cast<size_t>(instruction_.space)], bytes_, p);
      return false;
    }
    if ((context_.warp->waited >> lane & 1U) == 0) {
      report(context_, instruction_, lane, 0, "%s of global memory before griddepcontrol.wait", what_);
      context_.warp->waited |= 1U << lane;
    }
    const bool found = find_region(context_, instruction_, lane, p, bytes_, what_);
    use_region();
    return found;
  }

  Context& context_;
  const Instruction& instruction_;
  const uint32_t bytes_;
  const char* const what_;
  uint64_t begin_ = 0;
  size_t places_ = 0, lane_bytes_ = 0;  // places_: offsets from begin_ at which an access may begin
  std::byte* origin_ = nullptr;
  uint32_t ready_ = kAll;  // lanes that have waited for earlier kernels
};
bool has_order(const Instruction& i) {
  return i.space == Space::shared || (i.space == Space::global && settings().global_races);
}

// M: type in memory, R: that of the register.
template <class M, class R>
void load(Context& c, const Instruction& i, uint32_t lanes) {
  const uint32_t bytes = sizeof(M) * i.count;
  Memory memory(c, i, bytes, "read");
  const std::array<uint64_t, 32> p = addresses(c, i);
  const bool ordered = has_order(i);
  for (const int l : Lanes{lanes}) {
    const uint64_t address = p[static_cast<size_t>(l)];
    const std::byte* const from = memory.locate(l, address);
    if (from == nullptr) continue;
    if (ordered) check_order(c, i, l, address, bytes, false, false);
    for (uint32_t k = 0; k < i.count; ++k) {
      M value;
      std::memcpy(&value, from + k * sizeof(M), sizeof(M));
      if (i.operands[k + 1] != kNone) at<R>(c, i.operands[k + 1])[l] = static_cast<R>(value);
    }
  }
}
template <class M, class R>
void store(Context& c, const Instruction& i, uint32_t lanes) {
  const uint32_t bytes = sizeof(M) * i.count;
  Memory memory(c, i, bytes, "write");
  const std::array<uint64_t, 32> p = addresses(c, i);
  const bool ordered = has_order(i);
  for (const int l : Lanes{lanes}) {
    const uint64_t address = p[static_cast<size_t>(l)];
    std::byte* const to = memory.locate(l, address);
    if (to == nullptr) continue;
    M values[4];
    for (uint32_t k = 0; k < i.count; ++k) values[k] = static_cast<M>(at<R>(c, i.operands[k + 1])[l]);
    if (ordered) check_order(c, i, l, address, bytes, true, std::memcmp(to, values, bytes) == 0);
    for (uint32_t k = 0; k < i.count; ++k) std::memcpy(to + k * sizeof(M), &values[k], sizeof(M));
  }
}
template <class T, auto F>  // F(old, a, b): the new value
void atomic(Context& c, const Instruction& i, uint32_t lanes) {
  Memory memory(c, i, sizeof(T), "atomic operation");
  const std::array<uint64_t, 32> p = addresses(c, i);
  for (const int l : Lanes{lanes}) {
    std::byte* const to = memory.locate(l, p[static_cast<size_t>(l)]);
    if (to == nullptr) continue;
    c.block_used_atomics = true;
    const std::atomic_ref<uint32_t> word(*reinterpret_cast<uint32_t*>(to));
    const T a = at<T>(c, i.operands[2])[l], b = i.operands[3] == kNone ? T{} : at<T>(c, i.operands[3])[l];
    uint32_t old = word.load();
    while (!word.compare_exchange_weak(old, std::bit_cast<uint32_t>(F(std::bit_cast<T>(old), a, b)))) continue;
    at<T>(c, i.operands[1])[l] = std::bit_cast<T>(old);
  }
}

template <class M, class R>
void define_access(Operations& all) {
  if constexpr (sizeof(M) <= sizeof(R)) {
    using Signed = std::make_signed_t<R>;
    const std::string end = std::to_string(8 * sizeof(M)) + "." + std::to_string(sizeof(R));
    all["ld.u" + end].handler = load<M, R>;
    all["ld.s" + end].handler = load<std::make_signed_t<M>, Signed>;
    all["st.u" + end].handler = store<M, R>;
  }
}
template <class... M>
void define_accesses_of(Operations& all) {
  (define_access<M, uint16_t>(all), ...);
  (define_access<M, uint32_t>(all), ...);
  (define_access<M, uint64_t>(all), ...);
}

}  // namespace

void define_accesses(Operations& all) {
  define_accesses_of<uint8_t, uint16_t, uint32_t, uint64_t>(all);
  all["atom.add.f32"].handler = atomic<float, [](float old, float a, float) { return old + a; }>;
  all["atom.add.u32"].handler = atomic<uint32_t, [](uint32_t old, uint32_t a, uint32_t) { return old + a; }>;
  all["atom.exch.b32"].handler = atomic<uint32_t, [](uint32_t, uint32_t a, uint32_t) { return a; }>;
  all["atom.cas.b32"].handler =
      atomic<uint32_t, [](uint32_t old, uint32_t a, uint32_t b) { return old == a ? b : old; }>;
}

}  // namespace vitrine::ptx
