// SPDX-License-Identifier: Apache-2.0
#include "tests/ptx/memory.h"

#include <algorithm>

namespace vitrine::ptx {

void addresses(Ctx& c, const Inst& i, uint64_t (&to)[32]) {
  if (i.base_bytes == 8) {
    const auto* const base = at<uint64_t>(c, i.a);
    for (int l = 0; l < 32; ++l) to[l] = base[l] + static_cast<uint64_t>(i.imm);
  } else if (i.base_bytes == 4) {
    const auto* const base = at<uint32_t>(c, i.a);
    for (int l = 0; l < 32; ++l) to[l] = base[l] + static_cast<uint32_t>(i.imm);
  } else {
    for (int l = 0; l < 32; ++l) to[l] = static_cast<uint64_t>(i.imm);
  }
}

bool may_access(Ctx& c, const Inst& i, int lane, uint64_t p, uint32_t bytes, const char* what) {
  if (p % bytes != 0) {
    report(c, &i, lane, kMisaligned, "misaligned %s: %u bytes at %#lx", what, bytes, p);
    return false;
  }
  if ((c.warp->waited >> lane & 1U) == 0) {
    report(c, &i, lane, 0, "%s of global memory before griddepcontrol.wait", what);
    c.warp->waited |= 1U << lane;
  }
  if (p >= c.low && p + bytes <= c.high) return true;
  const Allocation *const begin = c.launch->allocations, *const end = begin + c.launch->allocation_count;
  const Allocation* a =
      std::upper_bound(begin, end, p, [](uint64_t address, const Allocation& x) { return address < x.begin; });
  const char* wrong = nullptr;
  if (a == begin || (--a, p >= a->begin + a->bytes + (1 << 20))) {
    report(c, &i, lane, kIllegalAddress, "illegal %s: %u bytes at %#lx, outside all allocations", what, bytes, p);
    return false;
  }
  if (a->freed)
    wrong = "in a freed allocation";
  else if (p + bytes > a->begin + a->bytes)
    wrong = "beyond an allocation";
  else if (a->device == -2)
    wrong = "on a GPU without peer access";
  else if (a->device == -3)
    wrong = "in another tensor, to which no parameter points,";
  if (wrong != nullptr) {
    report(c, &i, lane, kIllegalAddress, "illegal %s: %u bytes at offset %ld %s of %zu bytes", what, bytes,
           static_cast<long>(p - a->begin), wrong, a->bytes);
    return false;
  }
  c.low = a->begin;
  c.high = a->begin + a->bytes;
  return true;
}

bool may_access_shared(Ctx& c, const Inst& i, int lane, uint64_t p, uint32_t bytes, const char* what) {
  if (p % bytes != 0) {
    report(c, &i, lane, kMisaligned, "misaligned %s of shared memory: %u bytes at %#lx", what, bytes, p);
    return false;
  }
  if (p + bytes > c.block->shared.size()) {
    report(c, &i, lane, kIllegalAddress, "illegal %s of shared memory: %u bytes at %#lx of %zu", what, bytes, p,
           c.block->shared.size());
    return false;
  }
  return true;
}

std::byte* local_memory(Ctx& c, const Inst& i, int lane, uint64_t p, uint32_t bytes) {
  if (p % bytes == 0 && p + bytes <= c.kernel->local_bytes)
    return c.regs + c.kernel->local_offset + static_cast<uint32_t>(lane) * c.kernel->local_bytes + p;
  report(c, &i, lane, kIllegalAddress, "illegal access of local memory: %u bytes at %#lx of %u", bytes, p,
         c.kernel->local_bytes);
  return nullptr;
}

void shuffle(Ctx& c, const Inst& i, uint32_t m) {
  uint32_t* const d = at<uint32_t>(c, i.d);
  uint32_t a[32];
  std::memcpy(a, at<uint32_t>(c, i.a), sizeof a);
  const uint32_t *const b = at<uint32_t>(c, i.b), *const e = at<uint32_t>(c, i.c);
  uint32_t predicate = 0;
  for (uint32_t r = m; r != 0; r &= r - 1) {
    const int l = __builtin_ctz(r);
    const int value = static_cast<int>(b[l] & 31U), clamp = static_cast<int>(e[l] & 31U),
              segment = static_cast<int>(e[l] >> 8 & 31U);
    const int most = (l & segment) | (clamp & ~segment), least = l & segment;
    int source = 0;
    bool inside = false;
    switch (i.imm) {
      case 0:  // up
        source = l - value;
        inside = source >= most;
        break;
      case 1:  // down
        source = l + value;
        inside = source <= most;
        break;
      case 2:  // bfly
        source = l ^ value;
        inside = source <= most;
        break;
      default:  // idx
        source = least | (value & ~segment);
        inside = source <= most;
    }
    if (!inside) source = l;
    if ((m >> source & 1U) == 0)
      report(c, &i, l, kIllegalInstruction, "shuffle from lane %d, which takes no part", source);
    d[l] = a[source];
    predicate |= static_cast<uint32_t>(inside) << l;
  }
  if (i.e != kNone) {
    uint32_t& p = *at<uint32_t>(c, i.e);
    p = (p & ~m) | predicate;
  }
}

}  // namespace vitrine::ptx
