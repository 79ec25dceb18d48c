// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <vitrine/nn/model.h>

namespace vitrine {

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
