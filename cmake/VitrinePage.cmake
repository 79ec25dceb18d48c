# SPDX-License-Identifier: Apache-2.0
# The page of `vitrine page`: a second build of the project with emscripten, in the folder wasm, makes planner.page, which is built into
# the program.
find_program(VITRINE_EMCMAKE emcmake)
mark_as_advanced(VITRINE_EMCMAKE)
if(VITRINE_PAGE AND NOT VITRINE_EMCMAKE)
  message(FATAL_ERROR "VITRINE_PAGE=ON, but emscripten was not found. Install it with: apt-get install emscripten, or configure with -DVITRINE_PAGE=OFF (vitrine page then says so).")
endif()
# A library of its own, which only the executable links: the rest of the program does not wait for the second build.
add_library(vitrine_planner_page STATIC)
vitrine_compile_options(vitrine_planner_page)
target_link_libraries(vitrine_planner_page PRIVATE vitrine::runtime)
if(NOT VITRINE_PAGE)
  target_sources(vitrine_planner_page PRIVATE page/no_planner_page.cpp)
  return()
endif()

set(folder "${PROJECT_BINARY_DIR}/wasm")
set(page "${folder}/bin/planner.page")
add_custom_command(OUTPUT "${folder}/CMakeCache.txt"
  COMMAND "${VITRINE_EMCMAKE}" "${CMAKE_COMMAND}" -S "${PROJECT_SOURCE_DIR}" -B "${folder}" -G "${CMAKE_GENERATOR}" --log-level=WARNING
          -DCMAKE_BUILD_TYPE=Release "-DCMAKE_CXX_FLAGS_RELEASE=-O2 -DNDEBUG" -DCMAKE_UNITY_BUILD=ON -DCMAKE_UNITY_BUILD_BATCH_SIZE=8
          -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON  # clang's have absolute paths, with which ccache finds nothing in another clone
          -DVITRINE_TESTS=OFF -DVITRINE_BENCHES=OFF -DVITRINE_INSTALL=OFF
  COMMAND "${PROJECT_SOURCE_DIR}/tools/relative_unity" "${folder}"
  COMMENT "Configuring the planner for WebAssembly" VERBATIM)
# The second build knows what it depends on. emscripten needs acorn, which only Debian's own node finds where Debian installs it.
add_custom_target(vitrine_planner COMMAND "${CMAKE_COMMAND}" -E env NODE_PATH=/usr/share/nodejs "${CMAKE_COMMAND}" --build "${folder}" --target planner DEPENDS "${folder}/CMakeCache.txt" BYPRODUCTS "${page}"
                  COMMENT "Building the planner for WebAssembly" VERBATIM)
add_dependencies(vitrine_planner_page vitrine_planner)
# An object made by the linker, because ccache does not see the files that assembly includes.
set(object "${CMAKE_CURRENT_BINARY_DIR}/planner_page.o")
add_custom_command(OUTPUT "${object}" COMMAND "${CMAKE_LINKER}" -r -b binary -z noexecstack -o "${object}" planner.page
                   WORKING_DIRECTORY "${folder}/bin" DEPENDS vitrine_planner "${page}" VERBATIM)
set_source_files_properties("${object}" PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
target_sources(vitrine_planner_page PRIVATE page/planner_page.cpp "${object}")
