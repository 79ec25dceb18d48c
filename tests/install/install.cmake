# SPDX-License-Identifier: Apache-2.0
# Installs BUILD to PREFIX, which is emptied first.
file(REMOVE_RECURSE "${PREFIX}")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${PREFIX}" COMMAND_ERROR_IS_FATAL ANY)
file(GLOB_RECURSE headers RELATIVE "${PREFIX}/include" "${PREFIX}/include/vitrine/*")
list(FILTER headers INCLUDE REGEX "/engine_state\\.h$|/(cuda|tests|tools|meta)/|/kernels/cpu/|\\.(cpp|cu|cuh)$")
if(headers)
  message(FATAL_ERROR "private headers are installed: ${headers}")
endif()
