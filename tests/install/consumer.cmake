# SPDX-License-Identifier: Apache-2.0
# Builds the project SOURCE in WORK against the installation in PREFIX (or against the source), warnings being errors, then runs PROGRAMS.
# Not optimised: what is checked is that it compiles, links and runs.
file(REMOVE_RECURSE "${WORK}")
execute_process(COMMAND "${CMAKE_COMMAND}" -S "${SOURCE}" -B "${WORK}" -G "${GENERATOR}" "-DCMAKE_CXX_COMPILER=${CXX}" -DCMAKE_BUILD_TYPE=None
                        "-DCMAKE_CXX_FLAGS=-Wall -Wextra -Wconversion -Wshadow -Werror"
                        "-DCMAKE_UNITY_BUILD=${UNITY}" -DCMAKE_UNITY_BUILD_BATCH_SIZE=8 "-DCMAKE_PREFIX_PATH=${PREFIX}" "-DVITRINE_SOURCE=${VITRINE_SOURCE}" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${WORK}" COMMAND_ERROR_IS_FATAL ANY)
string(REPLACE "," ";" programs "${PROGRAMS}")
foreach(program ${programs})
  execute_process(COMMAND "${WORK}/${program}" COMMAND_ERROR_IS_FATAL ANY)
endforeach()
