// A model opened in an engine: ONNX Runtime, or OpenVINO where TORCHPORT_OPENVINO is defined.
//
//     torchport::Session session("model.onnx");
//     torchport::Tensors outputs = session.run({{"x", torchport::Array<float>({1, 3}, {1, 2, 3})}});
//     const torchport::Array<float> y(outputs.at("y"));
//
// Inputs are checked for names, dtypes, ranks, fixed sizes, dimensions that must agree, and the bounds that torchport
// wrote into the model. Many threads may run one session at once.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "signature.hpp"
#include "tensor.hpp"

namespace torchport {

struct SessionOptions {
  std::vector<std::string> libraries;  // operator libraries that you trust, by path
  std::optional<int> threads;          // for one run; the engine's own choice if not given
  Signature expected;                  // what the program was written for; the model must have it
};

constexpr int most_threads = 1024;

namespace detail {

inline void check_options(const std::string& path, const SessionOptions& options) {
  std::error_code fault;
  const auto status = std::filesystem::status(path, fault);
  if (!std::filesystem::exists(status)) throw FileError("there is no model file '" + path + "'", "", "check the path");
  if (!std::filesystem::is_regular_file(status))
    throw FileError("'" + path + "' is not a regular file", "", "give an .onnx file");
  if (options.threads && (*options.threads < 1 || *options.threads > most_threads))
    throw OptionError("the number of threads is " + std::to_string(*options.threads), "",
                      "give 1 to " + std::to_string(most_threads) + ", or none for the engine's own choice");
  for (const std::string& library : options.libraries)
    if (!std::filesystem::is_regular_file(library, fault))
      throw OptionError("there is no operator library '" + library + "'", "", "build it with `torchport ops build`");
}

inline EngineError library_error(const std::string& path, const std::string& reason) {
  return EngineError(
      "the operator library '" + std::filesystem::path(path).filename().string() + "' cannot be loaded: " + reason,
      path, "build it again for this machine and this engine: `torchport ops build`");
}

}  // namespace detail
}  // namespace torchport

#if defined(TORCHPORT_OPENVINO)
#include "engine_openvino.hpp"
#else
#include "engine_onnxruntime.hpp"
#endif

namespace torchport {

class Session {
 public:
  explicit Session(const std::string& path, const SessionOptions& options = {})
      : engine_((detail::check_options(path, options), path), options) {
    if (!options.expected.empty()) {
      detail::check_expected(options.expected.inputs, engine_.signature().inputs, "inputs", path);
      detail::check_expected(options.expected.outputs, engine_.signature().outputs, "outputs", path);
    }
    const Signature& known = options.expected.empty() ? engine_.signature() : options.expected;
    checker_ = detail::InputChecker(known.inputs, detail::read_bounds(engine_.metadata("torchport.bounds")));
    outputs_ = known.outputs;
  }

  const std::vector<TensorInfo>& inputs() const { return checker_.inputs(); }
  const std::vector<TensorInfo>& outputs() const { return outputs_; }

  static std::string engine() { return Engine::name(); }
  static std::string engine_version() { return Engine::version(); }

  // Run by position: inputs and outputs in the order of inputs() and outputs().
  std::vector<Tensor> run(const std::vector<Tensor>& tensors) const {
    std::vector<const Tensor*> given;
    given.reserve(tensors.size());
    for (const Tensor& tensor : tensors) given.push_back(&tensor);
    return run_in_order(given.data(), given.size());
  }

  // The same without a copy of the tensors, for code that counts nanoseconds.
  std::vector<Tensor> run_in_order(const Tensor* const* tensors, std::size_t count) const {
    if (count != inputs().size())
      throw InputError(std::to_string(count) + " inputs given, the model has " + std::to_string(inputs().size()),
                       detail::texts_of(inputs()), "give one tensor for each, in this order");
    return run_checked(tensors);
  }

  // Run by name; the outputs come in order.
  Tensors run(const Tensors& tensors) const {
    std::vector<const Tensor*> given;
    for (const auto& item : tensors) check_known(item.first);
    for (const TensorInfo& info : inputs()) {
      given.push_back(tensors.find(info.name));
      if (given.back() == nullptr)
        throw InputError("input '" + info.name + "' is missing", detail::texts_of(inputs()),
                         "give each of these inputs");
    }
    std::vector<Tensor> computed = run_checked(given.data());
    Tensors found;
    for (std::size_t i = 0; i < outputs_.size(); ++i) found.add(outputs_[i].name, std::move(computed[i]));
    return found;
  }

 private:
#if defined(TORCHPORT_OPENVINO)
  using Engine = detail::OpenVinoEngine;
#else
  using Engine = detail::OnnxRuntimeEngine;
#endif

  std::vector<Tensor> run_checked(const Tensor* const* given) const {
    checker_.check(given);
    return engine_.run(given);
  }

  void check_known(const std::string& name) const {
    for (const TensorInfo& info : inputs())
      if (info.name == name) return;
    throw InputError("there is no input '" + name + "'", detail::texts_of(inputs()), "give each of these inputs");
  }

  Engine engine_;
  detail::InputChecker checker_;
  std::vector<TensorInfo> outputs_;
};

}  // namespace torchport
