// SPDX-License-Identifier: Apache-2.0
#include "data/loader.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include <gtest/gtest.h>

#include "data/sampler.h"
#include "runtime/copy.h"
#include "runtime/device.h"
#include "runtime/error.h"
#include "runtime/philox.h"
#include "tests/data/counted_set.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine {
namespace {

using test::expect_contents;
using test::labels_of;
using test::make_set;
using test::samples_of;

TEST(Loader, FollowsTheSamplerWithAnyNumberOfWorkers) {
  const Dataset set = make_set(23);
  for (const bool shuffle : {false, true}) {
    for (const bool drop_last : {false, true}) {
      for (int workers = 1; workers <= 4; ++workers) {
        Loader loader(set, {.batch_size = 5,
                            .shuffle = shuffle,
                            .drop_last = drop_last,
                            .seed = 9,
                            .first_epoch = 2,
                            .epochs = 3,
                            .workers = workers});
        for (int64_t epoch = 2; epoch < 5; ++epoch) {
          const auto order = samples_of(EpochOrder({.shuffle = shuffle, .seed = 9}, 23, epoch));
          const int64_t batches = drop_last ? 4 : 5;
          for (int64_t index = 0; index < batches; ++index) {
            const auto batch = loader.next();
            ASSERT_TRUE(batch);
            EXPECT_EQ(batch->epoch, epoch);
            EXPECT_EQ(batch->index, index);
            EXPECT_EQ(batch->last_of_epoch, index + 1 == batches);
            const auto begin = order.begin() + index * 5;
            EXPECT_EQ(labels_of(*batch), (std::vector<int32_t>(begin, begin + (index == 4 ? 3 : 5))));
            expect_contents(set, *batch);
          }
        }
        EXPECT_FALSE(loader.next());
        EXPECT_FALSE(loader.next());
      }
    }
  }
}

TEST(Loader, StartsWithinAnEpoch) {
  const Dataset set = make_set(23);
  const LoaderConfig config{.batch_size = 5, .seed = 9, .first_epoch = 2, .epochs = 2, .workers = 2};
  for (const bool drop_last : {false, true}) {
    const int64_t batches = drop_last ? 4 : 5;
    for (int64_t first = 0; first <= batches; ++first) {
      LoaderConfig whole = config, rest = config;
      whole.drop_last = rest.drop_last = drop_last;
      rest.first_batch = first;
      Loader from_the_start(set, whole), from_within(set, rest);
      for (int64_t i = 0; i < first; ++i) from_the_start.next();
      for (int64_t i = first; i < 2 * batches; ++i) {
        const auto expected = from_the_start.next(), batch = from_within.next();
        ASSERT_TRUE(batch && expected);
        EXPECT_EQ(labels_of(*batch), labels_of(*expected)) << "batch " << i << ", first " << first;
        EXPECT_EQ(batch->epoch, expected->epoch);
        EXPECT_EQ(batch->index, expected->index);
        EXPECT_EQ(batch->last_of_epoch, expected->last_of_epoch);
      }
      EXPECT_FALSE(from_within.next());
    }
  }
  for (const int64_t first : {-1, 6}) {
    LoaderConfig bad = config;
    bad.first_batch = first;
    EXPECT_THROW(Loader(set, bad), ConfigError);
  }
}

TEST(Loader, ABatchReleasedBeforeTheDeviceHasReadItIsAnError) {
  const Dataset set = make_set(12);
  DeviceGroupOptions options{.devices = {{Backend::cpu, 0}}, .memory_bytes = {int64_t{1} << 20}, .check_order = true};
  DeviceGroup group(options);
  ExecContext& ctx = group[0].copy();
  const Tensor images = ctx.allocate({4, 2, 3, 2}, DType::u8, Category::staging, "images");
  for (const bool waits : {true, false}) {
    Loader loader(set, {.batch_size = 4, .shuffle = false, .queue_batches = 2, .checker = group.checker()});
    for (int i = 0; i < 2; ++i) {
      std::optional<HostBatch> batch = loader.next();
      ASSERT_TRUE(batch);
      copy(ctx, batch->images, images);
      if (waits || i == 0) group.synchronize();
    }
    if (waits) {
      EXPECT_TRUE(loader.next());
    } else {
      expect_contains(error_of<OrderError>([&] { loader.next(); }), "Loader: the next batch on host writes");
    }
    group.synchronize();
  }
}

TEST(Loader, TellsTheIndexOfEachSampleOnRequest) {
  const Dataset set = make_set(10);  // sample i has label i
  Loader loader(set, {.batch_size = 4, .epochs = 2, .workers = 2, .sample_indices = true});
  while (const auto batch = loader.next()) {
    ASSERT_EQ(batch->samples.shape, batch->labels.shape);
    const int32_t* samples = batch->samples.as<int32_t>();
    EXPECT_EQ(std::vector<int32_t>(samples, samples + batch->samples.numel()), labels_of(*batch));
  }
  Loader plain(set, {.batch_size = 4});
  EXPECT_FALSE(plain.next()->samples);
}

TEST(Loader, LeavesOutTheImagesOnRequest) {
  class NoImages : public Samples {
   public:
    int64_t size() const override { return 10; }
    int32_t label(int64_t i) const override { return static_cast<int32_t>(i); }
    void read_image(int64_t, std::span<uint8_t>) const override { throw DataError("an image was read"); }
    int64_t held_bytes() const override { return 0; }
  };
  Dataset set = make_set(10);
  Loader with(set, {.batch_size = 4, .seed = 3, .epochs = 2, .workers = 2, .sample_indices = true});
  Dataset labels = set;
  labels.samples = std::make_shared<NoImages>();
  Loader without(labels,
                 {.batch_size = 4, .seed = 3, .epochs = 2, .workers = 2, .sample_indices = true, .images = false});
  while (const auto batch = without.next()) {
    const auto same = with.next();
    EXPECT_FALSE(batch->images);
    EXPECT_EQ(labels_of(*batch), labels_of(*same));
    const int32_t* const samples = batch->samples.as<int32_t>();
    EXPECT_EQ(std::vector<int32_t>(samples, samples + batch->samples.numel()), labels_of(*same));
  }
  EXPECT_FALSE(with.next());
}

TEST(Loader, BatchesMayBeLargerThanTheSet) {
  const Dataset set = make_set(3);
  Loader loader(set, {.batch_size = 100, .shuffle = false, .epochs = 2});
  for (int epoch = 0; epoch < 2; ++epoch) {
    const auto batch = loader.next();
    ASSERT_TRUE(batch);
    EXPECT_EQ(labels_of(*batch), (std::vector<int32_t>{0, 1, 2}));
    EXPECT_TRUE(batch->last_of_epoch);
  }
  EXPECT_FALSE(loader.next());
}

TEST(Loader, RunsForZeroOrUnlimitedEpochs) {
  const Dataset set = make_set(7);
  EXPECT_FALSE(Loader(set, {.batch_size = 2, .epochs = 0}).next());
  Loader loader(set, {.batch_size = 2, .epochs = INT64_MAX});
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(loader.next());
}

TEST(Loader, TransformsImages) {
  const Dataset set = make_set(9);
  const ImageTransform halve = [](std::span<const uint8_t> image, std::span<float> output) {
    ASSERT_EQ(image.size(), 12U);
    ASSERT_EQ(output.size(), 4U);
    for (size_t i = 0; i < 4; ++i) output[i] = static_cast<float>(image[i]) / 2;
  };
  Loader loader(set, {.batch_size = 4, .workers = 2, .transform = halve, .transformed_shape = Shape{1, 2, 2}});
  while (const auto batch = loader.next()) {
    ASSERT_EQ(batch->images.shape, (Shape{batch->labels.numel(), 1, 2, 2}));
    ASSERT_EQ(batch->images.dtype, DType::f32);
    const auto labels = labels_of(*batch);
    for (size_t row = 0; row < labels.size(); ++row) {
      for (size_t i = 0; i < 4; ++i)
        EXPECT_EQ(batch->images.as<float>()[row * 4 + i], static_cast<float>(set.image(labels[row])[i]) / 2);
    }
  }
}

TEST(Loader, HeldBatchesKeepTheirContents) {
  const Dataset set = make_set(40);
  Loader loader(set, {.batch_size = 4, .seed = 3, .workers = 3, .queue_batches = 4});
  const auto a = loader.next(), b = loader.next(), c = loader.next();
  const auto labels = labels_of(*a);
  for (int i = 0; i < 7; ++i) ASSERT_TRUE(loader.next());
  EXPECT_EQ(labels_of(*a), labels);
  for (const auto* batch : {&a, &b, &c}) expect_contents(set, **batch);
}

TEST(Loader, BatchesOutliveTheLoader) {
  const Dataset set = make_set(40);
  std::vector<HostBatch> kept;
  std::vector<int32_t> labels;
  {
    Loader loader(set, {.batch_size = 4, .workers = 2, .queue_batches = 4});
    for (int i = 0; i < 3; ++i) kept.push_back(*loader.next());
    labels = labels_of(kept[1]);
  }
  EXPECT_EQ(labels_of(kept[1]), labels);
  for (const HostBatch& batch : kept) expect_contents(set, batch);
}

void take_with_all_held(const Dataset& set) {
  Loader loader(set, {.batch_size = 4, .queue_batches = 2});
  const auto a = loader.next(), b = loader.next();
  loader.next();
}

TEST(LoaderDeathTest, HoldingAllBatchesIsDetected) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const Dataset set = make_set(40);
  EXPECT_DEATH(take_with_all_held(set), "holds all batches");
}

TEST(Loader, CanBeDestroyedAtAnyPoint) {
  const Dataset set = make_set(50);
  PhiloxSequence random(11, 0);
  for (int round = 0; round < 60; ++round) {
    const int workers = 1 + static_cast<int>(random.next_below(4));
    Loader loader(set, {.batch_size = 3,
                        .epochs = 4,
                        .workers = workers,
                        .queue_batches = 1 + static_cast<int>(random.next_below(5))});
    for (uint64_t i = random.next_below(30); i > 0; --i) ASSERT_TRUE(loader.next());
    if (random.next_below(2) == 0) std::this_thread::sleep_for(std::chrono::microseconds(random.next_below(300)));
  }
}

/// Blocks transforms until open().
class Gate {
 public:
  void pass() {
    std::unique_lock lock(mutex_);
    ++arrived_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return open_; });
  }
  void await(int arrivals) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return arrived_ >= arrivals; });
  }
  void open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int arrived_ = 0;
  bool open_ = false;
};

TEST(Loader, PrefetchesNoFurtherThanItsBuffers) {
  const Dataset set = make_set(100);
  std::atomic<int> filled{0};
  const ImageTransform count = [&](std::span<const uint8_t>, std::span<float>) { ++filled; };
  Loader loader(
      set,
      {.batch_size = 2, .workers = 4, .queue_batches = 3, .transform = count, .transformed_shape = Shape{1, 1, 1}});
  for (int taken = 1; taken <= 20; ++taken) {
    const auto batch = loader.next();
    // `taken` have been returned and this one is held, so two buffers are left.
    EXPECT_LE(filled, (taken + 2) * 2);
  }
}

TEST(Loader, WorkersRunInParallel) {
  const Dataset set = make_set(30);
  Gate gate;
  const ImageTransform hold = [&](std::span<const uint8_t>, std::span<float>) { gate.pass(); };
  Loader loader(
      set, {.batch_size = 1, .workers = 3, .queue_batches = 3, .transform = hold, .transformed_shape = Shape{1, 1, 1}});
  gate.await(3);
  gate.open();
  int count = 0;
  while (loader.next()) ++count;
  EXPECT_EQ(count, 30);
}

TEST(Loader, RethrowsAnErrorAtItsBatch) {
  const Dataset set = make_set(20);
  const ImageTransform fail_at_9 = [&](std::span<const uint8_t> image, std::span<float>) {
    if (std::ranges::equal(image, set.image(9))) throw DataError("image 9 is bad");
  };
  for (int workers = 1; workers <= 4; ++workers) {
    Loader loader(set, {.batch_size = 2,
                        .shuffle = false,
                        .workers = workers,
                        .queue_batches = 5,
                        .transform = fail_at_9,
                        .transformed_shape = Shape{1, 1, 1}});
    ASSERT_TRUE(loader.next());
    EXPECT_FALSE(loader.error_within(3)) << "batches 1 to 3 are good";
    EXPECT_TRUE(loader.error_within(4));
    EXPECT_TRUE(loader.error_within(5));
    for (int i = 0; i < 3; ++i) ASSERT_TRUE(loader.next());
    EXPECT_THROW(loader.next(), DataError);
    EXPECT_THROW(loader.next(), DataError);
  }
  Loader whole(set, {.batch_size = 10});
  EXPECT_FALSE(whole.error_within(3)) << "there are only two batches";
}

/// A set in which some samples cannot be read.
class BadSamples final : public Samples {
 public:
  explicit BadSamples(const Dataset& set) : all_(set.samples) {}
  int64_t size() const override { return all_->size(); }
  int32_t label(int64_t i) const override { return all_->label(i); }
  void read_image(int64_t i, std::span<uint8_t> out) const override {
    if (i % 7 == 3) throw DamagedSample("sample " + std::to_string(i) + " is damaged");
    if (i == 19) throw DataError("the disk is gone");
    all_->read_image(i, out);
  }
  int64_t held_bytes() const override { return 0; }

 private:
  const std::shared_ptr<const Samples> all_;
};

TEST(Loader, SkippedSamplesHaveNoTargetAndTheMeanColor) {
  Dataset set = make_set(20);
  set.mean = {0.5F, 1.0F};
  set.samples = std::make_shared<BadSamples>(set);
  const auto unread = std::make_shared<UnreadSamples>();
  const Dataset skipping = skip_unread(set, unread, SkippedErrors::damaged);
  EXPECT_EQ(skipping.label(3), 3) << "it was not read yet";
  Loader loader(skipping, {.batch_size = 6, .shuffle = false, .workers = 3});
  for (int b = 0; b < 3; ++b) {
    const auto batch = loader.next();
    ASSERT_TRUE(batch);
    for (int64_t row = 0; row < 6; ++row) {
      const int64_t sample = 6 * b + row;
      const bool damaged = sample % 7 == 3;
      EXPECT_EQ(batch->labels.as<int32_t>()[row], damaged ? kIgnoredLabel : sample);
      const uint8_t* const pixels = batch->images.as<uint8_t>() + 12 * row;
      EXPECT_EQ(pixels[0], damaged ? 128 : 5 * sample);
      EXPECT_EQ(pixels[11], damaged ? 255 : 5 * sample + 11);
    }
  }
  expect_contains(error_of<DataError>([&] { loader.next(); }), "the disk is gone");
  std::vector<std::string> messages;
  for (const std::exception_ptr& error : unread->errors()) messages.push_back(reason_of(error).str());
  EXPECT_EQ(messages,
            (std::vector<std::string>{"sample 3 is damaged", "sample 10 is damaged", "sample 17 is damaged"}));
  EXPECT_EQ(skipping.label(3), kIgnoredLabel);
  std::vector<uint8_t> image(12);
  skip_unread(set, unread, SkippedErrors::any).read_image(19, image);
  EXPECT_EQ(unread->errors().size(), 4U);
}

TEST(Loader, NamesInvalidOptions) {
  const Dataset set = make_set(20);
  const ImageTransform transform = [](std::span<const uint8_t>, std::span<float>) {};
  const auto message = [](const Dataset& data, const LoaderConfig& config) -> std::string {
    return error_of<ConfigError>([&] { const Loader loader(data, config); });
  };
  const auto expect = [](const std::string& text, const std::string& part) { expect_contains(text, part); };
  expect(message(Dataset{}, {}), "is empty");
  expect(message(set, {.batch_size = 0}), "batch_size is 0");
  expect(message(set, {.batch_size = 21, .drop_last = true}), "drop_last leaves no batch");
  expect(message(set, {.first_epoch = -1}), "first_epoch is -1");
  expect(message(set, {.epochs = -1}), "epochs is -1");
  expect(message(set, {.workers = 0}), "workers is 0");
  expect(message(set, {.queue_batches = 0}), "queue_batches is 0");
  expect(message(set, {.images = false}), "images is false, which needs sample_indices");
  expect(
      message(set,
              {.sample_indices = true, .images = false, .transform = transform, .transformed_shape = Shape{1, 1, 1}}),
      "there is a transform");
  expect(message(set, {.transform = transform}), "needs (H, W, C)");
  expect(message(set, {.transformed_shape = Shape{1, 1, 1}}), "there is no transform");
}

}  // namespace
}  // namespace vitrine
