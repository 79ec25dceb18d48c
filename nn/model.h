// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <vitrine/nn/sequential.h>

namespace vitrine {

/// A network with its input and output. Input: images (N, height, width, channels) or samples of another shape (N,
/// ...). Output: logits, targets_per_sample * classes per sample.
struct Model {
  std::string name;
  int64_t height = 0, width = 0, channels = 0, classes = 0;
  std::unique_ptr<Sequential> net;
  int64_t targets_per_sample = 1;
  /// Shape of one sample for models whose samples are not images, such as {F} for vectors; height, width and channels
  /// are then unused.
  Shape sample_shape = {};

  bool takes_images() const { return sample_shape.rank() == 0; }
  Shape input_shape(int64_t samples) const;
  /// Of samples that are not images: f32, or i32 for tokens.
  DType sample_dtype() const { return net->input_dtype(DType::f32); }
  /// Shape of the labels of a batch: (samples), or (samples, targets_per_sample) when there are several per sample.
  Shape label_shape(int64_t samples) const {
    return targets_per_sample == 1 ? Shape{samples} : Shape{samples, targets_per_sample};
  }
  /// Shape of the logits that the loss reads: one row per target.
  Shape logits_shape(int64_t samples) const { return {samples * targets_per_sample, classes}; }
};

struct ModelOptions {
  int64_t image_size = 0;  // height and width; 0: the model's own (alexnet 227, vgg16 and resnets 224, wide-head 250;
                           // others: set by the data)
  std::optional<int64_t> channels = std::nullopt;  // 3; wide-head 512
  std::optional<int64_t> classes = std::nullopt;   // 10; wide-head 40,000
  std::optional<float> dropout = std::nullopt;     // overrides the model's
  int64_t sequence_length = 0;                     // tokens of a sample of a GPT; 0: its own
};

/// "alexnet", "vgg16", "resnet18", "resnet50", "resnet18-cifar", "small-cnn", "lenet5", "mlp", "wide-head", "gpt2",
/// "gpt2-medium", "gpt2-large", "gpt2-xl", "nano-gpt".
const std::vector<std::string>& model_names();

/// Height and width of a model's images when ModelOptions has none; 0 when the data set them. throws ConfigError that
/// lists the models when the name is unknown.
int64_t model_image_size(const std::string& name);
/// Tokens of a sample when ModelOptions has none; 0 for a model that takes no tokens. throws as model_image_size() does
int64_t model_sequence_length(const std::string& name);
/// Probability of dropout when ModelOptions has none; 0 for a model without dropout. throws as model_image_size() does
float model_dropout(const std::string& name);

/// throws ConfigError that lists the models when the name is unknown; ShapeError when images are too small for the
///        model.
///   alexnet    torchvision's, with its names and initialization (Krizhevsky 2014)
///   vgg16      torchvision's, with its names and initialization of Linear and Conv2d layers (Simonyan & Zisserman
///              2015, configuration D)
///   resnet18, resnet50  torchvision's, with its names and initialization (He et al. 2016; in resnet50 the 3x3
///     convolution has the stride)
///   resnet18-cifar  resnet18 for small images: conv1 is 3x3 with stride 1, and there is no max pool
///   small-cnn  features.0 conv 3x3 (-> 32, pad 1) ReLU, max pool 2, features.3 conv 3x3 (-> 64, pad 1) ReLU, max pool
///              2, classifier.0 Linear(-> 128) ReLU, classifier.2 Linear(-> classes)
///   lenet5     conv 5x5 (-> 6, pad 2) ReLU, max pool 2, conv 5x5 (-> 16) ReLU, max pool 2, Linear 120, 84, classes
///              (LeCun et al. 1998, with ReLU)
///   mlp        Linear 256, 128, classes with ReLU
///   wide-head  the head of a language model: sequences (N, image_size, 1, channels) through encoder Linear(-> 512)
///              ReLU and decoder Linear(-> classes), with a target at every position: logits of 32 sequences of 250
///              over 40,000 classes take 1.28 GB
///   gpt2, gpt2-medium, gpt2-large, gpt2-xl  Radford et al. 2019 with 124, 355, 774 and 1,558 million parameters,
///              transformers' names and initialization: sequences of tokens (N, 1024), a target at every position, and
///              50,257 classes
///   nano-gpt   the same with 6 layers, 384 wide, 6 heads and sequences of 256: nanoGPT's model of characters
/// A ReLU between a convolution and a maximum is applied after the maximum (see MaxPool2d).
Model make_model(const std::string& name, const ModelOptions& options);

/// Linear layers between these sizes, with ReLU after all but the last: {20, 64, 3} takes vectors of 20 numbers and
/// has 3 classes. Its layers are called fc1, fc2, ...   throws ConfigError for fewer than two sizes, or one below 1
Model make_mlp(const std::vector<int64_t>& sizes);

/// Reads a model that a JSON file describes by its layers, in the form of torch.nn.Sequential: names, types and
/// settings are PyTorch's. The file sets the size of the images and the number of classes. docs/model_files.md
/// documents the schema and shows how to write the file from PyTorch.
///
/// A ReLU after a Conv2d, Linear or BatchNorm2d is merged into that layer. One between a convolution and a maximum is
/// applied after the maximum (see MaxPool2d). Values are the same.
/// throws  DataError with the file, the layer and the setting: when the file cannot be read or is not JSON; for layers
///         and settings that Vitrine does not have, and shapes that do not match
Model read_model_file(const std::string& path);

}  // namespace vitrine
