# SPDX-License-Identifier: Apache-2.0
# xxHash by its header and library: Debian and Ubuntu ship no CMake configuration for it.
find_path(xxHash_INCLUDE_DIR xxhash.h)
find_library(xxHash_LIBRARY xxhash)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(xxHash REQUIRED_VARS xxHash_LIBRARY xxHash_INCLUDE_DIR)
if(xxHash_FOUND AND NOT TARGET vitrine_xxhash)
  add_library(vitrine_xxhash UNKNOWN IMPORTED)
  set_target_properties(vitrine_xxhash PROPERTIES IMPORTED_LOCATION "${xxHash_LIBRARY}" INTERFACE_INCLUDE_DIRECTORIES "${xxHash_INCLUDE_DIR}")
endif()
mark_as_advanced(xxHash_INCLUDE_DIR xxHash_LIBRARY)
