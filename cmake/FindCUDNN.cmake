# SPDX-License-Identifier: Apache-2.0
include("${CMAKE_CURRENT_LIST_DIR}/VitrineVendorLibrary.cmake")
vitrine_find_vendor_library(CUDNN cudnn cudnn.h libcudnn.so.9 VERSION_FROM cudnn_version.h CUDNN_MAJOR CUDNN_MINOR CUDNN_PATCHLEVEL)
