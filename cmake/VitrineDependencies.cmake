# SPDX-License-Identifier: Apache-2.0
# Finds what VitrineOptions.cmake asks for. Sets VITRINE_HAVE_<NAME> for CUDA, CUDNN, NCCL, MPI, ONEDNN and OPENMP,
# and VITRINE_HOST_CUDA where the CUDA sources are built for the host.

# vitrine_want(OPTION found_variable remedy): turns AUTO, ON, OFF and what was found into VITRINE_HAVE_<NAME>.
function(vitrine_want name found remedy)
  set(have OFF)
  if(VITRINE_${name} STREQUAL "OFF")
  elseif(found)
    set(have ON)
  elseif(NOT VITRINE_${name} STREQUAL "AUTO")
    message(FATAL_ERROR "VITRINE_${name}=${VITRINE_${name}}, but it was not found. ${remedy}")
  endif()
  set(VITRINE_HAVE_${name} ${have} PARENT_SCOPE)
endfunction()

function(vitrine_require package remedy)
  find_package(${package} QUIET)
  if(NOT ${package}_FOUND)
    message(FATAL_ERROR "${package} was not found. ${remedy}")
  endif()
endfunction()

find_package(Threads REQUIRED)
vitrine_require(fmt "Install it with: apt-get install libfmt-dev")
vitrine_require(Eigen3 "Install it with: apt-get install libeigen3-dev")
vitrine_require(ZLIB "Install it with: apt-get install zlib1g-dev")
vitrine_require(nlohmann_json "Install it with: apt-get install nlohmann-json3-dev")
vitrine_require(Sodium "Install it with: apt-get install libsodium-dev")
vitrine_require(Random123 "Install it with: apt-get install librandom123-dev")
vitrine_require(xxHash "Install it with: apt-get install libxxhash-dev")

if(NOT VITRINE_ONEDNN STREQUAL "OFF")
  find_package(DNNL 2...<4 QUIET MODULE)
  if(DNNL_VERSION AND NOT DNNL_FOUND)
    message(WARNING "oneDNN ${DNNL_VERSION} in ${DNNL_INCLUDE_DIR} is not used: versions 2 and 3 are supported.")
  endif()
endif()
vitrine_want(ONEDNN "${DNNL_FOUND}" "Versions 2 and 3 are supported. Install it with: apt-get install libdnnl-dev, or configure with -DVITRINE_ONEDNN=OFF (Eigen then serves).")

if(NOT VITRINE_OPENMP STREQUAL "OFF")
  find_package(OpenMP QUIET COMPONENTS CXX)
endif()
vitrine_want(OPENMP "${OpenMP_CXX_FOUND}" "Use a compiler with OpenMP, or configure with -DVITRINE_OPENMP=OFF (each device then computes on one thread).")

if(NOT VITRINE_MPI STREQUAL "OFF")
  set(MPI_CXX_SKIP_MPICXX ON)
  find_package(MPI QUIET COMPONENTS CXX)
endif()
vitrine_want(MPI "${MPI_CXX_FOUND}" "Install it with: apt-get install libopenmpi-dev openmpi-bin, or configure with -DVITRINE_MPI=OFF (CPU devices then work in one process).")

include(VitrineCuda)

if(VITRINE_TESTS)
  vitrine_require(GTest "Install it with: apt-get install libgtest-dev, or configure with -DVITRINE_TESTS=OFF.")
endif()
if(VITRINE_BENCHES)
  vitrine_require(benchmark "Install it with: apt-get install libbenchmark-dev, or configure with -DVITRINE_BENCHES=OFF.")
endif()
if(VITRINE_TOOLS)
  vitrine_require(CLI11 "Install it with: apt-get install libcli11-dev, or configure with -DVITRINE_TOOLS=OFF.")
endif()
