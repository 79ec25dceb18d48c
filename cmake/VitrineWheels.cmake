# SPDX-License-Identifier: Apache-2.0
# vitrine_wheel_folders(VARIABLE): the folders nvidia/* of Python's packages, where the vendor's wheels put headers (include/) and libraries (lib/).
function(vitrine_wheel_folders variable)
  find_program(VITRINE_PYTHON NAMES python3 python)
  set(found "")
  if(VITRINE_PYTHON)
    execute_process(COMMAND "${VITRINE_PYTHON}" -c "import sys; print(';'.join(p for p in sys.path if p))"
                    OUTPUT_VARIABLE python_path OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    foreach(folder ${python_path})
      file(GLOB folders LIST_DIRECTORIES true "${folder}/nvidia/*")
      list(APPEND found ${folders})
    endforeach()
  endif()
  set(${variable} "${found}" PARENT_SCOPE)
endfunction()
