// SPDX-License-Identifier: Apache-2.0
// exchange_worker LARGEST_DIRECT [COUNT ITERATIONS]: sums over the processes, directly for up to LARGEST_DIRECT of
// them, through shared memory and then by messages, otherwise along a tree. Fails at the first wrong element, on bits
// that differ between ranks, rounds or ways, if a late process is not named, and if a sender waits for a receiver that
// calls MPI no more. With COUNT and ITERATIONS rank 0
// prints the cost of sums of so many elements: messages of a process, processor time of all processes.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <thread>

#include <fmt/format.h>
#include <sys/resource.h>

#include "runtime/comm/process_exchange.h"
#include "runtime/half.h"
#include "tests/multi_process/worker.h"

namespace {
bool tests_slowly = false;
}

// MPI's profiling interface: the library's call comes here.
extern "C" int PMPI_Testall(int count, void* requests, int* done, void* statuses);
extern "C" int MPI_Testall(int count, void* requests, int* done, void* statuses) {
  if (tests_slowly) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  return PMPI_Testall(count, requests, done, statuses);
}

namespace vitrine::test {
namespace {

using comm::ProcessExchange;
using comm::SumBuffers;

class Sums {
 public:
  Sums(ProcessGroup& process_group, const comm::ExchangeOptions& options)
      : process_group_(process_group),
        largest_direct_(options.largest_direct),
        exchange_(comm::make_mpi_exchange(process_group, options)) {}

  ProcessExchange& exchange() { return *exchange_; }

  /// Numbers in [-1, 1] whose sum depends on the order of addition.
  std::vector<float> values(int64_t count, int rank) const {
    std::vector<float> all(static_cast<size_t>(count));
    auto bits = static_cast<uint32_t>(rank) * 40503U + 1U;
    for (float& value : all) {
      bits = bits * 1664525U + 1013904223U;
      value = static_cast<float>(static_cast<int32_t>(bits)) / 2147483648.0F;
    }
    return all;
  }
  std::vector<double> exact(int64_t count) const {
    std::vector<double> sums(static_cast<size_t>(count), 0.0);
    for (int r = 0; r < process_group_.size(); ++r) {
      const std::vector<float> part = values(count, r);
      for (size_t i = 0; i < sums.size(); ++i) sums[i] += part[i];
    }
    return sums;
  }
  void require_near(const char* what, std::span<const float> found, std::span<const double> wanted) const {
    for (size_t i = 0; i < found.size(); ++i) {
      if (std::abs(static_cast<double>(found[i]) - wanted[i]) <= 1e-5 * process_group_.size()) continue;
      throw std::runtime_error(
          fmt::format("{}: element {} of {} is {}, expected {}", what, i, found.size(), found[i], wanted[i]));
    }
  }

  std::vector<float> sum(int64_t count, std::optional<int> root, int64_t scratch_elements) {
    std::vector<float> data = values(count, process_group_.rank()), scratch(static_cast<size_t>(scratch_elements));
    exchange_->sum({DType::f32, data.data(), DType::f32, data.data(), scratch.data(), scratch_elements}, count, root,
                   7);
    return data;
  }
  /// Sums of changing sizes follow one another: each takes a place in shared memory that others had.
  void check_sequence() {
    const int size = process_group_.size();
    for (int number = 1; number <= 150; ++number) {
      const int64_t count = 1 + number * 977 % 4000 * (number % 3);
      const int64_t scratch_elements = comm::sum_scratch_elements(DType::f32, count, size, largest_direct_);
      std::vector<float> data(static_cast<size_t>(count), static_cast<float>(number + process_group_.rank())),
          scratch(static_cast<size_t>(scratch_elements));
      exchange_->sum({DType::f32, data.data(), DType::f32, data.data(), scratch.data(), scratch_elements}, count,
                     std::nullopt, 7);
      const int sum_of_ranks = size * (size - 1) / 2;
      const std::vector<double> wanted(data.size(), number * size + sum_of_ranks);
      require_near("one of many sums", data, wanted);
    }
  }
  /// Returns the bits of a sum.
  std::string check_sums(int64_t count) {
    const std::vector<double> wanted = exact(count);
    const int64_t scratch = comm::sum_scratch_elements(DType::f32, count, process_group_.size(), largest_direct_);
    const std::vector<float> found = sum(count, std::nullopt, scratch), again = sum(count, std::nullopt, scratch);
    require_near("a sum", found, wanted);
    if (std::memcmp(found.data(), again.data(), found.size() * sizeof(float)) != 0)
      throw std::runtime_error("a sum has other bits the second time");
    const std::string bytes(reinterpret_cast<const char*>(found.data()), found.size() * sizeof(float));
    if (!process_group_.all_equal("a sum's bits", bytes))
      throw std::runtime_error("a sum has not the same bits on all ranks");
    const int64_t segment = std::max<int64_t>(2, count / 50);  // elements of a slice
    require_near("a sum in many segments", sum(count, std::nullopt, segment * process_group_.size()), wanted);
    const int root = process_group_.size() - 1;
    const std::vector<float> at_root = sum(count, root, scratch);
    if (process_group_.rank() == root) require_near("a sum on one rank", at_root, wanted);
    return bytes;
  }
  void check_scattered(int64_t largest) {
    std::vector<int64_t> counts;
    for (int r = 0; r < process_group_.size(); ++r) counts.push_back(largest * (r % 3) / 2);
    const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
    const int64_t first = std::accumulate(counts.begin(), counts.begin() + process_group_.rank(), int64_t{0});
    const auto mine = static_cast<size_t>(counts[static_cast<size_t>(process_group_.rank())]);
    const int64_t scratch_elements = comm::scattered_scratch_elements(DType::f32, counts, largest_direct_);
    std::vector<float> data = values(total, process_group_.rank()), scratch(static_cast<size_t>(scratch_elements)),
                       result(mine);
    const std::vector<double> wanted = exact(total);
    exchange_->sum_scattered({DType::f32, data.data(), DType::f32, result.data(), scratch.data(), scratch_elements},
                             counts, 8);
    require_near("a scattered sum", result, std::span(wanted).subspan(static_cast<size_t>(first), mine));
    // Then all receive the parts.
    std::vector<float> whole(static_cast<size_t>(total));
    std::copy(result.begin(), result.end(), whole.begin() + first);
    for (int64_t& count : counts) count *= static_cast<int64_t>(sizeof(float));
    exchange_->all_gather(whole.data(), counts, 9);
    require_near("the scattered sums, gathered", whole, wanted);
  }
  void check_rounding() {
    constexpr int64_t kCount = 300;
    const int64_t scratch_elements =
        comm::sum_scratch_elements(DType::f32, kCount, process_group_.size(), largest_direct_);
    std::vector<float> partials(kCount), scratch(static_cast<size_t>(scratch_elements)), wanted(kCount, 0.0F);
    // Multiples of 2^-12, whose sums are exact in f32.
    const auto value = [](int r, int64_t i) {
      return static_cast<float>((i * 2654435761 + r * 40503) % 4096) / 4096.0F;
    };
    for (int64_t i = 0; i < kCount; ++i) {
      partials[static_cast<size_t>(i)] = value(process_group_.rank(), i);
      for (int r = 0; r < process_group_.size(); ++r) wanted[static_cast<size_t>(i)] += value(r, i);
    }
    std::vector<cpu::BFloat16> found(kCount), rounded(kCount);
    exchange_->sum({DType::f32, partials.data(), DType::bf16, found.data(), scratch.data(), scratch_elements}, kCount,
                   std::nullopt, 10);
    cpu::narrow(wanted.data(), rounded.data(), kCount);
    if (std::memcmp(found.data(), rounded.data(), kCount * sizeof(cpu::BFloat16)) != 0)
      throw std::runtime_error("a sum was not rounded once");
  }
  void check_exchange() {
    const int late = process_group_.size() / 2;
    process_group_.gather("a start", "");
    if (process_group_.rank() == late) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    const int last = exchange_->barrier(11);
    if (last != late)
      throw std::runtime_error(fmt::format("rank {} arrived last at a barrier, rank {} was named", late, last));
  }
  /// A receiver that has everything and calls MPI no more must not keep a slow sender waiting: Open MPI acknowledges
  /// messages that are not small within calls only.
  void check_slow_sender() {
    constexpr int64_t kPartBytes = 16384;
    std::vector<char> bytes(kPartBytes);
    const int rank = process_group_.rank();
    if (rank < 2) {
      const std::vector<ProcessExchange::Part> parts(2000, {1 - rank, bytes.data(), kPartBytes});
      tests_slowly = rank == 0;
      rank == 0 ? exchange_->exchange(parts, {}, 12) : exchange_->exchange({}, parts, 12);
      tests_slowly = false;
    }
    process_group_.gather("the slow sender's end", "");
  }

 private:
  ProcessGroup& process_group_;
  int largest_direct_;
  std::unique_ptr<ProcessExchange> exchange_;
};

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

void measure(ProcessGroup& process_group, const comm::ExchangeOptions& options, int64_t count, int iterations) {
  Sums sums(process_group, options);
  const int64_t scratch_elements =
      comm::sum_scratch_elements(DType::f32, count, process_group.size(), options.largest_direct);
  std::vector<float> data = sums.values(count, process_group.rank()), scratch(static_cast<size_t>(scratch_elements));
  const SumBuffers buffers{DType::f32, data.data(), DType::f32, data.data(), scratch.data(), scratch_elements};
  const auto once = [&] {
    sums.exchange().barrier(1);
    sums.exchange().sum(buffers, count, std::nullopt, 2);
  };
  for (int i = 0; i < 3; ++i) once();
  process_group.gather("a start", "");
  const int64_t sent = sums.exchange().messages_sent();
  const double begin = processor_seconds();
  const auto started = std::chrono::steady_clock::now();
  for (int i = 0; i < iterations; ++i) once();
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - started).count();
  const double used = processor_seconds() - begin;
  const auto messages = static_cast<double>(sums.exchange().messages_sent() - sent);
  const std::vector<double> all = process_group.sum("the cost", {used, messages});
  if (process_group.rank() != 0) return;
  fmt::print(
      "{:9} elements, {}: {:9.1f} us, {:8.1f} messages a process, {:9.1f} us of processor time of all together, a "
      "sum\n",
      count, sums.exchange().description(), elapsed * 1e6 / iterations, all[1] / process_group.size() / iterations,
      all[0] * 1e6 / iterations);
}

/// Returns the bits of all sums.
std::string check(ProcessGroup& process_group, const comm::ExchangeOptions& options) {
  Sums sums(process_group, options);
  std::vector<int64_t> counts = {0, 1, 5, 1000};
  if (process_group.size() < 4) counts.push_back(900'001);  // several segments
  std::string bits;
  for (const int64_t count : counts) {
    bits += sums.check_sums(count);
    sums.check_scattered(count <= 1000 ? std::min<int64_t>(count, 2 + 1000 / process_group.size()) : count);
  }
  sums.check_sequence();
  sums.check_rounding();
  sums.check_exchange();
  if (process_group.size() < 4) sums.check_slow_sender();
  const std::string description = sums.exchange().description();
  const bool shares = process_group.size() <= options.largest_direct && options.shared_memory;
  const auto says = [&](const char* text) { return description.find(text) != std::string::npos; };
  // A machine without shared memory is no fault if the reason is given.
  if (shares ? !says("sums through shared memory") && !says("(no shared memory: ") : says("shared memory"))
    throw std::runtime_error("unexpected exchange: " + description);
  return bits;
}

}  // namespace
}  // namespace vitrine::test

int main(int argc, char** argv) {
  using namespace vitrine;
  using namespace vitrine::test;
  return run_worker([&](const std::shared_ptr<ProcessGroup>& process_group) {
    if (argc != 2 && argc != 4) throw std::invalid_argument("usage: exchange_worker LARGEST_DIRECT [COUNT ITERATIONS]");
    const comm::ExchangeOptions shared{std::stoi(argv[1]), true}, uncached{std::stoi(argv[1]), true, true},
        messages{std::stoi(argv[1]), false};
    if (argc == 4) {
      for (const auto& options : {shared, messages})
        measure(*process_group, options, std::stoll(argv[2]), std::stoi(argv[3]));
      return;
    }
    const std::string bits = check(*process_group, shared);
    if (process_group->size() > shared.largest_direct) return;
    if (check(*process_group, messages) != bits)
      throw std::runtime_error("sums by messages have other bits than sums through shared memory");
    if (check(*process_group, uncached) != bits)
      throw std::runtime_error("sums have other bits if they are written past the caches");
  });
}
