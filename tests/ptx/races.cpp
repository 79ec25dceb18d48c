// SPDX-License-Identifier: Apache-2.0
// Races: two threads that access a byte, one of them writing, without an order between them.
#include "tests/ptx/memory.h"

namespace vitrine::ptx {

void check_shared_read(Ctx& c, const Inst& i, int lane, uint64_t p, uint32_t bytes) {
  const auto thread = static_cast<uint16_t>(c.warp->index * 32 + static_cast<uint32_t>(lane));
  for (uint32_t k = 0; k < bytes; ++k) {
    if ((i.used_bytes >> k & 1U) == 0) continue;
    SharedByte& s = c.block->shadow[p + k];
    if (!s.written) {
      report(c, &i, lane, 0, "read of uninitialised shared memory: at %#lx", p + k);
    } else if (s.write_epoch == c.block->epoch && s.writer != thread) {
      report(c, &i, lane, 0, "race in shared memory: thread %u reads %#lx, which thread %u wrote without a barrier",
             thread, p + k, s.writer);
    }
    if (s.read_epoch != c.block->epoch) {
      s.read_epoch = c.block->epoch;
      s.reader = thread;
      s.several_readers = false;
    } else if (s.reader != thread) {
      s.several_readers = true;
    }
  }
}
void check_shared_write(Ctx& c, const Inst& i, int lane, uint64_t p, uint32_t bytes) {
  const auto thread = static_cast<uint16_t>(c.warp->index * 32 + static_cast<uint32_t>(lane));
  for (uint32_t k = 0; k < bytes; ++k) {
    SharedByte& s = c.block->shadow[p + k];
    if (s.written && s.write_epoch == c.block->epoch && s.writer != thread) {
      report(c, &i, lane, 0, "race in shared memory: threads %u and %u write %#lx without a barrier", s.writer, thread,
             p + k);
    }
    if (s.read_epoch == c.block->epoch && (s.several_readers || s.reader != thread)) {
      report(c, &i, lane, 0, "race in shared memory: thread %u writes %#lx, which thread %u reads without a barrier",
             thread, p + k, s.reader);
    }
    s.written = true;
    s.write_epoch = c.block->epoch;
    s.writer = thread;
  }
}

// Races in global memory within a launch. Volatile reads, and all accesses of a block after its first atomic operation,
// count as ordered against other blocks (the last block that arrives at a counter); a shuffle of all lanes orders a
// warp. Threads may write the same value.
void check_global(Ctx& c, const Inst& i, int lane, uint64_t p, uint32_t bytes, bool writes, bool same_value) {
  GlobalShadow& g = *c.global;
  const uint64_t number = p / kPage;
  if (g.last == nullptr || g.last_number != number) {
    if (g.pages.size() >= kMostPages && !g.pages.contains(number)) return;
    auto& page = g.pages[number];
    if (page == nullptr) page = std::make_unique<GlobalPage>();
    g.last = page.get();
    g.last_number = number;
  }
  if (g.last->launch != g.launch) {
    g.last->bytes.fill({});
    g.last->launch = g.launch;
  }
  const auto warp = static_cast<uint16_t>(c.warp->index);
  const auto thread = static_cast<uint16_t>(c.warp->index * 32 + static_cast<uint32_t>(lane));
  const uint32_t epoch = c.block->epoch, shuffle = c.warp->shuffles;
  const bool ordered = c.block_used_atomics || i.is_volatile;
  const char* const what = writes ? "write" : "read";
  for (uint32_t k = 0; k < bytes; ++k) {
    GlobalByte& b = g.last->bytes[p % kPage + k];
    if (b.write_block != 0 && !(writes && same_value)) {
      if (b.write_block != c.block_number) {
        if (!ordered)
          report(c, &i, lane, 0, "race in global memory: %s of %#lx, which block %u wrote", what, p + k,
                 b.write_block - 1);
      } else if (b.writer != thread && b.write_epoch == epoch &&
                 (b.writer / 32 != warp || b.write_shuffle == shuffle)) {
        report(c, &i, lane, 0,
               "race in global memory within a block: %s of %#lx, which thread %u wrote without a barrier", what, p + k,
               b.writer);
      }
    }
    if (writes) {
      if (b.read_block != 0 && b.read_block != c.block_number) {
        if (!ordered) report(c, &i, lane, 0, "race in global memory: write of %#lx, which another block read", p + k);
      } else if (b.read_block != 0 && b.reader != thread && b.read_epoch == epoch &&
                 (b.read_warp != warp || b.read_shuffle == shuffle)) {
        report(c, &i, lane, 0,
               "race in global memory within a block: write of %#lx, which thread %u read without a barrier", p + k,
               b.reader);
      }
      b.write_block = c.block_number;
      b.write_epoch = epoch;
      b.write_shuffle = shuffle;
      b.writer = thread;
    } else {
      const bool first = b.read_block != c.block_number || b.read_epoch != epoch;
      b.reader = first || b.reader == thread ? thread : kSeveral;
      b.read_warp = first || b.read_warp == warp ? warp : kSeveral;
      b.read_block = b.read_block == 0 || b.read_block == c.block_number ? c.block_number : kAll;
      b.read_epoch = epoch;
      b.read_shuffle = shuffle;
    }
  }
}

}  // namespace vitrine::ptx
