// SPDX-License-Identifier: Apache-2.0
// A convolution of images in a form computes what it computes of the images.
#include "kernels/conv2d_form.h"

#include "runtime/error.h"
#include "tests/support/stored.h"

namespace vitrine::test::conv2d_form_test {
namespace {

constexpr int64_t kWorkspace = int64_t{16} << 20;

ImageForm form_of(const Conv2dConfig& config, const Shape& x, const Shape& w, InputPacking packing,
                  Backend backend = Backend::cuda, DType dtype = DType::bf16, bool tf32 = false) {
  return conv2d_input_form(config, x, w, {backend, dtype, packing, tf32});
}

struct FormCase {
  Shape x, w;
  Conv2dConfig config;
};
/// AlexNet's and ResNet's first convolutions on smaller images, windows that differ, sizes that the stride does not
/// divide, no padding, and stride 1.
const FormCase kCases[] = {
    {{2, 35, 43, 3}, {64, 11, 11, 3}, {4, 2, true}}, {{3, 22, 17, 3}, {16, 7, 7, 3}, {2, 3, false}},
    {{2, 14, 19, 2}, {9, 5, 3, 2}, {3, 1, true}},    {{2, 16, 16, 1}, {8, 4, 4, 1}, {4, 0, false}},
    {{3, 12, 11, 3}, {24, 3, 3, 3}, {1, 1, true}},   {{2, 9, 9, 3}, {7, 1, 1, 3}, {2, 0, false}},
};

class Conv2dFormTest : public DtypeTest {};
INSTANTIATE_TEST_SUITE_P(Dtypes, Conv2dFormTest, ::testing::ValuesIn(kStorageTypes), dtype_test_name);

TEST_P(Conv2dFormTest, EqualsTheReferenceOfTheImages) {
  ctx().reserve_workspace(kWorkspace);
  uint64_t seed = 0;
  for (const FormCase& c : kCases) {
    const ConvolutionGeometry g{c.x, c.w, conv2d_output_shape(c.config, c.x, c.w), c.config.stride, c.config.pad};
    const ImageForm form = form_of(c.config, c.x, c.w, InputPacking::on);
    ASSERT_TRUE(form);
    const FormedConv2d formed = formed_conv2d(c.config, form, c.w);
    const int64_t outputs = c.w[0];
    ASSERT_EQ(conv2d_output_shape(formed.config, form.packed_shape(c.x[0]), formed.weight.packed_shape(outputs)), g.y)
        << form.str();
    const std::vector<float> x = random(c.x.numel(), ++seed), w = random(c.w.numel(), ++seed),
                             bias = random(outputs, ++seed);
    const std::vector<float> grad_y = random(g.y.numel(), ++seed), old = random_floats(c.w.numel(), ++seed);
    const Tensor packed = empty(form.packed_shape(c.x[0])), weight = empty(formed.weight.packed_shape(outputs));
    pack_images(ctx(), form, tensor(c.x, x), packed);
    pack_images(ctx(), formed.weight, tensor(c.w, w), weight);
    const std::string what = c.x.str() + " * " + c.w.str();

    const GuardedTensor y = guarded(g.y);
    conv2d_forward(ctx(), formed.config, packed, weight, tensor({outputs}, bias), y);
    Reference expected = reference_conv2d_forward(g, x, w);
    add_bias(expected, bias);
    if (c.config.relu) apply_relu(expected);
    expect_rounded(values(y), expected, what + " y", roundoff(), underflow());

    // cuDNN may round the gradient of f16 and bf16 images to their dtype.
    const double rounded = on_gpu() ? roundoff() : 0;
    const Tensor grad = device.empty(formed.weight.packed_shape(outputs));
    conv2d_backward_weight(ctx(), formed.config, packed, tensor(g.y, grad_y), grad, {}, GradMode::overwrite);
    for (const GradMode mode : {GradMode::overwrite, GradMode::accumulate}) {
      const bool accumulate = mode == GradMode::accumulate;
      const GuardedTensor grad_w = device.guarded(c.w, old);
      unpack_images(ctx(), formed.weight, grad, grad_w, mode);
      const Reference sums = reference_conv2d_backward_weight(
          g, x, grad_y, accumulate ? std::span<const float>(old) : std::span<const float>());
      expect_rounded(device.values(grad_w), sums, what + " grad_w", rounded, rounded);
    }

    const GuardedTensor grad_x = guarded(form.packed_shape(c.x[0]));
    conv2d_backward_data(ctx(), formed.config, tensor(g.y, grad_y), weight, grad_x);
    if (is_half()) continue;  // unpack_images() is for f32
    const GuardedTensor grad_images = device.guarded(c.x);
    unpack_images(ctx(), form, grad_x, grad_images, GradMode::overwrite);
    expect_rounded(device.values(grad_images), reference_conv2d_backward_data(g, grad_y, w), what + " grad_x");
  }
}

TEST(InputForm, BlocksForStridesAndChannelsOfZerosOtherwise) {
  const ImageForm alexnet = form_of({4, 2, false}, {1, 227, 227, 3}, {64, 11, 11, 3}, InputPacking::automatic);
  EXPECT_EQ(
      alexnet,
      (ImageForm{
          .height = 227, .width = 227, .channels = 3, .block = 4, .pad = 2, .rows = 58, .columns = 58, .depth = 48}));
  EXPECT_EQ(formed_conv2d({4, 2, true}, alexnet, {64, 11, 11, 3}).weight.packed_shape(64), (Shape{64, 3, 3, 48}));
  const ImageForm resnet = form_of({2, 3, false}, {1, 224, 224, 3}, {64, 7, 7, 3}, InputPacking::automatic);
  EXPECT_EQ(resnet.packed_shape(1), (Shape{1, 115, 115, 16}));
  const ImageForm vgg = form_of({1, 1, false}, {1, 224, 224, 3}, {64, 3, 3, 3}, InputPacking::automatic);
  EXPECT_EQ(vgg.packed_shape(1), (Shape{1, 224, 224, 8}));
  EXPECT_EQ(formed_conv2d({1, 1, false}, vgg, {64, 3, 3, 3}).config.pad, 1);
  // 16 bytes of f32 are four channels.
  const auto in_tf32 = [](const Conv2dConfig& config, const Shape& x, const Shape& w) {
    return form_of(config, x, w, InputPacking::automatic, Backend::cuda, DType::f32, true).packed_shape(1);
  };
  EXPECT_EQ(in_tf32({4, 2, false}, {1, 227, 227, 3}, {64, 11, 11, 3}), (Shape{1, 58, 58, 48}));
  EXPECT_EQ(in_tf32({2, 3, false}, {1, 224, 224, 3}, {64, 7, 7, 3}), (Shape{1, 115, 115, 12}));
}

TEST(InputForm, ImagesStayAsTheyAreWhereNothingIsGained) {
  const Shape alexnet{64, 11, 11, 3};
  const auto form = [&](Backend backend, DType dtype, InputPacking packing) {
    return form_of({4, 2, false}, {1, 227, 227, 3}, alexnet, packing, backend, dtype);
  };
  EXPECT_FALSE(form(Backend::cpu, DType::f32, InputPacking::automatic));
  EXPECT_FALSE(form(Backend::cpu, DType::bf16, InputPacking::automatic));
  EXPECT_FALSE(form(Backend::cuda, DType::f32, InputPacking::automatic));
  EXPECT_TRUE(form(Backend::cuda, DType::f16, InputPacking::automatic));
  EXPECT_FALSE(form_of({1, 1, false}, {1, 224, 224, 3}, {64, 3, 3, 3}, InputPacking::automatic, Backend::cuda,
                       DType::f32, true));
  EXPECT_FALSE(form_of({1, 1, false}, {1, 32, 32, 4}, {64, 3, 3, 4}, InputPacking::on, Backend::cuda, DType::f32));
  EXPECT_FALSE(form(Backend::cuda, DType::f16, InputPacking::off));
  EXPECT_TRUE(form(Backend::cpu, DType::f32, InputPacking::on));
  // Few outputs, one channel, or enough channels.
  EXPECT_FALSE(form_of({1, 1, false}, {1, 32, 32, 3}, {32, 3, 3, 3}, InputPacking::automatic));
  EXPECT_FALSE(form_of({1, 2, false}, {1, 28, 28, 1}, {64, 5, 5, 1}, InputPacking::automatic));
  EXPECT_FALSE(form_of({2, 1, false}, {1, 32, 32, 8}, {64, 3, 3, 8}, InputPacking::on));
  // Blocks would read pixels that the window skips.
  EXPECT_EQ(form_of({2, 0, false}, {1, 8, 8, 3}, {64, 1, 1, 3}, InputPacking::automatic).block, 1);
}

}  // namespace
}  // namespace vitrine::test::conv2d_form_test
