// SPDX-License-Identifier: Apache-2.0
// Replaces the files onednn_*.cpp in builds without oneDNN.
#include "kernels/cpu/onednn.h"

namespace vitrine::cpu::onednn {

std::optional<LibraryInfo> library() { return std::nullopt; }
bool computes(DType) { return false; }
bool gemm(ExecContext&, const View&, bool, bool, ConstView, ConstView, View, int64_t, GradMode) { return false; }
bool linear_forward(ExecContext&, const View&, ConstView, ConstView, ConstView, bool, View) { return false; }
bool conv2d(ExecContext&, const View&, const Conv2dCall&) { return false; }
Reason winograd_refusal() { return "this build has no oneDNN, whose Winograd convolutions it would use"; }
Reason winograd_conv2d(ExecContext&, const Conv2dCall&) { return winograd_refusal(); }
int64_t winograd_bytes(ExecContext&, const RecordedConv2d&) { return -1; }
int64_t product_bytes(ExecContext&, const RecordedProduct&, int64_t) { return -1; }
int64_t conv2d_bytes(ExecContext&, const RecordedConv2d&) { return -1; }

}  // namespace vitrine::cpu::onednn
