// SPDX-License-Identifier: Apache-2.0
// Image folders, with files that the test writes through libjpeg and libpng.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <functional>
#include <stdexcept>

#include <gtest/gtest.h>
#include <jpeglib.h>
#include <png.h>

#include "data/dataset.h"
#include "data/image_file.h"
#include "data/loader.h"
#include "runtime/error.h"
#include "tests/data/counted_set.h"
#include "tests/data/temp_folder.h"
#include "tests/support/error_of.h"
#include "tests/support/expect_contains.h"

namespace vitrine::test {
namespace {

namespace fs = std::filesystem;

using Pixel = std::vector<uint8_t>;  // one value per channel

std::vector<uint8_t> filled(int64_t width, int64_t height, const Pixel& pixel) {
  std::vector<uint8_t> pixels;
  for (int64_t i = 0; i < width * height; ++i) pixels.insert(pixels.end(), pixel.begin(), pixel.end());
  return pixels;
}

void write_jpeg(const fs::path& path, int width, int height, std::vector<uint8_t> pixels, J_COLOR_SPACE space = JCS_RGB,
                int scans = 1) {
  fs::create_directories(path.parent_path());
  std::FILE* file = std::fopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr) << path;
  const int channels = space == JCS_GRAYSCALE ? 1 : space == JCS_CMYK ? 4 : 3;
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  jpeg_stdio_dest(&info, file);
  info.image_width = static_cast<JDIMENSION>(width);
  info.image_height = static_cast<JDIMENSION>(height);
  info.input_components = channels;
  info.in_color_space = space;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 95, TRUE);
  // Scans of a progressive file: the constant part, then one frequency of one channel after the other.
  std::vector<jpeg_scan_info> script{{3, {0, 1, 2}, 0, 0, 0, 0}};
  for (int i = 1; i < scans; ++i) script.push_back({1, {(i - 1) / 63}, 1 + (i - 1) % 63, 1 + (i - 1) % 63, 0, 0});
  if (scans > 1) {
    info.scan_info = script.data();
    info.num_scans = scans;
  }
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    JSAMPROW row = pixels.data() + static_cast<size_t>(info.next_scanline) * static_cast<size_t>(width * channels);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::fclose(file);
}

struct PngOptions {
  bool transparent = false;  // a tRNS chunk, where the color type may have one
  int interlace = PNG_INTERLACE_NONE;
};

void write_png(const fs::path& path, int width, int height, std::vector<uint8_t> pixels, int color = PNG_COLOR_TYPE_RGB,
               int bits = 8, const PngOptions& options = {}) {
  fs::create_directories(path.parent_path());
  std::FILE* file = std::fopen(path.c_str(), "wb");
  ASSERT_NE(file, nullptr) << path;
  png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  png_init_io(png, file);
  png_set_IHDR(png, info, static_cast<png_uint_32>(width), static_cast<png_uint_32>(height), bits, color,
               options.interlace, PNG_COMPRESSION_TYPE_BASE, PNG_FILTER_TYPE_BASE);
  const std::array<png_color, 3> palette{{{10, 20, 30}, {200, 100, 50}, {0, 255, 128}}};
  if (color == PNG_COLOR_TYPE_PALETTE) png_set_PLTE(png, info, palette.data(), bits == 1 ? 2 : 3);
  const std::array<png_byte, 2> alphas{0, 128};
  const png_color_16 clear{0, 27, 84, 141, 0};
  if (options.transparent && (color & PNG_COLOR_MASK_ALPHA) == 0) png_set_tRNS(png, info, alphas.data(), 2, &clear);
  std::vector<png_bytep> rows;
  const size_t row_bytes = pixels.size() / static_cast<size_t>(height);
  for (int y = 0; y < height; ++y) rows.push_back(pixels.data() + static_cast<size_t>(y) * row_bytes);
  png_set_rows(png, info, rows.data());
  png_write_png(png, info, PNG_TRANSFORM_IDENTITY, nullptr);
  png_destroy_write_struct(&png, &info);
  std::fclose(file);
}

/// Two classes with images of several sizes, in both formats.
class Folder : public TempFolder {
 public:
  Folder() {
    write_jpeg(path() / "train/beetle/b.jpg", 40, 30, filled(40, 30, {200, 30, 60}));
    write_png(path() / "train/beetle/a.PNG", 9, 21, filled(9, 21, {1, 2, 3}));
    write_png(path() / "train/ant/nested/a.png", 8, 8, filled(8, 8, {7, 8, 9}));
    write_jpeg(path() / "train/ant/y.jpeg", 16, 16, filled(16, 16, {120, 120, 120}));
    write_file(path() / "train/ant/notes.txt", Bytes{1});
    write_png(path() / "train/ant/.ipynb_checkpoints/a.png", 8, 8, filled(8, 8, {0, 0, 0}));
    write_png(path() / "train/.cache/a.png", 8, 8, filled(8, 8, {0, 0, 0}));
    write_file(path() / "train/ant/._y.jpeg", Bytes{0, 5, 22, 7});  // macOS's
    write_png(path() / "val/ant/1.png", 8, 12, filled(8, 12, {50, 60, 70}));
    write_png(path() / "val/beetle/1.png", 12, 8, filled(12, 8, {80, 90, 100}));
  }
  std::string description() const { return "image-folder:" + str(); }
};

void expect_refused(const std::function<void()>& work, const std::vector<std::string>& parts) {
  const std::string message = error_of(work);
  for (const std::string& part : parts) expect_contains(message, part);
}

TEST(ImageFolder, ClassesAndImagesAreInTorchvisionsOrder) {
  const Folder folder;
  const DatasetPair pair = open_dataset(folder.description(), 0, {.image_size = 8});
  EXPECT_EQ(pair.train.class_names, (std::vector<std::string>{"ant", "beetle"}));
  EXPECT_EQ(labels_of(pair.train), (std::vector<int32_t>{0, 0, 1, 1}));
  EXPECT_EQ(labels_of(pair.test), (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(pair.train.height, 8);
  EXPECT_EQ(pair.train.width, 8);
  EXPECT_EQ(pair.train.channels, 3);
  EXPECT_EQ(pair.train.classes, 2);
  EXPECT_GT(pair.train.held_bytes(), 0);
  const auto expect_pixels = [&](const Dataset& set, int64_t i, const Pixel& pixel, int tolerance) {
    const std::vector<uint8_t> image = set.image(i);
    ASSERT_EQ(image.size(), 8U * 8 * 3);
    for (size_t p = 0; p < image.size(); ++p) ASSERT_NEAR(image[p], pixel[p % 3], tolerance) << "sample " << i;
  };
  expect_pixels(pair.train, 0, {120, 120, 120}, 1);  // ant/y.jpeg, before the nested folder
  expect_pixels(pair.train, 1, {7, 8, 9}, 0);
  expect_pixels(pair.train, 2, {1, 2, 3}, 0);  // a.PNG before b.jpg
  expect_pixels(pair.train, 3, {200, 30, 60}, 3);
  expect_pixels(pair.test, 1, {80, 90, 100}, 0);
}

TEST(ImageFolder, LoadsInSeveralWorkers) {
  const Folder folder;
  const DatasetPair pair = open_dataset(folder.description(), 0, {.image_size = 8});
  Loader loader(pair.train, {.batch_size = 3, .epochs = 2, .workers = 3, .sample_indices = true});
  int batches = 0;
  while (const auto batch = loader.next()) {
    ++batches;
    for (int64_t row = 0; row < batch->labels.numel(); ++row) {
      const int32_t sample = batch->samples.as<int32_t>()[row];
      EXPECT_EQ(batch->labels.as<int32_t>()[row], pair.train.label(sample));
      const uint8_t* pixels = batch->images.as<uint8_t>() + row * 192;
      EXPECT_EQ(std::vector<uint8_t>(pixels, pixels + 192), pair.train.image(sample));
    }
  }
  EXPECT_EQ(batches, 4);
}

/// The pixels that Pillow 13 gives for the same files: Image.open(path).convert("RGB").
TEST(ImageFile, EveryKindOfPngHasPillowsPixels) {
  struct Kind {
    int color, bits;
    Bytes row, rgb;  // 4 pixels: as in the file, expected
  };
  const auto bytes = [](int count) {
    Bytes row;
    for (int i = 0; i < count; ++i) row.push_back(static_cast<uint8_t>(27 + 57 * i));
    return row;
  };
  const Bytes four_colors{200, 100, 50, 10, 20, 30, 0, 255, 128, 200, 100, 50};
  const std::vector<Kind> kinds{
      {PNG_COLOR_TYPE_GRAY, 1, {27}, {0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255}},
      {PNG_COLOR_TYPE_GRAY, 2, {27}, {0, 0, 0, 85, 85, 85, 170, 170, 170, 255, 255, 255}},
      {PNG_COLOR_TYPE_GRAY, 4, bytes(2), {17, 17, 17, 187, 187, 187, 85, 85, 85, 68, 68, 68}},
      {PNG_COLOR_TYPE_GRAY, 8, bytes(4), {27, 27, 27, 84, 84, 84, 141, 141, 141, 198, 198, 198}},
      {PNG_COLOR_TYPE_GRAY, 16, {0, 0, 0, 77, 1, 0, 254, 211}, {0, 0, 0, 77, 77, 77, 255, 255, 255, 255, 255, 255}},
      {PNG_COLOR_TYPE_RGB, 8, bytes(12), bytes(12)},
      {PNG_COLOR_TYPE_RGB, 16, bytes(24), {27, 141, 255, 113, 227, 85, 199, 57, 171, 29, 143, 1}},
      {PNG_COLOR_TYPE_PALETTE, 1, {0xB0}, {200, 100, 50, 10, 20, 30, 200, 100, 50, 200, 100, 50}},
      {PNG_COLOR_TYPE_PALETTE, 2, {0x49}, four_colors},
      {PNG_COLOR_TYPE_PALETTE, 4, {0x10, 0x21}, four_colors},
      {PNG_COLOR_TYPE_PALETTE, 8, {1, 0, 2, 1}, four_colors},
      {PNG_COLOR_TYPE_GRAY_ALPHA, 8, bytes(8), {27, 27, 27, 141, 141, 141, 255, 255, 255, 113, 113, 113}},
      {PNG_COLOR_TYPE_GRAY_ALPHA, 16, bytes(16), {27, 27, 27, 255, 255, 255, 227, 227, 227, 199, 199, 199}},
      {PNG_COLOR_TYPE_RGB_ALPHA, 8, bytes(16), {27, 84, 141, 255, 56, 113, 227, 28, 85, 199, 0, 57}},
      {PNG_COLOR_TYPE_RGB_ALPHA, 16, bytes(32), {27, 141, 255, 227, 85, 199, 171, 29, 143, 115, 229, 87}},
  };
  const TempFolder folder;
  const fs::path path = folder.path() / "x.png";
  for (const Kind& kind : kinds) {
    for (const bool transparent : {false, true}) {
      for (const int interlace : {PNG_INTERLACE_NONE, PNG_INTERLACE_ADAM7}) {
        const std::string what = "color type " + std::to_string(kind.color) + ", " + std::to_string(kind.bits) +
                                 " bits, interlace " + std::to_string(interlace) + (transparent ? ", tRNS" : "");
        write_png(path, 4, 1, kind.row, kind.color, kind.bits, {transparent, interlace});
        const RgbImage image = read_image_file(path);
        EXPECT_EQ(image.width, 4) << what;
        EXPECT_EQ(image.height, 1) << what;
        EXPECT_EQ(image.pixels, kind.rgb) << what;
      }
    }
  }
}

TEST(ImageFile, EveryKindOfJpegBecomesRgb) {
  const TempFolder folder;
  const fs::path path = folder.path() / "named.png";  // the content counts
  const auto expect = [&](const Pixel& pixel, const char* what) {
    const RgbImage image = read_image_file(path);
    ASSERT_EQ(image.pixels.size(), 20U * 10 * 3) << what;
    for (size_t p = 0; p < image.pixels.size(); ++p) ASSERT_NEAR(image.pixels[p], pixel[p % 3], 3) << what;
  };
  write_jpeg(path, 20, 10, filled(20, 10, {90}), JCS_GRAYSCALE);
  expect({90, 90, 90}, "grey");
  write_jpeg(path, 20, 10, filled(20, 10, {10, 120, 240}));
  expect({10, 120, 240}, "color");
  // Adobe's CMYK is stored inverted: 255 is no ink.
  write_jpeg(path, 20, 10, filled(20, 10, {255, 128, 0, 128}), JCS_CMYK);
  expect({128, 64, 0}, "CMYK");
}

TEST(ImageFile, DamagedFilesAreRefusedByName) {
  const TempFolder folder;
  const fs::path jpeg = folder.path() / "photo.jpg", png = folder.path() / "drawing.png",
                 other = folder.path() / "other.jpg";
  std::vector<uint8_t> noise;
  for (int i = 0; i < 64 * 64 * 3; ++i) noise.push_back(static_cast<uint8_t>(i * 7919 >> 3));
  write_jpeg(jpeg, 64, 64, noise);
  write_png(png, 64, 64, noise);
  for (const auto& image : {std::pair{jpeg, "JPEG"}, {png, "PNG"}}) {
    const auto& path = image.first;
    const char* kind = image.second;
    const Bytes whole = read_file(path);
    for (const size_t share : {1, 3, 5, 9}) {
      write_file(path, std::span(whole).first(whole.size() * share / 10));
      expect_refused([&] { read_image_file(path); }, {path.string(), kind, "damaged"});
    }
    if (path == jpeg) continue;  // a JPEG file has no checksums
    write_file(path, std::span(whole).first(whole.size() - 1));
    expect_refused([&] { read_image_file(path); }, {path.string(), "damaged"});
    Bytes changed = whole;
    for (size_t i = changed.size() / 2; i < changed.size() / 2 + 40; ++i) changed[i] ^= 0x5A;
    write_file(path, changed);
    expect_refused([&] { read_image_file(path); }, {path.string(), "damaged"});
  }
  for (const Bytes& bytes : {Bytes{}, Bytes{'G', 'I', 'F', '8'}, Bytes{0xFF}}) {
    write_file(other, bytes);
    expect_refused([&] { read_image_file(other); }, {other.string(), "expected a JPEG or PNG file"});
  }
  expect_refused([&] { read_image_file(folder.path() / "gone.png"); }, {"gone.png", "cannot be opened"});
  EXPECT_THROW(read_image_file(other), DamagedSample);
  EXPECT_THROW(check_image_size(1 << 20, 1 << 20, "x"), DataError);
  EXPECT_THROW(check_image_size(0, 5, "x"), DataError);
}

/// A scan may be a few bytes long, and costs the time of the whole image.
TEST(ImageFile, AJpegFileHasAtMost100Scans) {
  const TempFolder folder;
  const fs::path path = folder.path() / "photo.jpg";
  write_jpeg(path, 16, 16, filled(16, 16, {10, 120, 240}), JCS_RGB, 100);
  EXPECT_EQ(read_image_file(path).pixels.size(), 16U * 16 * 3);
  write_jpeg(path, 16, 16, filled(16, 16, {10, 120, 240}), JCS_RGB, 101);
  expect_refused([&] { read_image_file(path); }, {path.string(), "at most 100 scans", "convert"});
}

TEST(ImageFile, OtherKindsAreNamedWithARemedy) {
  const TempFolder folder;
  const fs::path path = folder.path() / "photo.jpg";
  const auto refused = [&](const std::string& bytes, const std::string& found) {
    write_file(path, std::span(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()));
    expect_refused([&] { read_image_file(path); }, {path.string() + ": expected ", found});
  };
  const std::string convert = "; convert it to JPEG or PNG, or remove it";
  refused("RIFF....WEBPVP8 ", "found a WebP image" + convert);
  refused("GIF89a", "found a GIF image" + convert);
  refused(std::string("BM......\0\0\0\0\0\0\x28\0\0\0", 18), "found a BMP image" + convert);
  refused(std::string("II*\0", 4), "found a TIFF image" + convert);
  refused(std::string("\0\0\0 ftypavif", 12), "found an AVIF image" + convert);
  refused("version https://git-lfs.github.com/spec/v1\n",
          "found a Git LFS pointer; fetch the file itself with git lfs");
  refused("<html>", "found an HTML page; the download failed");
  refused("some text", "a text that begins with 'some text'");
  // Only the process of the frame differs: SOF0 becomes lossless, then arithmetic.
  write_jpeg(path, 20, 10, filled(20, 10, {10, 120, 240}));
  const Bytes whole = read_file(path);
  const uint8_t frame[] = {0xFF, 0xC0};
  const auto at = std::search(whole.begin(), whole.end(), std::begin(frame), std::end(frame)) - whole.begin();
  Bytes changed = whole;
  changed[static_cast<size_t>(at) + 1] = 0xC3;
  write_file(path, changed);
  const std::string message = error_of([&] { read_image_file(path); });
  expect_contains(message, "found another process, lossless for example", "convert it to baseline JPEG or PNG");
  expect_lacks(message, "damaged");
}

/// Training stops there, with the name of the file.
TEST(ImageFolder, ADamagedFileStopsTheLoader) {
  const Folder folder;
  const fs::path bad = folder.path() / "train/beetle/b.jpg";
  const Bytes whole = read_file(bad);
  write_file(bad, std::span(whole).first(whole.size() / 2));
  const DatasetPair pair = open_dataset(folder.description(), 0, {.image_size = 8});
  Loader loader(pair.train, {.batch_size = 4, .workers = 2});
  expect_refused([&] { loader.next(); }, {bad.string(), "damaged"});
}

TEST(ImageFolder, RefusesOtherLayouts) {
  const auto refuses = [](const std::function<void(const fs::path&)>& change, const std::vector<std::string>& parts) {
    const Folder folder;
    change(folder.path());
    expect_refused([&] { open_dataset(folder.description(), 0, {.image_size = 8}); }, parts);
  };
  refuses([](const fs::path& f) { fs::remove_all(f / "train"); },
          {"it has no folder train", "DIR/train/CLASS/IMAGE.jpg"});
  refuses([](const fs::path& f) { fs::remove_all(f / "val"); },
          {"no folder val, valid, validation, test", "with DatasetOptions::val_split 0.1 only DIR/train/"});
  refuses([](const fs::path& f) { fs::remove_all(f / "val/ant"); }, {"classes differ", "ant"});
  refuses([](const fs::path& f) { fs::create_directory(f / "val/cat"); }, {"classes differ", "cat"});
  refuses([](const fs::path& f) { fs::remove(f / "val/ant/1.png"); }, {"val/ant", "no image"});
  refuses([](const fs::path& f) { write_file(f / "train/ant/x.bmp", Bytes{1}); }, {"x.bmp", "only JPEG and PNG"});
  refuses([](const fs::path& f) { fs::remove_all(f / "val/ant"), fs::remove_all(f / "val/beetle"); },
          {"val", "no class folders"});
  for (const char* const target : {"..", ".", "../../ant/nested", "../../../"}) {
    refuses([&](const fs::path& f) { fs::create_directory_symlink(target, f / "train/ant/nested/loop"); },
            {"train/ant/nested/loop", "a link to a folder that contains it"});
  }
  refuses(
      [](const fs::path& f) {
        fs::create_symlink("val", f / "val2"), fs::remove_all(f / "val"), fs::rename(f / "val2", f / "val");
      },
      {"val: it cannot be opened (Too many levels of symbolic links)"});
  const Folder folder;
  expect_refused([&] { open_dataset(folder.description(), 0); }, {"DatasetOptions::image_size 64"});
  expect_refused([&] { open_dataset("image-folder:/no/such", 0, {.image_size = 8}); }, {"/no/such is not a folder"});
  for (const auto& [from, to] : {std::pair{"val", "test"}, {"test", "validation"}, {"validation", "valid"}}) {
    fs::rename(folder.path() / from, folder.path() / to);
    EXPECT_EQ(open_dataset(folder.description(), 0, {.image_size = 8}).test.size(), 2) << to;
  }
}

TEST(ImageFolder, AFileThatIsGoneIsNotDamagedButALinkToNothingIs) {
  const Folder folder;
  const DatasetPair pair = open_dataset(folder.description(), 0, {.image_size = 8});
  const auto is_damaged = [&] {
    try {
      pair.test.image(0);
    } catch (const DataError& error) {
      return dynamic_cast<const DamagedSample*>(&error) != nullptr;
    }
    throw std::logic_error("the image was read");
  };
  const fs::path file = folder.path() / "val/ant/1.png";
  fs::remove(file);
  EXPECT_FALSE(is_damaged());
  fs::create_symlink("nothing", file);
  EXPECT_TRUE(is_damaged());
}

TEST(ImageFolder, HoldsOutImagesOfTrainOrOfAFlatFolder) {
  const Folder folder;
  fs::remove_all(folder.path() / "val");
  EXPECT_EQ(open_dataset(folder.description(), 0, {.image_size = 8, .test_optional = true}).test.size(), 0);
  for (const char* flat : {"", "train"}) {
    const DatasetPair pair = open_dataset(folder.description() + "/" + flat, 0, {.image_size = 8, .val_split = 0.25});
    EXPECT_EQ(pair.train.class_names, (std::vector<std::string>{"ant", "beetle"}));
    EXPECT_EQ(pair.train.size(), 3);
    EXPECT_EQ(pair.test.size(), 1);
  }
  // A class may be called train.
  fs::rename(folder.path() / "train/ant/nested", folder.path() / "train/train");
  EXPECT_EQ(open_dataset(folder.description() + "/train", 0, {.image_size = 8, .val_split = 0.25}).train.classes, 3);
}

/// One line resized by Pillow's definition, in double precision.
std::vector<double> resized_line(const std::vector<double>& line, int64_t target) {
  const double scale = static_cast<double>(line.size()) / static_cast<double>(target), support = std::max(1.0, scale);
  std::vector<double> result;
  for (int64_t i = 0; i < target; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    double sum = 0, weights = 0;
    for (size_t x = 0; x < line.size(); ++x) {
      const double weight = std::max(0.0, 1.0 - std::abs(static_cast<double>(x) + 0.5 - center) / support);
      sum += weight * line[x];
      weights += weight;
    }
    result.push_back(sum / weights);
  }
  return result;
}

TEST(ResizeAndCrop, EqualsTheTriangleFilterOfTheShorterSide) {
  for (const auto& [width, height, side] :
       std::vector<std::array<int64_t, 3>>{{37, 23, 8}, {20, 31, 10}, {12, 12, 12}, {7, 5, 16}, {64, 16, 16}}) {
    RgbImage image{width, height, {}};
    for (int64_t i = 0; i < width * height * 3; ++i)
      image.pixels.push_back(static_cast<uint8_t>((i * i * 31 + i * 7) >> 2));
    std::vector<uint8_t> found(static_cast<size_t>(side * side * 3));
    resize_and_crop(image, side, found);
    const int64_t to_width = width > height ? side * width / height : side,
                  to_height = width > height ? side : side * height / width;
    const int64_t left = std::lrint(static_cast<double>(to_width - side) / 2),
                  top = std::lrint(static_cast<double>(to_height - side) / 2);
    for (int64_t c = 0; c < 3; ++c) {
      std::vector<std::vector<double>> rows;
      for (int64_t y = 0; y < height; ++y) {
        std::vector<double> line;
        for (int64_t x = 0; x < width; ++x) line.push_back(image.pixels[static_cast<size_t>((y * width + x) * 3 + c)]);
        rows.push_back(resized_line(line, to_width));
      }
      for (int64_t x = 0; x < side; ++x) {
        std::vector<double> column;
        for (const auto& row : rows) column.push_back(row[static_cast<size_t>(x + left)]);
        const std::vector<double> wanted = resized_line(column, to_height);
        for (int64_t y = 0; y < side; ++y) {
          ASSERT_NEAR(found[static_cast<size_t>((y * side + x) * 3 + c)], wanted[static_cast<size_t>(y + top)], 1.01)
              << width << "x" << height << " to " << side << " at " << y << ", " << x;
        }
      }
    }
  }
}

TEST(ResizeAndCrop, LeavesImagesOfTheSizeAlone) {
  RgbImage image{12, 12, {}};
  for (int i = 0; i < 12 * 12 * 3; ++i) image.pixels.push_back(static_cast<uint8_t>(i * 37));
  std::vector<uint8_t> found(image.pixels.size());
  resize_and_crop(image, 12, found);
  EXPECT_EQ(found, image.pixels);
}

}  // namespace
}  // namespace vitrine::test
