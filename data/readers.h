// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>

#include "data/dataset.h"

namespace vitrine {

// Readers behind open_dataset(); private to data.

enum class CifarKind { cifar10, cifar100 };
/// The binary version of CIFAR-10 or CIFAR-100 (fine labels) in `folder`, or in its subfolder cifar-10-batches-bin or
/// cifar-100-binary.
DatasetPair open_cifar(const std::filesystem::path& folder, CifarKind kind);

enum class IdxKind { fashion_mnist, any };
/// Four IDX files in `folder`. Fashion-MNIST must be 28x28 with 10 classes.
DatasetPair open_idx(const std::filesystem::path& folder, IdxKind kind);

/// A folder per class in `folder`/train and `folder`/val or test; images are resized and cropped to `image_size`.
DatasetPair open_image_folder(const std::filesystem::path& folder, int64_t image_size);

/// `count` synthetic images, and max(1, count / 5) for testing. measured: see open_dataset().
DatasetPair draw_synthetic(int64_t count, uint64_t seed, bool measured);

/// Sets mean and std of both parts from the training pixels of at most `most_images` evenly spaced images.
/// throws DataError if a channel is constant.
void measure_statistics(DatasetPair& pair, int64_t most_images);

/// What to do if the images do not fit into memory.
inline constexpr const char* kUseLessMemory =
    "use fewer samples, or unpack compressed files, which are then read on demand";
/// throws DataError unless `folder` is a folder.
void expect_folder(const char* kind, const std::filesystem::path& folder);
/// Whether there is a file or folder of this name. One that cannot be looked at counts: opening it says why.
bool is_there(const std::filesystem::path& path);

}  // namespace vitrine
