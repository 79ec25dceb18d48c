// SPDX-License-Identifier: Apache-2.0
#include "tools/collective_bench.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <thread>

#include "runtime/copy.h"
#include "runtime/half.h"
#include "runtime/trace/span.h"
#include "runtime/world/world.h"

namespace vitrine::tools {

namespace {

/// Sums of whole numbers up to this are exact in bf16, which has 8 digits.
constexpr int64_t kLargestExactSum = 256;
constexpr int64_t kPeriod = 1021;  // of values: a prime, so that a shift by rows shows

bool is_scattered(Collective c) {
  return c == Collective::scatter || c == Collective::gather || c == Collective::reduce_scatter || c == Collective::all_gather;
}

std::vector<std::byte> to_storage(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(size_of(dtype)));
  const auto count = static_cast<int64_t>(values.size());
  switch (dtype) {
    case DType::f16:
      cpu::narrow(values.data(), reinterpret_cast<cpu::Half*>(bytes.data()), count);
      break;
    case DType::bf16:
      cpu::narrow(values.data(), reinterpret_cast<cpu::BFloat16*>(bytes.data()), count);
      break;
    default:
      std::memcpy(bytes.data(), values.data(), bytes.size());
  }
  return bytes;
}

}  // namespace

const char* collective_name(Collective collective) {
  static constexpr const char* kNames[] = {"scatter", "gather", "broadcast", "reduce", "all_reduce", "reduce_scatter", "all_gather", "gpu0_star"};
  return kNames[static_cast<int>(collective)];
}

const std::vector<std::string>& collective_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Collective collective : kCollectives) all.emplace_back(collective_name(collective));
    return all;
  }();
  return names;
}

bool sums(Collective c) {
  return c == Collective::reduce || c == Collective::all_reduce || c == Collective::reduce_scatter || c == Collective::gpu0_star;
}

bool has_root(Collective c) {
  return c == Collective::scatter || c == Collective::gather || c == Collective::broadcast || c == Collective::reduce || c == Collective::gpu0_star;
}

double bus_factor(Collective c, int ranks) {
  const double n = ranks;
  if (is_scattered(c)) return (n - 1) / n;
  if (c == Collective::all_reduce) return 2 * (n - 1) / n;
  return c == Collective::gpu0_star ? 2.0 : 1.0;  // the star is a reduction and a broadcast
}

CollectiveBench::CollectiveBench(const DeviceGroupOptions& devices, DType dtype, int64_t most_bytes)
    : devices_(std::make_unique<DeviceGroup>(devices)), communicators_(make_communicators(*devices_)), dtype_(dtype) {
  const Shape shape{std::max<int64_t>(1, most_bytes / size_of(dtype))};
  for (int d = 0; d < devices_->size(); ++d) {
    ExecContext& ctx = (*devices_)[d].compute();
    inputs_.push_back(ctx.allocate(shape, dtype, Category::communication, "input"));
    outputs_.push_back(ctx.allocate(shape, dtype, Category::communication, "output"));
  }
}

int64_t CollectiveBench::count(Collective collective, int64_t bytes) const {
  const int64_t elements = bytes / size_of(dtype_);
  return is_scattered(collective) ? elements / ranks() : elements;
}

float CollectiveBench::value(int rank, int64_t element) const {
  const int64_t most = std::max<int64_t>(1, kLargestExactSum / ranks());
  return static_cast<float>((element % kPeriod + int64_t{3} * rank) % (most + 1));
}

CollectiveBench::Buffers CollectiveBench::buffers(const Run& run, int device) const {
  const int rank = rank_of(device);
  const int64_t part = count(run.collective, run.bytes);
  const int64_t whole = is_scattered(run.collective) ? part * ranks() : part;
  const View a = inputs_[static_cast<size_t>(device)].view(), b = outputs_[static_cast<size_t>(device)].view();
  const auto own_rows = [&](const View& v) { return v.rows(rank * part, (rank + 1) * part); };
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
  const std::vector<int64_t> counts(static_cast<size_t>(ranks()), count(run.collective, run.bytes));
  switch (run.collective) {
    case Collective::scatter:
      return communicator.scatter(ctx, buffer.input, counts, buffer.output, run.root);
    case Collective::gather:
      return communicator.gather(ctx, buffer.input, counts, buffer.output, run.root);
    case Collective::broadcast:
      return communicator.broadcast(ctx, buffer.input, buffer.output, run.root);
    case Collective::reduce:
      return communicator.reduce(ctx, buffer.input, buffer.output, run.root);
    case Collective::all_reduce:
      return communicator.all_reduce(ctx, buffer.input, buffer.output);
    case Collective::reduce_scatter:
      return communicator.reduce_scatter(ctx, buffer.input, buffer.output);
    case Collective::all_gather:
      return communicator.all_gather(ctx, buffer.input, buffer.output);
    case Collective::gpu0_star:
      communicator.reduce(ctx, buffer.input, buffer.output, run.root);
      return communicator.broadcast(ctx, buffer.output, run.root);
  }
}

/// GPUs' ranks meet on the host while they issue: each from a thread of its own.
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
  std::optional<World::Waiting> waiting;  // for whom never comes
  if (devices_->process_count() > 1) waiting.emplace(*devices_->world(), "a collective");
  devices_->synchronize();
}

void CollectiveBench::meet(const char* what, int64_t* sum) {
  if (devices_->process_count() == 1) return;
  const std::vector<double> total = devices_->world()->sum(what, {static_cast<double>(sum != nullptr ? *sum : 0)});
  if (sum != nullptr) *sum = static_cast<int64_t>(total[0]);
}

bool CollectiveBench::any(bool here) {
  int64_t count = here ? 1 : 0;
  meet("whether to end", &count);
  return count > 0;
}

void CollectiveBench::fill(const Run& run) {
  for (int d = 0; d < devices_->size(); ++d) {
    const Buffers buffer = buffers(run, d);
    ExecContext& ctx = (*devices_)[d].compute();
    zero(ctx, inputs_[static_cast<size_t>(d)]);
    zero(ctx, outputs_[static_cast<size_t>(d)]);
    std::vector<float> values(static_cast<size_t>(buffer.input.numel()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = value(rank_of(d), static_cast<int64_t>(i));
    const std::vector<std::byte> bytes = to_storage(values, dtype_);
    const View input{const_cast<void*>(buffer.input.data), buffer.input.shape, dtype_, buffer.input.device};
    copy(ctx, ConstView(bytes.data(), input.shape, dtype_, DeviceId::host()), input);
    ctx.stream().synchronize();
  }
}

int64_t CollectiveBench::count_wrong(const Run& run) {
  const int64_t part = count(run.collective, run.bytes);
  int64_t wrong = 0;
  for (int d = 0; d < devices_->size(); ++d) {
    const int r = rank_of(d);
    const bool root_only = run.collective == Collective::gather || run.collective == Collective::reduce;
    if (root_only && r != run.root) continue;
    const View output = buffers(run, d).output;
    std::vector<float> expected(static_cast<size_t>(output.numel()));
    for (size_t e = 0; e < expected.size(); ++e) {
      const auto i = static_cast<int64_t>(e);
      switch (run.collective) {
        case Collective::scatter:
          expected[e] = value(run.root, r * part + i);
          break;
        case Collective::broadcast:
          expected[e] = value(run.root, i);
          break;
        case Collective::gather:
        case Collective::all_gather:
          expected[e] = value(static_cast<int>(i / part), i % part);
          break;
        default:
          for (int from = 0; from < ranks(); ++from) expected[e] += value(from, run.collective == Collective::reduce_scatter ? r * part + i : i);
      }
    }
    const std::vector<std::byte> wanted = to_storage(expected, dtype_);
    std::vector<std::byte> found(wanted.size());
    ExecContext& ctx = (*devices_)[d].compute();
    copy(ctx, output, View{found.data(), output.shape, dtype_, DeviceId::host()});
    ctx.stream().synchronize();
    const auto size = static_cast<size_t>(size_of(dtype_));
    for (size_t at = 0; at < wanted.size(); at += size) wrong += std::memcmp(&wanted[at], &found[at], size) != 0 ? 1 : 0;
  }
  return wrong;
}

CollectiveTiming CollectiveBench::time(const Run& run) {
  CollectiveTiming timing;
  if (run.check) {
    fill(run);
    for_each_device([&](int d) { issue(run, d); });
    synchronize();
    int64_t wrong = count_wrong(run);
    meet("the wrong elements", &wrong);
    timing.wrong = wrong;
  }
  const auto repeat = [&](int times) {
    for_each_device([&](int d) {
      for (int i = 0; i < times; ++i) issue(run, d);
    });
    synchronize();
  };
  repeat(run.warm_up);
  meet("the start of the timing");
  const int64_t begin = steady_now_ns();
  repeat(run.iterations);
  timing.seconds = static_cast<double>(steady_now_ns() - begin) * 1e-9 / run.iterations;
  return timing;
}

}  // namespace vitrine::tools
