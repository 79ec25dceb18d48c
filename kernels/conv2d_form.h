// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/kernels/conv2d.h>
#include <vitrine/kernels/image_form.h>

namespace vitrine {

/// When the input of a model's first convolution is arranged in an ImageForm.
enum class InputPacking {
  automatic,  // where it pays: a rule that knows the shapes, the dtype and the backend only, so that every run makes
              // the same choice
  off,
  on,  // wherever there is a form, on every backend: for comparisons and tests
};

/// What decides about the form of an input.
struct InputTarget {
  Backend backend = Backend::cpu;  // that computes
  DType dtype = DType::f32;        // of the input
  InputPacking packing = InputPacking::automatic;
  bool tf32 = false;  // of a GPU: convolutions of f32 may round to TF32
};

/// The form in which a convolution wants images x (N, H, W, C); empty: as they are. Images with 16 bytes of channels or
/// more have no form.
///   stride > 1 and a window of at least the stride: blocks of stride x stride pixels. AlexNet's 11 x 11 with stride 4
///     and pad 2 on 227 x 227 x 3 becomes 3 x 3 with stride 1 on 58 x 58 x 48.
///   otherwise: channels of zeros.
///   The depth is a multiple of 16 bytes, which tensor cores load at a time: 8 channels of f16 or bf16, 4 of f32.
/// `automatic` uses it on GPUs where tensor cores compute: in f16, bf16 and TF32 for strided convolutions; in f16 and
/// bf16 also for convolutions of three channels or more to a multiple of 64, because cuDNN would pad input and
/// gradients in its workspace. In f32 without TF32, and on the CPU, images stay as they are.
/// throws  ShapeError when the shapes do not match
ImageForm conv2d_input_form(const Conv2dConfig& config, const Shape& x, const Shape& w, const InputTarget& target);

/// The convolution that computes the same y from x in a form.
struct FormedConv2d {
  Conv2dConfig config;
  ImageForm weight;  // of w (K, R, S, C), whose windows are arranged like images
};
FormedConv2d formed_conv2d(const Conv2dConfig& config, const ImageForm& input, const Shape& w);

}  // namespace vitrine
