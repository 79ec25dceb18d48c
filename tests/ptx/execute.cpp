// SPDX-License-Identifier: Apache-2.0
// Runs a kernel: blocks one after the other, their warps in turn up to the next barrier, lanes of a warp together.
#include <chrono>
#include <cstring>

#include "tests/ptx/findings.h"

namespace vitrine::ptx {

namespace {

struct Executor {
  std::vector<std::byte> registers;
  std::vector<Warp> warps;
  Block block;
  GlobalShadow global;
};

uint32_t random_number(uint64_t& state) {
  state = state * 6364136223846793005U + 1442695040888963407U;
  return static_cast<uint32_t>(state >> 33);
}

// Runs the warp until all its lanes wait or have ended. Lanes at the lowest address go first, so that they meet again
// behind a branch.
void run_warp(Ctx& c, Warp& w, Kernel& k, int64_t& warp_instructions, int64_t& lane_instructions) {
  c.warp = &w;
  c.regs = w.regs;
  const Inst* const code = k.code.data();
  while (true) {
    uint32_t runnable = w.live & ~w.at_barrier & ~w.at_warp;
    if (runnable == 0) {
      if (w.at_warp == 0) return;
      const int lane = __builtin_ctz(w.at_warp);
      const uint32_t pc = w.pcs[lane];
      report(c, &code[pc], lane, kLaunchFailure,
             "deadlock: lanes %#x wait at a shuffle for lanes that are not there (live %#x, at a barrier %#x)",
             w.at_warp, w.live, w.at_barrier);
      w.live &= ~w.at_warp;
      w.at_warp = 0;
      continue;
    }
    uint32_t pc = kNone;
    for (uint32_t r = runnable; r != 0; r &= r - 1) pc = std::min(pc, w.pcs[__builtin_ctz(r)]);
    uint32_t active = 0, others = kNone;
    for (uint32_t r = runnable; r != 0; r &= r - 1) {
      const int l = __builtin_ctz(r);
      if (w.pcs[l] == pc)
        active |= 1U << l;
      else
        others = std::min(others, w.pcs[l]);
    }
    const auto leave_at = [&](uint32_t lanes, uint32_t where) {
      for (uint32_t r = lanes; r != 0; r &= r - 1) w.pcs[__builtin_ctz(r)] = where;
    };
    for (bool again = false; !again;) {
      if (pc >= others) {
        leave_at(active, pc);
        break;
      }
      const Inst& i = code[pc];
      uint32_t m = active;
      if (i.guard != kNone) {
        const uint32_t p = *reinterpret_cast<const uint32_t*>(w.regs + i.guard);
        m &= i.negated ? ~p : p;
      }
      ++warp_instructions;
      lane_instructions += __builtin_popcount(m);
      if (m != 0 && k.covered[pc].load(std::memory_order_relaxed) == 0)
        k.covered[pc].store(1, std::memory_order_relaxed);
      switch (i.kind) {
        case Kind::plain:
          if (m != 0) i.fn(c, i, m);
          ++pc;
          break;
        case Kind::branch:
          if (m == active) {
            pc = i.target;
          } else if (m == 0) {
            ++pc;
          } else {
            leave_at(m, i.target);
            leave_at(active & ~m, pc + 1);
            again = true;
          }
          break;
        case Kind::exit:
          if ((m & ~w.waited) != 0)
            report(c, &i, __builtin_ctz(m & ~w.waited), 0, "end of a thread without griddepcontrol.wait");
          w.live &= ~m;
          active &= ~m;
          ++pc;
          if (active == 0) again = true;
          break;
        case Kind::barrier:
          leave_at(active, pc + 1);
          w.at_barrier |= m;
          again = true;
          break;
        case Kind::shuffle: {
          // Lanes that came here earlier.
          for (uint32_t r = w.at_warp; r != 0; r &= r - 1) {
            const int l = __builtin_ctz(r);
            if (w.pcs[l] == pc) active |= 1U << l;
          }
          w.at_warp &= ~active;
          m = active;
          const uint32_t lanes = reinterpret_cast<const uint32_t*>(w.regs + i.v[0])[__builtin_ctz(m)];
          for (uint32_t r = m; r != 0; r &= r - 1) {
            const int l = __builtin_ctz(r);
            const uint32_t mine = reinterpret_cast<const uint32_t*>(w.regs + i.v[0])[l];
            if (mine != lanes)
              report(c, &i, l, kIllegalInstruction, "shuffle: lanes disagree on the mask, %#x and %#x", lanes, mine);
            if ((mine >> l & 1U) == 0)
              report(c, &i, l, kIllegalInstruction, "shuffle: lane %d is not in its own mask %#x", l, mine);
          }
          if ((lanes & w.live & ~m) != 0) {
            leave_at(active, pc);
            w.at_warp |= active;
            again = true;
            break;
          }
          if ((lanes & ~w.live) != 0)
            report(c, &i, __builtin_ctz(m), 0, "shuffle: lanes %#x of the mask have ended or do not exist",
                   lanes & ~w.live);
          i.fn(c, i, m);
          if (m == kAll) ++w.shuffles;
          ++pc;
          break;
        }
      }
    }
  }
}

}  // namespace

int run(Kernel& k, const Launch& launch) {
  static thread_local Executor ex;
  const auto began = std::chrono::steady_clock::now();
  const uint32_t *const grid = launch.grid, *const dim = launch.block;
  const uint32_t threads = dim[0] * dim[1] * dim[2], warps = (threads + 31) / 32;
  ex.registers.resize(std::max(ex.registers.size(), size_t{k.register_bytes} * warps + 64));
  std::byte* const first =
      reinterpret_cast<std::byte*>((reinterpret_cast<uintptr_t>(ex.registers.data()) + 63) / 64 * 64);
  ex.warps.resize(warps);
  const uint32_t shared = k.shared_bytes + static_cast<uint32_t>(launch.dynamic_shared);
  ex.block.shared.assign(shared, std::byte{0});
  ex.block.shadow.resize(shared);
  Ctx c;
  c.kernel = &k;
  c.launch = &launch;
  c.block = &ex.block;
  if (settings().global_races) {
    c.global = &ex.global;
    ++ex.global.launch;
    if (ex.global.pages.size() >= kMostPages) ex.global.pages.clear();
    ex.global.last = nullptr;
  }
  for (uint32_t w = 0; w < warps; ++w) {
    Warp& warp = ex.warps[w];
    warp.regs = first + size_t{k.register_bytes} * w;
    warp.index = w;
    std::memcpy(warp.regs, k.constants.data(), k.constants.size());
    std::memset(warp.regs + k.constants.size(), 0xFB, k.register_bytes - k.constants.size());
    for (uint32_t l = 0; l < 32; ++l) {
      const uint32_t t = w * 32 + l;
      const uint32_t index[3] = {t % dim[0], t / dim[0] % dim[1], t / dim[0] / dim[1]};
      for (int axis = 0; axis < 3; ++axis) {
        reinterpret_cast<uint32_t*>(warp.regs + k.tid[axis])[l] = index[axis];
        reinterpret_cast<uint32_t*>(warp.regs + k.ntid[axis])[l] = dim[axis];
        reinterpret_cast<uint32_t*>(warp.regs + k.nctaid[axis])[l] = grid[axis];
      }
      reinterpret_cast<uint32_t*>(warp.regs + k.laneid)[l] = l;
    }
  }
  int64_t warp_instructions = 0, lane_instructions = 0;
  const uint64_t blocks = uint64_t{grid[0]} * grid[1] * grid[2];
  const int order = settings().order;
  uint64_t seed = static_cast<uint64_t>(order);
  std::vector<uint32_t> turn(warps);
  for (uint32_t w = 0; w < warps; ++w) turn[w] = order == 1 ? warps - 1 - w : w;
  const uint64_t step = order < 2 ? 1 : blocks % 7919 == 0 ? 1 : 7919;  // a permutation of the blocks
  for (uint64_t b = 0; b < blocks && c.error == 0; ++b) {
    const uint64_t n = order == 1   ? blocks - 1 - b
                       : order == 0 ? b
                                    : (b * step + static_cast<uint64_t>(order)) % blocks;
    c.ctaid[0] = static_cast<uint32_t>(n % grid[0]);
    c.ctaid[1] = static_cast<uint32_t>(n / grid[0] % grid[1]);
    c.ctaid[2] = static_cast<uint32_t>(n / grid[0] / grid[1]);
    if (shared != 0) {
      std::memset(ex.block.shared.data(), 0xFB, shared);
      std::fill(ex.block.shadow.begin(), ex.block.shadow.end(), SharedByte{});
    }
    ex.block.epoch = 1;
    c.block_number = static_cast<uint32_t>(n) + 1;
    c.block_used_atomics = false;
    for (Warp& w : ex.warps) {
      const uint32_t lanes = std::min(32U, threads - w.index * 32);
      w.live = lanes == 32 ? kAll : (1U << lanes) - 1;
      w.at_barrier = w.at_warp = w.waited = w.shuffles = 0;
      std::fill(std::begin(w.pcs), std::end(w.pcs), 0U);
      for (int axis = 0; axis < 3; ++axis) {
        auto* const to = reinterpret_cast<uint32_t*>(w.regs + k.ctaid[axis]);
        std::fill(to, to + 32, c.ctaid[axis]);
      }
    }
    while (true) {
      if (order >= 2) {
        for (uint32_t w = warps; w > 1; --w) std::swap(turn[w - 1], turn[random_number(seed) % w]);
      }
      for (uint32_t w : turn) run_warp(c, ex.warps[w], k, warp_instructions, lane_instructions);
      // All live threads wait at a barrier, or none is left.
      uint32_t waiting = 0, place = kNone;
      bool same = true, ended = false;
      for (Warp& w : ex.warps) {
        const uint32_t lanes = std::min(32U, threads - w.index * 32);
        ended = ended || w.live != (lanes == 32 ? kAll : (1U << lanes) - 1);
        for (uint32_t r = w.at_barrier; r != 0; r &= r - 1) {
          const uint32_t pc = w.pcs[__builtin_ctz(r)];
          if (place == kNone) place = pc;
          same = same && place == pc;
          ++waiting;
        }
      }
      if (waiting == 0) break;
      c.warp = &ex.warps[0];
      if (!same) report(c, &k.code[place - 1], -1, 0, "barrier divergence: threads wait at different barriers");
      if (ended) report(c, &k.code[place - 1], -1, 0, "barrier after the end of some threads of the block");
      for (Warp& w : ex.warps) w.at_barrier = 0;
      ++ex.block.epoch;
    }
  }
  ++k.launches;
  k.blocks += static_cast<int64_t>(blocks);
  k.warp_instructions += warp_instructions;
  k.lane_instructions += lane_instructions;
  k.ns += std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - began).count();
  return c.error;
}

}  // namespace vitrine::ptx
