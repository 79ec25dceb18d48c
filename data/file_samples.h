// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>
#include <vector>

#include "data/dataset.h"

namespace vitrine {

/// Layout of the records of a plain file: `count` records, `stride` bytes apart; the first image is at `begin`.
struct RecordFile {
  std::filesystem::path path;
  int64_t count = 0, begin = 0, stride = 0;
};

/// Samples whose images are read from files on request, by position, in any order; labels stay in memory. Private to
/// the readers.
///   decode  converts a stored image into its pixels (H, W, C); empty: they are the same
/// throws DataError if a file cannot be opened.
std::shared_ptr<const Samples> samples_in_files(
    const std::vector<RecordFile>& files, std::vector<uint8_t> labels, int64_t bytes_per_image,
    std::function<void(std::span<const uint8_t> stored, std::span<uint8_t> pixels)> decode = {});

/// Returns the byte at `begin` of each record: the labels. throws DataError.
std::vector<uint8_t> read_record_bytes(const RecordFile& file);

}  // namespace vitrine
