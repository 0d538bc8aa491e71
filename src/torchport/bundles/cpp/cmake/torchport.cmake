# The target torchport::torchport: the headers in TORCHPORT_INCLUDE_DIR, the engine of TORCHPORT_ENGINE, zlib if it is here.

set(TORCHPORT_ENGINE onnxruntime CACHE STRING "What runs the models: onnxruntime or openvino")
set_property(CACHE TORCHPORT_ENGINE PROPERTY STRINGS onnxruntime openvino)
if(NOT TORCHPORT_ENGINE MATCHES "^(onnxruntime|openvino)$")
  message(FATAL_ERROR "TORCHPORT_ENGINE is '${TORCHPORT_ENGINE}'\nnext: give onnxruntime or openvino")
endif()

if(NOT TARGET torchport::torchport)
  add_library(torchport_headers INTERFACE)
  add_library(torchport::torchport ALIAS torchport_headers)
  target_compile_features(torchport_headers INTERFACE cxx_std_17)
  target_include_directories(torchport_headers INTERFACE "${TORCHPORT_INCLUDE_DIR}")

  if(TORCHPORT_ENGINE STREQUAL "onnxruntime")
    list(APPEND CMAKE_MODULE_PATH "${CMAKE_CURRENT_LIST_DIR}")
    find_package(OnnxRuntime REQUIRED)
    list(POP_BACK CMAKE_MODULE_PATH)
    target_link_libraries(torchport_headers INTERFACE OnnxRuntime::OnnxRuntime ${CMAKE_DL_LIBS})
  else()
    if(NOT OpenVINO_DIR)  # Python's wheel brings headers, libraries and its package for CMake
      find_program(TORCHPORT_PYTHON NAMES python3 python)
      execute_process(
        COMMAND "${TORCHPORT_PYTHON}" -c
          "import importlib.util as u, pathlib as p; print(p.Path(u.find_spec('openvino').origin).parent / 'cmake')"
        OUTPUT_VARIABLE _openvino OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    endif()
    find_package(OpenVINO QUIET COMPONENTS Runtime HINTS "${_openvino}")
    if(NOT OpenVINO_FOUND)
      message(FATAL_ERROR "OpenVINO was not found\nnext: `pip install openvino` and let python3 find it, or give -DOpenVINO_DIR=FOLDER that holds OpenVINOConfig.cmake")
    endif()
    target_link_libraries(torchport_headers INTERFACE openvino::runtime)
    target_compile_definitions(torchport_headers INTERFACE TORCHPORT_OPENVINO)
  endif()

  find_package(ZLIB QUIET)
  if(ZLIB_FOUND)
    target_link_libraries(torchport_headers INTERFACE ZLIB::ZLIB)
    target_compile_definitions(torchport_headers INTERFACE TORCHPORT_ZLIB)
  else()
    message(STATUS "zlib was not found: compressed .npz files (numpy.savez_compressed) are refused; apt install zlib1g-dev")
  endif()
endif()
