# SPDX-License-Identifier: Apache-2.0
# Installs BUILD to PREFIX, which is emptied first.
file(REMOVE_RECURSE "${PREFIX}")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${PREFIX}" COMMAND_ERROR_IS_FATAL ANY)
file(GLOB_RECURSE private RELATIVE "${PREFIX}" "${PREFIX}/include/vitrine/kernels/*/*" "${PREFIX}/include/vitrine/runtime/cuda/*"
     "${PREFIX}/include/vitrine/runtime/cpu/[!s]*" "${PREFIX}/include/vitrine/runtime/cpu/slab.h" "${PREFIX}/include/vitrine/tests/*")
if(private)
  message(FATAL_ERROR "private headers are installed: ${private}")
endif()
