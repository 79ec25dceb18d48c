// SPDX-License-Identifier: Apache-2.0
#include "tests/support/collective_cases.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <stdexcept>

#include <fmt/format.h>

#include "runtime/comm/communicator.h"
#include "runtime/copy.h"
#include "runtime/error.h"
#include "runtime/half.h"
#include "tests/support/leaf_oracle.h"
#include "tests/support/on_threads.h"

namespace vitrine::test {
namespace {

constexpr int64_t kWidth = 3;  // elements of a row
constexpr float kUntouched = -1;
using Value = std::function<float(int64_t)>;

/// Element i of a rank's input: an integer whose sum over nine ranks is exact in bf16.
float input_value(int rank, int64_t i) { return static_cast<float>((i % 1021 * 7 + rank * 5) % 28); }

template <class T>
void store(const std::vector<float>& values, std::byte* bytes) {
  std::transform(values.begin(), values.end(), reinterpret_cast<T*>(bytes),
                 [](float value) { return static_cast<T>(static_cast<int32_t>(value)); });
}

std::vector<std::byte> to_storage(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(values.size() * static_cast<size_t>(size_of(dtype)));
  const auto count = static_cast<int64_t>(values.size());
  if (dtype == DType::f32) std::copy_n(reinterpret_cast<const std::byte*>(values.data()), bytes.size(), bytes.data());
  if (dtype == DType::f16) cpu::narrow(values.data(), reinterpret_cast<cpu::Half*>(bytes.data()), count);
  if (dtype == DType::i32) store<int32_t>(values, bytes.data());
  if (dtype == DType::u8) store<uint8_t>(values, bytes.data());
  if (dtype == DType::bf16) cpu::narrow(values.data(), reinterpret_cast<cpu::BFloat16*>(bytes.data()), count);
  return bytes;
}

std::vector<std::byte> to_storage(int64_t count, const Value& value, DType dtype) {
  std::vector<float> values(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = value(i);
  return to_storage(values, dtype);
}

class Collectives {
 public:
  Collectives(DeviceGroup& devices, bool threads)
      : devices_(devices),
        communicators_(make_communicators(devices)),
        size_(devices.world_size()),
        threads_(threads || devices[0].id().backend == Backend::cuda) {}

  int size() const { return size_; }
  /// Whether sums are rounded at every hop, as those of NCCL.
  bool rounds_at_hops() { return comm(0).description().starts_with("NCCL"); }
  void sums(DType dtype, int64_t count, int root, bool in_place);
  void scattered_sums(DType dtype, int64_t rows, bool in_place);
  void copies(DType dtype, int64_t rows, int root, bool in_place);
  void parts(DType dtype, const std::vector<int64_t>& counts, int root, bool in_place);
  void operators(DType dtype, int64_t rows);
  void exchanges(DType dtype, int64_t rows);
  void rounded_once(DType dtype);
  void tree_sums(const Leaves& leaves, int64_t count, bool consecutive, uint64_t seed);
  void scattered_tree_sums(const Leaves& leaves, int64_t part, uint64_t seed);
  void barrier();
  void order();

 private:
  ExecContext& ctx(int device) { return devices_[device].compute(); }
  Communicator& comm(int device) { return *communicators_[static_cast<size_t>(device)]; }
  int rank(int device) const { return devices_.first_rank() + device; }
  template <class Work>
  void for_each_device(const Work& work) {
    for (int device = 0; device < devices_.size(); ++device) work(device);
  }
  /// Issues collectives of every device.
  void issue(const std::function<void(int)>& calls) {
    if (threads_) return on_threads(devices_.size(), calls);
    for_each_device(calls);
  }

  Tensor stored(int device, const Shape& shape, DType dtype, const std::vector<std::byte>& bytes) {
    Tensor tensor = ctx(device).allocate(shape, dtype, Category::communication, "test");
    if (!bytes.empty()) copy(ctx(device), ConstView(bytes.data(), shape, dtype, DeviceId::host()), tensor);
    ctx(device).stream().synchronize();
    return tensor;
  }
  /// What each device contributes.
  std::vector<std::vector<Tensor>> stored(const Leaves& leaves, const std::vector<Contribution>& contributions,
                                          int64_t elements) {
    std::vector<std::vector<Tensor>> inputs(static_cast<size_t>(devices_.size()));
    for (const auto& [node, r] : contributions) {
      const int device = r - devices_.first_rank();
      if (device < 0 || device >= devices_.size()) continue;
      const std::vector<std::byte> bytes = leaves.stored_sums(node, elements);
      inputs[static_cast<size_t>(device)].push_back(stored(device, {elements}, leaves.dtype, bytes));
    }
    return inputs;
  }
  Tensor filled(int device, const Shape& shape, DType dtype, const Value& value) {
    return stored(device, shape, dtype, to_storage(shape.numel(), value, dtype));
  }
  std::vector<std::byte> bytes_of(int device, const View& view) {
    std::vector<std::byte> bytes(static_cast<size_t>(view.bytes()));
    if (!bytes.empty()) copy(ctx(device), view, View{bytes.data(), view.shape, view.dtype, DeviceId::host()});
    ctx(device).stream().synchronize();
    return bytes;
  }
  Tensor untouched(int device, const Shape& shape, DType dtype) {
    return filled(device, shape, dtype, [](int64_t) { return kUntouched; });
  }
  Tensor input(int device, const Shape& shape, DType dtype) {
    return filled(device, shape, dtype, [this, device](int64_t i) { return input_value(rank(device), i); });
  }
  float sum(int64_t i) const {
    float all = 0;
    for (int r = 0; r < size_; ++r) all += input_value(r, i);
    return all;
  }
  /// tolerance: of f32, relative.
  void expect(const std::string& what, int device, const View& found, const Value& value, float tolerance = 0) {
    const std::vector<std::byte> wanted = to_storage(found.numel(), value, found.dtype);
    const std::vector<std::byte> bytes = bytes_of(device, found);
    const auto size = static_cast<size_t>(size_of(found.dtype));
    size_t wrong = 0;
    const auto is_right = [&](size_t i) {
      if (std::equal(&bytes[i], &bytes[i] + size, &wanted[i])) return true;
      const auto as_float = [i](const std::vector<std::byte>& from) {
        return *reinterpret_cast<const float*>(&from[i]);
      };
      return tolerance > 0 && std::abs(as_float(bytes) - as_float(wanted)) <= tolerance * std::abs(as_float(wanted));
    };
    while (wrong < bytes.size() && is_right(wrong)) wrong += size;
    if (wrong == bytes.size()) return;
    throw std::runtime_error(fmt::format("{} of {} elements of {}: rank {} has a wrong element {}", what, found.numel(),
                                         dtype_name(found.dtype), rank(device), wrong / size));
  }

  DeviceGroup& devices_;
  std::vector<std::unique_ptr<Communicator>> communicators_;
  int size_;
  bool threads_;
};

void Collectives::sums(DType dtype, int64_t count, int root, bool in_place) {
  std::vector<Tensor> all, all_sums, one, one_sum;
  for_each_device([&](int d) {
    all.push_back(input(d, {count}, dtype));
    one.push_back(input(d, {count}, dtype));
    all_sums.push_back(in_place ? all.back() : untouched(d, {count}, dtype));
    one_sum.push_back(in_place && rank(d) == root ? one.back() : untouched(d, {count}, dtype));
  });
  issue([&](int d) {
    const auto i = static_cast<size_t>(d);
    comm(d).all_reduce(ctx(d), all[i], all_sums[i]);
    comm(d).reduce(ctx(d), one[i], rank(d) == root || !in_place ? View(one_sum[i]) : View(), root);
  });
  devices_.synchronize();
  for_each_device([&](int d) {
    const auto i = static_cast<size_t>(d);
    const bool is_root = rank(d) == root;
    const auto summed = [this](int64_t e) { return sum(e); };
    const auto given = [r = rank(d)](int64_t e) { return input_value(r, e); };
    expect("all_reduce", d, all_sums[i], summed);
    if (!in_place) expect("all_reduce's input", d, all[i], given);
    if (!in_place || !is_root) expect("reduce's input", d, one[i], given);
    if (is_root) expect("reduce", d, one_sum[i], summed);
    if (!is_root)
      expect("reduce's output on another rank than the root", d, one_sum[i], [](int64_t) { return kUntouched; });
  });
}

void Collectives::scattered_sums(DType dtype, int64_t rows, bool in_place) {
  std::vector<Tensor> whole, part;
  for_each_device([&](int d) {
    whole.push_back(input(d, {rows * size_, kWidth}, dtype));
    part.push_back(in_place ? whole.back().rows(rank(d) * rows, (rank(d) + 1) * rows)
                            : untouched(d, {rows, kWidth}, dtype));
  });
  issue([&](int d) { comm(d).reduce_scatter(ctx(d), whole[static_cast<size_t>(d)], part[static_cast<size_t>(d)]); });
  devices_.synchronize();
  for_each_device([&](int d) {
    const int64_t first = rank(d) * rows * kWidth;
    expect("reduce_scatter", d, part[static_cast<size_t>(d)], [&](int64_t e) { return sum(first + e); });
    if (in_place) return;
    expect("reduce_scatter's input", d, whole[static_cast<size_t>(d)],
           [r = rank(d)](int64_t e) { return input_value(r, e); });
  });
}

void Collectives::copies(DType dtype, int64_t rows, int root, bool in_place) {
  std::vector<Tensor> sent, received, part, whole;
  for_each_device([&](int d) {
    sent.push_back(input(d, {rows, kWidth}, dtype));
    received.push_back(in_place ? sent.back() : untouched(d, {rows, kWidth}, dtype));
    whole.push_back(untouched(d, {rows * size_, kWidth}, dtype));
    part.push_back(in_place ? whole.back().rows(rank(d) * rows, (rank(d) + 1) * rows) : Tensor());
    const Tensor own = input(d, {rows, kWidth}, dtype);
    if (in_place) {
      copy(ctx(d), own, part.back());
    } else {
      part.back() = own;
    }
  });
  issue([&](int d) {
    const auto i = static_cast<size_t>(d);
    comm(d).broadcast(ctx(d), rank(d) == root ? ConstView(sent[i]) : ConstView(), received[i], root);
    comm(d).all_gather(ctx(d), part[i], whole[i]);
  });
  devices_.synchronize();
  for_each_device([&](int d) {
    const auto i = static_cast<size_t>(d);
    const int64_t count = rows * kWidth;
    expect("broadcast", d, received[i], [root](int64_t e) { return input_value(root, e); });
    expect("all_gather", d, whole[i],
           [count](int64_t e) { return input_value(static_cast<int>(e / count), e % count); });
  });
}

void Collectives::parts(DType dtype, const std::vector<int64_t>& counts, int root, bool in_place) {
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  const auto first_of = [&](int r) { return std::accumulate(counts.begin(), counts.begin() + r, int64_t{0}); };
  const auto own_rows = [&](const Tensor& whole, int r) {
    return whole.rows(first_of(r), first_of(r) + counts[static_cast<size_t>(r)]);
  };
  std::vector<Tensor> whole, scattered, gathered, part;
  for_each_device([&](int d) {
    const int r = rank(d);
    const Shape own{counts[static_cast<size_t>(r)], kWidth}, all{r == root ? total : 0, kWidth};
    const bool within = in_place && r == root;
    whole.push_back(input(d, all, dtype));
    scattered.push_back(within ? own_rows(whole.back(), r) : untouched(d, own, dtype));
    gathered.push_back(untouched(d, all, dtype));
    part.push_back(within ? own_rows(gathered.back(), r) : input(d, own, dtype));
    if (within) copy(ctx(d), input(d, own, dtype), part.back());
  });
  issue([&](int d) {
    const auto i = static_cast<size_t>(d);
    const bool is_root = rank(d) == root;
    // In a single process nothing needs no view.
    const bool nothing = part[i].numel() == 0 && d % 2 == 0 && devices_.process_count() == 1;
    comm(d).scatter(ctx(d), is_root ? ConstView(whole[i]) : ConstView(), counts, nothing ? View() : View(scattered[i]),
                    root);
    comm(d).gather(ctx(d), nothing ? ConstView() : ConstView(part[i]), counts, is_root ? View(gathered[i]) : View(),
                   root);
  });
  devices_.synchronize();
  for_each_device([&](int d) {
    const auto i = static_cast<size_t>(d);
    expect("scatter", d, scattered[i], [&](int64_t e) { return input_value(root, first_of(rank(d)) * kWidth + e); });
    if (rank(d) != root) return;
    std::vector<float> wanted;
    for (int r = 0; r < size_; ++r) {
      for (int64_t e = 0; e < counts[static_cast<size_t>(r)] * kWidth; ++e) wanted.push_back(input_value(r, e));
    }
    expect("gather", d, gathered[i], [&](int64_t e) { return wanted[static_cast<size_t>(e)]; });
  });
}

/// Of numbers of both signs. Averages of integers are rounded to zero; those of floats are of multiples of the number
/// of ranks, hence exact.
void Collectives::operators(DType dtype, int64_t rows) {
  for (const ReduceOp op : {ReduceOp::min, ReduceOp::max, ReduceOp::average}) {
    const bool averages = op == ReduceOp::average, integers = dtype == DType::i32;
    if (averages && !integers && dtype != DType::f32 && rounds_at_hops()) continue;
    const float tolerance = averages && dtype == DType::f32 && rounds_at_hops() ? 1e-6F : 0;
    const auto given = [&](int r, int64_t i) {
      return (input_value(r, i) - 14) * (averages && !integers ? static_cast<float>(size_) : 1.0F);
    };
    const auto combined = [&](int64_t i) {
      float result = given(0, i);
      for (int r = 1; r < size_; ++r) {
        result = op == ReduceOp::min   ? std::min(result, given(r, i))
                 : op == ReduceOp::max ? std::max(result, given(r, i))
                                       : result + given(r, i);
      }
      if (!averages) return result;
      return integers ? std::trunc(result / static_cast<float>(size_)) : result / static_cast<float>(size_);
    };
    const int root = size_ - 1;
    std::vector<Tensor> all, sums, one, part;
    for_each_device([&](int d) {
      all.push_back(filled(d, {rows * size_, kWidth}, dtype, [&](int64_t i) { return given(rank(d), i); }));
      sums.push_back(untouched(d, {rows * size_, kWidth}, dtype));
      one.push_back(untouched(d, {rows * size_, kWidth}, dtype));
      part.push_back(untouched(d, {rows, kWidth}, dtype));
    });
    issue([&](int d) {
      const auto i = static_cast<size_t>(d);
      comm(d).all_reduce(ctx(d), all[i], sums[i], op);
      comm(d).reduce(ctx(d), all[i], one[i], root, op);
      comm(d).reduce_scatter(ctx(d), all[i], part[i], op);
    });
    devices_.synchronize();
    for_each_device([&](int d) {
      const auto i = static_cast<size_t>(d);
      const std::string name = reduce_op_name(op);
      expect(name + " by all_reduce", d, sums[i], combined, tolerance);
      if (rank(d) == root) expect(name + " by reduce", d, one[i], combined, tolerance);
      const auto own = [&](int64_t e) { return combined(rank(d) * rows * kWidth + e); };
      expect(name + " by reduce_scatter", d, part[i], own, tolerance);
    });
  }
}

void Collectives::exchanges(DType dtype, int64_t rows) {
  const int64_t part = rows * kWidth;
  std::vector<Tensor> whole, transposed, sent, ring, chain;
  for_each_device([&](int d) {
    whole.push_back(input(d, {rows * size_, kWidth}, dtype));
    transposed.push_back(untouched(d, {rows * size_, kWidth}, dtype));
    sent.push_back(input(d, {rows, kWidth}, dtype));
    ring.push_back(untouched(d, {rows, kWidth}, dtype));
    chain.push_back(untouched(d, {rows, kWidth}, dtype));
  });
  const auto before = [this](int r) { return (r + size_ - 1) % size_; };
  issue([&](int d) {
    const auto i = static_cast<size_t>(d);
    const int r = rank(d);
    comm(d).all_to_all(ctx(d), whole[i], transposed[i]);
    comm(d).send_receive(ctx(d), sent[i], (r + 1) % size_, ring[i], before(r));
    const bool first = r == 0, last = r + 1 == size_;
    comm(d).send_receive(ctx(d), first && !last ? ConstView() : ConstView(sent[i]), first ? -1 : r - 1,
                         last && !first ? View() : View(chain[i]), last ? -1 : r + 1);
  });
  devices_.synchronize();
  for_each_device([&](int d) {
    const auto i = static_cast<size_t>(d);
    const int r = rank(d);
    expect("all_to_all", d, transposed[i],
           [&](int64_t e) { return input_value(static_cast<int>(e / part), r * part + e % part); });
    expect("send_receive in a ring", d, ring[i], [&](int64_t e) { return input_value(before(r), e); });
    expect("send_receive in a chain", d, chain[i],
           [&](int64_t e) { return r + 1 < size_ ? input_value(r + 1, e) : kUntouched; });
  });
}

/// Sums that 16 bits cannot represent have the bits of the exact sum rounded once, with any number of processes and
/// devices.
void Collectives::rounded_once(DType dtype) {
  constexpr int64_t kCount = 509;
  const int steps = dtype == DType::f16 ? 1024 : 256;  // of inputs in [0, 1), which the type represents exactly
  const auto value = [steps](int r, int64_t i) {
    return static_cast<float>((i * 37 + r * (i % 97 * 2 + 1) * 59) % steps) / static_cast<float>(steps);
  };
  const auto exact = [&](int64_t i) {
    float sum = 0;
    for (int r = 0; r < size_; ++r) sum += value(r, i);
    return sum;
  };
  std::vector<Tensor> inputs, sums, at_root, wholes, parts;
  for_each_device([&](int d) {
    inputs.push_back(filled(d, {kCount}, dtype, [&](int64_t i) { return value(rank(d), i); }));
    sums.push_back(untouched(d, {kCount}, dtype));
    at_root.push_back(untouched(d, {kCount}, dtype));
    wholes.push_back(filled(d, {kCount * size_}, dtype, [&](int64_t i) { return value(rank(d), i); }));
    parts.push_back(untouched(d, {kCount}, dtype));
  });
  issue([&](int d) {
    const auto i = static_cast<size_t>(d);
    comm(d).all_reduce(ctx(d), inputs[i], sums[i]);
    comm(d).reduce(ctx(d), inputs[i], at_root[i], size_ - 1);
    comm(d).reduce_scatter(ctx(d), wholes[i], parts[i]);
  });
  devices_.synchronize();
  for_each_device([&](int d) {
    const auto i = static_cast<size_t>(d);
    expect("all_reduce, rounded once,", d, sums[i], exact);
    if (rank(d) == size_ - 1) expect("reduce, rounded once,", d, at_root[i], exact);
    expect("reduce_scatter, rounded once,", d, parts[i], [&](int64_t e) { return exact(rank(d) * kCount + e); });
  });
}

void Collectives::tree_sums(const Leaves& leaves, int64_t count, bool consecutive, uint64_t seed) {
  const std::vector<Contribution> contributions = leaves.distributed(size_, consecutive, seed);
  const std::vector<std::vector<Tensor>> inputs = stored(leaves, contributions, count);
  std::vector<Tensor> sums;
  for_each_device([&](int d) {
    const auto& own = inputs[static_cast<size_t>(d)];
    sums.push_back(!own.empty() && seed % 2 == 0 ? own.front() : untouched(d, {count}, leaves.dtype));
  });
  issue([&](int d) {
    const auto& own = inputs[static_cast<size_t>(d)];
    const std::vector<ConstView> views(own.begin(), own.end());
    comm(d).tree_all_reduce(ctx(d), contributions, views, sums[static_cast<size_t>(d)]);
  });
  devices_.synchronize();
  for_each_device([&](int d) {
    if (const int64_t wrong = leaves.first_wrong(bytes_of(d, sums[static_cast<size_t>(d)])); wrong >= 0)
      throw std::runtime_error(
          fmt::format("tree_all_reduce of {} elements of {}, {} leaves, seed {}: rank {} has a "
                      "wrong element {}",
                      count, dtype_name(leaves.dtype), leaves.count(), seed, rank(d), wrong));
  });
}

void Collectives::scattered_tree_sums(const Leaves& leaves, int64_t part, uint64_t seed) {
  const std::vector<Contribution> contributions = leaves.distributed(size_, true, seed);
  const int64_t elements = part * size_;
  const std::vector<std::vector<Tensor>> inputs = stored(leaves, contributions, elements);
  std::vector<Tensor> sums;
  for_each_device([&](int d) {
    const auto& own = inputs[static_cast<size_t>(d)];
    sums.push_back(!own.empty() && seed % 2 == 0 ? own.front().rows(rank(d) * part, (rank(d) + 1) * part)
                                                 : untouched(d, {part}, leaves.dtype));
  });
  issue([&](int d) {
    const auto& own = inputs[static_cast<size_t>(d)];
    const std::vector<ConstView> views(own.begin(), own.end());
    comm(d).tree_reduce_scatter(ctx(d), contributions, views, sums[static_cast<size_t>(d)]);
  });
  devices_.synchronize();
  for_each_device([&](int d) {
    const std::vector<std::byte> found = bytes_of(d, sums[static_cast<size_t>(d)]);
    // The rest of the whole is right by definition.
    std::vector<std::byte> whole = leaves.stored_sums({0, leaves.count()}, elements);
    std::copy(found.begin(), found.end(), whole.begin() + static_cast<int64_t>(found.size()) * rank(d));
    if (const int64_t wrong = leaves.first_wrong(whole); wrong >= 0)
      throw std::runtime_error(fmt::format("tree_reduce_scatter of {} elements of {}, seed {}: element {} is wrong",
                                           elements, dtype_name(leaves.dtype), seed, wrong));
  });
}

void Collectives::barrier() {
  issue([&](int d) { comm(d).barrier(ctx(d)); });
  devices_.synchronize();
}

/// Another stream must wait for a collective before it uses the result.
void Collectives::order() {
  std::vector<Tensor> tensors;
  for_each_device([&](int d) { tensors.push_back(input(d, {64}, DType::f32)); });
  issue([&](int d) { comm(d).all_reduce(devices_[d].communication(), tensors[static_cast<size_t>(d)]); });
  const auto use = [&](int d) { zero(ctx(d), tensors[static_cast<size_t>(d)]); };
  for_each_device([&](int d) {
    try {
      use(d);
    } catch (const OrderError&) {
      return;
    }
    throw std::runtime_error(
        fmt::format("rank {}: an unordered use of what a collective writes was not noticed", rank(d)));
  });
  devices_.synchronize();
  for_each_device(use);
  devices_.synchronize();
}

/// Parts as unequal as possible: some ranks have none.
std::vector<int64_t> unequal_counts(int size, int64_t largest) {
  std::vector<int64_t> counts;
  for (int r = 0; r < size; ++r) counts.push_back(largest * ((r * 2 + 1) % 3) / 2);
  return counts;
}

}  // namespace

void run_collective_cases(DeviceGroup& devices, bool threads, bool segments) {
  Collectives collectives(devices, threads);
  const int size = collectives.size();
  for (const bool in_place : {false, true}) {
    for (const int64_t count : {0, 1, 1023}) {
      for (int root = 0; root < size; ++root) {
        for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::i32})
          collectives.sums(dtype, count, root, in_place);
        for (const DType dtype : {DType::f32, DType::u8}) collectives.copies(dtype, count, root, in_place);
        collectives.parts(DType::f32, unequal_counts(size, count), root, in_place);
        collectives.parts(DType::f16, std::vector<int64_t>(static_cast<size_t>(size), count), root, in_place);
      }
      for (const DType dtype : {DType::f32, DType::f16, DType::bf16})
        collectives.scattered_sums(dtype, count, in_place);
    }
    collectives.barrier();
  }
  for (const int count : {0, 1, 341}) {
    for (const DType dtype : {DType::f32, DType::f16, DType::bf16, DType::i32}) collectives.operators(dtype, count);
    for (const DType dtype : {DType::f32, DType::i32}) collectives.exchanges(dtype, count);
  }
  // Each process of several has 1 MiB for a segment.
  constexpr int64_t kLargeBytes = int64_t{5} << 20;
  for (const DType dtype : {DType::f32, DType::bf16}) {
    if (!segments) break;
    const int64_t elements = kLargeBytes / size_of(dtype) + 1;
    const bool in_place = dtype == DType::f32;
    collectives.sums(dtype, elements, size - 1, in_place);
    collectives.scattered_sums(dtype, elements / 2 / kWidth, in_place);
    collectives.copies(dtype, elements / 2 / kWidth, size / 2, in_place);
    collectives.parts(dtype, unequal_counts(size, elements / 2 / kWidth), size - 1, in_place);
  }
  if (segments) collectives.operators(DType::i32, 100'000);
  for (const DType dtype : {DType::f16, DType::bf16}) {
    if (!collectives.rounds_at_hops()) collectives.rounded_once(dtype);
  }
  uint64_t seed = 0;
  for (const DType dtype : {DType::f32, DType::f16, DType::bf16}) {
    for (const int64_t leaves : {1, 4, 6, 8, 11}) {
      for (const int64_t count : {0, 1, 1023}) {
        for (const bool consecutive : {true, false}) {
          ++seed;
          collectives.tree_sums(Leaves(dtype, leaves, seed), count, consecutive, seed);
        }
      }
    }
  }
  if (segments) {  // in messages and in shared memory: 3 MiB, and 300 KB
    for (const int64_t count : {75'001, 790'001}) collectives.tree_sums(Leaves(DType::f32, 4, seed), count, true, seed);
  }
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int64_t part : {1, 33, segments ? 150'001 : 37})
      collectives.scattered_tree_sums(Leaves(dtype, 7, 2), part, seed++);
  }
  collectives.order();
  collectives.barrier();
}

}  // namespace vitrine::test
