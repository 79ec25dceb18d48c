// SPDX-License-Identifier: Apache-2.0
#include "tests/kernels/conv2d_paths.h"

namespace vitrine::test {

std::span<const Conv2dPath> gpu_conv2d_paths() { return {}; }

}  // namespace vitrine::test
