# SPDX-License-Identifier: Apache-2.0
# cmake --install, in two components. program: the program; development: libraries, public headers under include/vitrine (vitrine_public_headers), the
# package that find_package(vitrine) finds, documentation and examples.
include(CMakePackageConfigHelpers)
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/vitrine")

# One export for each library: a component of find_package, which needs only what that library needs.
foreach(library runtime communication kernels nn parallel data)
  install(TARGETS vitrine_${library} EXPORT vitrine_${library} COMPONENT development)
  install(EXPORT vitrine_${library} NAMESPACE vitrine:: DESTINATION "${package_dir}" COMPONENT development)
endforeach()
install(FILES "${PROJECT_BINARY_DIR}/include/vitrine_version.h" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT development)

configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/vitrineConfig.cmake.in" "${PROJECT_BINARY_DIR}/vitrineConfig.cmake"
                              INSTALL_DESTINATION "${package_dir}")
write_basic_package_version_file("${PROJECT_BINARY_DIR}/vitrineConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/vitrineConfig.cmake" "${PROJECT_BINARY_DIR}/vitrineConfigVersion.cmake"
              "${CMAKE_CURRENT_LIST_DIR}/FindDNNL.cmake" "${CMAKE_CURRENT_LIST_DIR}/FindSodium.cmake" "${CMAKE_CURRENT_LIST_DIR}/FindxxHash.cmake" DESTINATION "${package_dir}" COMPONENT development)

install(FILES "${PROJECT_SOURCE_DIR}/README.md" "${PROJECT_SOURCE_DIR}/CHANGELOG.md" "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT development)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs" DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT development)
if(VITRINE_TOOLS)
  install(TARGETS vitrine COMPONENT program)
  install(FILES "${PROJECT_BINARY_DIR}/tools/program/vitrine.1" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1" COMPONENT program)
  install(FILES "${PROJECT_BINARY_DIR}/tools/program/vitrine.bash" DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" RENAME vitrine COMPONENT program)
  install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}" RENAME copyright COMPONENT program)
endif()
if(PROJECT_IS_TOP_LEVEL)
  include(VitrinePackages)
endif()
