// SPDX-License-Identifier: Apache-2.0
#include "data/loader.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "data/sampler.h"
#include "runtime/error.h"
#include "runtime/order_checker.h"

namespace vitrine {

int64_t count_rows(const std::vector<RowRange>& ranges, int64_t global_rows) {
  int64_t rows = 0, end = 0;
  for (const RowRange& range : ranges) {
    if (range.begin < end || range.end < range.begin || range.end > global_rows) {
      throw ConfigError(
          fmt::format("shard: rows [{}, {}) of a batch of {} rows: expected a range within the batch from row {}; give "
                      "ascending ranges that "
                      "do not overlap",
                      range.begin, range.end, global_rows, end));
    }
    rows += range.end - range.begin;
    end = range.end;
  }
  return rows;
}

namespace {

/// The part of each batch of one size that is delivered.
struct Share {
  Share(const LoaderConfig& config, int64_t batch_rows)
      : global_rows(batch_rows),
        ranges(config.shard ? config.shard(batch_rows) : std::vector<RowRange>{{0, batch_rows}}),
        rows(count_rows(ranges, batch_rows)) {}
  const int64_t global_rows;
  const std::vector<RowRange> ranges;
  const int64_t rows;
};

struct Slot {
  HostBuffer images, labels, samples;
};

/// The buffers and their owners. Lives as long as the loader or any batch.
struct Buffers {
  std::mutex mutex;  // also guards the loader's state, so that one wait covers every cause
  std::condition_variable changed;
  std::vector<Slot> slots;
  std::vector<size_t> free;
  size_t held = 0;            // by the caller
  std::exception_ptr misuse;  // the first batch that was released too early
};

/// Content of HostBatch::hold: returns the slot when the last copy of the batch is destroyed. Then the host may write
/// to it.
class Lease {
 public:
  Lease(std::shared_ptr<Buffers> buffers, size_t slot, OrderChecker* checker)
      : buffers_(std::move(buffers)), slot_(slot), checker_(checker) {}
  ~Lease() {
    std::exception_ptr misuse = find_misuse();
    {
      const std::lock_guard lock(buffers_->mutex);
      if (!buffers_->misuse) buffers_->misuse = std::move(misuse);
      buffers_->free.push_back(slot_);
      --buffers_->held;
    }
    buffers_->changed.notify_all();
  }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;

 private:
  /// The batch is released here, on the thread that dropped it, so the verdict does not depend on when a worker refills
  /// the slot.
  std::exception_ptr find_misuse() const noexcept {
    if (checker_ == nullptr) return nullptr;
    try {
      constexpr const char* kRefill = "Loader: the next batch";
      const Slot& slot = buffers_->slots[slot_];
      const auto whole = [&](const HostBuffer& b) {
        return MemoryAccess{b.view(Shape{b.bytes()}, DType::u8).data, b.bytes(), true, kRefill, true};
      };
      std::vector<MemoryAccess> accesses;
      for (const HostBuffer* const buffer : {&slot.images, &slot.labels, &slot.samples}) {
        if (buffer->bytes() > 0) accesses.push_back(whole(*buffer));
      }
      checker_->on_host_access(kRefill, accesses);
    } catch (...) {
      return std::current_exception();
    }
    return nullptr;
  }

  std::shared_ptr<Buffers> buffers_;
  size_t slot_;
  OrderChecker* checker_;
};

void check(const Dataset& dataset, const LoaderConfig& config) {
  const auto need = [](bool good, const std::string& message) {
    if (!good) throw ConfigError("Loader: " + message);
  };
  need(dataset.size() > 0, fmt::format("data set \"{}\" is empty", dataset.name));
  need(config.batch_size >= 1, fmt::format("batch_size is {}, expected at least 1", config.batch_size));
  need(config.first_epoch >= 0, fmt::format("first_epoch is {}, expected at least 0", config.first_epoch));
  need(config.epochs >= 0, fmt::format("epochs is {}, expected at least 0", config.epochs));
  need(config.workers >= 1, fmt::format("workers is {}, expected at least 1", config.workers));
  need(config.queue_batches >= 1, fmt::format("queue_batches is {}, expected at least 1", config.queue_batches));
  need(
      !config.sample_indices || dataset.size() <= INT32_MAX,
      fmt::format("\"{}\" has {} samples, expected fewer than 2^31 with sample_indices", dataset.name, dataset.size()));
  need(config.images || config.sample_indices,
       "images is false, which needs sample_indices: a batch would not name its samples");
  need(config.images || !config.transform, "images is false, but there is a transform; leave one out");
  need(!config.drop_last || dataset.size() >= config.batch_size,
       fmt::format("batch_size is {} but \"{}\" has {} samples and drop_last leaves no batch; use smaller batches",
                   config.batch_size, dataset.name, dataset.size()));
  need(!config.transform || dataset.sequence_length == 0, "a transform is for images, but the set has sequences");
  if (config.transform) {
    need(config.transformed_shape.rank() == 3 && config.transformed_shape.numel() > 0,
         fmt::format("transformed_shape is {}, a transform needs (H, W, C)", config.transformed_shape.str()));
  } else {
    need(config.transformed_shape.rank() == 0, "transformed_shape is set, but there is no transform");
  }
}

}  // namespace

struct Loader::State {
  State(const Dataset& set, LoaderConfig given)
      : dataset(set), config(std::move(given)), sampler{config.shuffle, config.drop_last, config.seed} {
    check(dataset, config);
    per_epoch = batches_per_epoch(sampler, dataset.size(), config.batch_size);
    if (__builtin_mul_overflow(per_epoch, config.epochs, &total)) total = INT64_MAX;
    if (config.first_batch < 0 || config.first_batch > per_epoch) {
      throw ConfigError(fmt::format("Loader: first_batch is {}, expected 0 to {}, the batches of an epoch",
                                    config.first_batch, per_epoch));
    }
    next_to_fill = next_to_take = std::min(config.first_batch, total);
    const int64_t left_over = dataset.size() % config.batch_size;
    if (dataset.size() >= config.batch_size) full.emplace(config, config.batch_size);
    if (left_over > 0 && !config.drop_last) short_last.emplace(config, left_over);
    const int64_t rows = std::max(full ? full->rows : 0, short_last ? short_last->rows : 0);
    const int64_t image_bytes = !config.images     ? 0
                                : config.transform ? config.transformed_shape.numel() * size_of(DType::f32)
                                                   : dataset.bytes_per_image();
    for (int i = 0; i < config.queue_batches; ++i) {
      const int64_t index_bytes = rows * size_of(DType::i32);
      buffers->slots.push_back({HostBuffer(rows * image_bytes, config.host_memory),
                                HostBuffer(index_bytes * dataset.targets_per_sample(), config.host_memory),
                                HostBuffer(config.sample_indices ? index_bytes : 0, config.host_memory)});
      buffers->free.push_back(static_cast<size_t>(i));
    }
  }

  ~State() {
    {
      const std::lock_guard lock(buffers->mutex);
      stopping = true;
    }
    buffers->changed.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  State(const State&) = delete;
  State& operator=(const State&) = delete;

  /// A batch to fill: its number over all epochs, and its slot.
  struct Job {
    int64_t number = 0;
    size_t slot = 0;
    const Share* share = nullptr;
  };
  /// A filled slot, or the error.
  struct Result {
    Job job;
    std::exception_ptr error;
  };

  /// Position of a batch in its epoch.
  int64_t first_place(int64_t number) const { return number % per_epoch * config.batch_size; }

  void work() noexcept {
    std::unique_lock lock(buffers->mutex);
    while (true) {
      buffers->changed.wait(lock, [&] { return stopping || next_to_fill == total || !buffers->free.empty(); });
      if (stopping || next_to_fill == total) return;
      Result result{next_job(), nullptr};
      lock.unlock();
      try {
        fill(result.job);
      } catch (...) {
        result.error = std::current_exception();
      }
      lock.lock();
      stopping = stopping || result.error != nullptr;
      ready.emplace(result.job.number, std::move(result));
      buffers->changed.notify_all();
    }
  }

  // requires the lock. A number is taken together with a buffer, so the batch that the caller waits for always has one.
  Job next_job() {
    const int64_t number = next_to_fill++;
    const size_t slot = buffers->free.back();
    buffers->free.pop_back();
    const bool is_full = config.batch_size <= dataset.size() - first_place(number);
    return {number, slot, is_full ? &*full : &*short_last};
  }

  void fill(const Job& job) {
    const Slot& slot = buffers->slots[job.slot];
    int32_t* const labels =
        slot.labels.view(Shape{job.share->rows * dataset.targets_per_sample()}, DType::i32).as<int32_t>();
    int32_t* const samples =
        config.sample_indices ? slot.samples.view(Shape{job.share->rows}, DType::i32).as<int32_t>() : nullptr;
    const size_t bytes = static_cast<size_t>(dataset.bytes_per_image());
    const size_t floats = static_cast<size_t>(config.transformed_shape.numel());
    const View images = slot.images.view(Shape{slot.images.bytes()}, DType::u8);
    const EpochOrder order(sampler, dataset.size(), config.first_epoch + job.number / per_epoch);
    const int64_t begin = first_place(job.number);
    std::vector<uint8_t> image(config.transform ? bytes : 0);
    const auto length = static_cast<size_t>(dataset.sequence_length);
    std::vector<int32_t> tokens(length);
    size_t row = 0;
    for (const RowRange& range : job.share->ranges) {
      for (int64_t from = range.begin; from < range.end; ++from, ++row) {
        const int64_t sample = order[begin + from];
        if (samples != nullptr) samples[row] = static_cast<int32_t>(sample);
        if (length > 0) {
          dataset.samples->read_sequence(sample, tokens, std::span(labels + row * length, length));
          if (config.images) std::memcpy(images.as<uint8_t>() + row * bytes, tokens.data(), bytes);
          continue;
        }
        if (config.images && config.transform) {
          dataset.read_image(sample, image);
          config.transform(image, std::span<float>(static_cast<float*>(images.data) + row * floats, floats));
        } else if (config.images) {
          dataset.read_image(sample, std::span<uint8_t>(images.as<uint8_t>() + row * bytes, bytes));
        }
        labels[row] = dataset.label(sample);  // after the image: see skip_unread()
      }
    }
  }

  HostBatch make_batch(const Job& job) {
    const Slot& slot = buffers->slots[job.slot];
    const int64_t rows = job.share->rows;
    const bool transformed = static_cast<bool>(config.transform);
    const Shape& to = config.transformed_shape;
    const Shape shape =
        transformed ? Shape{rows, to[0], to[1], to[2]} : Shape{rows, dataset.height, dataset.width, dataset.channels};
    HostBatch batch;
    if (dataset.sequence_length > 0) {
      const Shape sequences{rows, dataset.sequence_length};
      if (config.images) batch.images = slot.images.view(sequences, DType::i32);
      batch.labels = slot.labels.view(sequences, DType::i32);
    } else {
      if (config.images) batch.images = slot.images.view(shape, transformed ? DType::f32 : DType::u8);
      batch.labels = slot.labels.view(Shape{rows}, DType::i32);
    }
    if (config.sample_indices) batch.samples = slot.samples.view(Shape{rows}, DType::i32);
    batch.global_samples = job.share->global_rows;
    batch.epoch = config.first_epoch + job.number / per_epoch;
    batch.index = job.number % per_epoch;
    batch.last_of_epoch = batch.index + 1 == per_epoch;
    batch.hold = std::make_shared<Lease>(buffers, job.slot, config.checker);
    return batch;
  }

  std::optional<HostBatch> take() {
    std::unique_lock lock(buffers->mutex);
    if (buffers->misuse) std::rethrow_exception(std::exchange(buffers->misuse, nullptr));
    if (next_to_take == total) return std::nullopt;
    VITRINE_ASSERT(buffers->held < buffers->slots.size(),
                   "the caller of Loader::next holds all batches; release one or raise queue_batches");
    // Numbers are taken in order, so all batches before a failed one are still delivered.
    buffers->changed.wait(lock, [&] { return ready.contains(next_to_take); });
    const auto found = ready.find(next_to_take);
    if (found->second.error) std::rethrow_exception(found->second.error);
    HostBatch batch = make_batch(found->second.job);
    ++buffers->held;
    ready.erase(found);
    ++next_to_take;
    return batch;
  }

  std::exception_ptr error_within(int64_t count) {
    std::unique_lock lock(buffers->mutex);
    const int64_t end = std::min(next_to_take + count, total);
    for (int64_t number = next_to_take; number < end; ++number) {
      VITRINE_ASSERT(static_cast<int64_t>(buffers->held) + number - next_to_take < config.queue_batches,
                     "the loader has buffers for the batches ahead; raise queue_batches");
      buffers->changed.wait(lock, [&] { return ready.contains(number); });
      if (ready.at(number).error) return ready.at(number).error;
    }
    return nullptr;
  }

  const Dataset& dataset;
  const LoaderConfig config;
  const SamplerConfig sampler;
  const std::shared_ptr<Buffers> buffers = std::make_shared<Buffers>();
  int64_t per_epoch = 0, total = 0;
  std::optional<Share> full, short_last;

  // Guarded by buffers->mutex.
  int64_t next_to_fill = 0, next_to_take = 0;
  std::map<int64_t, Result> ready;
  bool stopping = false;
  std::vector<std::thread> threads;
};

Loader::Loader(const Dataset& dataset, LoaderConfig config)
    : state_(std::make_unique<State>(dataset, std::move(config))) {
  for (int i = 0; i < state_->config.workers; ++i) state_->threads.emplace_back(&State::work, state_.get());
}

Loader::~Loader() = default;

std::optional<HostBatch> Loader::next() { return state_->take(); }

std::exception_ptr Loader::error_within(int64_t count) { return state_->error_within(count); }

}  // namespace vitrine
