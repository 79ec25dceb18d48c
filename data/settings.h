// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/runtime/reason.h>

/// Settings of data/ that messages refer to, and the list of all of them (see runtime/settings.h).
namespace vitrine::settings {

inline constexpr Setting kDatasetDescription{"open_dataset::description"};
inline constexpr Setting kDatasetImageSize{"DatasetOptions::image_size"};
inline constexpr Setting kDatasetMeasured{"DatasetOptions::measured"};
inline constexpr Setting kDatasetValSplit{"DatasetOptions::val_split"};

inline constexpr Setting kDataSettings[] = {kDatasetDescription, kDatasetImageSize, kDatasetMeasured, kDatasetValSplit};

}  // namespace vitrine::settings
