# SPDX-License-Identifier: Apache-2.0
# libsodium by its header and library: Debian and Ubuntu ship no CMake configuration for it.
find_path(Sodium_INCLUDE_DIR sodium.h)
find_library(Sodium_LIBRARY sodium)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Sodium REQUIRED_VARS Sodium_LIBRARY Sodium_INCLUDE_DIR)
if(Sodium_FOUND AND NOT TARGET vitrine_sodium)
  add_library(vitrine_sodium UNKNOWN IMPORTED)
  set_target_properties(vitrine_sodium PROPERTIES IMPORTED_LOCATION "${Sodium_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${Sodium_INCLUDE_DIR}")
endif()
mark_as_advanced(Sodium_INCLUDE_DIR Sodium_LIBRARY)
