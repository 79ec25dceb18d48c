// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace vitrine {

/// What becomes of a gradient's old content.
enum class GradMode { overwrite, accumulate };

}  // namespace vitrine
