# SPDX-License-Identifier: Apache-2.0
# The dependencies of the WebAssembly build (tools/program/page): headers of the host, which emscripten sees through links, so that it
# does not see the host's other headers. The planner needs none of their libraries.
set(VITRINE_HEADERS "${PROJECT_BINARY_DIR}/headers")
file(MAKE_DIRECTORY "${VITRINE_HEADERS}")
foreach(header fmt/format.h nlohmann/json.hpp Random123/philox.h xxhash.h CLI/CLI.hpp eigen3/Eigen/Core boost/crc.hpp protozero/pbf_writer.hpp
               zlib.h zconf.h sodium.h sodium/core.h)
  string(MAKE_C_IDENTIFIER "VITRINE_HEADER_${header}" found)
  find_path(${found} "${header}" PATHS /usr/local/include /usr/include NO_DEFAULT_PATH NO_CMAKE_FIND_ROOT_PATH REQUIRED)
  string(REGEX REPLACE "/.*" "" first "${header}")
  file(CREATE_LINK "${${found}}/${first}" "${VITRINE_HEADERS}/${first}" SYMBOLIC)
endforeach()
foreach(target vitrine_headers fmt::fmt nlohmann_json::nlohmann_json Eigen3::Eigen ZLIB::ZLIB CLI11::CLI11 vitrine_random123 vitrine_xxhash vitrine_sodium)
  add_library(${target} INTERFACE IMPORTED)
  set_target_properties(${target} PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${VITRINE_HEADERS};${VITRINE_HEADERS}/eigen3")
endforeach()
target_compile_definitions(fmt::fmt INTERFACE FMT_HEADER_ONLY)
target_compile_definitions(vitrine_xxhash INTERFACE XXH_INLINE_ALL)
include_directories(SYSTEM "${PROJECT_SOURCE_DIR}/tools/program/page/wasm" "${VITRINE_HEADERS}")
add_compile_options(-fwasm-exceptions "SHELL:-include ${PROJECT_SOURCE_DIR}/tools/program/page/wasm/prefix.h")
