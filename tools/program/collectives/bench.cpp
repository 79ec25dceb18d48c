// SPDX-License-Identifier: Apache-2.0
#include "tools/program/collectives/bench.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <numeric>
#include <thread>

#include <fmt/format.h>

#include "runtime/copy.h"
#include "runtime/error.h"
#include "runtime/half.h"
#include "runtime/process_group/process_group.h"
#include "runtime/trace/span.h"

namespace vitrine::tools {

namespace {

/// Sums of integers up to this are exact in bf16, which has 8 digits.
constexpr int64_t kLargestExactSum = 256;
constexpr int64_t kPieceElements =
    int64_t{1} << 18;              // elements that are filled or checked at once, so that the host needs only a few MiB
constexpr int64_t kPeriod = 1021;  // the period of the values: a prime, so that a shift by rows is detected

std::vector<std::byte> to_storage(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(size_of(dtype)));
  const auto count = static_cast<int64_t>(values.size());
  if (dtype == DType::f32) std::memcpy(bytes.data(), values.data(), bytes.size());
  if (dtype == DType::f16) cpu::narrow(values.data(), reinterpret_cast<cpu::Half*>(bytes.data()), count);
  if (dtype == DType::bf16) cpu::narrow(values.data(), reinterpret_cast<cpu::BFloat16*>(bytes.data()), count);
  if (dtype == DType::i32) std::copy(values.begin(), values.end(), reinterpret_cast<int32_t*>(bytes.data()));
  return bytes;
}

std::vector<float> from_storage(const std::vector<std::byte>& bytes, DType dtype) {
  std::vector<float> values(bytes.size() / static_cast<size_t>(size_of(dtype)));
  const auto count = static_cast<int64_t>(values.size());
  if (dtype == DType::f32) std::memcpy(values.data(), bytes.data(), bytes.size());
  if (dtype == DType::f16) cpu::widen(reinterpret_cast<const cpu::Half*>(bytes.data()), values.data(), count);
  if (dtype == DType::bf16) cpu::widen(reinterpret_cast<const cpu::BFloat16*>(bytes.data()), values.data(), count);
  if (dtype == DType::i32) std::copy_n(reinterpret_cast<const int32_t*>(bytes.data()), count, values.begin());
  return values;
}

/// Tolerance for averages: NCCL divides before it adds, which rounds.
float average_tolerance(DType dtype, int ranks) {
  const float digits = dtype == DType::f32 ? 1e-6F : dtype == DType::f16 ? 1e-3F : 8e-3F;
  return dtype == DType::i32 ? 0.0F : digits * static_cast<float>(ranks);
}

}  // namespace

double bus_factor(Collective c, int ranks, const std::vector<int64_t>& counts, int root) {
  const double n = ranks;
  if (traits_of(c).takes_counts && !counts.empty()) {
    const auto total = static_cast<double>(std::accumulate(counts.begin(), counts.end(), int64_t{0}));
    return 1 - static_cast<double>(counts[static_cast<size_t>(root)]) / total;
  }
  if (traits_of(c).in_parts) return (n - 1) / n;
  if (c == Collective::all_reduce || c == Collective::tree_all_reduce) return 2 * (n - 1) / n;
  return c == Collective::reduce_broadcast ? 2.0 : 1.0;  // the star is a reduction and a broadcast
}

bool is_disturbed(const CollectiveTiming& timing) { return timing.seconds > 2 * timing.median_seconds; }

double percentile(std::vector<double> values, double p) {
  if (values.empty()) return 0;
  const auto rank = static_cast<size_t>(std::ceil(p / 100 * static_cast<double>(values.size())));
  const auto place = values.begin() + static_cast<std::ptrdiff_t>(std::clamp<size_t>(rank, 1, values.size()) - 1);
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

CollectiveBench::CollectiveBench(const DeviceGroupOptions& devices, Config config)
    : devices_(std::make_unique<DeviceGroup>(devices)),
      communicators_(make_communicators(*devices_)),
      config_(std::move(config)) {
  if (!config_.counts.empty() && static_cast<int>(config_.counts.size()) != ranks()) {
    throw ConfigError(
        fmt::format("--counts: {} values for {} ranks; give one for each", config_.counts.size(), ranks()));
  }
  const Shape shape{std::max<int64_t>(1, config_.most_bytes / size_of(config_.dtype))};
  for (int d = 0; d < devices_->size(); ++d) {
    ExecContext& ctx = (*devices_)[d].compute();
    inputs_.push_back(ctx.allocate(shape, config_.dtype, Category::communication, "input"));
    outputs_.push_back(ctx.allocate(shape, config_.dtype, Category::communication, "output"));
  }
}

std::vector<int64_t> CollectiveBench::ratio(Collective collective) const {
  std::vector<int64_t> parts = traits_of(collective).takes_counts ? config_.counts : std::vector<int64_t>();
  parts.resize(static_cast<size_t>(ranks()), 1);
  return parts;
}

std::vector<int64_t> CollectiveBench::parts(Collective collective, int64_t bytes) const {
  const int64_t elements = bytes / size_of(config_.dtype);
  if (!traits_of(collective).in_parts) return std::vector<int64_t>(static_cast<size_t>(ranks()), elements);
  std::vector<int64_t> parts = ratio(collective);
  const int64_t rows = std::accumulate(parts.begin(), parts.end(), int64_t{0});
  for (int64_t& part : parts) part *= elements / rows;
  return parts;
}

int64_t CollectiveBench::used_bytes(Collective collective, int64_t bytes) const {
  const std::vector<int64_t> all = parts(collective, bytes);
  return (traits_of(collective).in_parts ? std::accumulate(all.begin(), all.end(), int64_t{0}) : all.front()) *
         size_of(config_.dtype);
}

int64_t CollectiveBench::least_bytes(Collective collective) const {
  if (!traits_of(collective).in_parts) return size_of(config_.dtype);
  const std::vector<int64_t> all = ratio(collective);
  return std::accumulate(all.begin(), all.end(), int64_t{0}) * size_of(config_.dtype);
}

int64_t CollectiveBench::count(Collective collective, int64_t bytes) const {
  const std::vector<int64_t> all = parts(collective, bytes);
  return *std::max_element(all.begin(), all.end());
}

float CollectiveBench::value(int rank, int64_t element) const {
  const int64_t most = std::max<int64_t>(1, kLargestExactSum / ranks());
  return static_cast<float>((element % kPeriod + int64_t{3} * rank) % (most + 1));
}

float CollectiveBench::combined(int64_t element) const {
  float result = value(0, element);
  for (int r = 1; r < ranks(); ++r) {
    const float next = value(r, element);
    result = config_.op == ReduceOp::min   ? std::min(result, next)
             : config_.op == ReduceOp::max ? std::max(result, next)
                                           : result + next;
  }
  return config_.op == ReduceOp::average ? result / static_cast<float>(ranks()) : result;
}

CollectiveBench::Buffers CollectiveBench::buffers(const Run& run, int device) const {
  const int rank = rank_of(device);
  const std::vector<int64_t> all = parts(run.collective, run.bytes);
  const int64_t first = std::accumulate(all.begin(), all.begin() + rank, int64_t{0}),
                part = all[static_cast<size_t>(rank)];
  const int64_t whole = traits_of(run.collective).in_parts ? std::accumulate(all.begin(), all.end(), int64_t{0}) : part;
  const View a = inputs_[static_cast<size_t>(device)].view(), b = outputs_[static_cast<size_t>(device)].view();
  const auto own_rows = [&](const View& v) { return v.rows(first, first + part); };
  const bool root = rank == run.root;
  switch (run.collective) {
    case Collective::scatter:
      return {a.rows(0, whole), run.in_place && root ? own_rows(a) : b.rows(0, part)};
    case Collective::gather:
      return {run.in_place && root ? own_rows(b) : a.rows(0, part), b.rows(0, whole)};
    case Collective::reduce_scatter:
      return {a.rows(0, whole), run.in_place ? own_rows(a) : b.rows(0, part)};
    case Collective::all_gather:
      return {run.in_place ? own_rows(b) : a.rows(0, part), b.rows(0, whole)};
    default:
      return {a.rows(0, whole), (run.in_place ? a : b).rows(0, whole)};
  }
}

void CollectiveBench::issue(const Run& run, int device) {
  Communicator& communicator = *communicators_[static_cast<size_t>(device)];
  ExecContext& ctx = (*devices_)[device].compute();
  const Buffers buffer = buffers(run, device);
  const int rank = rank_of(device);
  switch (run.collective) {
    case Collective::scatter:
      return communicator.scatter(ctx, buffer.input, parts(run.collective, run.bytes), buffer.output, run.root);
    case Collective::gather:
      return communicator.gather(ctx, buffer.input, parts(run.collective, run.bytes), buffer.output, run.root);
    case Collective::broadcast:
      return communicator.broadcast(ctx, buffer.input, buffer.output, run.root);
    case Collective::reduce:
      return communicator.reduce(ctx, buffer.input, buffer.output, run.root, config_.op);
    case Collective::all_reduce:
      return communicator.all_reduce(ctx, buffer.input, buffer.output, config_.op);
    case Collective::reduce_scatter:
      return communicator.reduce_scatter(ctx, buffer.input, buffer.output, config_.op);
    case Collective::all_gather:
      return communicator.all_gather(ctx, buffer.input, buffer.output);
    case Collective::alltoall:
      return communicator.all_to_all(ctx, buffer.input, buffer.output);
    case Collective::sendrecv:
      return communicator.send_receive(ctx, buffer.input, (rank + 1) % ranks(), buffer.output,
                                       (rank + ranks() - 1) % ranks());
    case Collective::reduce_broadcast:
      communicator.reduce(ctx, buffer.input, buffer.output, run.root, config_.op);
      return communicator.broadcast(ctx, buffer.output, run.root);
    case Collective::tree_all_reduce: {
      std::vector<Contribution> leaves;
      for (int r = 0; r < ranks(); ++r) leaves.push_back({{r, r + 1}, r});
      const ConstView input = buffer.input;
      return communicator.tree_all_reduce(ctx, leaves, {&input, 1}, buffer.output);
    }
  }
}

/// NCCL ranks wait for each other on the host while they issue, so each rank has its own thread.
void CollectiveBench::for_each_device(const std::function<void(int)>& work) {
  if ((*devices_)[0].id().backend != Backend::cuda) {
    for (int d = 0; d < devices_->size(); ++d) work(d);
    return;
  }
  std::vector<std::exception_ptr> errors(static_cast<size_t>(devices_->size()));
  std::vector<std::thread> hosts;
  for (int d = 0; d < devices_->size(); ++d) {
    hosts.emplace_back([&, d] {
      try {
        work(d);
      } catch (...) {
        errors[static_cast<size_t>(d)] = std::current_exception();
        communicators_[static_cast<size_t>(d)]->abort("a rank could not issue its collective");
      }
    });
  }
  for (std::thread& host : hosts) host.join();
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

void CollectiveBench::synchronize() {
  std::optional<ProcessGroup::Waiting> waiting;  // ends the wait for a process that never arrives
  if (devices_->process_count() > 1) waiting.emplace(*devices_->process_group(), "a collective");
  devices_->synchronize();
}

void CollectiveBench::barrier(const char* what, int64_t* sum) {
  if (devices_->process_count() == 1) return;
  const std::vector<double> total =
      devices_->process_group()->sum(what, {static_cast<double>(sum != nullptr ? *sum : 0)});
  if (sum != nullptr) *sum = static_cast<int64_t>(total[0]);
}

bool CollectiveBench::any(bool here) {
  int64_t count = here ? 1 : 0;
  barrier("whether to end", &count);
  return count > 0;
}

void CollectiveBench::fill(const Run& run) {
  for (int d = 0; d < devices_->size(); ++d) {
    const Buffers buffer = buffers(run, d);
    ExecContext& ctx = (*devices_)[d].compute();
    zero(ctx, inputs_[static_cast<size_t>(d)]);
    zero(ctx, outputs_[static_cast<size_t>(d)]);
    const View input{const_cast<void*>(buffer.input.data), buffer.input.shape, config_.dtype, buffer.input.device};
    for (int64_t begin = 0; begin < input.numel(); begin += kPieceElements) {
      const View piece = input.rows(begin, std::min(begin + kPieceElements, input.numel()));
      std::vector<float> values(static_cast<size_t>(piece.numel()));
      for (size_t i = 0; i < values.size(); ++i) values[i] = value(rank_of(d), begin + static_cast<int64_t>(i));
      const std::vector<std::byte> bytes = to_storage(values, config_.dtype);
      copy(ctx, ConstView(bytes.data(), piece.shape, config_.dtype, DeviceId::host()), piece);
      ctx.stream().synchronize();
    }
  }
}

int64_t CollectiveBench::count_different(const std::vector<float>& expected,
                                         const std::vector<std::byte>& found) const {
  const std::vector<float> wanted = from_storage(to_storage(expected, config_.dtype), config_.dtype),
                           values = from_storage(found, config_.dtype);
  const float tolerance = config_.op == ReduceOp::average ? average_tolerance(config_.dtype, ranks()) : 0.0F;
  int64_t different = 0;
  for (size_t i = 0; i < wanted.size(); ++i)
    different += std::abs(values[i] - wanted[i]) <= tolerance * std::abs(wanted[i]) ? 0 : 1;
  return different;
}

float CollectiveBench::expected(const Run& run, int rank, const std::vector<int64_t>& first, int64_t i) const {
  const int64_t before = first[static_cast<size_t>(rank)];
  const auto owner = [&] {
    return static_cast<int>(std::upper_bound(first.begin(), first.end(), i) - first.begin()) - 1;
  };
  switch (run.collective) {
    case Collective::scatter:
      return value(run.root, before + i);
    case Collective::broadcast:
      return value(run.root, i);
    case Collective::gather:
    case Collective::all_gather:
      return value(owner(), i - first[static_cast<size_t>(owner())]);
    case Collective::alltoall:
      return value(owner(), before + i - first[static_cast<size_t>(owner())]);
    case Collective::sendrecv:
      return value((rank + ranks() - 1) % ranks(), i);
    case Collective::reduce_scatter:
      return combined(before + i);
    default:
      return combined(i);
  }
}

int64_t CollectiveBench::count_wrong(const Run& run) {
  const std::vector<int64_t> all = parts(run.collective, run.bytes);
  std::vector<int64_t> first(all.size());
  std::exclusive_scan(all.begin(), all.end(), first.begin(), int64_t{0});
  int64_t wrong = 0;
  for (int d = 0; d < devices_->size(); ++d) {
    const bool root_only = run.collective == Collective::gather || run.collective == Collective::reduce;
    if (root_only && rank_of(d) != run.root) continue;
    const View output = buffers(run, d).output;
    ExecContext& ctx = (*devices_)[d].compute();
    for (int64_t begin = 0; begin < output.numel(); begin += kPieceElements) {
      const View piece = output.rows(begin, std::min(begin + kPieceElements, output.numel()));
      std::vector<float> wanted(static_cast<size_t>(piece.numel()));
      for (size_t i = 0; i < wanted.size(); ++i)
        wanted[i] = expected(run, rank_of(d), first, begin + static_cast<int64_t>(i));
      std::vector<std::byte> found(static_cast<size_t>(piece.bytes()));
      copy(ctx, piece, View{found.data(), piece.shape, config_.dtype, DeviceId::host()});
      ctx.stream().synchronize();
      wrong += count_different(wanted, found);
    }
  }
  return wrong;
}

void CollectiveBench::repeat(const Run& run, int times, std::vector<Series>* series) {
  for_each_device([&](int d) {
    Stream& stream = (*devices_)[d].compute().stream();
    std::vector<std::unique_ptr<Event>>* const points =
        series != nullptr ? &(*series)[static_cast<size_t>(d)].points : nullptr;
    if (points != nullptr) stream.record(*points->front());
    for (int i = 0; i < times; ++i) {
      issue(run, d);
      if (points != nullptr && static_cast<size_t>(i) + 1 < points->size())
        stream.record(*(*points)[static_cast<size_t>(i) + 1]);
    }
  });
  synchronize();
}

CollectiveTiming CollectiveBench::time(const Run& run) {
  CollectiveTiming timing;
  if (run.check) {
    fill(run);
    for_each_device([&](int d) { issue(run, d); });
    synchronize();
    int64_t wrong = count_wrong(run);
    barrier("the wrong elements", &wrong);
    timing.wrong = wrong;
  }
  repeat(run, run.warm_up, nullptr);
  const auto single = static_cast<size_t>(std::min(run.iterations, kMostSingle));
  std::vector<Series> series(static_cast<size_t>(devices_->size()));
  for (int d = 0; d < devices_->size(); ++d) {
    for (size_t i = 0; i <= single; ++i)
      series[static_cast<size_t>(d)].points.push_back((*devices_)[d].compute().stream().make_event(EventTiming::on));
  }
  barrier("the start of the timing");
  const int64_t begin = steady_now_ns();
  repeat(run, run.iterations, &series);
  timing.seconds = static_cast<double>(steady_now_ns() - begin) * 1e-9 / run.iterations;
  std::vector<double> seconds(single);
  for (const Series& of_device : series) {
    for (size_t i = 0; i < single; ++i)
      seconds[i] = std::max(seconds[i], of_device.points[i + 1]->elapsed_seconds(*of_device.points[i]));
  }
  timing.least_seconds = *std::min_element(seconds.begin(), seconds.end());
  timing.median_seconds = percentile(seconds, 50);
  timing.p99_seconds = percentile(seconds, 99);
  return timing;
}

}  // namespace vitrine::tools
