// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <mpi.h>
#include <sched.h>

#include "runtime/clock.h"
#include "runtime/comm/circulant.h"
#include "runtime/comm/fused.h"
#include "runtime/comm/process_exchange.h"
#include "runtime/comm/shared_sums.h"
#include "runtime/cpu/tree_sum.h"
#include "runtime/error.h"
#include "runtime/process_group/process_group.h"

namespace vitrine::comm {
namespace {

constexpr int64_t kLargestMessageBytes = int64_t{1} << 30;
// Polls within which messages that arrived earlier are found.
constexpr int kSettlingRounds = 16;

/// What a thread does between two looks for a message: it spins, then yields its core, and sleeps for a part of the
/// time it has waited once others use the core, or after a long time.
class Pauses {
 public:
  void pause() {
    constexpr int kSpins = 64;
    constexpr int64_t kLongYieldNs = 50'000;  // others had the core meanwhile
    constexpr int64_t kLongWaitNs = 100'000'000, kLongestSleepNs = 5'000'000;
    if (rounds_++ < kSpins) return;
    const int64_t now_ns = steady_now_ns();
    if (begin_ns_ == 0) begin_ns_ = now_ns;
    if (core_is_shared_ || now_ns - begin_ns_ > kLongWaitNs) {
      const int64_t sleep_ns = std::min(kLongestSleepNs, (now_ns - begin_ns_) / 16);
      std::this_thread::sleep_for(std::chrono::nanoseconds(sleep_ns));
      return;
    }
    sched_yield();
    core_is_shared_ = steady_now_ns() - now_ns > kLongYieldNs;
  }
  int rounds() const { return rounds_; }

 private:
  int rounds_ = 0;
  int64_t begin_ns_ = 0;
  bool core_is_shared_ = false;
};

class MpiExchange final : public ProcessExchange {
 public:
  MpiExchange(ProcessGroup& process_group, const ExchangeOptions& options)
      : process_group_(process_group), largest_direct_(options.largest_direct) {
    // A failed peer will never take part, so a blocking call cannot be used.
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Comm_idup(MPI_COMM_WORLD, &comm_, &request), "MPI_Comm_idup");
    Pauses pauses;
    for (int done = 0; done == 0; pauses.pause()) {
      check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Comm_idup");
      if (const Reason failure = process_group.failure(); !failure.empty()) throw CommError(failure);
    }
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
    void* bound = nullptr;
    int found = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&bound), &found);
    if (found != 0) largest_tag_ = *static_cast<int*>(bound);
    if (direct() && options.shared_memory && size_ > 1) share_memory(process_group, options);
  }

  std::string description() const override {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
    int length = 0;
    MPI_Get_library_version(text.data(), &length);
    const std::string whole(text.data());
    return fmt::format("{}, {} processes, {}", whole.substr(0, whole.find_first_of(",\n")), size_,
                       !direct() ? "sums along a tree"
                       : shared_ ? "sums through shared memory"
                                 : "direct exchange" + why_not_shared_);
  }

  void sum(const SumBuffers& buffers, int64_t count, std::optional<int> root, uint64_t tag) override;
  void sum_scattered(const SumBuffers& buffers, std::span<const int64_t> counts, uint64_t tag) override;
  void tree_sum(const TreeBuffers& buffers, uint64_t tag) override;
  void broadcast(void* bytes, int64_t count, int root, uint64_t tag) override;
  void gather(const void* mine, void* whole, std::span<const int64_t> counts, int root, uint64_t tag) override;
  void scatter(const void* whole, void* mine, std::span<const int64_t> counts, int root, uint64_t tag) override;
  void all_gather(void* whole, std::span<const int64_t> counts, uint64_t tag) override;
  void exchange(std::span<const Part> sends, std::span<const Part> receives, uint64_t tag) override;
  int barrier(uint64_t tag) override {
    if (size_ == 1) return rank_;
    return shared_ ? shared_->barrier(tag) : direct() ? direct_barrier(tag) : tree_barrier(tag);
  }
  int64_t messages_sent() const override { return messages_.load(std::memory_order_relaxed); }
  void abort(const Reason& reason) override {
    const std::lock_guard lock(reason_mutex_);
    if (reason_.empty()) reason_ = reason.empty() ? Reason("the group was aborted") : reason;
    aborted_.store(true, std::memory_order_release);
  }

 private:
  /// Messages in flight.
  class Batch {
   public:
    Batch(MpiExchange& exchange, uint64_t tag) : exchange_(exchange), tag_(exchange.fold(tag)) {}
    void send(int to, const void* bytes, int64_t count);
    void receive(int from, void* bytes, int64_t count);
    /// Returns once all messages have been sent and received.
    void wait();

   private:
    MpiExchange& exchange_;
    int tag_;
    std::vector<MPI_Request> requests_;
  };

  bool direct() const { return size_ <= largest_direct_; }
  void share_memory(ProcessGroup& process_group, const ExchangeOptions& options);
  /// The most elements of a slice of a direct sum.
  int64_t direct_slice(const SumBuffers& buffers) const {
    return shared_ ? shared_->slice_elements(buffers.dtype, 1) : buffers.scratch_elements / (2 * size_);
  }
  /// A sum in rank order, to which every rank contributes once.
  SegmentedSum segmented(const SumBuffers& buffers) const;
  /// Each rank gets elements [first[rank], first[rank + 1]) of the sum, in slices of at most `most` elements.
  void scatter_results(SegmentedSum& sum, const std::vector<int64_t>& first, int64_t most, void* results) const;
  void add_by_messages(const SegmentedSum& sum, void* scratch, int64_t most, uint64_t tag);
  /// For blocks at `offsets` (in elements), writes the sum of this process's block over all processes to `result`.
  void reduce_blocks(const SumBuffers& buffers, std::byte* partials, void* result, std::span<const int64_t> offsets,
                     uint64_t tag);
  /// Sends each process's block to all. offsets: in bytes
  void gather_blocks(std::byte* whole, std::span<const int64_t> offsets, uint64_t tag);
  int direct_barrier(uint64_t tag);
  int tree_barrier(uint64_t tag);
  /// Waits for the ranks' messages, `values`; returns the index of the last one, or nothing if all had arrived already.
  std::optional<size_t> await_arrivals(std::span<const int> ranks, std::span<int32_t> values, uint64_t tag);

  static void check(int code, const char* what) {
    if (code == MPI_SUCCESS) return;
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    MPI_Error_string(code, text.data(), &length);
    throw CommError(fmt::format("{}: {}", what, text.data()));
  }
  int fold(uint64_t tag) const {
    return static_cast<int>((tag ^ (tag >> 32)) % (static_cast<uint64_t>(largest_tag_) + 1));
  }
  void throw_if_aborted() {
    if (!aborted_.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(reason_mutex_);
    throw CommError(reason_);
  }

  ProcessGroup& process_group_;
  MPI_Comm comm_ = MPI_COMM_NULL;  // never freed: freeing is a collective, which a dead peer would never join
  int rank_ = 0, size_ = 1, largest_tag_ = 32767, largest_direct_;
  std::unique_ptr<SharedSums> shared_;  // null: messages carry direct sums
  std::string why_not_shared_;          // in brackets, for the description
  std::atomic<int64_t> messages_{0};
  std::atomic<bool> aborted_{false};
  std::mutex reason_mutex_;
  Reason reason_;
};

void MpiExchange::Batch::send(int to, const void* bytes, int64_t count) {
  for (int64_t at = 0; at < count; at += kLargestMessageBytes) {
    const auto part = static_cast<int>(std::min(kLargestMessageBytes, count - at));
    exchange_.messages_.fetch_add(1, std::memory_order_relaxed);
    check(MPI_Isend(static_cast<const std::byte*>(bytes) + at, part, MPI_BYTE, to, tag_, exchange_.comm_,
                    &requests_.emplace_back()),
          "MPI_Isend");
  }
}

void MpiExchange::Batch::receive(int from, void* bytes, int64_t count) {
  for (int64_t at = 0; at < count; at += kLargestMessageBytes) {
    const auto part = static_cast<int>(std::min(kLargestMessageBytes, count - at));
    check(MPI_Irecv(static_cast<std::byte*>(bytes) + at, part, MPI_BYTE, from, tag_, exchange_.comm_,
                    &requests_.emplace_back()),
          "MPI_Irecv");
  }
}

void MpiExchange::Batch::wait() {
  if (requests_.empty()) return;
  Pauses pauses;
  for (int done = 0;; pauses.pause()) {
    exchange_.throw_if_aborted();
    {
      check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE),
            "MPI_Testall");
    }
    if (done != 0) break;
  }
  requests_.clear();
  exchange_.process_group_.note_transfer();
}

void MpiExchange::share_memory(ProcessGroup& process_group, const ExchangeOptions& options) {
  SharedSegment::Created created = SharedSegment::create(process_group, SharedSums::segment_bytes(size_));
  if (created.segment == nullptr) {
    why_not_shared_ = fmt::format(" (no shared memory: {})", created.refusal);
    return;
  }
  shared_ = std::make_unique<SharedSums>(
      std::move(created.segment), rank_, size_, [this] { throw_if_aborted(); },
      [this] { process_group_.note_transfer(); }, options.past_the_caches);
}

SegmentedSum MpiExchange::segmented(const SumBuffers& buffers) const {
  SegmentedSum sum{buffers.dtype, buffers.result_dtype, {buffers.partials}};
  sum.counts.assign(static_cast<size_t>(size_), 1);
  sum.add = [buffers](std::span<const void* const> partials, std::span<void* const> outputs, int64_t elements) {
    combine_to_all(buffers.dtype, buffers.result_dtype, buffers.combination, partials, outputs, 0, elements);
  };
  return sum;
}

/// Every rank receives its slice of each segment from all others, adds, and sends the sum to the ranks that get it.
///   scratch  memory for two slices of every partial sum      most  elements of a slice
void MpiExchange::add_by_messages(const SegmentedSum& sum, void* scratch, int64_t most, uint64_t tag) {
  const int64_t element = size_of(sum.dtype), result_element = size_of(sum.result_dtype);
  const auto elements = [](const Slice& s) { return s.end - s.begin; };
  std::vector<int> first(static_cast<size_t>(size_) + 1);  // of each rank's partial sums
  std::inclusive_scan(sum.counts.begin(), sum.counts.end(), first.begin() + 1);
  // Slice of this rank in a segment of a partial sum, as received.
  const auto received = [&](int64_t s, int partial) {
    return static_cast<std::byte*>(scratch) + ((s % 2) * first.back() + partial) * most * element;
  };
  std::array<Batch, 2> parts = {Batch(*this, tag), Batch(*this, tag)}, sums = {Batch(*this, tag), Batch(*this, tag)};
  const auto batch_of = [](std::array<Batch, 2>& batches, int64_t s) -> Batch& {
    return batches[static_cast<size_t>(s % 2)];
  };
  const auto with_peers = [&](const auto& work) {
    for (int i = 1; i < size_; ++i) work((rank_ + i) % size_, (rank_ + size_ - i) % size_);
  };
  const auto exchange_parts = [&](int64_t s) {
    with_peers([&](int to, int from) {
      const Slice theirs = sum.slice(s, to);
      for (int p = first[static_cast<size_t>(from)]; p < first[static_cast<size_t>(from) + 1]; ++p)
        batch_of(parts, s).receive(from, received(s, p), elements(sum.slice(s, rank_)) * element);
      for (size_t p = 0; p < sum.partials.size(); ++p)
        batch_of(parts, s).send(to, sum.partial_at(p, theirs.begin), elements(theirs) * element);
    });
  };
  std::vector<const void*> inputs(static_cast<size_t>(first.back()));
  if (sum.segments > 0) exchange_parts(0);
  for (int64_t s = 0; s < sum.segments; ++s) {
    if (s + 1 < sum.segments) exchange_parts(s + 1);
    batch_of(parts, s).wait();
    const Slice mine = sum.slice(s, rank_);
    void* const result = sum.result_at(mine.begin);
    for (int p = 0; p < first.back(); ++p) inputs[static_cast<size_t>(p)] = received(s, p);
    for (size_t p = 0; p < sum.partials.size(); ++p)
      inputs[static_cast<size_t>(first[static_cast<size_t>(rank_)]) + p] = sum.partial_at(p, mine.begin);
    sum.add(inputs, {&result, 1}, elements(mine));
    with_peers([&](int to, int from) {
      const Slice theirs = sum.slice(s, from);
      if (sum.gets(rank_))
        batch_of(sums, s).receive(from, sum.result_at(theirs.begin), elements(theirs) * result_element);
      if (sum.gets(to)) batch_of(sums, s).send(to, result, elements(mine) * result_element);
    });
    if (s > 0) batch_of(sums, s - 1).wait();
  }
  if (sum.segments > 0) batch_of(sums, sum.segments - 1).wait();
}

void MpiExchange::reduce_blocks(const SumBuffers& buffers, std::byte* partials, void* result,
                                std::span<const int64_t> offsets, uint64_t tag) {
  const int64_t element = size_of(buffers.dtype);
  std::vector<CirculantRound> rounds = circulant_rounds(size_);
  std::ranges::reverse(rounds);
  const Combination partly{buffers.combination.op, 1};
  for (const CirculantRound& round : rounds) {
    const std::array<ElementRange, 2> kept = block_ranges(offsets, rank_, round.blocks);
    Batch batch(*this, tag);
    auto* arrived = static_cast<std::byte*>(buffers.scratch);
    for (const ElementRange& range : kept) {
      batch.receive((rank_ + size_ - round.distance) % size_, arrived, range.size() * element);
      arrived += range.size() * element;
    }
    for (const ElementRange& range : block_ranges(offsets, rank_ + round.distance, round.blocks)) {
      batch.send((rank_ + round.distance) % size_, partials + range.begin * element, range.size() * element);
    }
    batch.wait();
    // The last round receives only the rest of this process's own block.
    const bool last = round.distance == 1;
    arrived = static_cast<std::byte*>(buffers.scratch);
    for (const ElementRange& range : kept) {
      if (range.size() == 0) continue;
      std::byte* const own = partials + range.begin * element;
      const std::array<const void*, 2> inputs = {own, arrived};
      void* const sum = last ? result : own;
      combine_to_all(buffers.dtype, last ? buffers.result_dtype : buffers.dtype, last ? buffers.combination : partly,
                     inputs, {&sum, 1}, 0, range.size());
      arrived += range.size() * element;
    }
  }
}

void MpiExchange::gather_blocks(std::byte* whole, std::span<const int64_t> offsets, uint64_t tag) {
  for (const CirculantRound& round : circulant_rounds(size_)) {
    Batch batch(*this, tag);
    for (const ElementRange& range : block_ranges(offsets, rank_ + round.distance, round.blocks)) {
      batch.receive((rank_ + round.distance) % size_, whole + range.begin, range.size());
    }
    for (const ElementRange& range : block_ranges(offsets, rank_, round.blocks)) {
      batch.send((rank_ + size_ - round.distance) % size_, whole + range.begin, range.size());
    }
    batch.wait();
  }
}

void MpiExchange::sum(const SumBuffers& buffers, int64_t count, std::optional<int> root, uint64_t tag) {
  const int64_t part = direct() ? direct_slice(buffers) : buffers.scratch_elements / (size_ / 2);
  const int64_t segment = part * size_, segments = (count + segment - 1) / segment;
  const int64_t result_element = size_of(buffers.result_dtype);
  auto* const results = static_cast<std::byte*>(buffers.results);
  const auto slice = [&](int64_t s, int r) {
    const Slice in = slice_of(std::min(segment, count - s * segment), 1, r, size_);
    return Slice{s * segment + in.begin, s * segment + in.end};
  };
  if (direct()) {
    const auto result_at = [&](int64_t i) { return results + i * result_element; };
    SegmentedSum sum = segmented(buffers);
    sum.segments = segments;
    sum.slice = slice;
    sum.result_at = result_at;
    sum.gets = [&](int r) { return !root || r == *root; };
    return shared_ ? shared_->add(sum) : add_by_messages(sum, buffers.scratch, part, tag);
  }
  std::vector<int64_t> offsets(static_cast<size_t>(size_) + 1), result_offsets(offsets.size());
  for (int64_t s = 0; s < segments; ++s) {
    offsets[0] = s * segment;
    for (int r = 0; r < size_; ++r) offsets[static_cast<size_t>(r) + 1] = slice(s, r).end;
    std::ranges::transform(offsets, result_offsets.begin(), [&](int64_t at) { return at * result_element; });
    reduce_blocks(buffers, static_cast<std::byte*>(buffers.partials),
                  results + result_offsets[static_cast<size_t>(rank_)], offsets, tag);
    gather_blocks(results, result_offsets, tag);
  }
}

void MpiExchange::scatter_results(SegmentedSum& sum, const std::vector<int64_t>& first, int64_t most,
                                  void* results) const {
  int64_t longest = 0;
  for (size_t r = 0; r + 1 < first.size(); ++r) longest = std::max(longest, first[r + 1] - first[r]);
  sum.segments = (longest + most - 1) / most;
  sum.slice = [&first, most](int64_t s, int r) {
    const auto i = static_cast<size_t>(r);
    return Slice{std::min(first[i + 1], first[i] + s * most), std::min(first[i + 1], first[i] + (s + 1) * most)};
  };
  sum.result_at = [results, begin = first[static_cast<size_t>(rank_)], element = size_of(sum.result_dtype)](int64_t i) {
    return static_cast<std::byte*>(results) + (i - begin) * element;
  };
  sum.gets = [](int) { return false; };
}

void MpiExchange::sum_scattered(const SumBuffers& buffers, std::span<const int64_t> counts, uint64_t tag) {
  const std::vector<int64_t> first = offsets_of(counts);
  if (!direct()) return reduce_blocks(buffers, static_cast<std::byte*>(buffers.partials), buffers.results, first, tag);
  const int64_t part = direct_slice(buffers);
  SegmentedSum sum = segmented(buffers);
  scatter_results(sum, first, part, buffers.results);
  shared_ ? shared_->add(sum) : add_by_messages(sum, buffers.scratch, part, tag);
}

void MpiExchange::tree_sum(const TreeBuffers& buffers, uint64_t tag) {
  SegmentedSum sum{buffers.dtype, buffers.dtype, buffers.partials};
  sum.counts.assign(static_cast<size_t>(size_), 0);
  std::vector<size_t> ordered(buffers.processes.size());  // contributions by their ranks
  std::iota(ordered.begin(), ordered.end(), size_t{0});
  std::ranges::stable_sort(ordered, [&](size_t a, size_t b) { return buffers.processes[a] < buffers.processes[b]; });
  for (const int process : buffers.processes) ++sum.counts[static_cast<size_t>(process)];
  sum.add = [&](std::span<const void* const> partials, std::span<void* const> outputs, int64_t elements) {
    std::vector<const void*> inputs(ordered.size());
    for (size_t i = 0; i < ordered.size(); ++i) inputs[ordered[i]] = partials[i];
    cpu::tree_sum(buffers.dtype, buffers.folds, inputs, outputs, elements);
  };
  const int most = *std::ranges::max_element(sum.counts);
  const bool through_memory = shared_ && shared_->slice_elements(buffers.dtype, most) > 0;
  const int64_t part = through_memory ? shared_->slice_elements(buffers.dtype, most)
                                      : buffers.scratch_elements / (2 * static_cast<int64_t>(buffers.processes.size()));
  const std::vector<int64_t> first = offsets_of(buffers.counts);
  if (!buffers.counts.empty()) {
    scatter_results(sum, first, part, buffers.results);
  } else {
    const int64_t segment = part * size_;
    sum.segments = (buffers.count + segment - 1) / segment;
    sum.slice = [&, segment](int64_t s, int r) {
      const Slice in = slice_of(std::min(segment, buffers.count - s * segment), 1, r, size_);
      return Slice{s * segment + in.begin, s * segment + in.end};
    };
    sum.result_at = [&](int64_t i) { return static_cast<std::byte*>(buffers.results) + i * size_of(buffers.dtype); };
    sum.gets = [](int) { return true; };
  }
  through_memory ? shared_->add(sum) : add_by_messages(sum, buffers.scratch, part, tag);
}

void MpiExchange::broadcast(void* bytes, int64_t count, int root, uint64_t tag) {
  // A binomial tree, in pieces, so that its levels work concurrently.
  const auto place = static_cast<unsigned>((rank_ - root + size_) % size_);
  const unsigned low = place == 0 ? std::bit_ceil(static_cast<unsigned>(size_)) : place & (~place + 1);
  const auto rank_at = [&](unsigned other) { return (static_cast<int>(other) + root) % size_; };
  Batch sends(*this, tag);
  for (int64_t at = 0; at < count; at += ProcessExchange::kPartBytes) {
    const int64_t piece = std::min(ProcessExchange::kPartBytes, count - at);
    auto* const here = static_cast<std::byte*>(bytes) + at;
    if (place != 0) {
      Batch receive(*this, tag);
      receive.receive(rank_at(place - low), here, piece);
      receive.wait();
    }
    for (unsigned bit = low / 2; bit > 0; bit /= 2) {
      if (place + bit < static_cast<unsigned>(size_)) sends.send(rank_at(place + bit), here, piece);
    }
  }
  sends.wait();
}

void MpiExchange::gather(const void* mine, void* whole, std::span<const int64_t> counts, int root, uint64_t tag) {
  Batch batch(*this, tag);
  if (rank_ != root) {
    batch.send(root, mine, counts[static_cast<size_t>(rank_)]);
  } else {
    int64_t at = 0;
    for (int r = 0; r < size_; ++r) {
      if (r != rank_) batch.receive(r, static_cast<std::byte*>(whole) + at, counts[static_cast<size_t>(r)]);
      at += counts[static_cast<size_t>(r)];
    }
  }
  batch.wait();
}

void MpiExchange::scatter(const void* whole, void* mine, std::span<const int64_t> counts, int root, uint64_t tag) {
  Batch batch(*this, tag);
  if (rank_ != root) {
    batch.receive(root, mine, counts[static_cast<size_t>(rank_)]);
  } else {
    int64_t at = 0;
    for (int r = 0; r < size_; ++r) {
      if (r != rank_) batch.send(r, static_cast<const std::byte*>(whole) + at, counts[static_cast<size_t>(r)]);
      at += counts[static_cast<size_t>(r)];
    }
  }
  batch.wait();
}

void MpiExchange::all_gather(void* whole, std::span<const int64_t> counts, uint64_t tag) {
  const std::vector<int64_t> first = offsets_of(counts);
  auto* const data = static_cast<std::byte*>(whole);
  if (!direct()) return gather_blocks(data, first, tag);
  Batch batch(*this, tag);
  for (int i = 1; i < size_; ++i) {
    const int to = (rank_ + i) % size_;
    const auto from = static_cast<size_t>((rank_ + size_ - i) % size_);
    batch.receive(static_cast<int>(from), data + first[from], counts[from]);
    batch.send(to, data + first[static_cast<size_t>(rank_)], counts[static_cast<size_t>(rank_)]);
  }
  batch.wait();
}

void MpiExchange::exchange(std::span<const Part> sends, std::span<const Part> receives, uint64_t tag) {
  Batch batch(*this, tag);
  for (const Part& part : receives) batch.receive(part.peer, part.data, part.bytes);
  for (const Part& part : sends) batch.send(part.peer, part.data, part.bytes);
  batch.wait();
}

std::optional<size_t> MpiExchange::await_arrivals(std::span<const int> ranks, std::span<int32_t> values, uint64_t tag) {
  std::vector<MPI_Request> arrivals(ranks.size());
  std::vector<int> arrived(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i) {
    check(MPI_Irecv(&values[i], sizeof values[i], MPI_BYTE, ranks[i], fold(tag), comm_, &arrivals[i]), "MPI_Irecv");
  }
  std::optional<size_t> last;
  size_t count = 0;
  for (Pauses pauses; count < ranks.size(); pauses.pause()) {
    throw_if_aborted();
    int now = 0;
    check(MPI_Testsome(static_cast<int>(ranks.size()), arrivals.data(), &now, arrived.data(), MPI_STATUSES_IGNORE),
          "MPI_Testsome");
    if (now > 0 && pauses.rounds() >= kSettlingRounds)
      last = static_cast<size_t>(arrived[static_cast<size_t>(now - 1)]);
    count += static_cast<size_t>(std::max(0, now));
  }
  return last;
}

int MpiExchange::direct_barrier(uint64_t tag) {
  std::vector<int> peers;
  for (int i = 1; i < size_; ++i) peers.push_back((rank_ + size_ - i) % size_);
  std::vector<int32_t> values(peers.size());
  const int32_t here = 1;
  Batch sends(*this, tag);
  for (const int peer : peers) sends.send(peer, &here, sizeof here);
  const std::optional<size_t> last = await_arrivals(peers, values, tag);
  sends.wait();
  return last ? peers[*last] : rank_;
}

int MpiExchange::tree_barrier(uint64_t tag) {
  // A binomial tree with rank 0 at its root: the latest rank below goes up, the latest of all goes down.
  const auto place = static_cast<unsigned>(rank_);
  const unsigned low = place == 0 ? std::bit_ceil(static_cast<unsigned>(size_)) : place & (~place + 1);
  std::vector<int> below;
  for (unsigned bit = 1; bit < low; bit *= 2) {
    if (place + bit < static_cast<unsigned>(size_)) below.push_back(static_cast<int>(place + bit));
  }
  std::vector<int32_t> values(below.size());
  const std::optional<size_t> came_last = await_arrivals(below, values, tag);
  int32_t last = came_last ? values[*came_last] : rank_;
  if (rank_ != 0) {
    const auto above = static_cast<int>(place - low);
    const int32_t last_below = last;
    Batch batch(*this, tag);
    batch.send(above, &last_below, sizeof last_below);
    batch.receive(above, &last, sizeof last);
    batch.wait();
  }
  Batch down(*this, tag);
  for (const int rank : below) down.send(rank, &last, sizeof last);
  down.wait();
  return last;
}

}  // namespace

std::unique_ptr<ProcessExchange> make_mpi_exchange(ProcessGroup& process_group, const ExchangeOptions& options) {
  if (!process_group.over_mpi()) {
    throw UnsupportedError(fmt::format(
        "CPU devices of several processes need MPI, but this process group is not connected over MPI ({}); {}",
        process_group.description(), kUseMpirun));
  }
  return std::make_unique<MpiExchange>(process_group, options);
}

}  // namespace vitrine::comm
