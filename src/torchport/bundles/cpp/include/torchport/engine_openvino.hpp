// OpenVINO on the CPU, in full precision: its default on a CPU with bfloat16 is bfloat16.
#pragma once

#include <cstring>
#include <memory>
#include <mutex>
#include <openvino/openvino.hpp>
#include <string>
#include <utility>
#include <vector>

#include "error.hpp"
#include "session.hpp"

namespace torchport {
namespace detail {

struct ElementPair {
  DType dtype;
  ov::element::Type_t type;
};

inline const std::vector<ElementPair>& element_pairs() {
  using ov::element::Type_t;
  static const std::vector<ElementPair> pairs = {
      {DType::boolean, Type_t::boolean}, {DType::int8, Type_t::i8},       {DType::int16, Type_t::i16},
      {DType::int32, Type_t::i32},       {DType::int64, Type_t::i64},     {DType::uint8, Type_t::u8},
      {DType::uint16, Type_t::u16},      {DType::uint32, Type_t::u32},    {DType::uint64, Type_t::u64},
      {DType::float16, Type_t::f16},     {DType::bfloat16, Type_t::bf16}, {DType::float32, Type_t::f32},
      {DType::float64, Type_t::f64},
  };
  return pairs;
}

// The last line of OpenVINO's message tells the reason, those before where in its code.
inline std::string last_line(const std::exception& error) {
  const std::string text = error.what();
  const std::size_t end = text.find_last_not_of(" \t\r\n");
  if (end == std::string::npos) return "no message";
  const std::size_t start = text.rfind('\n', end);
  return text.substr(start == std::string::npos ? 0 : start + 1, end - (start == std::string::npos ? 0 : start + 1) + 1)
      .substr(0, 300);
}

inline EngineError openvino_error(const std::string& what, const std::string& path, const std::exception& error) {
  return EngineError(what + ": " + last_line(error), path, "torchport lint model.onnx lists the faults of a model");
}

class OpenVinoEngine {
 public:
  OpenVinoEngine(const std::string& path, const SessionOptions& options) : path_(path) {
    for (const std::string& library : options.libraries) add_library(library);
    try {
      model_ = core_.read_model(path);
      ov::AnyMap config{{ov::hint::inference_precision.name(), ov::element::f32},
                        {ov::hint::execution_mode.name(), ov::hint::ExecutionMode::ACCURACY},
                        {ov::hint::performance_mode.name(), ov::hint::PerformanceMode::LATENCY}};
      if (options.threads) config[ov::inference_num_threads.name()] = *options.threads;
      compiled_ = core_.compile_model(model_, "CPU", config);
    } catch (const std::exception& error) {
      throw openvino_error("OpenVINO refuses the model", path, error);
    }
    for (const auto& port : compiled_.inputs()) signature_.inputs.push_back(info_of(port));
    for (const auto& port : compiled_.outputs()) signature_.outputs.push_back(info_of(port));
  }

  OpenVinoEngine(const OpenVinoEngine&) = delete;
  OpenVinoEngine& operator=(const OpenVinoEngine&) = delete;

  static std::string name() { return "openvino"; }
  static std::string version() { return ov::get_openvino_version().buildNumber; }

  const Signature& signature() const { return signature_; }

  std::string metadata(const char* key) const {
    for (const std::vector<std::string>& way : {std::vector<std::string>{"framework", key}, {key}})
      if (model_->has_rt_info(way)) return model_->get_rt_info<std::string>(way);
    return "";
  }

  std::vector<Tensor> run(const Tensor* const* given) const {
    try {
      ov::InferRequest request = take_request();
      for (std::size_t i = 0; i < signature_.inputs.size(); ++i) request.set_input_tensor(i, tensor_for(*given[i], i));
      request.infer();
      std::vector<Tensor> outputs;
      outputs.reserve(signature_.outputs.size());
      for (std::size_t i = 0; i < signature_.outputs.size(); ++i)
        outputs.push_back(copy_of(request.get_output_tensor(i), i));
      give_back(std::move(request));
      return outputs;
    } catch (const Error&) {
      throw;
    } catch (const std::exception& error) {
      throw openvino_error("OpenVINO fails while running the model", path_, error);
    }
  }

 private:
  void add_library(const std::string& path) {
    try {
      core_.add_extension(path);
    } catch (const std::exception& error) {
      throw library_error(path, last_line(error));
    }
  }

  DType dtype_of(const ov::element::Type& type, const std::string& name) const {
    for (const ElementPair& pair : element_pairs())
      if (type == pair.type) return pair.dtype;
    throw EngineError("'" + name + "' is " + type.get_type_name() + ", which torchport has no tensors of", path_,
                      "cast it inside the model: torchport edit");
  }

  TensorInfo info_of(const ov::Output<const ov::Node>& port) const {
    TensorInfo info;
    info.name = port.get_names().empty() ? port.get_node()->get_friendly_name() : port.get_any_name();
    info.dtype = dtype_of(port.get_element_type(), info.name);
    const ov::PartialShape& shape = port.get_partial_shape();
    info.has_shape = shape.rank().is_static();
    if (info.has_shape)
      for (const ov::Dimension& size : shape)
        info.shape.push_back(size.is_static() ? Dim(size.get_length()) : Dim(std::string()));
    return info;
  }

  // The caller's numbers, without a copy.
  ov::Tensor tensor_for(const Tensor& tensor, std::size_t i) const {
    const ov::Shape shape(tensor.shape().begin(), tensor.shape().end());
    const auto type = compiled_.inputs()[i].get_element_type();
    return tensor.size() == 0 ? ov::Tensor(type, shape) : ov::Tensor(type, shape, tensor.data());
  }

  // A request is used again, and so is the memory of its outputs: they are copied out of it.
  Tensor copy_of(const ov::Tensor& output, std::size_t i) const {
    const ov::Shape shape = output.get_shape();
    Tensor tensor(dtype_of(output.get_element_type(), signature_.outputs[i].name), Shape(shape.begin(), shape.end()));
    if (tensor.bytes() != 0) std::memcpy(tensor.data(), output.data(), tensor.bytes());
    return tensor;
  }

  ov::InferRequest take_request() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (idle_.empty()) return const_cast<ov::CompiledModel&>(compiled_).create_infer_request();
    ov::InferRequest request = std::move(idle_.back());
    idle_.pop_back();
    return request;
  }

  void give_back(ov::InferRequest request) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    idle_.push_back(std::move(request));
  }

  ov::Core core_;
  std::shared_ptr<ov::Model> model_;
  ov::CompiledModel compiled_;
  Signature signature_;
  std::string path_;
  mutable std::mutex mutex_;
  mutable std::vector<ov::InferRequest> idle_;
};

}  // namespace detail
}  // namespace torchport
