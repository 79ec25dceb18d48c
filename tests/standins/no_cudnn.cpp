// SPDX-License-Identifier: Apache-2.0
// Replaces the files cudnn*.cpp where cuDNN's headers were not found.
#include <stdexcept>

#include "tests/standins/machine.h"

namespace vitrine::standins {

bool has_cudnn() { return false; }
int64_t live_cudnn_descriptors() { return 0; }
void clear_cudnn() {}
void set_convolution_engines(const std::vector<ConvolutionEngine>&) {
  throw std::logic_error("there is no stand-in for cuDNN in this build");
}
void set_cudnn_version(size_t) { set_convolution_engines({}); }

}  // namespace vitrine::standins
