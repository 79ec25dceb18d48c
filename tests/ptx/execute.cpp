// SPDX-License-Identifier: Apache-2.0
// Runs a kernel: blocks one after the other, their warps in turn up to the next barrier, lanes of a warp together.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>

#include "tests/ptx/findings.h"

namespace vitrine::ptx {

namespace {

void set_positions(Warp& w, uint32_t lanes, uint32_t position) {
  for (const int l : Lanes{lanes}) w.positions[l] = position;
}

/// Lanes that came to the instruction, with those that waited there. Returns whether all of its mask are here;
/// otherwise they wait.
bool meet(Context& c, Warp& w, uint32_t position, uint32_t& active) {
  for (const int l : Lanes{w.at_meeting}) {
    if (w.positions[l] == position) active |= 1U << l;
  }
  w.at_meeting &= ~active;
  const Instruction& i = c.kernel->code[position];
  const uint32_t last = *(std::find(std::begin(i.operands), std::end(i.operands), kNone) - 1);
  const uint32_t *const masks = at<uint32_t>(c, last), mask = masks[std::countr_zero(active)];
  for (const int l : Lanes{active}) {
    if (masks[l] != mask || (mask >> l & 1U) == 0)
      report(c, i, l, kIllegalInstruction, "shuffle: the mask %#x of a lane lacks it or differs from %#x", masks[l],
             mask);
  }
  if ((mask & w.live & ~active) != 0) {
    set_positions(w, active, position);
    w.at_meeting |= active;
    return false;
  }
  if ((mask & ~w.live) != 0)
    report(c, i, std::countr_zero(active), 0, "shuffle: lanes %#x of the mask have ended", mask & ~w.live);
  return true;
}

/// Runs lanes that are at one position until they part, wait, end, or reach the position of others.
void run_together(Context& c, Warp& w, uint32_t active, uint32_t position, uint32_t others) {
  const Instruction* const code = c.kernel->code.data();
  std::atomic<bool>* const all_covered = c.kernel->covered.data();
  for (; position < others; ++position) {
    const Instruction& i = code[position];
    uint32_t lanes = active;
    if (i.guard != kNone) lanes &= i.negated ? ~*at<uint32_t>(c, i.guard) : *at<uint32_t>(c, i.guard);
    c.lane_instructions += std::popcount(lanes);
    std::atomic<bool>& covered = all_covered[position];
    if (lanes != 0 && !covered.load(std::memory_order_relaxed)) covered.store(true, std::memory_order_relaxed);
    switch (i.kind) {
      case Kind::plain:
        if (lanes != 0) i.handler(c, i, lanes);
        break;
      case Kind::branch:
        if (lanes != 0 && lanes != active) {
          set_positions(w, lanes, i.target);
          return set_positions(w, active & ~lanes, position + 1);
        }
        if (lanes != 0) position = i.target - 1;
        break;
      case Kind::exit:
        if (const uint32_t early = lanes & ~w.waited; early != 0)
          report(c, i, std::countr_zero(early), 0, "end of a thread without griddepcontrol.wait");
        w.live &= ~lanes;
        active &= ~lanes;
        if (active == 0) return;
        break;
      case Kind::barrier:
        set_positions(w, active, position + 1);
        w.at_barrier |= lanes;
        return;
      case Kind::meeting:
        if (!meet(c, w, position, active)) return;
        i.handler(c, i, active);
        if (active == kAll) ++w.shuffles;
    }
  }
  set_positions(w, active, position);
}

/// Runs the warp until all its lanes wait or have ended. Lanes at the lowest position go first, so that they meet again
/// behind a branch.
void run_warp(Context& c, Warp& w) {
  c.warp = &w;
  while (true) {
    const uint32_t runnable = w.live & ~w.at_barrier & ~w.at_meeting;
    if (runnable == 0) {
      if (w.at_meeting == 0) return;
      const int lane = std::countr_zero(w.at_meeting);
      report(c, c.kernel->code[w.positions[lane]], lane, kLaunchFailure,
             "deadlock: lanes %#x wait at a shuffle for lanes that are not there (live %#x, at a barrier %#x)",
             w.at_meeting, w.live, w.at_barrier);
      w.live &= ~w.at_meeting;
      w.at_meeting = 0;
      continue;
    }
    uint32_t position = kNone, others = kNone, active = 0;
    for (const int l : Lanes{runnable}) position = std::min(position, w.positions[l]);
    for (const int l : Lanes{runnable}) {
      if (w.positions[l] == position)
        active |= 1U << l;
      else
        others = std::min(others, w.positions[l]);
    }
    run_together(c, w, active, position, others);
  }
}

/// Lets the threads of the block pass the barrier at which they wait. False if none waits.
bool pass_barrier(Context& c) {
  const Instruction* place = nullptr;
  for (Warp& w : c.warps) {
    for (const int l : Lanes{w.at_barrier}) place = &c.kernel->code[w.positions[l] - 1];
  }
  if (place == nullptr) return false;
  for (Warp& w : c.warps) {
    c.warp = &w;
    for (uint32_t l = 0; l < 32 && w.index * 32 + l < c.threads; ++l) {
      if ((w.at_barrier >> l & 1U) == 0 || &c.kernel->code[w.positions[l] - 1] != place)
        report(c, *place, static_cast<int>(l), 0, "barrier divergence: a thread has ended or waits at another barrier");
    }
    w.at_barrier = 0;
  }
  ++c.epoch;
  return true;
}

void set_lanes(Context& c, uint32_t offset, uint32_t value) { std::fill_n(at<uint32_t>(c, offset), 32, value); }

/// Prepares registers and shadows.
void begin(Context& c, Kernel& k, const Launch& launch) {
  c.kernel = &k;
  c.launch = &launch;
  c.error = 0;
  c.lane_instructions = 0;
  c.region = {};
  c.regions.clear();
  c.shared.resize(k.shared_bytes);
  c.shared_shadow.assign(k.shared_bytes, {});
  ++c.global_shadow.launch;
  c.global_shadow.last = nullptr;
  if (c.global_shadow.pages.size() >= Shadow::kMostPages) c.global_shadow.pages.clear();
  const uint32_t* const block = launch.block;
  c.threads = block[0] * block[1] * block[2];
  c.warps.assign((c.threads + 31) / 32, {});
  const size_t lines = (k.registers.size() + sizeof(CacheLine) - 1) / sizeof(CacheLine);
  c.registers.resize(std::max(c.registers.size(), lines * c.warps.size()));
  for (uint32_t w = 0; w < c.warps.size(); ++w) {
    Warp& warp = c.warps[w];
    warp.index = w;
    warp.registers = c.registers[lines * w].bytes;
    std::memcpy(warp.registers, k.registers.data(), k.registers.size());
    c.warp = &warp;
    for (uint32_t l = 0; l < 32; ++l) {
      const uint32_t t = w * 32 + l;
      at<uint32_t>(c, k.axes[0].tid)[l] = t % block[0];
      at<uint32_t>(c, k.axes[1].tid)[l] = t / block[0] % block[1];
      at<uint32_t>(c, k.axes[2].tid)[l] = t / block[0] / block[1];
    }
    for (size_t axis = 0; axis < 3; ++axis) {
      set_lanes(c, k.axes[axis].ntid, block[axis]);
      set_lanes(c, k.axes[axis].nctaid, launch.grid[axis]);
    }
  }
}

void begin_block(Context& c, uint64_t number) {
  const uint32_t* const grid = c.launch->grid;
  c.ctaid[0] = static_cast<uint32_t>(number % grid[0]);
  c.ctaid[1] = static_cast<uint32_t>(number / grid[0] % grid[1]);
  c.ctaid[2] = static_cast<uint32_t>(number / grid[0] / grid[1]);
  c.block = static_cast<uint32_t>(number) + 1;
  c.epoch = 1;
  c.block_used_atomics = false;
  std::fill(c.shared.begin(), c.shared.end(), std::byte{0xFB});
  for (Warp& w : c.warps) {
    c.warp = &w;
    const uint32_t lanes = std::min(32U, c.threads - w.index * 32);
    w.live = kAll >> (32 - lanes);
    w.at_barrier = w.at_meeting = w.waited = w.shuffles = 0;
    set_positions(w, kAll, 0);
    for (size_t axis = 0; axis < 3; ++axis) set_lanes(c, c.kernel->axes[axis].ctaid, c.ctaid[axis]);
  }
}

}  // namespace

int run(Kernel& k, const Launch& launch) {
  static thread_local Context c;
  const auto began = std::chrono::steady_clock::now();
  begin(c, k, launch);
  const uint64_t blocks = uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2], order = settings().order;
  const uint64_t step = order == 0 || blocks % 7919 == 0 ? 1 : 7919;  // a permutation of the blocks
  std::vector<size_t> turn(c.warps.size());
  std::iota(turn.begin(), turn.end(), size_t{0});
  std::mt19937_64 random(order);
  for (uint64_t b = 0; b < blocks && c.error == 0; ++b) {
    begin_block(c, (b * step + order) % blocks);
    do {
      if (order != 0) std::shuffle(turn.begin(), turn.end(), random);
      for (const size_t w : turn) run_warp(c, c.warps[w]);
    } while (pass_barrier(c));
  }
  ++k.launches;
  k.lane_instructions += c.lane_instructions;
  k.ns += std::chrono::nanoseconds(std::chrono::steady_clock::now() - began).count();
  return c.error;
}

}  // namespace vitrine::ptx
