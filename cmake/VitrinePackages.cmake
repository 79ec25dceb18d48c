# SPDX-License-Identifier: Apache-2.0
# cpack -G DEB: the packages vitrine (the program) and libvitrine-dev (libraries, headers, documentation, examples). See docs/developing.md.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME vitrine)
set(CPACK_PACKAGE_VERSION "${PROJECT_VERSION}")
set(CPACK_PACKAGE_CONTACT "Vitrine's developers <vitrine@localhost>")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "Data-parallel training runtime in C++ whose memory and time are accounted for")
set(CPACK_PACKAGING_INSTALL_PREFIX /usr)
set(CPACK_STRIP_FILES ON)
set(CPACK_COMPONENTS_ALL program development)
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_NAME vitrine)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_NAME libvitrine-dev)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)

# The libraries are static: their users link what they were built on.
set(depends libfmt-dev libsodium-dev libxxhash-dev zlib1g-dev)
if(VITRINE_HAVE_ONEDNN)
  list(APPEND depends libdnnl-dev)
endif()
if(VITRINE_HAVE_MPI)
  list(APPEND depends libopenmpi-dev)
  set(CPACK_DEBIAN_PROGRAM_PACKAGE_RECOMMENDS openmpi-bin)
endif()
list(JOIN depends ", " CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS)

# NVIDIA's libraries that are linked become dependencies only where they come from packages themselves.
set(CPACK_PROJECT_CONFIG_FILE "${PROJECT_BINARY_DIR}/vitrine_packages_check.cmake")
set(linked "")
foreach(name CUDNN NCCL)
  if(VITRINE_HAVE_${name} AND NOT VITRINE_HOST_CUDA)
    list(APPEND linked "${${name}_LIBRARY}")
  endif()
endforeach()
file(CONFIGURE OUTPUT "${CPACK_PROJECT_CONFIG_FILE}" @ONLY CONTENT [[
# SPDX-License-Identifier: Apache-2.0
if("@VITRINE_HOST_CUDA@" OR "@VITRINE_SANITIZE@")
  message(FATAL_ERROR "cpack: this build is for tests (VITRINE_CUDA=HOST or VITRINE_SANITIZE); make packages from the preset release.")
endif()
foreach(library @linked@)
  get_filename_component(file "${library}" REALPATH)
  execute_process(COMMAND dpkg-query --search "${file}" RESULT_VARIABLE unowned OUTPUT_QUIET ERROR_QUIET)
  if(unowned)
    message(FATAL_ERROR "cpack: the program is linked with ${file}, which belongs to no Debian package, so that no package can depend on it. "
                        "Configure with -DVITRINE_CUDA=OFF, or with -DVITRINE_CUDNN=OFF -DVITRINE_NCCL=OFF (CUDA without both needs no library of NVIDIA's to "
                        "start), or install NVIDIA's packages libcudnn9-dev-cuda-13 and libnccl-dev and configure again.")
  endif()
endforeach()
]])
include(CPack)
