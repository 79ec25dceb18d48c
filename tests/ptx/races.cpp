// SPDX-License-Identifier: Apache-2.0
// Races: two threads that access a byte, one of them writing, without an order between them.
#include "tests/ptx/findings.h"

namespace vitrine::ptx {

namespace {

/// The shadow of a page of global memory; null if there would be too many.
ShadowByte* shadow_of(Shadow& shadow, uint64_t number) {
  if (shadow.last == nullptr || shadow.last_number != number) {
    if (shadow.pages.size() >= Shadow::kMostPages && !shadow.pages.contains(number)) return nullptr;
    std::unique_ptr<Shadow::Page>& page = shadow.pages[number];
    if (page == nullptr) page = std::make_unique<Shadow::Page>();
    if (page->launch != shadow.launch) page->bytes.fill({});
    page->launch = shadow.launch;
    shadow.last = page.get();
    shadow.last_number = number;
  }
  return shadow.last->bytes.data();
}

}  // namespace

// In global memory, volatile reads and all accesses of a block after its first atomic operation count as ordered
// against other blocks (the last block that arrives at a counter), a shuffle of all lanes orders a warp, and threads
// may write the same value.
void check_order(Context& c, const Instruction& i, int lane, uint64_t p, uint32_t bytes, bool writes, bool same_value) {
  const bool shared = i.space == Space::shared;
  ShadowByte* const shadow = shared ? c.shared_shadow.data() + p : shadow_of(c.global_shadow, p / kPage);
  if (shadow == nullptr) return;
  const auto thread = static_cast<uint16_t>(c.warp->index * 32 + static_cast<uint32_t>(lane));
  const Access now{c.block, c.epoch, c.warp->shuffles, thread, static_cast<uint16_t>(c.warp->index)};
  const auto check = [&](const Access& before, const char* what) {
    const bool other_block = before.block != now.block;
    if (before.block == 0 || (other_block && (shared || c.block_used_atomics || i.is_volatile))) return;
    if (!other_block && (before.thread == thread || before.epoch != now.epoch ||
                         (!shared && before.warp == now.warp && before.shuffle != now.shuffle)))
      return;
    report(c, i, lane, 0, "race in %s memory%s: %s of %#lx, which thread %d of block %d (-1: several) %s",
           shared ? "shared" : "global", other_block || shared ? "" : " within a block", writes ? "write" : "read", p,
           before.thread == kSeveral ? -1 : before.thread,
           before.block == kAll ? -1 : static_cast<int>(before.block) - 1, what);
  };
  for (uint32_t k = 0; k < bytes; ++k) {
    ShadowByte& b = shadow[(shared ? 0 : p % kPage) + k];
    if (shared && !writes && b.write.block != now.block)
      report(c, i, lane, 0, "read of uninitialised shared memory: at %#lx", p + k);
    if (shared || !(writes && same_value)) check(b.write, "wrote");
    if (writes) {
      check(b.read, "read");
      b.write = now;
      continue;
    }
    const Access before = b.read;
    const bool first = before.block != now.block || before.epoch != now.epoch;
    b.read = now;
    if (!first && before.thread != now.thread) b.read.thread = kSeveral;
    if (!first && before.warp != now.warp) b.read.warp = kSeveral;
    if (!shared && before.block != 0 && before.block != now.block) b.read.block = kAll;
  }
}

}  // namespace vitrine::ptx
