// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <mutex>
#include <numeric>
#include <vector>

#include <fmt/format.h>
#include <sched.h>

#include "runtime/comm/fused.h"
#include "runtime/comm/process_exchange.h"
#include "runtime/error.h"
#include "runtime/world/world.h"
#ifdef VITRINE_HAVE_MPI
#include <mpi.h>
#endif

namespace vitrine::comm {

namespace {

constexpr const char* kMpiRun = "start it with MPI instead: mpirun -np N vitrine ...";
// Of a segment of a sum, what goes to each peer. Smaller ones overlap better, larger ones cost fewer messages.
constexpr int64_t kPartBytes = int64_t{1} << 20;

}  // namespace

int64_t exchange_scratch_elements(DType dtype, int64_t count, int processes) {
  return 2 * processes * std::max<int64_t>(1, std::min(kPartBytes / size_of(dtype), (count + processes - 1) / processes));
}

#ifdef VITRINE_HAVE_MPI
namespace {

constexpr int64_t kLargestMessageBytes = int64_t{1} << 30;
constexpr int kSpinsBeforeYield = 64;

class MpiExchange final : public ProcessExchange {
 public:
  explicit MpiExchange(const World& world) {
    // A peer that failed will never join: so not the call that waits.
    MPI_Request request = MPI_REQUEST_NULL;
    check(MPI_Comm_idup(MPI_COMM_WORLD, &comm_, &request), "MPI_Comm_idup");
    for (int done = 0; done == 0; sched_yield()) {
      check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), "MPI_Comm_idup");
      if (const std::string failure = world.failure(); !failure.empty()) throw CommError(failure);
    }
    MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN);
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
    void* bound = nullptr;
    int found = 0;
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&bound), &found);
    if (found != 0) largest_tag_ = *static_cast<int*>(bound);
  }

  std::string description() const override {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
    int length = 0;
    MPI_Get_library_version(text.data(), &length);
    const std::string whole(text.data());
    return fmt::format("{}, {} processes, direct exchange", whole.substr(0, whole.find_first_of(",\n")), size_);
  }

  void sum(DType dtype, Reduction reduction, void* inout, int64_t count, std::optional<int> root, void* scratch, int64_t scratch_elements,
           uint64_t tag) override;
  void sum_scattered(DType dtype, Reduction reduction, void* inout, std::span<const int64_t> counts, void* scratch, int64_t scratch_elements,
                     uint64_t tag) override;
  void broadcast(void* bytes, int64_t count, int root, uint64_t tag) override;
  void gather(const void* mine, void* whole, std::span<const int64_t> counts, int root, uint64_t tag) override;
  void scatter(const void* whole, void* mine, std::span<const int64_t> counts, int root, uint64_t tag) override;
  void all_gather(void* whole, std::span<const int64_t> counts, uint64_t tag) override;
  void exchange(std::span<const Part> sends, std::span<const Part> receives, uint64_t tag) override;
  int meet(uint64_t tag) override;
  void abort(const std::string& reason) override {
    const std::lock_guard lock(reason_mutex_);
    if (reason_.empty()) reason_ = reason.empty() ? "the group was aborted" : reason;
    aborted_.store(true, std::memory_order_release);
  }

 private:
  /// Messages under way.
  class Batch {
   public:
    Batch(MpiExchange& exchange, uint64_t tag) : exchange_(exchange), tag_(exchange.fold(tag)) {}
    void send(int to, const void* bytes, int64_t count);
    void send_empty(int to);
    void receive(int from, void* bytes, int64_t count);
    /// Returns once all of them have come and gone.
    void wait();

   private:
    MpiExchange& exchange_;
    int tag_;
    std::vector<MPI_Request> requests_;
  };

  template <class SliceOf, class Share>
  void sum_segments(DType dtype, Reduction reduction, std::byte* data, int64_t segments, const SliceOf& slice, const Share& gets, std::byte* scratch,
                    int64_t part, uint64_t tag);

  static void check(int code, const char* what) {
    if (code == MPI_SUCCESS) return;
    std::array<char, MPI_MAX_ERROR_STRING> text{};
    int length = 0;
    MPI_Error_string(code, text.data(), &length);
    throw CommError(fmt::format("{}: {}", what, text.data()));
  }
  int fold(uint64_t tag) const { return static_cast<int>((tag ^ (tag >> 32)) % (static_cast<uint64_t>(largest_tag_) + 1)); }
  void throw_if_aborted() {
    if (!aborted_.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(reason_mutex_);
    throw CommError(reason_);
  }

  MPI_Comm comm_ = MPI_COMM_NULL;  // lives as long as MPI: freeing it is a collective, which a peer that died would never join
  int rank_ = 0, size_ = 1, largest_tag_ = 32767;
  std::mutex mpi_mutex_;  // MPI may take calls from one thread at a time only
  std::atomic<bool> aborted_{false};
  std::mutex reason_mutex_;
  std::string reason_;
};

void MpiExchange::Batch::send(int to, const void* bytes, int64_t count) {
  const std::lock_guard lock(exchange_.mpi_mutex_);
  for (int64_t at = 0; at < count; at += kLargestMessageBytes) {
    const auto part = static_cast<int>(std::min(kLargestMessageBytes, count - at));
    check(MPI_Isend(static_cast<const std::byte*>(bytes) + at, part, MPI_BYTE, to, tag_, exchange_.comm_, &requests_.emplace_back()), "MPI_Isend");
  }
}

void MpiExchange::Batch::send_empty(int to) {
  const std::lock_guard lock(exchange_.mpi_mutex_);
  check(MPI_Isend(nullptr, 0, MPI_BYTE, to, tag_, exchange_.comm_, &requests_.emplace_back()), "MPI_Isend");
}

void MpiExchange::Batch::receive(int from, void* bytes, int64_t count) {
  const std::lock_guard lock(exchange_.mpi_mutex_);
  for (int64_t at = 0; at < count; at += kLargestMessageBytes) {
    const auto part = static_cast<int>(std::min(kLargestMessageBytes, count - at));
    check(MPI_Irecv(static_cast<std::byte*>(bytes) + at, part, MPI_BYTE, from, tag_, exchange_.comm_, &requests_.emplace_back()), "MPI_Irecv");
  }
}

void MpiExchange::Batch::wait() {
  for (int64_t round = 0;; ++round) {
    exchange_.throw_if_aborted();
    int done = 0;
    {
      const std::lock_guard lock(exchange_.mpi_mutex_);
      check(MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE), "MPI_Testall");
    }
    if (done != 0) break;
    // The core may be needed by whom it waits for.
    if (round >= kSpinsBeforeYield) sched_yield();
  }
  requests_.clear();
}

/// Sums segment by segment: every rank gets its slice of each from all others, adds, and gives the sum to `share(r)`'s ranks.
///   slice(s, r)  rank r's elements of segment s; at most `part`
template <class SliceOf, class Share>
void MpiExchange::sum_segments(DType dtype, Reduction reduction, std::byte* data, int64_t segments, const SliceOf& slice, const Share& gets,
                               std::byte* scratch, int64_t part, uint64_t tag) {
  const int64_t element = size_of(dtype);
  const auto at = [&](int64_t index) { return data + index * element; };
  const auto bytes = [&](const Slice& s) { return (s.end - s.begin) * element; };
  // What comes from rank r of this rank's slice of a segment.
  const auto received = [&](int64_t s, int r) { return scratch + ((s % 2) * size_ + r) * part * element; };
  std::array<Batch, 2> parts = {Batch(*this, tag), Batch(*this, tag)}, sums = {Batch(*this, tag), Batch(*this, tag)};
  const auto batch_of = [](std::array<Batch, 2>& batches, int64_t s) -> Batch& { return batches[static_cast<size_t>(s % 2)]; };
  const auto with_peers = [&](const auto& work) {
    for (int i = 1; i < size_; ++i) work((rank_ + i) % size_, (rank_ + size_ - i) % size_);
  };
  const auto exchange_parts = [&](int64_t s) {
    with_peers([&](int to, int from) {
      batch_of(parts, s).receive(from, received(s, from), bytes(slice(s, rank_)));
      batch_of(parts, s).send(to, at(slice(s, to).begin), bytes(slice(s, to)));
    });
  };
  std::vector<const void*> inputs(static_cast<size_t>(size_));
  exchange_parts(0);
  for (int64_t s = 0; s < segments; ++s) {
    if (s + 1 < segments) exchange_parts(s + 1);
    batch_of(parts, s).wait();
    const Slice mine = slice(s, rank_);
    void* const sum = at(mine.begin);
    for (int r = 0; r < size_; ++r) inputs[static_cast<size_t>(r)] = r == rank_ ? sum : received(s, r);
    combine_to_all(dtype, reduction, inputs, {&sum, 1}, 0, mine.end - mine.begin);
    with_peers([&](int to, int from) {
      if (gets(rank_)) batch_of(sums, s).receive(from, at(slice(s, from).begin), bytes(slice(s, from)));
      if (gets(to)) batch_of(sums, s).send(to, sum, bytes(mine));
    });
    if (s > 0) batch_of(sums, s - 1).wait();
  }
  if (segments > 0) batch_of(sums, segments - 1).wait();
}

void MpiExchange::sum(DType dtype, Reduction reduction, void* inout, int64_t count, std::optional<int> root, void* scratch, int64_t scratch_elements,
                      uint64_t tag) {
  const int64_t part = scratch_elements / (2 * size_);
  const int64_t segment = part * size_;
  const auto slice = [&](int64_t s, int r) {
    const Slice in = slice_of(std::min(segment, count - s * segment), 1, r, size_);
    return Slice{s * segment + in.begin, s * segment + in.end};
  };
  const auto gets = [&](int r) { return !root || r == *root; };
  sum_segments(dtype, reduction, static_cast<std::byte*>(inout), (count + segment - 1) / segment, slice, gets, static_cast<std::byte*>(scratch), part,
               tag);
}

void MpiExchange::sum_scattered(DType dtype, Reduction reduction, void* inout, std::span<const int64_t> counts, void* scratch,
                                int64_t scratch_elements, uint64_t tag) {
  const int64_t part = scratch_elements / (2 * size_);
  std::vector<int64_t> first(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), first.begin(), int64_t{0});
  const auto slice = [&](int64_t s, int r) {
    const auto i = static_cast<size_t>(r);
    return Slice{first[i] + std::min(counts[i], s * part), first[i] + std::min(counts[i], (s + 1) * part)};
  };
  const int64_t segments = (*std::max_element(counts.begin(), counts.end()) + part - 1) / part;
  sum_segments(
      dtype, reduction, static_cast<std::byte*>(inout), segments, slice, [](int) { return false; }, static_cast<std::byte*>(scratch), part, tag);
}

void MpiExchange::broadcast(void* bytes, int64_t count, int root, uint64_t tag) {
  // A binomial tree, in pieces, so that its levels work at once.
  const auto place = static_cast<unsigned>((rank_ - root + size_) % size_);
  const unsigned low = place == 0 ? std::bit_ceil(static_cast<unsigned>(size_)) : place & (~place + 1);
  const auto rank_at = [&](unsigned other) { return (static_cast<int>(other) + root) % size_; };
  Batch sends(*this, tag);
  for (int64_t at = 0; at < count; at += kPartBytes) {
    const int64_t piece = std::min(kPartBytes, count - at);
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
  std::vector<int64_t> first(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), first.begin(), int64_t{0});
  auto* const data = static_cast<std::byte*>(whole);
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

int MpiExchange::meet(uint64_t tag) {
  if (size_ == 1) return rank_;
  const auto peers = static_cast<size_t>(size_ - 1);
  const auto peer = [&](size_t i) { return (rank_ + size_ - 1 - static_cast<int>(i)) % size_; };
  Batch sends(*this, tag);
  for (size_t i = 0; i < peers; ++i) sends.send_empty(peer(i));
  std::vector<MPI_Request> arrivals(peers);
  std::vector<int> arrived(peers);
  {
    const std::lock_guard lock(mpi_mutex_);
    for (size_t i = 0; i < peers; ++i) check(MPI_Irecv(nullptr, 0, MPI_BYTE, peer(i), fold(tag), comm_, &arrivals[i]), "MPI_Irecv");
  }
  int last = rank_;
  size_t count = 0;
  for (int64_t round = 0; count < peers; ++round) {
    throw_if_aborted();
    int now = 0;
    {
      const std::lock_guard lock(mpi_mutex_);
      check(MPI_Testsome(static_cast<int>(peers), arrivals.data(), &now, arrived.data(), MPI_STATUSES_IGNORE), "MPI_Testsome");
    }
    if (now > 0) last = peer(static_cast<size_t>(arrived[static_cast<size_t>(now - 1)]));
    count += static_cast<size_t>(std::max(0, now));
    if (round >= kSpinsBeforeYield) sched_yield();
  }
  sends.wait();
  return last;
}

}  // namespace

std::unique_ptr<ProcessExchange> make_mpi_exchange(const World& world) {
  if (!world.over_mpi()) {
    throw UnsupportedError(
        fmt::format("CPU devices of several processes reduce over MPI, but this world met otherwise ({}); {}", world.description(), kMpiRun));
  }
  return std::make_unique<MpiExchange>(world);
}

#else

std::unique_ptr<ProcessExchange> make_mpi_exchange(const World& /*world*/) {
  throw UnsupportedError(
      fmt::format("CPU devices of several processes reduce over MPI, which is not built in; install libopenmpi-dev, build anew, and {}", kMpiRun));
}

#endif

}  // namespace vitrine::comm
