// ONNX Runtime on the CPU, with the options that torchport sets in Python: the answers are the same bit for bit.
#pragma once

#ifndef ORT_API_MANUAL_INIT
#define ORT_API_MANUAL_INIT  // so that a library older than the headers is an error, not a crash
#endif
#include <onnxruntime_cxx_api.h>

#if !defined(_WIN32)
#include <dlfcn.h>
#endif

#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "error.hpp"
#include "session.hpp"

namespace torchport {
namespace detail {

// Leave out where in ONNX Runtime's own code a message comes from: "/src/model.cc:340 Model::Model(...) reason".
inline std::string without_code(std::string text) {
  const std::size_t file = text.find(".cc:");
  if (file == std::string::npos) return text;
  const std::size_t start = text.find_last_of(" :", file), end = text.find(") ", file);
  if (end == std::string::npos) return text;
  const std::size_t from = start == std::string::npos ? 0 : start + 1;
  return text.erase(from, end + 2 - from);
}

// ONNX Runtime's message without its code; with the node that it names.
inline EngineError engine_error(const std::string& what, const std::string& path, const char* message) {
  std::string text = message;
  const std::size_t status = text.rfind("Status Message: ");
  const std::string all = text;
  if (status != std::string::npos) text = text.substr(status + 16);
  text = without_code(text.substr(0, text.find('\n'))).substr(0, 300);
  std::string where = path;
  const std::string mark = "Name:'";
  const std::size_t node = all.find(mark);
  if (node != std::string::npos) {
    const std::size_t end = all.find('\'', node + mark.size());
    if (end != std::string::npos) where += ", node " + all.substr(node + mark.size(), end - node - mark.size());
  }
  return EngineError(what + ": " + text, where, "torchport lint model.onnx lists the faults of a model");
}

inline DType dtype_of(ONNXTensorElementDataType type, const std::string& name, const std::string& path) {
  switch (type) {
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL: return DType::boolean;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8: return DType::int8;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16: return DType::int16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32: return DType::int32;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64: return DType::int64;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8: return DType::uint8;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16: return DType::uint16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32: return DType::uint32;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64: return DType::uint64;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16: return DType::float16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16: return DType::bfloat16;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT: return DType::float32;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE: return DType::float64;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX64: return DType::complex64;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX128: return DType::complex128;
    case ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING: return DType::string;
    default: break;
  }
  throw EngineError("'" + name + "' has element type " + std::to_string(static_cast<int>(type)) +
                        ", which torchport has no tensors of",
                    path, "cast it inside the model: torchport edit");
}

inline ONNXTensorElementDataType element_type_of(DType dtype) {
  static constexpr ONNXTensorElementDataType types[] = {
      ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL,       ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8,
      ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16,      ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,
      ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,      ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8,
      ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16,     ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32,
      ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64,     ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16,
      ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16,   ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
      ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE,     ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX64,
      ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX128, ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING,
  };
  return types[static_cast<std::size_t>(dtype)];
}

// One environment for the process. Sessions share it, so that it outlives the last of them.
inline std::shared_ptr<Ort::Env> ort_environment() {
  static const std::shared_ptr<Ort::Env> environment = [] {
    const OrtApiBase* base = OrtGetApiBase();
    const OrtApi* api = base->GetApi(ORT_API_VERSION);
    if (api == nullptr)
      throw EngineError("this program was built for ONNX Runtime 1." + std::to_string(ORT_API_VERSION) +
                            " or later, the library here is " + base->GetVersionString(),
                        "", "install a newer onnxruntime, or build the program with that one's headers");
    Ort::InitApi(api);
    return std::make_shared<Ort::Env>(ORT_LOGGING_LEVEL_FATAL, "torchport");  // messages come as exceptions
  }();
  return environment;
}

inline void check_library_kind(const std::string& path) {
#if defined(__linux__)
  char start[4] = {};
  std::ifstream(path, std::ios::binary).read(start, sizeof start);
  if (std::string(start, 4) !=
      "\x7f"
      "ELF")
    throw OptionError("'" + std::filesystem::path(path).filename().string() + "' is no library of this system", path,
                      "give a .so built for Linux");
#else
  static_cast<void>(path);
#endif
}

// Load a library for as long as the process lives. ONNX Runtime would unload it with the options of each session, while
// its operators are registered once and kept.
inline void keep_loaded(const std::string& path) {
#if !defined(_WIN32)
  if (dlopen(std::filesystem::absolute(path).c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE) == nullptr)
    throw library_error(path, dlerror());
#else
  static_cast<void>(path);
#endif
}

// The inputs or outputs of one run: released at its end, and without an allocation where they are few.
class ValueList {
 public:
  explicit ValueList(std::size_t size) : size_(size) {
    if (size > few) many_.resize(size);
  }
  ~ValueList() {
    for (std::size_t i = 0; i < size_; ++i)
      if (data()[i] != nullptr) Ort::GetApi().ReleaseValue(data()[i]);
  }
  ValueList(const ValueList&) = delete;
  ValueList& operator=(const ValueList&) = delete;

  std::size_t size() const { return size_; }
  OrtValue** data() { return size_ > few ? many_.data() : fixed_; }
  OrtValue*& operator[](std::size_t i) { return data()[i]; }

 private:
  static constexpr std::size_t few = 8;
  std::size_t size_;
  OrtValue* fixed_[few] = {};
  std::vector<OrtValue*> many_;
};

class OnnxRuntimeEngine {
 public:
  OnnxRuntimeEngine(const std::string& path, const SessionOptions& options) : environment_(ort_environment()) {
    options_.SetLogSeverityLevel(ORT_LOGGING_LEVEL_FATAL);
    if (options.threads) options_.SetIntraOpNumThreads(*options.threads);
    for (const std::string& library : options.libraries) add_library(library);
    try {
      session_ = Ort::Session(*environment_, std::filesystem::path(path).c_str(), options_);
    } catch (const Ort::Exception& error) {
      if (error.GetOrtErrorCode() == ORT_INVALID_PROTOBUF)
        throw FileError("'" + path + "' is no ONNX model, or was cut off", path, "export or copy it again");
      throw engine_error("ONNX Runtime refuses the model", path, error.what());
    }
    read_signature(path);
    for (const TensorInfo& info : signature_.inputs) input_names_.push_back(info.name.c_str());
    for (const TensorInfo& info : signature_.outputs) output_names_.push_back(info.name.c_str());
    path_ = path;
    run_handle_ = session_;
    run_options_.SetRunLogSeverityLevel(ORT_LOGGING_LEVEL_FATAL);
  }

  OnnxRuntimeEngine(const OnnxRuntimeEngine&) = delete;
  OnnxRuntimeEngine& operator=(const OnnxRuntimeEngine&) = delete;

  static std::string name() { return "onnxruntime"; }
  static std::string version() { return OrtGetApiBase()->GetVersionString(); }

  const Signature& signature() const { return signature_; }

  std::string metadata(const char* key) const {
    Ort::AllocatorWithDefaultOptions allocator;
    const auto value = session_.GetModelMetadata().LookupCustomMetadataMapAllocated(key, allocator);
    return value ? value.get() : "";
  }

  std::vector<Tensor> run(const Tensor* const* given) const {
    ValueList inputs(input_names_.size()), outputs(output_names_.size());
    try {
      for (std::size_t i = 0; i < inputs.size(); ++i) inputs[i] = value_of(*given[i]);
      Ort::ThrowOnError(Ort::GetApi().Run(run_handle_, run_options_, input_names_.data(), inputs.data(), inputs.size(),
                                          output_names_.data(), outputs.size(), outputs.data()));
      std::vector<Tensor> tensors;
      tensors.reserve(outputs.size());
      for (std::size_t i = 0; i < outputs.size(); ++i) {
        Ort::Value value(std::exchange(outputs[i], nullptr));
        tensors.push_back(tensor_of(std::move(value), i));
      }
      return tensors;
    } catch (const Ort::Exception& error) {
      throw engine_error("ONNX Runtime fails while running the model", path_, error.what());
    }
  }

 private:
  void add_library(const std::string& path) {
    check_library_kind(path);
    keep_loaded(path);
    try {
      options_.RegisterCustomOpsLibrary(std::filesystem::absolute(path).c_str());
    } catch (const Ort::Exception& error) {
      throw library_error(path, error.what());
    }
  }

  void read_signature(const std::string& path) {
    Ort::AllocatorWithDefaultOptions allocator;
    for (std::size_t i = 0; i < session_.GetInputCount(); ++i)
      signature_.inputs.push_back(
          info_of(session_.GetInputNameAllocated(i, allocator).get(), session_.GetInputTypeInfo(i), path));
    for (std::size_t i = 0; i < session_.GetOutputCount(); ++i)
      signature_.outputs.push_back(
          info_of(session_.GetOutputNameAllocated(i, allocator).get(), session_.GetOutputTypeInfo(i), path));
  }

  static TensorInfo info_of(const std::string& name, const Ort::TypeInfo& type, const std::string& path) {
    if (type.GetONNXType() != ONNX_TYPE_TENSOR)
      throw EngineError("'" + name + "' is no tensor but a sequence, map or optional", path,
                        "take the tensors out of it inside the model");
    const auto tensor = type.GetTensorTypeAndShapeInfo();
    TensorInfo info;
    info.name = name;
    info.dtype = dtype_of(tensor.GetElementType(), name, path);
    const std::vector<std::int64_t> sizes = tensor.GetShape();
    std::vector<const char*> names(sizes.size());  // the C++ classes of the releases differ here
    Ort::ThrowOnError(Ort::GetApi().GetSymbolicDimensions(tensor, names.data(), names.size()));
    for (std::size_t axis = 0; axis < sizes.size(); ++axis)
      info.shape.push_back(sizes[axis] >= 0 ? Dim(sizes[axis]) : Dim(std::string(names[axis])));
    info.has_shape = !info.shape.empty();  // ONNX Runtime shows an unknown rank as rank 0: nothing is checked then
    return info;
  }

  OrtValue* value_of(const Tensor& tensor) const {
    if (tensor.dtype() == DType::string) return texts_of_tensor(tensor).release();
    static const Ort::MemoryInfo memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
    static unsigned char nothing[16] = {};
    void* data = tensor.data() != nullptr ? tensor.data() : nothing;
    return Ort::Value::CreateTensor(memory, data, tensor.bytes(), tensor.shape().data(), tensor.rank(),
                                    element_type_of(tensor.dtype()))
        .release();
  }

  static Ort::Value texts_of_tensor(const Tensor& tensor) {
    Ort::AllocatorWithDefaultOptions allocator;
    Ort::Value value =
        Ort::Value::CreateTensor(allocator, tensor.shape().data(), tensor.rank(), ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING);
    std::vector<const char*> texts;
    for (std::size_t i = 0; i < tensor.size(); ++i) texts.push_back(tensor.data_as<std::string>()[i].c_str());
    value.FillStringTensor(texts.data(), texts.size());
    return value;
  }

  // The output's numbers stay where ONNX Runtime put them; the tensor keeps the value alive.
  Tensor tensor_of(Ort::Value value, std::size_t i) const {
    const DType dtype = signature_.outputs[i].dtype;  // fixed when the model was opened, and that it is a tensor
    Shape shape = value.GetTensorTypeAndShapeInfo().GetShape();
    if (dtype == DType::string) {
      Tensor texts(dtype, std::move(shape));
      for (std::size_t k = 0; k < texts.size(); ++k) texts.data_as<std::string>()[k] = value.GetStringTensorElement(k);
      return texts;
    }
    void* data = value.GetTensorMutableRawData();
    return Tensor::over(dtype, std::move(shape), data, std::make_shared<Ort::Value>(std::move(value)));
  }

  // The order matters: the session goes before the options, which hold the libraries with its kernels.
  std::shared_ptr<Ort::Env> environment_;
  Ort::SessionOptions options_;
  Ort::Session session_{nullptr};
  OrtSession* run_handle_ = nullptr;  // the session's: to run it is const for us, and not in its C++ class
  Ort::RunOptions run_options_;
  Signature signature_;
  std::vector<const char*> input_names_, output_names_;
  std::string path_;
};

}  // namespace detail
}  // namespace torchport
