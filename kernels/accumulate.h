// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace vitrine {

/// Whether a gradient replaces the content of its buffer or is added to it.
enum class GradMode { overwrite, accumulate };

}  // namespace vitrine
