// SPDX-License-Identifier: Apache-2.0
#include "kernels/image.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include <fmt/format.h>

#include "kernels/check.h"
#include "kernels/cpu/storage.h"
#include "kernels/run.h"
#include "runtime/cpu/parallel.h"
#include "runtime/error.h"
#include "runtime/philox.h"

namespace vitrine {
namespace {

/// Where one output coordinate samples: source[first] * first_weight + source[second] * second_weight.
struct Sample {
  int64_t first, second;
  float first_weight, second_weight;
};

/// PyTorch's align_corners=False sampling, in its order of f32 operations.
Sample sample_at(int64_t target, int64_t source_size, int64_t target_size) {
  if (source_size == target_size) return {target, target, 1.0F, 0.0F};
  const float scale = static_cast<float>(source_size) / static_cast<float>(target_size);
  const float position = std::max(0.0F, scale * (static_cast<float>(target) + 0.5F) - 0.5F);
  const int64_t first = std::min(static_cast<int64_t>(position), source_size - 1);
  const int64_t second = std::min(first + 1, source_size - 1);
  const float second_weight = std::min(1.0F, std::max(0.0F, position - static_cast<float>(first)));
  return {first, second, 1.0F - second_weight, second_weight};
}

// A vector holds the channels of one pixel (at most four); rows of scratch are padded so that the last pixel can be
// read as a vector.
constexpr int64_t kLanes = 4;
using Pixel = float __attribute__((vector_size(kLanes * sizeof(float))));

/// Tables for one pair of sizes, and scratch rows for each part of the work; kept between calls.
struct ResizePlan {
  int64_t source_height = 0, source_width = 0, height = 0, width = 0, channels = 0;
  std::vector<Sample> rows, columns;
  std::array<float, kLanes> mean{}, deviation{};
  std::vector<float> scratch;
  std::vector<AugmentationDraw> draws;  // of each image; empty: images are used as they are
  int64_t cutout = 0;
  ImageForm form;  // of the output

  /// Rows of an output image that are written, also those of zeros around the image.
  int64_t output_rows() const { return form ? form.rows * form.block : height; }
  /// Elements of an output image.
  int64_t output_image() const { return form ? form.rows * form.columns * form.depth : height * width * channels; }

  int64_t source_row() const { return source_width * channels; }
  int64_t target_row() const { return width * channels; }
  int64_t scratch_row() const { return source_row() + kLanes; }
  int64_t scratch_of_part() const { return 3 * scratch_row() + target_row() + kLanes; }

  void prepare(const Normalization& normalization, const Shape& source, const Shape& target, int64_t parts) {
    const bool same =
        source_height == source[0] && source_width == source[1] && height == target[0] && width == target[1];
    channels = target[2];
    mean = normalization.mean;
    deviation = normalization.std;
    for (auto c = static_cast<size_t>(channels); c < mean.size(); ++c) deviation[c] = 1.0F;  // unused lanes
    source_height = source[0];
    source_width = source[1];
    height = target[0];
    width = target[1];
    scratch.resize(static_cast<size_t>(parts * scratch_of_part()));
    if (same) return;
    rows.clear();
    columns.clear();
    for (int64_t y = 0; y < height; ++y) rows.push_back(sample_at(y, source_height, height));
    for (int64_t x = 0; x < width; ++x) columns.push_back(sample_at(x, source_width, width));
  }
};

void to_unit_range(const uint8_t* pixels, int64_t count, float* out) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<float>(pixels[i]) / 255.0F;
}

/// Reads row `y` of a cropped and flipped image.
void read_augmented_row(const ResizePlan& plan, const uint8_t* image, const AugmentationDraw& draw, int64_t y,
                        float* out) {
  const int64_t channels = plan.channels, width = plan.source_width;
  const int64_t from = y + draw.top;
  const int64_t begin = std::clamp<int64_t>(-draw.left, 0, width),
                end = std::clamp<int64_t>(width - draw.left, 0, width);
  const bool inside = from >= 0 && from < plan.source_height && begin < end;
  if (!inside || begin > 0 || end < width) std::fill_n(out, plan.source_row(), 0.0F);
  if (!inside) return;
  to_unit_range(image + from * plan.source_row() + (begin + draw.left) * channels, (end - begin) * channels,
                out + begin * channels);
  if (!draw.flip) return;
  for (int64_t left = 0, right = width - 1; left < right; ++left, --right) {
    std::swap_ranges(out + left * channels, out + (left + 1) * channels, out + right * channels);
  }
}

/// Sets the part of a square that lies in row `y` of an image to 0.
template <class T>
void cut_row(const ResizePlan& plan, const AugmentationDraw& draw, int64_t y, T* out) {
  if (y < draw.cut_top || y >= draw.cut_top + plan.cutout) return;
  const int64_t begin = std::max<int64_t>(0, draw.cut_left), end = std::min(plan.width, draw.cut_left + plan.cutout);
  std::fill(out + begin * plan.channels, out + end * plan.channels, T{});
}

/// Computes one output row from the blended source row.
///   padded  the unused lanes of the last pixel may be written as well
void finish_row(const ResizePlan& plan, const float* row, bool padded, float* out) {
  const int64_t channels = plan.channels;
  Pixel mean, deviation;
  std::memcpy(&mean, plan.mean.data(), sizeof mean);
  std::memcpy(&deviation, plan.deviation.data(), sizeof deviation);
  const auto pixel = [&](int64_t column, Pixel& blend) {
    const Sample& s = plan.columns[static_cast<size_t>(column)];
    Pixel a, b;
    std::memcpy(&a, row + s.first * channels, sizeof a);
    std::memcpy(&b, row + s.second * channels, sizeof b);
    blend = (a * s.first_weight + b * s.second_weight - mean) / deviation;
  };
  Pixel value;
  int64_t x = 0;
  // Stores whole vectors as long as later pixels overwrite the unused lanes.
  const int64_t whole = padded ? plan.width : plan.width - kLanes / channels - 1;
  for (; x < whole; ++x) {
    pixel(x, value);
    std::memcpy(out + x * channels, &value, sizeof value);
  }
  for (; x < plan.width; ++x) {
    pixel(x, value);
    for (int64_t c = 0; c < channels; ++c) out[x * channels + c] = value[c];
  }
}

/// Writes row `row` of an output image to its place in the positions of a form. `pixels` has zeros around the image;
/// null: the row is zero.
template <class T>
void place_row(const ImageForm& form, const T* pixels, int64_t row, T* image) {
  const int64_t run = form.block * form.channels, u = row % form.block;
  T* to = image + row / form.block * form.columns * form.depth + u * run;
  const int64_t rest = u == form.block - 1 ? form.depth - form.block * run
                                           : 0;  // the channels of zeros go with the last row of the block
  for (int64_t j = 0; j < form.columns; ++j, to += form.depth) {
    if (pixels != nullptr) {
      std::copy_n(pixels + j * run, run, to);
    } else {
      std::fill_n(to, run, T{});
    }
    std::fill_n(to + run, rest, T{});
  }
}

/// Computes the output rows [begin, end) of a batch, counted over all images. `scratch` holds three source rows and an
/// output row.
template <class T>
void resize_rows(const ResizePlan& plan, const uint8_t* images, int64_t begin, int64_t end, float* scratch, T* y) {
  const int64_t row_length = plan.source_row();
  float* const blended = scratch + 2 * plan.scratch_row();
  [[maybe_unused]] float* const finished = scratch + 3 * plan.scratch_row();
  std::array<int64_t, 2> held{-1, -1};  // the source row, counted over all images, in each half of scratch
  const auto source_row = [&](int64_t row) {
    const int64_t slot = row % 2;
    float* floats = scratch + slot * plan.scratch_row();
    int64_t& tag = held[static_cast<size_t>(slot)];
    if (tag == row) return floats;
    tag = row;
    if (plan.draws.empty()) {
      to_unit_range(images + row * row_length, row_length, floats);
    } else {
      const int64_t image = row / plan.source_height;
      read_augmented_row(plan, images + image * plan.source_height * row_length, plan.draws[static_cast<size_t>(image)],
                         row % plan.source_height, floats);
    }
    return floats;
  };
  const ImageForm& form = plan.form;
  // With a form, a row is computed between zeros first.
  std::vector<T> line(
      form ? static_cast<size_t>(std::max(form.columns * form.block, form.pad + plan.width) * plan.channels) : 0);
  for (int64_t i = begin; i < end; ++i) {
    const int64_t n = i / plan.output_rows(), output_row = i % plan.output_rows(), row = output_row - form.pad;
    T* const image = y + n * plan.output_image();
    if (row < 0 || row >= plan.height) {
      place_row<T>(form, nullptr, output_row, image);
      continue;
    }
    T* const out = form ? line.data() + form.pad * plan.channels : image + row * plan.target_row();
    const Sample& s = plan.rows[static_cast<size_t>(row)];
    const int64_t source_image = n * plan.source_height;
    const float* a = source_row(source_image + s.first);
    if (s.second_weight != 0.0F) {
      const float* b = source_row(source_image + s.second);
#pragma omp simd
      for (int64_t j = 0; j < row_length; ++j) blended[j] = a[j] * s.first_weight + b[j] * s.second_weight;
      a = blended;
    }
    if constexpr (std::is_same_v<T, float>) {
      finish_row(plan, a, false, out);
    } else {
      finish_row(plan, a, true, finished);
      cpu::narrow(finished, out, plan.target_row());
    }
    if (plan.cutout > 0) cut_row(plan, plan.draws[static_cast<size_t>(n)], row, out);
    if (form) place_row<T>(form, line.data(), output_row, image);
  }
}

}  // namespace

namespace cpu {
namespace {

/// Computes y by the plan, whose draws are set.
void run_plan(ResizePlan& plan, const Normalization& normalization, const ConstView& images, const View& y) {
  const Shape source{images.shape[1], images.shape[2], images.shape[3]};
  const Shape target = plan.form ? Shape{plan.form.height, plan.form.width, plan.form.channels}
                                 : Shape{y.shape[1], y.shape[2], y.shape[3]};
  constexpr int64_t kGrainElements = 8192;
  const int64_t rows = y.shape[0] * (plan.form ? plan.form.rows * plan.form.block : target[0]);
  const int64_t grain = std::max<int64_t>(1, kGrainElements / (target[1] * target[2]));
  const int64_t parts = std::min<int64_t>(team_size(), (rows + grain - 1) / grain);
  plan.prepare(normalization, source, target, parts);
  with_storage(y.dtype, [&]<class T>(T) {
    parallel_for(parts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        float* scratch = plan.scratch.data() + part * plan.scratch_of_part();
        resize_rows(plan, images.as<uint8_t>(), rows * part / parts, rows * (part + 1) / parts, scratch, y.as<T>());
      }
    });
  });
}

void resize_normalize(ExecContext& ctx, const Normalization& normalization, ConstView images, View y,
                      const ImageForm& form) {
  if (y.numel() == 0) return;
  auto& plan = ctx.plans().get<ResizePlan>();
  plan.draws.clear();
  plan.cutout = 0;
  plan.form = form;
  run_plan(plan, normalization, images, y);
}

void augment_normalize(ExecContext& ctx, const Augmentation& augmentation, const AugmentationKey& key,
                       const Normalization& normalization, ConstView images, ConstView samples, View y,
                       const ImageForm& form, ConstView) {
  if (y.numel() == 0) return;
  auto& plan = ctx.plans().get<ResizePlan>();
  plan.draws.clear();
  const int64_t height = form ? form.height : y.shape[1], width = form ? form.width : y.shape[2];
  for (int64_t n = 0; n < samples.shape[0]; ++n) {
    plan.draws.push_back(draw_augmentation(augmentation, key, samples.as<int32_t>()[n], height, width));
  }
  plan.cutout = augmentation.cutout;
  plan.form = form;
  run_plan(plan, normalization, images, y);
}

}  // namespace
}  // namespace cpu

namespace cuda {  // image.cu
void resize_normalize(ExecContext& ctx, const Normalization& normalization, ConstView images, View y,
                      const ImageForm& form);
void augment_normalize(ExecContext& ctx, const Augmentation& augmentation, const AugmentationKey& key,
                       const Normalization& normalization, ConstView images, ConstView samples, View y,
                       const ImageForm& form, ConstView values);
}  // namespace cuda

namespace {

void check_images(const char* name, const ExecContext& ctx, const ConstView& images, const View& y,
                  const ImageForm& form) {
  check::rank(name, "images", images, 4, "(N, h, w, C)");
  const Shape& in = images.shape;
  if (in[1] < 1 || in[2] < 1 || in[3] < 1 || in[3] > 4) {
    throw ShapeError(
        fmt::format("{}: images has shape {}, expected (N, h, w, C) with h, w >= 1 and 1 <= C <= 4", name, in.str()));
  }
  if (form) {
    if (form.channels != in[3]) {
      throw ShapeError(
          fmt::format("{}: the form has {} channels but images {} needs {}", name, form.channels, in.str(), in[3]));
    }
    check::shape(name, "y", y, form.packed_shape(in[0]));
  } else {
    check::rank(name, "y", y, 4, "(N, H, W, C)");
    const Shape& out = y.shape;
    if (out[0] != in[0] || out[3] != in[3]) {
      throw ShapeError(fmt::format("{}: y has shape {} but images {} needs y of shape ({}, H, W, {})", name, out.str(),
                                   in.str(), in[0], in[3]));
    }
  }
  check::tensor(name, "images", images, DType::u8, ctx);
  check::tensor(name, "y", y, ctx);
  check::no_overlap(name, {"y", y}, {{"images", images}});
}

void check_range(const char* name, const char* argument, int64_t value, int64_t most, const char* bound) {
  if (value >= 0 && value <= most) return;
  throw ConfigError(fmt::format("{}: {} is {}, expected a number from 0 to {}{}", name, argument, value, most, bound));
}

}  // namespace

AugmentationDraw draw_augmentation(const Augmentation& augmentation, const AugmentationKey& key, int64_t sample,
                                   int64_t height, int64_t width) {
  const uint64_t stream = random_stream(RandomPurpose::augmentation, static_cast<uint64_t>(key.epoch));
  const auto block = [&](uint64_t number) {
    return philox4x32({static_cast<uint32_t>(key.seed), static_cast<uint32_t>(key.seed >> 32)},
                      {static_cast<uint32_t>(number), static_cast<uint32_t>(number >> 32),
                       static_cast<uint32_t>(stream), static_cast<uint32_t>(stream >> 32)});
  };
  const auto below = [](uint32_t word, int64_t bound) {
    return static_cast<int64_t>(uint64_t{word} * static_cast<uint64_t>(bound) >> 32);
  };
  const auto first = block(2 * static_cast<uint64_t>(sample)), second = block(2 * static_cast<uint64_t>(sample) + 1);
  AugmentationDraw draw;
  draw.flip = augmentation.flip && below(first[0], 2) == 1;
  const int64_t padding = augmentation.crop_padding;
  draw.top = below(first[1], 2 * padding + 1) - padding;
  draw.left = below(first[2], 2 * padding + 1) - padding;
  draw.cut_top = below(second[0], height) - augmentation.cutout / 2;
  draw.cut_left = below(second[1], width) - augmentation.cutout / 2;
  return draw;
}

void resize_normalize(ExecContext& ctx, const Normalization& normalization, ConstView images, View y,
                      const ImageForm& form) {
  constexpr const char* kName = "resize_normalize";
  check_images(kName, ctx, images, y, form);
  run(ctx, {kName, {images}, {y}}, cpu::resize_normalize, VITRINE_IF_CUDA(cuda::resize_normalize), normalization,
      images, y, form);
}

void augment_normalize(ExecContext& ctx, const Augmentation& augmentation, const AugmentationKey& key,
                       const Normalization& normalization, ConstView images, ConstView samples, View y,
                       const ImageForm& form, ConstView values) {
  constexpr const char* kName = "augment_normalize";
  check_images(kName, ctx, images, y, form);
  check::tensor(kName, "samples", samples, {images.shape[0]}, DType::i32, ctx);
  check::no_overlap(kName, {"y", y}, {{"samples", samples}});
  const int64_t smallest = form ? std::min(form.height, form.width) : std::min(y.shape[1], y.shape[2]);
  check_range(kName, "crop_padding", augmentation.crop_padding, std::min(images.shape[1], images.shape[2]),
              ", the size of the stored images");
  check_range(kName, "cutout", augmentation.cutout, smallest, ", the size of the model's input");
  check_range(kName, "the epoch", key.epoch, (int64_t{1} << kRandomStreamBits) - 1, "");
  if (values) check::tensor(kName, "values", values, {StepValues::kCount}, DType::i32, ctx);
  run(ctx, {kName, {images, samples, values}, {y}}, cpu::augment_normalize, VITRINE_IF_CUDA(cuda::augment_normalize),
      augmentation, key, normalization, images, samples, y, form, values);
}

void resize_normalize_on_host(const Normalization& normalization, const Shape& source, std::span<const uint8_t> pixels,
                              const Shape& target, std::span<float> y) {
  constexpr const char* kName = "resize_normalize_on_host";
  if (source.rank() != 3 || source[0] < 1 || source[1] < 1 || source[2] < 1 || source[2] > 4) {
    throw ShapeError(
        fmt::format("{}: source is {}, expected (h, w, C) with h, w >= 1 and 1 <= C <= 4", kName, source.str()));
  }
  if (target.rank() != 3 || target[2] != source[2]) {
    throw ShapeError(
        fmt::format("{}: target is {} but source {} needs (H, W, {})", kName, target.str(), source.str(), source[2]));
  }
  if (static_cast<int64_t>(pixels.size()) != source.numel() || static_cast<int64_t>(y.size()) != target.numel()) {
    throw ShapeError(fmt::format("{}: {} pixels and {} outputs, expected {} for {} and {} for {}", kName, pixels.size(),
                                 y.size(), source.numel(), source.str(), target.numel(), target.str()));
  }
  ResizePlan plan;
  plan.prepare(normalization, source, target, 1);
  resize_rows(plan, pixels.data(), 0, target[0], plan.scratch.data(), y.data());
}

}  // namespace vitrine
