# SPDX-License-Identifier: Apache-2.0
# cmake --install: libraries, public headers under include/vitrine, the package that find_package(vitrine) finds, and the program.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/vitrine")

install(TARGETS vitrine_runtime vitrine_kernels vitrine_nn vitrine_parallel vitrine_data EXPORT vitrineTargets)
install(EXPORT vitrineTargets NAMESPACE vitrine:: DESTINATION "${package_dir}")

# What the libraries' implementations share stays at home.
foreach(folder runtime kernels nn data)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/${folder}" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/vitrine" FILES_MATCHING PATTERN "*.h"
          PATTERN "kernels/cpu" EXCLUDE PATTERN "kernels/cuda" EXCLUDE PATTERN "kernels/implementations.h" EXCLUDE PATTERN "runtime/cpu" EXCLUDE PATTERN "runtime/cuda" EXCLUDE)
endforeach()
install(FILES "${PROJECT_SOURCE_DIR}/runtime/cpu/stream.h" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/vitrine/runtime/cpu")
install(FILES "${PROJECT_BINARY_DIR}/include/vitrine_version.h" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")

configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/vitrineConfig.cmake.in" "${PROJECT_BINARY_DIR}/vitrineConfig.cmake"
                              INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/vitrineConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/vitrineConfig.cmake" "${PROJECT_BINARY_DIR}/vitrineConfigVersion.cmake"
              "${CMAKE_CURRENT_LIST_DIR}/FindDNNL.cmake" "${CMAKE_CURRENT_LIST_DIR}/FindSodium.cmake"
              "${CMAKE_CURRENT_LIST_DIR}/FindCUDNN.cmake" "${CMAKE_CURRENT_LIST_DIR}/FindNCCL.cmake"
              "${CMAKE_CURRENT_LIST_DIR}/VitrineVendorLibrary.cmake" DESTINATION "${package_dir}")

if(VITRINE_TOOLS)
  install(TARGETS vitrine)
endif()
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")
