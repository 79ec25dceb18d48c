# SPDX-License-Identifier: Apache-2.0
# How every target of the project is made.
include(GNUInstallDirs)

# <vitrine/runtime/tensor.h> works in the build tree too: build/include/vitrine is the source tree.
file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/include")
file(CREATE_LINK "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}/include/vitrine" SYMBOLIC)

# Compile options of our own code, which includes project headers by their path from the root; third-party headers are system headers.
function(vitrine_compile_options target)
  target_include_directories(${target} PRIVATE "${PROJECT_SOURCE_DIR}" "${PROJECT_BINARY_DIR}/include")
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  if(NOT EMSCRIPTEN)  # whose code would be slower for it
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  endif()
  set(cxx "$<COMPILE_LANGUAGE:CXX>")
  target_compile_options(${target} PRIVATE "$<${cxx}:-Wall;-Wextra;-Wconversion;-Wshadow>")
  if(CMAKE_UNITY_BUILD AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # A class of a source file may have members of that file's private types.
    target_compile_options(${target} PRIVATE "$<${cxx}:-Wno-subobject-linkage>")
  endif()
  set(cuda "$<COMPILE_LANGUAGE:CUDA>")
  target_compile_options(${target} PRIVATE "$<${cuda}:-lineinfo;-Xcompiler=-Wall,-Wextra>")
  if(VITRINE_WERROR)
    target_compile_options(${target} PRIVATE "$<${cxx}:-Werror>" "$<${cuda}:-Werror=all-warnings;-Xcompiler=-Werror>")
  endif()
  if(VITRINE_ARCH)
    target_compile_options(${target} PRIVATE "$<${cxx}:-march=${VITRINE_ARCH}>")
  endif()
  if(NOT EMSCRIPTEN AND NOT VITRINE_SANITIZE)
    # What limits the harm of an error in handling memory. The fortified functions need optimization; distributions' compilers may define a lower level.
    target_compile_options(${target} PRIVATE "$<${cxx}:-fstack-protector-strong>" "$<${cuda}:-Xcompiler=-fstack-protector-strong>")
    set(optimized "$<NOT:$<CONFIG:Debug>>")
    set(level "-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=${VITRINE_FORTIFY_LEVEL}")
    string(REPLACE ";" "," level_of_nvcc "${level}")
    target_compile_options(${target} PRIVATE "$<$<AND:${cxx},${optimized}>:${level}>" "$<$<AND:${cuda},${optimized}>:-Xcompiler=${level_of_nvcc}>")
    target_link_options(${target} PRIVATE -Wl,-z,relro,-z,now)
  endif()
  if(VITRINE_SANITIZE)
    target_compile_options(${target} PRIVATE "$<${cxx}:-fsanitize=${VITRINE_SANITIZE};-fno-omit-frame-pointer;-g1>")
    # Optimizing instrumented code takes most of the time of a build.
    target_compile_options(${target} PRIVATE "$<${cxx}:-O1>")
    if(VITRINE_SANITIZE MATCHES "undefined")
      # Checking every pointer for null and alignment doubles that time again. AddressSanitizer reports null.
      target_compile_options(${target} PRIVATE "$<${cxx}:-fno-sanitize=null,alignment>")
    endif()
    target_link_options(${target} PUBLIC "-fsanitize=${VITRINE_SANITIZE}")
  endif()
endfunction()

# vitrine_precompile(TARGET [like]): compiles the headers that most files include once, for TARGET, or uses those of LIKE, a target with the same
# compile options. -DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON builds without them. g++ takes over optimization options with precompiled headers: a file with
# COMPILE_OPTIONS of its own needs SKIP_PRECOMPILE_HEADERS.
function(vitrine_precompile target)
  # ccache needs the option to see through a precompiled header.
  target_compile_options(${target} PRIVATE "$<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-fpch-preprocess>")
  if(ARGC GREATER 1)
    target_precompile_headers(${target} REUSE_FROM ${ARGV1})
    return()
  endif()
  foreach(header algorithm array atomic chrono cmath cstdint cstring functional limits map memory mutex optional span string string_view thread utility vector
                 fmt/format.h fmt/ranges.h)
    list(APPEND headers "$<$<COMPILE_LANGUAGE:CXX>:<${header}$<ANGLE-R>>")
  endforeach()
  target_precompile_headers(${target} PRIVATE ${headers})
endfunction()

# vitrine_library(NAME sources...): the library vitrine_NAME with the alias vitrine::NAME.
function(vitrine_library name)
  add_library(vitrine_${name} ${ARGN})
  add_library(vitrine::${name} ALIAS vitrine_${name})
  set_target_properties(vitrine_${name} PROPERTIES EXPORT_NAME ${name})
  target_include_directories(vitrine_${name} PUBLIC "$<BUILD_INTERFACE:${PROJECT_BINARY_DIR}/include>" "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  vitrine_compile_options(vitrine_${name})
endfunction()

# vitrine_public_headers(NAME headers...): headers of the current folder that users of vitrine::NAME include as <vitrine/...>; no other is installed.
function(vitrine_public_headers name)
  if(NOT VITRINE_INSTALL)
    return()
  endif()
  file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}" "${CMAKE_CURRENT_SOURCE_DIR}")
  foreach(header ${ARGN})
    get_filename_component(subfolder "${folder}/${header}" DIRECTORY)
    install(FILES "${header}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/vitrine/${subfolder}" COMPONENT development)
  endforeach()
endfunction()

# Private dependencies that only .cpp files see.
function(vitrine_link_openmp target)
  if(VITRINE_HAVE_OPENMP)
    target_link_libraries(${target} PRIVATE OpenMP::OpenMP_CXX)
  else()
    target_include_directories(${target} SYSTEM PRIVATE "${PROJECT_SOURCE_DIR}/runtime/cpu/no_openmp")
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CXX>:-fopenmp-simd>")
  endif()
endfunction()

# vitrine_link_header_only(TARGET libraries...): private dependencies without a library to link, so that users of an installed Vitrine need not have them.
function(vitrine_link_header_only target)
  foreach(library ${ARGN})
    target_link_libraries(${target} PRIVATE "$<BUILD_INTERFACE:${library}>")
  endforeach()
endfunction()

# vitrine_cuda_sources(TARGET files...): the CUDA side of a library, .cpp and .cu files. Where CUDA is built for the host, .cu files are C++.
function(vitrine_cuda_sources target)
  target_sources(${target} PRIVATE ${ARGN})
  if(VITRINE_HOST_CUDA)
    set(device_code ${ARGN})
    list(FILTER device_code INCLUDE REGEX "\\.cu$")
    # __fmul_rn and its like must round once; under sanitizers g++ takes guarded elements for uninitialised.
    set_source_files_properties(${device_code} PROPERTIES LANGUAGE CXX SKIP_PRECOMPILE_HEADERS ON COMPILE_OPTIONS "-xc++;-ffp-contract=off;-Wno-unknown-pragmas;-Wno-maybe-uninitialized")
    if(VITRINE_SANITIZE MATCHES "address")
      # tests/ptx checks every access of what nvcc has compiled, which takes less time than this here.
      set_property(SOURCE ${device_code} APPEND PROPERTY COMPILE_OPTIONS "-O2;-fno-sanitize=all")
    endif()
    # The interface through which device code sees the stand-ins; see kernels/cuda/device.cuh.
    target_compile_definitions(${target} PRIVATE "VITRINE_STANDIN_DEVICE_HEADER=\"tests/standins/device_interface.h\"")
    target_include_directories(${target} SYSTEM PRIVATE "${VITRINE_CUDA_HEADERS}" "${NCCL_INCLUDE_DIR}")
  else()
    # CMake 3.25 does not know that nvcc has C++20.
    target_compile_options(${target} PRIVATE "$<$<COMPILE_LANGUAGE:CUDA>:-std=c++20>")
    set_target_properties(${target} PROPERTIES CUDA_RUNTIME_LIBRARY Static)
    target_link_libraries(${target} PRIVATE CUDA::cudart_static)
  endif()
endfunction()

# vitrine_open_at_run_time(TARGET NAME source soname): a library of NVIDIA's of which only the headers are used here; `source` opens it when it is needed.
function(vitrine_open_at_run_time target name source soname)
  get_filename_component(file "${${name}_LIBRARY}" REALPATH)
  set_source_files_properties(${source} PROPERTIES COMPILE_DEFINITIONS "VITRINE_${name}_SONAME=\"${soname}\";VITRINE_${name}_FILE=\"${file}\"")
  target_include_directories(${target} SYSTEM PRIVATE "$<BUILD_INTERFACE:${${name}_INCLUDE_DIR}>")
  target_link_libraries(${target} PRIVATE ${CMAKE_DL_LIBS})
endfunction()

# vitrine_cpu_levels(NAME SOURCES files... LIBS libraries...): adds files to the library vitrine_NAME that are compiled for the library's instruction set
# and, if that is lower, for x86-64-v4 (AVX-512) as well; see kernels/cpu/levels.h. They use only headers of LIBS. The second set becomes one object in
# which everything is local but the namespaces called avx512: of a function that both sets instantiate from a header, the linker keeps any, and a
# processor without AVX-512 must not run that of the second set.
function(vitrine_cpu_levels name)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBS" ${ARGN})
  set(target vitrine_${name})
  if(EMSCRIPTEN)
    return()
  endif()
  target_sources(${target} PRIVATE ${arg_SOURCES})
  target_compile_definitions(${target} PRIVATE VITRINE_CPU_LEVEL=baseline)
  if(NOT VITRINE_AVX512_LEVEL)
    return()
  endif()
  add_library(${target}_avx512 OBJECT ${arg_SOURCES})
  vitrine_compile_options(${target}_avx512)
  set_target_properties(${target}_avx512 PROPERTIES UNITY_BUILD OFF)
  # After the options of the library, so that -march is the last one. g++ 12 takes the undefined registers of its own intrinsics for mistakes.
  target_compile_options(${target}_avx512 PRIVATE "$<TARGET_PROPERTY:${target},COMPILE_OPTIONS>" -march=x86-64-v4 -mprefer-vector-width=512
                                                  -Wno-uninitialized -Wno-maybe-uninitialized)
  if(VITRINE_SANITIZE MATCHES address AND CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    # The frames in which g++ 14 looks for uses after return are not aligned to the 64 bytes of a vector: loads from them crash.
    target_compile_options(${target}_avx512 PRIVATE --param=asan-use-after-return=0)
  endif()
  target_compile_definitions(${target}_avx512 PRIVATE VITRINE_CPU_LEVEL=avx512)
  target_link_libraries(${target}_avx512 PRIVATE ${arg_LIBS})
  vitrine_link_openmp(${target}_avx512)
  set(object "${CMAKE_CURRENT_BINARY_DIR}/${name}_avx512.o")
  add_custom_command(OUTPUT "${object}"
    COMMAND "${CMAKE_LINKER}" -r --force-group-allocation -o "${object}" "$<TARGET_OBJECTS:${target}_avx512>"
    COMMAND "${CMAKE_OBJCOPY}" --wildcard "--keep-global-symbol=_ZN7vitrine3cpu*6avx512*" "${object}"
    DEPENDS "$<TARGET_OBJECTS:${target}_avx512>" COMMAND_EXPAND_LISTS VERBATIM)
  set_source_files_properties("${object}" PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  target_sources(${target} PRIVATE "${object}")
  target_compile_definitions(${target} PRIVATE VITRINE_HAVE_AVX512_LEVEL)
endfunction()
