# SPDX-License-Identifier: Apache-2.0
# Writes vitrine_version.h where every target finds it.
foreach(name CUDA CUDNN NCCL MPI ONEDNN OPENMP)
  set(VITRINE_BUILD_${name} "${VITRINE_HAVE_${name}}")
endforeach()
set(VITRINE_BUILD_ARCH "${CMAKE_SYSTEM_PROCESSOR}")
if(VITRINE_ARCH)
  set(VITRINE_BUILD_ARCH "${VITRINE_ARCH}")
endif()
configure_file("${CMAKE_CURRENT_LIST_DIR}/version.h.in" "${PROJECT_BINARY_DIR}/include/vitrine_version.h" @ONLY)
