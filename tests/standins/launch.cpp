// SPDX-License-Identifier: Apache-2.0
// Compiled without the sanitizers' instrumentation, so that they see what device threads do and not how they are
// executed.
#include "tests/standins/launch.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "tests/standins/fibers.h"

namespace vitrine::standins {

constinit thread_local uint3 thread_index{}, block_index{};
constinit thread_local dim3 block_dimensions{}, grid_dimensions{};

namespace {

constexpr uint32_t kWarp = 32;

const char* name_of(WarpOperation operation) {
  switch (operation) {
    case WarpOperation::barrier:
      return "__syncwarp";
    case WarpOperation::shuffle:
      return "a shuffle";
    case WarpOperation::ballot:
      return "a vote";
  }
  return "?";
}

/// The block that this host thread runs; its threads' fibers are reused from block to block.
class CooperatingBlock {
 public:
  void run(const std::function<void()>& thread_body);
  void barrier();
  uint64_t meet(WarpOperation operation, uint32_t mask, uint64_t value, uint32_t source_lane);

 private:
  enum class At : uint8_t { ready, barrier, warp, end };
  struct Thread {
    explicit Thread(CooperatingBlock& block) : fiber(&CooperatingBlock::thread_main, &block) {}
    At at = At::end;
    uint3 index{};
    WarpOperation operation = WarpOperation::barrier;
    uint32_t mask = 0;
    uint32_t source_lane = 0;
    uint64_t value = 0;
    Fiber fiber;
  };

  static void thread_main(void* block);
  void switch_to_next();
  void release_barrier_if_all_wait();
  void finish_warp_operation_if_all_wait(uint32_t warp, uint32_t mask);
  [[noreturn]] void report_deadlock();
  Thread& thread(uint32_t i) { return *threads_[i]; }

  Fiber home_;
  std::vector<std::unique_ptr<Thread>> threads_;
  const std::function<void()>* thread_body_ = nullptr;
  uint32_t count_ = 0, current_ = 0, live_ = 0, at_barrier_ = 0;
  // By warp, as masks of lanes: those that have not ended, and those that wait at a warp operation.
  uint32_t live_lanes_[kWarp] = {}, waiting_lanes_[kWarp] = {};
};

thread_local CooperatingBlock* running_block = nullptr;

[[noreturn]] void end_process(const char* what, const char* remedy) {
  std::fprintf(stderr, "standins: thread (%u, %u, %u) of block (%u, %u, %u): %s; %s\n", thread_index.x, thread_index.y,
               thread_index.z, block_index.x, block_index.y, block_index.z, what, remedy);
  std::abort();
}

// Advances to the next thread in the order of x, y, z.
void advance(uint3& index, dim3 dimensions) {
  if (++index.x < dimensions.x) return;
  index.x = 0;
  if (++index.y < dimensions.y) return;
  index.y = 0;
  ++index.z;
}

void CooperatingBlock::run(const std::function<void()>& thread_body) {
  thread_body_ = &thread_body;
  count_ = live_ = block_dimensions.x * block_dimensions.y * block_dimensions.z;
  at_barrier_ = 0;
  while (threads_.size() < count_) threads_.push_back(std::make_unique<Thread>(*this));
  uint3 index{};
  for (uint32_t i = 0; i < count_; ++i, advance(index, block_dimensions)) {
    thread(i).at = At::ready;
    thread(i).index = index;
    if (i % kWarp == 0) live_lanes_[i / kWarp] = waiting_lanes_[i / kWarp] = 0;
    live_lanes_[i / kWarp] |= 1U << (i % kWarp);
  }
  running_block = this;
  current_ = 0;
  thread_index = thread(0).index;
  home_.switch_to(thread(0).fiber);
  running_block = nullptr;
}

void CooperatingBlock::thread_main(void* block) {
  auto& self = *static_cast<CooperatingBlock*>(block);
  while (true) {
    (*self.thread_body_)();
    const uint32_t me = self.current_;
    self.thread(me).at = At::end;
    --self.live_;
    self.live_lanes_[me / kWarp] &= ~(1U << (me % kWarp));
    self.release_barrier_if_all_wait();
    // Other lanes of its warp may be waiting for lanes of which this was the last.
    for (uint32_t l = 0; l < kWarp; ++l) {
      if (self.waiting_lanes_[me / kWarp] >> l & 1U)
        self.finish_warp_operation_if_all_wait(me / kWarp, self.thread(me / kWarp * kWarp + l).mask);
    }
    if (self.live_ == 0) {
      self.thread(me).fiber.switch_to(self.home_);
    } else {
      self.switch_to_next();
    }
  }
}

void CooperatingBlock::switch_to_next() {
  const uint32_t from = current_;
  uint32_t next = from;
  do {
    next = next + 1 == count_ ? 0 : next + 1;
    if (thread(next).at == At::ready) {
      if (next == from) return;
      current_ = next;
      thread_index = thread(next).index;
      thread(from).fiber.switch_to(thread(next).fiber);
      return;
    }
  } while (next != from);
  report_deadlock();
}

void CooperatingBlock::barrier() {
  thread(current_).at = At::barrier;
  ++at_barrier_;
  release_barrier_if_all_wait();
  switch_to_next();
}

void CooperatingBlock::release_barrier_if_all_wait() {
  if (at_barrier_ == 0 || at_barrier_ != live_) return;
  at_barrier_ = 0;
  for (uint32_t i = 0; i < count_; ++i) {
    if (thread(i).at == At::barrier) thread(i).at = At::ready;
  }
}

uint64_t CooperatingBlock::meet(WarpOperation operation, uint32_t mask, uint64_t value, uint32_t source_lane) {
  Thread& me = thread(current_);
  const uint32_t warp = current_ / kWarp;
  if ((mask >> (current_ % kWarp) & 1U) == 0)
    end_process("it is not in the mask of its own warp operation", "name every lane that takes part");
  me.at = At::warp;
  waiting_lanes_[warp] |= 1U << (current_ % kWarp);
  me.operation = operation;
  me.mask = mask;
  me.value = value;
  me.source_lane = source_lane;
  finish_warp_operation_if_all_wait(warp, mask);
  switch_to_next();
  return me.value;
}

// Gives each lane its result.
void CooperatingBlock::finish_warp_operation_if_all_wait(uint32_t warp, uint32_t mask) {
  const uint32_t lanes = live_lanes_[warp] & mask;
  if ((lanes & ~waiting_lanes_[warp]) != 0) return;
  uint64_t values[kWarp];
  uint64_t ballot = 0;
  const Thread* first = nullptr;
  for (uint32_t l = 0; l < kWarp; ++l) {
    values[l] = ~uint64_t{0};  // a lane that does not take part: any value
    if ((lanes >> l & 1U) == 0) continue;
    const Thread& t = thread(warp * kWarp + l);
    if (t.mask != mask) return;
    if (first == nullptr) first = &t;
    if (t.operation != first->operation) {
      std::fprintf(stderr, "standins: lanes of one warp meet in %s and in %s\n", name_of(first->operation),
                   name_of(t.operation));
      end_process("its warp disagrees", "all lanes of a mask must reach the same operation");
    }
    values[l] = t.value;
    ballot |= t.value != 0 ? uint64_t{1} << l : 0;
  }
  for (uint32_t l = 0; l < kWarp; ++l) {
    if ((lanes >> l & 1U) == 0) continue;
    Thread& t = thread(warp * kWarp + l);
    t.value = t.operation == WarpOperation::ballot ? ballot : values[t.source_lane % kWarp];
    t.at = At::ready;
  }
  waiting_lanes_[warp] &= ~lanes;
}

void CooperatingBlock::report_deadlock() {
  for (uint32_t i = 0; i < count_; ++i) {
    const Thread& t = thread(i);
    if (t.at == At::barrier) std::fprintf(stderr, "standins: thread %u waits at __syncthreads\n", i);
    if (t.at == At::warp)
      std::fprintf(stderr, "standins: thread %u waits at %s with mask %08x\n", i, name_of(t.operation), t.mask);
  }
  end_process("its block waits for ever",
              "all threads of a block must reach every barrier, and all lanes of a mask every operation");
}

CooperatingBlock& block_of(const char* name) {
  if (running_block == nullptr) end_process(name, "only threads launched by launch_cooperating() can meet");
  return *running_block;
}

// One for each host thread that runs cooperating kernels; destroyed with the thread.
CooperatingBlock& own_block() {
  static thread_local CooperatingBlock block;
  return block;
}

void run_independent_block(const std::function<void()>& thread_body) {
  const uint32_t count = block_dimensions.x * block_dimensions.y * block_dimensions.z;
  thread_index = {};
  for (uint32_t i = 0; i < count; ++i, advance(thread_index, block_dimensions)) thread_body();
}

}  // namespace

void run_grid(dim3 grid, dim3 block, Threads threads, const std::function<void()>& thread_body) {
  grid_dimensions = grid;
  block_dimensions = block;
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  uint3 index{};
  for (uint64_t b = 0; b < blocks; ++b, advance(index, grid)) {
    block_index = index;
    if (threads == Threads::cooperating) {
      own_block().run(thread_body);
    } else {
      run_independent_block(thread_body);
    }
  }
}

void barrier(const char* name) { block_of(name).barrier(); }

uint64_t meet_in_warp(WarpOperation operation, uint32_t mask, uint64_t value, uint32_t source_lane) {
  return block_of(name_of(operation)).meet(operation, mask, value, source_lane);
}

uint32_t lane() {
  const uint32_t i = (thread_index.z * block_dimensions.y + thread_index.y) * block_dimensions.x + thread_index.x;
  return i % kWarp;
}

}  // namespace vitrine::standins
