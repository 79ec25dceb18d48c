// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/runtime/reason.h>

/// Settings of data/ that messages refer to, and the list of all of them (see runtime/settings.h).
namespace vitrine::settings {

inline constexpr Setting kDatasetDescription{"open_dataset::description"};
inline constexpr Setting kDatasetImageSize{"open_dataset::image_size"};

inline constexpr Setting kDataSettings[] = {kDatasetDescription, kDatasetImageSize};

}  // namespace vitrine::settings
