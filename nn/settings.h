// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vitrine/runtime/reason.h>

/// Settings of nn/ that messages refer to, and the list of all of them (see runtime/settings.h).
namespace vitrine::settings {

inline constexpr Setting kImageSize{"ModelOptions::image_size"};
inline constexpr Setting kSequenceLength{"ModelOptions::sequence_length"};

inline constexpr Setting kModelSettings[] = {kImageSize, kSequenceLength};

}  // namespace vitrine::settings
