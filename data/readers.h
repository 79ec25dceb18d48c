// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "data/dataset.h"

namespace vitrine {

// Readers behind open_dataset(); private to data. With a val_split they leave the test set empty.

enum class CifarKind { cifar10, cifar100 };
/// The binary version of CIFAR-10 or CIFAR-100 (fine labels) in `folder`, or in its subfolder cifar-10-batches-bin or
/// cifar-100-binary.
DatasetPair open_cifar(const std::filesystem::path& folder, CifarKind kind, const DatasetOptions& options);

enum class IdxKind { fashion_mnist, any };
/// Four IDX files in `folder`. Fashion-MNIST must be 28x28 with 10 classes.
DatasetPair open_idx(const std::filesystem::path& folder, IdxKind kind, const DatasetOptions& options);

/// A folder per class in `folder`/train and `folder`/val, valid, validation or test, or with a val_split in `folder`.
DatasetPair open_image_folder(const std::filesystem::path& folder, const DatasetOptions& options);

/// `count` synthetic images, and max(1, count / 5) for testing. measured: see open_dataset().
DatasetPair draw_synthetic(int64_t count, uint64_t seed, bool measured);

/// "tokens:GLOB", "text:FILE" or "characters:FILE".
DatasetPair open_tokens(const std::string& description, const DatasetOptions& options);
/// `count` drawn sequences, of which the last tenth is for testing.
DatasetPair draw_tokens(int64_t count, uint64_t seed, const DatasetOptions& options);

/// Sets mean and std of both parts from the training pixels of at most `most_images` evenly spaced images.
/// throws DataError if a channel is constant.
void measure_statistics(DatasetPair& pair, int64_t most_images);

/// What to do if the images do not fit into memory.
inline constexpr const char* kUseLessMemory =
    "use fewer samples, or unpack compressed files, which are then read on demand";
/// The first file, by path, in `folder` or up to two levels below whose name ends with one of `endings`. An ending
/// that begins with a slash is a whole name.
std::optional<std::filesystem::path> find_below(const std::filesystem::path& folder,
                                                const std::vector<std::string>& endings);
/// throws DataError unless `folder` is a folder.
void expect_folder(const char* kind, const std::filesystem::path& folder);
/// Whether there is a file or folder of this name. One that cannot be looked at counts: opening it says why.
bool is_there(const std::filesystem::path& path);

}  // namespace vitrine
