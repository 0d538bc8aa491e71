# Find ONNX Runtime: the target OnnxRuntime::OnnxRuntime.
#
# Headers: TORCHPORT_ORT_INCLUDE (a CMake or environment variable), the system, what `torchport ops headers --fetch` got.
# Library: TORCHPORT_ORT_LIBRARY (the file, or a folder that has it), the system, the onnxruntime wheel of Python.
# The wheel has no libonnxruntime.so without a version: a link of the name that the linker records is made in the build.

set(_below . onnxruntime onnxruntime/core/session include include/onnxruntime)
set(_given "${TORCHPORT_ORT_INCLUDE}" "$ENV{TORCHPORT_ORT_INCLUDE}")
set(_cache "$ENV{TORCHPORT_CACHE}")
if(NOT _cache)
  set(_cache "$ENV{XDG_CACHE_HOME}/torchport")
  if("$ENV{XDG_CACHE_HOME}" STREQUAL "")
    set(_cache "$ENV{HOME}/.cache/torchport")
  endif()
endif()
find_path(OnnxRuntime_INCLUDE_DIR onnxruntime_cxx_api.h
  HINTS ${_given} PATHS /opt/onnxruntime/include /opt/homebrew/include "${_cache}/onnxruntime" PATH_SUFFIXES ${_below})

if(NOT OnnxRuntime_LIBRARY)
  set(_places "${TORCHPORT_ORT_LIBRARY}" "$ENV{TORCHPORT_ORT_LIBRARY}")
  foreach(_place IN LISTS _places)
    if(_place AND IS_DIRECTORY "${_place}")
      file(GLOB _found "${_place}/libonnxruntime.so*" "${_place}/libonnxruntime*.dylib" "${_place}/onnxruntime.lib")
    elseif(_place AND EXISTS "${_place}")
      set(_found "${_place}")
    else()
      set(_found)
    endif()
    if(_found)
      list(GET _found 0 _first)
      set(OnnxRuntime_LIBRARY "${_first}" CACHE FILEPATH "ONNX Runtime's shared library")
      break()
    endif()
  endforeach()
endif()
find_library(OnnxRuntime_LIBRARY onnxruntime PATHS /opt/onnxruntime/lib /opt/homebrew/lib)
if(NOT OnnxRuntime_LIBRARY)
  unset(OnnxRuntime_PYTHON CACHE)  # another environment may be active by now
  find_program(OnnxRuntime_PYTHON NAMES python3 python)
  if(OnnxRuntime_PYTHON)
    execute_process(
      COMMAND "${OnnxRuntime_PYTHON}" -c
        "import importlib.util as u, pathlib as p; print(p.Path(u.find_spec('onnxruntime').origin).parent / 'capi')"
      OUTPUT_VARIABLE _wheel OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    file(GLOB _found "${_wheel}/libonnxruntime.so.*" "${_wheel}/libonnxruntime.*.dylib")
    if(_wheel AND _found)
      list(GET _found 0 _first)
      set(OnnxRuntime_LIBRARY "${_first}" CACHE FILEPATH "ONNX Runtime's shared library" FORCE)
    endif()
  endif()
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(OnnxRuntime
  REQUIRED_VARS OnnxRuntime_INCLUDE_DIR OnnxRuntime_LIBRARY
  REASON_FAILURE_MESSAGE
    "Headers: run `torchport ops headers --fetch`, or give -DTORCHPORT_ORT_INCLUDE=FOLDER. Library: `pip install onnxruntime` and let python3 find it, or give -DTORCHPORT_ORT_LIBRARY=FILE")

if(OnnxRuntime_FOUND AND NOT TARGET OnnxRuntime::OnnxRuntime)
  set(_library "${OnnxRuntime_LIBRARY}")
  if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
    # The loader looks for the name that is recorded in the library, which the wheel has no file of.
    get_filename_component(_real "${_library}" REALPATH)
    get_filename_component(_folder "${_real}" DIRECTORY)
    if(NOT EXISTS "${_folder}/libonnxruntime.so.1")
      set(_folder "${CMAKE_BINARY_DIR}/onnxruntime")
      file(MAKE_DIRECTORY "${_folder}")
      file(CREATE_LINK "${_real}" "${_folder}/libonnxruntime.so.1" SYMBOLIC)
      set(_library "${_folder}/libonnxruntime.so.1")
    endif()
  endif()
  add_library(OnnxRuntime::OnnxRuntime UNKNOWN IMPORTED)
  set_target_properties(OnnxRuntime::OnnxRuntime PROPERTIES
    IMPORTED_LOCATION "${_library}"
    INTERFACE_INCLUDE_DIRECTORIES "${OnnxRuntime_INCLUDE_DIR}")
endif()
mark_as_advanced(OnnxRuntime_INCLUDE_DIR OnnxRuntime_LIBRARY OnnxRuntime_PYTHON)
