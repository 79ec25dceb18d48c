// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <memory>
#include <mutex>
#include <numbers>
#include <vector>

#include <fmt/format.h>

#include "data/readers.h"
#include "runtime/memory/available.h"
#include "runtime/philox.h"

namespace vitrine {
namespace {

constexpr int64_t kSide = 32, kChannels = 3;
constexpr float kPi = std::numbers::pi_v<float>;
// Maximum number of images for mean and deviation; all images have the same distribution.
constexpr int64_t kMeasuredImages = 1024;

/// Distance from the point (u, v) to the outline of a shape of radius about 1; negative inside.
using Outline = float (*)(float u, float v);

float box(float u, float v) { return std::max(std::abs(u), std::abs(v)); }

float circle(float u, float v) { return std::sqrt(u * u + v * v) - 0.9F; }
float square(float u, float v) { return box(u, v) - 0.8F; }
float triangle(float u, float v) { return std::max(v, std::abs(u) * 0.866F - v * 0.5F) - 0.55F; }
float cross(float u, float v) {
  const float a = std::abs(u), b = std::abs(v);
  return std::min(std::max(a - 0.27F, b - 0.95F), std::max(b - 0.27F, a - 0.95F));
}
float ring(float u, float v) { return std::abs(std::sqrt(u * u + v * v) - 0.75F) - 0.2F; }
float frame(float u, float v) { return std::abs(box(u, v) - 0.7F) - 0.18F; }
float stripes(float u, float v) {
  constexpr float kPitch = 0.64F;
  return std::max(box(u, v) - 0.9F, std::abs(v - std::round(v / kPitch) * kPitch) - 0.17F);
}
float checkerboard(float u, float v) {
  constexpr float kCell = 0.6F;
  const float column = u / kCell + 0.5F, row = v / kCell + 0.5F;
  const float i = std::floor(column), j = std::floor(row);
  const float edge = kCell * std::min(std::min(column - i, i + 1 - column), std::min(row - j, j + 1 - row));
  const bool filled = static_cast<int>(i + j) % 2 == 0;
  return std::max(box(u, v) - 0.9F, filled ? -edge : edge);
}
float star(float u, float v) {
  // Folded into half a point of the star, which one straight line from tip to notch bounds.
  constexpr float kPoint = 2 * kPi / 5, kNotch = 0.4F;
  const float angle = std::atan2(u, -v);
  const float folded = std::abs(angle - kPoint * std::round(angle / kPoint));
  const float radius = std::sqrt(u * u + v * v);
  const float x = radius * std::cos(folded), y = radius * std::sin(folded);
  const float line_x = 1 - kNotch * 0.80902F, line_y = kNotch * 0.58779F;
  return ((x - 1) * line_y + y * line_x) / std::sqrt(line_x * line_x + line_y * line_y);
}
float crescent(float u, float v) {
  const float du = u - 0.5F;
  return std::max(circle(u, v), 0.75F - std::sqrt(du * du + v * v));
}

struct Kind {
  const char* name;
  Outline outline;
};
constexpr std::array<Kind, 10> kKinds{{{"circle", circle},
                                       {"square", square},
                                       {"triangle", triangle},
                                       {"cross", cross},
                                       {"ring", ring},
                                       {"frame", frame},
                                       {"stripes", stripes},
                                       {"checkerboard", checkerboard},
                                       {"star", star},
                                       {"crescent", crescent}}};

using Color = std::array<float, 3>;

float between(PhiloxSequence& random, float low, float high) { return low + (high - low) * random.next_uniform(); }

Color draw_color(PhiloxSequence& random) {
  return {between(random, 25, 230), between(random, 25, 230), between(random, 25, 230)};
}

float difference(const Color& a, const Color& b) {
  float sum = 0;
  for (size_t c = 0; c < a.size(); ++c) sum += std::abs(a[c] - b[c]);
  return sum;
}

void draw(Outline outline, PhiloxSequence& random, uint8_t* pixels) {
  const Color background = draw_color(random);
  Color color = draw_color(random);
  while (difference(background, color) < 240) color = draw_color(random);
  const float radius = between(random, 10.0F, 13.0F);
  const float room = 15.5F - radius;
  const float center_x = 15.5F + between(random, -room, room), center_y = 15.5F + between(random, -room, room);
  const float angle = between(random, -0.2F, 0.2F);
  const float cosine = std::cos(angle) / radius, sine = std::sin(angle) / radius;
  const float shade_x = between(random, -0.8F, 0.8F), shade_y = between(random, -0.8F, 0.8F);
  const float noise = between(random, 0.05F, 0.15F);

  for (int64_t y = 0; y < kSide; ++y) {
    for (int64_t x = 0; x < kSide; ++x) {
      const float dx = static_cast<float>(x) - center_x, dy = static_cast<float>(y) - center_y;
      const float distance = radius * outline(cosine * dx + sine * dy, cosine * dy - sine * dx);
      const float cover = std::clamp(0.5F - distance, 0.0F, 1.0F);
      const float shade = shade_x * (static_cast<float>(x) - 15.5F) + shade_y * (static_cast<float>(y) - 15.5F);
      // One word per pixel: a byte of noise for each channel, and one common byte.
      const uint32_t word = random.next_u32();
      for (size_t c = 0; c < 3; ++c) {
        const int grain = static_cast<int>(word >> (8 * c) & 255) + static_cast<int>(word >> 24) - 255;
        const float value =
            background[c] + cover * (color[c] - background[c]) + shade + noise * static_cast<float>(grain);
        *pixels++ = static_cast<uint8_t>(std::clamp(value, 0.0F, 255.0F) + 0.5F);
      }
    }
  }
}

/// Images that are drawn on first request and kept. Image i depends only on (seed, split, i).
class DrawnSamples final : public Samples {
 public:
  DrawnSamples(int64_t count, uint64_t seed, uint64_t split)
      : seed_(seed), split_(split), images_(static_cast<size_t>(count)) {}

  int64_t size() const override { return static_cast<int64_t>(images_.size()); }
  int32_t label(int64_t i) const override { return static_cast<int32_t>(static_cast<size_t>(i) % kKinds.size()); }
  int64_t held_bytes() const override {
    return static_cast<int64_t>(images_.size() * sizeof images_[0]) + drawn_.load(std::memory_order_relaxed) * kBytes;
  }

  void read_image(int64_t i, std::span<uint8_t> out) const override {
    const std::lock_guard lock(mutex_of(i));
    std::copy_n(image(i), kBytes, out.data());
  }

  void read_ahead(const std::function<bool()>& stop) const override {
    require_memory((size() - drawn_.load(std::memory_order_relaxed)) * kBytes,
                   fmt::format("synthetic: {} images", size()), kUseLessMemory);
    for (int64_t i = 0; i < size(); ++i) {
      if (i % 1024 == 0 && stop && stop()) return;
      const std::lock_guard lock(mutex_of(i));
      image(i);
    }
  }

 private:
  static constexpr int64_t kBytes = kSide * kSide * kChannels;

  std::mutex& mutex_of(int64_t i) const { return mutexes_[static_cast<size_t>(i) % mutexes_.size()]; }

  // requires its mutex
  const uint8_t* image(int64_t i) const {
    const auto index = static_cast<size_t>(i);
    std::unique_ptr<uint8_t[]>& image = images_[index];
    if (!image) {
      image = std::make_unique<uint8_t[]>(kBytes);
      PhiloxSequence random(seed_,
                            random_stream(RandomPurpose::synthetic_data, split_ << 36 | static_cast<uint64_t>(i)));
      draw(kKinds[index % kKinds.size()].outline, random, image.get());
      drawn_.fetch_add(1, std::memory_order_relaxed);
    }
    return image.get();
  }

  const uint64_t seed_, split_;
  mutable std::array<std::mutex, 64> mutexes_;
  mutable std::vector<std::unique_ptr<uint8_t[]>> images_;
  mutable std::atomic<int64_t> drawn_{0};
};

Dataset drawn_set(const char* name, int64_t count, uint64_t seed, uint64_t split) {
  Dataset set;
  set.name = name;
  set.height = set.width = kSide;
  set.channels = kChannels;
  set.classes = static_cast<int64_t>(kKinds.size());
  for (const Kind& kind : kKinds) set.class_names.emplace_back(kind.name);
  require_memory(count * static_cast<int64_t>(sizeof(void*)), fmt::format("{}: the places of {} images", name, count),
                 kUseLessMemory);
  set.samples = std::make_shared<DrawnSamples>(count, seed, split);
  return set;
}

}  // namespace

DatasetPair draw_synthetic(int64_t count, uint64_t seed, bool measured) {
  DatasetPair pair{drawn_set("synthetic train", count, seed, 0),
                   drawn_set("synthetic test", std::max<int64_t>(1, count / 5), seed, 1)};
  if (measured) measure_statistics(pair, kMeasuredImages);
  return pair;
}

}  // namespace vitrine
