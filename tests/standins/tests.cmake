# SPDX-License-Identifier: Apache-2.0
# Tests of the stand-ins; included by tests/CMakeLists.txt.
vitrine_test(test_standins LABELS cpu threads
  SOURCES standins/cublaslt_test.cpp standins/cuda_graph_test.cpp standins/cuda_runtime_test.cpp standins/device_code_test.cpp standins/nccl_test.cpp
  LIBS vitrine::runtime)
# Each file by itself: the device interface is macros, which CUDA's headers would meet.
set_target_properties(test_standins PROPERTIES UNITY_BUILD OFF)
target_include_directories(test_standins SYSTEM PRIVATE "${VITRINE_CUDA_HEADERS}" "${NCCL_INCLUDE_DIR}")
if(VITRINE_HAVE_CUDNN)
  target_sources(test_standins PRIVATE standins/cudnn_test.cpp)
  target_include_directories(test_standins SYSTEM PRIVATE "${CUDNN_INCLUDE_DIR}")
endif()
set_source_files_properties(standins/device_code_test.cpp PROPERTIES COMPILE_OPTIONS -ffp-contract=off SKIP_PRECOMPILE_HEADERS ON
                            COMPILE_DEFINITIONS "VITRINE_STANDIN_DEVICE_HEADER=\"tests/standins/device_interface.h\"")

if(VITRINE_SANITIZE MATCHES "thread")
  add_executable(standins_races standins/races_main.cpp)
  vitrine_test_options(standins_races)
  target_include_directories(standins_races SYSTEM PRIVATE "${VITRINE_CUDA_HEADERS}" "${NCCL_INCLUDE_DIR}")
  target_link_libraries(standins_races PRIVATE vitrine::runtime)
  add_dependencies(thread_tests standins_races)
  foreach(left_out event collective edge graph)
    add_test(NAME ThreadSanitizer.FindsTheLeftOut/${left_out} COMMAND standins_races ${left_out})
    set_tests_properties(ThreadSanitizer.FindsTheLeftOut/${left_out} PROPERTIES LABELS "cpu;threads" PASS_REGULAR_EXPRESSION "ThreadSanitizer: data race")
  endforeach()
  add_test(NAME ThreadSanitizer.FindsNothingElseInTheStandins COMMAND standins_races)
  set_tests_properties(ThreadSanitizer.FindsNothingElseInTheStandins PROPERTIES LABELS "cpu;threads")
endif()
