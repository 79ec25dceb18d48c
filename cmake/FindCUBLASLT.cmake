# SPDX-License-Identifier: Apache-2.0
include("${CMAKE_CURRENT_LIST_DIR}/VitrineVendorLibrary.cmake")
vitrine_find_vendor_library(CUBLASLT cublasLt cublasLt.h libcublasLt.so.13 libcublasLt.so.12 VERSION_FROM cublas_api.h CUBLAS_VER_MAJOR CUBLAS_VER_MINOR CUBLAS_VER_PATCH)
