// SPDX-License-Identifier: Apache-2.0
#include "runtime/comm/shared_sums.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <limits>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <fmt/format.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "runtime/clock.h"
#include "runtime/cpu/futex.h"
#include "runtime/cpu/nontemporal_copy.h"
#include "runtime/error.h"
#include "runtime/process_group/process_group.h"

namespace vitrine::comm {

namespace {

/// A file that exists in memory alone: the system frees it with the last process that has it open or mapped, however
/// that process ends.
class MemoryFile {
 public:
  explicit MemoryFile(int descriptor) : descriptor_(descriptor) {}
  ~MemoryFile() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  MemoryFile(const MemoryFile&) = delete;
  MemoryFile& operator=(const MemoryFile&) = delete;

  int descriptor() const { return descriptor_; }
  /// Tells it from every other file of the machine.
  std::string identity() const {
    struct stat status = {};
    fstat(descriptor_, &status);
    return fmt::format("{}:{}", status.st_dev, status.st_ino);
  }

 private:
  int descriptor_;
};

std::string error_text(const char* call, int error) { return fmt::format("{}: {}", call, std::strerror(error)); }

using Created = SharedSegment::Created;

Created map(int file, int64_t bytes) {
  void* const data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (data == MAP_FAILED) return {nullptr, error_text("mmap of shared memory", errno)};
  return {std::make_unique<SharedSegment>(data, bytes), ""};
}

Created reserve_and_map(const MemoryFile& file, int64_t bytes) {
  if (file.descriptor() < 0) return {nullptr, error_text("memfd_create", errno)};
  // Memory that is not reserved could be missing when it is first written, which would kill the process.
  const int error = posix_fallocate(file.descriptor(), 0, bytes);
  if (error != 0) return {nullptr, error_text(fmt::format("{} bytes of shared memory", bytes).c_str(), error)};
  return map(file.descriptor(), bytes);
}

Created open_and_map(const std::string& path, const std::string& identity, int64_t bytes) {
  const MemoryFile file(open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (file.descriptor() < 0) return {nullptr, error_text("rank 0's shared memory", errno)};
  // In another PID namespace the path leads to another process.
  if (file.identity() != identity) return {nullptr, "rank 0 is in another PID namespace"};
  return map(file.descriptor(), bytes);
}

/// The first refusal, with its rank.
std::vector<std::string> first_refusal(const std::vector<std::string>& refusals) {
  const auto first = std::ranges::find_if(refusals, [](const std::string& refusal) { return !refusal.empty(); });
  if (first == refusals.end()) return {""};
  return {fmt::format("rank {}: {}", first - refusals.begin(), *first)};
}

}  // namespace

SharedSegment::~SharedSegment() { munmap(data_, static_cast<size_t>(bytes_)); }

SharedSegment::Created SharedSegment::create(ProcessGroup& process_group, int64_t bytes) {
  if (process_group.local_size() != process_group.size()) return {nullptr, "the processes are on several machines"};
  const bool first = process_group.rank() == 0;
  const MemoryFile file(first ? memfd_create("vitrine", MFD_CLOEXEC) : -1);  // open until all have opened it
  Created mapped;
  if (first) mapped = reserve_and_map(file, bytes);
  const std::string path =
      process_group.broadcast("the path of shared memory", fmt::format("/proc/{}/fd/{}", getpid(), file.descriptor()));
  const std::string identity = process_group.broadcast("the identity of shared memory", file.identity());
  if (!first) mapped = open_and_map(path, identity, bytes);
  const std::string refusal = process_group.exchange("the mapping of shared memory", mapped.refusal, first_refusal);
  if (!refusal.empty()) mapped.segment.reset();
  mapped.refusal = refusal;
  return mapped;
}

namespace {

// Large enough that waiting costs little, and small enough that what one core has written is still in its cache when
// another reads it.
constexpr int64_t kSegmentBytes = int64_t{1} << 20;
constexpr int64_t kLine = 128;  // bytes that cores fetch together
constexpr int kSpins = 64;
constexpr int64_t kLongYieldNs = 50'000;  // other threads had the core meanwhile
constexpr int64_t kSleepNs = 10'000'000;  // between two looks for a failure
// Zen 4, to lines that another core has read: 23 with a common L3 cache, 5 at least; 2.5 without, seldom more than 4.
constexpr double kSlowBytesPerNs = 4;
constexpr int64_t kMeasuredBytes = int64_t{1} << 16;  // fewer show no speed
constexpr int64_t kUncachedBytes = int64_t{1} << 28;  // until the caches are tried again

int64_t slice_bytes(int processes) { return kSegmentBytes / processes / kLine * kLine; }

int64_t thread_cpu_now_ns() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

/// Of a rank.
int most_partials(const SegmentedSum& sum) { return *std::max_element(sum.counts.begin(), sum.counts.end()); }

}  // namespace

/// A rank's progress, which only this rank writes. Each counter has a cache line of its own, so that polling one does
/// not slow down the others.
struct SharedSums::Progress {
  alignas(kLine) std::atomic<int64_t> partials;  // segments whose partials it has written
  alignas(kLine) std::atomic<int64_t> sums;      // segments of which it has added its slice
  alignas(kLine) std::atomic<uint64_t> barriers;
  std::atomic<uint64_t> tag;                     // of the last barrier
  alignas(kLine) std::atomic<uint32_t> changes;  // of the counters above
  std::atomic<uint32_t> sleepers;                // ranks that wait for the next change
};
static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<uint64_t>::is_always_lock_free);

int64_t SharedSums::segment_bytes(int processes) {
  return processes * (static_cast<int64_t>(sizeof(Progress)) + 2 * (processes + 1) * slice_bytes(processes));
}

SharedSums::SharedSums(std::unique_ptr<SharedSegment> segment, int rank, int processes, std::function<void()> poll,
                       std::function<void()> added, bool past_the_caches)
    : segment_(std::move(segment)),
      rank_(rank),
      processes_(processes),
      slice_bytes_(slice_bytes(processes)),
      place_bytes_(slice_bytes_),
      poll_(std::move(poll)),
      added_(std::move(added)),
      uncached_bytes_(past_the_caches ? std::numeric_limits<int64_t>::max() : 0) {}

int64_t SharedSums::partial_bytes(int partials) const { return slice_bytes_ / partials / kLine * kLine; }

int64_t SharedSums::place_bytes(const SegmentedSum& sum) const {
  if (sum.segments != 1 || most_partials(sum) != 1) return slice_bytes_;
  int64_t elements = 1;
  for (int rank = 0; rank < processes_; ++rank) {
    const Slice slice = sum.slice(0, rank);
    elements = std::max(elements, slice.end - slice.begin);
  }
  return (elements * size_of(sum.dtype) + kLine - 1) / kLine * kLine;
}

SharedSums::Progress& SharedSums::progress(int rank) const {
  return reinterpret_cast<Progress*>(segment_->data())[rank];
}

std::byte* SharedSums::partials(int64_t segment, int rank) const {
  const int64_t slot = 2 * rank + segment % 2;
  return segment_->data() + processes_ * static_cast<int64_t>(sizeof(Progress)) +
         slot * (processes_ + 1) * slice_bytes_ + segment / 2 % (slice_bytes_ / place_bytes_) * place_bytes_;
}

std::unique_lock<std::mutex> SharedSums::enter() {
  std::unique_lock lock(in_use_, std::try_to_lock);
  if (!lock)
    throw CommError(
        "two collectives of one communicator run at once; order their streams by events, or use a communicator for "
        "each");
  return lock;
}

void SharedSums::announce() {
  Progress& mine = progress(rank_);
  mine.changes.fetch_add(1, std::memory_order_seq_cst);
  if (mine.sleepers.load(std::memory_order_seq_cst) != 0) cpu::futex_wake_all_between_processes(mine.changes);
}

template <class Done>
void SharedSums::wait_for(int rank, const Done& done) {
  for (int round = 0; round < kSpins; ++round) {
    if (done()) return;
    poll_();
    cpu::relax();
  }
  Progress& awaited = progress(rank);
  while (!done()) {
    poll_();
    if (!core_is_shared_) {
      const int64_t before = steady_now_ns();
      sched_yield();
      core_is_shared_ = steady_now_ns() - before > kLongYieldNs;
      continue;
    }
    awaited.sleepers.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t seen = awaited.changes.load(std::memory_order_seq_cst);
    if (!done()) cpu::futex_wait_between_processes(awaited.changes, seen, kSleepNs);
    awaited.sleepers.fetch_sub(1, std::memory_order_relaxed);
  }
}

void SharedSums::await(std::atomic<int64_t> Progress::*done, int64_t segment) {
  for (int i = 1; i < processes_; ++i) {
    const int rank = (rank_ + i) % processes_;
    wait_for(rank, [&] { return (progress(rank).*done).load(std::memory_order_acquire) > segment; });
  }
}

void SharedSums::write_shared(std::byte* to, const std::byte* from, int64_t bytes) {
  if (uncached_bytes_ > 0) {
    uncached_bytes_ -= bytes;
    return cpu::nontemporal_copy(to, from, bytes);
  }
  const int64_t before = thread_cpu_now_ns();
  std::memcpy(to, from, static_cast<size_t>(bytes));
  if (bytes < std::min(kMeasuredBytes, slice_bytes_)) return;
  const bool slow = static_cast<double>(bytes) < kSlowBytesPerNs * static_cast<double>(thread_cpu_now_ns() - before);
  if (slow && last_write_was_slow_) uncached_bytes_ = kUncachedBytes;
  last_write_was_slow_ = slow && uncached_bytes_ <= 0;
}

void SharedSums::write_partials(const SegmentedSum& sum, int64_t segment, int64_t number) {
  const int64_t stride = partial_bytes(most_partials(sum));
  for (int i = 1; i < processes_; ++i) {
    const int rank = (rank_ + i) % processes_;
    const Slice slice = sum.slice(segment, rank);
    if (slice.end <= slice.begin) continue;
    for (size_t p = 0; p < sum.partials.size(); ++p)
      write_shared(partials(number, rank_) + rank * slice_bytes_ + static_cast<int64_t>(p) * stride,
                   sum.partial_at(p, slice.begin), (slice.end - slice.begin) * size_of(sum.dtype));
  }
  progress(rank_).partials.store(number + 1, std::memory_order_release);
  announce();
}

void SharedSums::add_slice(const SegmentedSum& sum, int64_t segment, int64_t number) {
  const Slice mine = sum.slice(segment, rank_);
  const int64_t stride = partial_bytes(most_partials(sum));
  await(&Progress::partials, number);
  std::vector<const void*> inputs;
  bool shared = false;
  for (int rank = 0; rank < processes_; ++rank) {
    const std::byte* const theirs = partials(number, rank) + rank_ * slice_bytes_;
    for (int p = 0; p < sum.counts[static_cast<size_t>(rank)]; ++p)
      inputs.push_back(rank == rank_ ? sum.partial_at(static_cast<size_t>(p), mine.begin) : theirs + p * stride);
    shared = shared || (rank != rank_ && sum.gets(rank));
  }
  const std::array<void*, 2> outputs{sum.result_at(mine.begin), sums(number, rank_)};
  const bool through_caches = uncached_bytes_ <= 0;
  sum.add(inputs, std::span(outputs).first(shared && through_caches ? 2 : 1), mine.end - mine.begin);
  if (shared && !through_caches)
    write_shared(sums(number, rank_), static_cast<const std::byte*>(outputs[0]),
                 (mine.end - mine.begin) * size_of(sum.result_dtype));
  progress(rank_).sums.store(number + 1, std::memory_order_release);
  announce();
  added_();
}

void SharedSums::read_sums(const SegmentedSum& sum, int64_t segment, int64_t number) {
  // Those that get nothing wait, too: their next partials take the place of those of this segment.
  await(&Progress::sums, number);
  if (!sum.gets(rank_)) return;
  for (int i = 1; i < processes_; ++i) {
    const int rank = (rank_ + i) % processes_;
    const Slice slice = sum.slice(segment, rank);
    const int64_t bytes = (slice.end - slice.begin) * size_of(sum.result_dtype);
    if (bytes > 0) std::memcpy(sum.result_at(slice.begin), sums(number, rank), static_cast<size_t>(bytes));
  }
}

void SharedSums::add(const SegmentedSum& sum) {
  const std::unique_lock<std::mutex> lock = enter();
  core_is_shared_ = false;
  place_bytes_ = place_bytes(sum);
  const int64_t first = segments_;
  segments_ += sum.segments;
  if (sum.segments > 0) write_partials(sum, 0, first);
  for (int64_t s = 0; s < sum.segments; ++s) {
    // Partials of the next segment replace those of the previous one, which all ranks have added when their sums are
    // there. A rank that has written its partials of this segment has read the sums of the one before the previous,
    // which add_slice() replaces.
    if (s > 0) read_sums(sum, s - 1, first + s - 1);
    if (s + 1 < sum.segments) write_partials(sum, s + 1, first + s + 1);
    add_slice(sum, s, first + s);
  }
  if (sum.segments > 0) read_sums(sum, sum.segments - 1, segments_ - 1);
}

int SharedSums::barrier(uint64_t tag) {
  const std::unique_lock<std::mutex> lock = enter();
  const uint64_t number = ++barriers_;
  progress(rank_).tag.store(tag, std::memory_order_relaxed);
  progress(rank_).barriers.store(number, std::memory_order_release);
  announce();
  // A rank that is further has found this one here.
  const auto arrived = [&](int rank) {
    const uint64_t reached = progress(rank).barriers.load(std::memory_order_acquire);
    return reached > number || (reached == number && progress(rank).tag.load(std::memory_order_relaxed) == tag);
  };
  int last = rank_;
  for (int i = 1; i < processes_; ++i) {
    const int rank = (rank_ + i) % processes_;
    if (arrived(rank)) continue;
    last = rank;
    wait_for(rank, [&] { return arrived(rank); });
  }
  return last;
}

}  // namespace vitrine::comm
