# SPDX-License-Identifier: Apache-2.0
find_path(RANDOM123_INCLUDE_DIR Random123/philox.h)
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(Random123 REQUIRED_VARS RANDOM123_INCLUDE_DIR)
if(Random123_FOUND AND NOT TARGET vitrine_random123)
  add_library(vitrine_random123 INTERFACE IMPORTED)
  set_target_properties(vitrine_random123 PROPERTIES INTERFACE_INCLUDE_DIRECTORIES "${RANDOM123_INCLUDE_DIR}")
endif()
mark_as_advanced(RANDOM123_INCLUDE_DIR)
