# SPDX-License-Identifier: Apache-2.0
include("${CMAKE_CURRENT_LIST_DIR}/VitrineVendorLibrary.cmake")
vitrine_find_vendor_library(NCCL nccl nccl.h libnccl.so.2 VERSION_FROM nccl.h NCCL_MAJOR NCCL_MINOR NCCL_PATCH)
