# SPDX-License-Identifier: Apache-2.0
# Builds tests/consumer/CONSUMER in WORK against the installation in PREFIX (or against the source), then runs PROGRAM.
set(source "${VITRINE_SOURCE}/tests/consumer/${CONSUMER}")
if(NOT PROGRAM)
  set(PROGRAM "${CONSUMER}")
endif()
file(REMOVE_RECURSE "${WORK}")
execute_process(COMMAND "${CMAKE_COMMAND}" -S "${source}" -B "${WORK}" -G "${GENERATOR}" "-DCMAKE_CXX_COMPILER=${CXX}" -DCMAKE_BUILD_TYPE=Release
                        "-DCMAKE_PREFIX_PATH=${PREFIX}" "-DVITRINE_SOURCE=${VITRINE_SOURCE}" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${WORK}" --target "${PROGRAM}" COMMAND_ERROR_IS_FATAL ANY)
if(NOT CONSUMER STREQUAL "headers")
  execute_process(COMMAND "${WORK}/${PROGRAM}" COMMAND_ERROR_IS_FATAL ANY)
endif()
