// The C API over the header library: exceptions become return codes and a message.
#include <torchport/c_api.h>
#include <torchport/torchport.hpp>

#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

static_assert(static_cast<int>(torchport::DType::string) == TORCHPORT_STRING, "the dtypes have one order");
static_assert(static_cast<int>(torchport::DType::float32) == TORCHPORT_FLOAT32, "the dtypes have one order");

struct torchport_session {
  torchport::Session session;
  std::vector<torchport::Shape> input_shapes, output_shapes;

  torchport_session(const std::string& path, const torchport::SessionOptions& options) : session(path, options) {
    for (const auto& info : session.inputs()) input_shapes.push_back(sizes(info));
    for (const auto& info : session.outputs()) output_shapes.push_back(sizes(info));
  }

  static torchport::Shape sizes(const torchport::TensorInfo& info) {
    torchport::Shape found;
    for (const torchport::Dim& dim : info.shape) found.push_back(dim.size);
    return found;
  }
};

struct torchport_outputs {
  torchport::Tensors tensors;
};

namespace {

thread_local std::string last_error;

// Run a function; what it throws becomes a return code.
template <typename Function>
int guarded(Function function) {
  try {
    function();
    return 0;
  } catch (const torchport::Error& error) {
    last_error = error.what();
    return error.exit_code();
  } catch (const std::exception& error) {
    last_error = error.what();
    return 1;
  }
}

void need(bool given, const char* what) {
  if (!given)
    throw torchport::OptionError(std::string(what) + " is NULL or does not exist", "the C API", "see c_api.h");
}

void describe(const torchport::TensorInfo& info, const torchport::Shape& shape, torchport_tensor* found) {
  *found = {info.name.c_str(), static_cast<int32_t>(info.dtype), shape.size(), shape.data(), nullptr, 0};
}

torchport::Tensor tensor_of(const torchport_tensor& given) {
  need(given.name != nullptr, "the name of an input");
  need(given.rank == 0 || given.shape != nullptr, "the shape of an input");
  if (given.dtype < 0 || given.dtype >= TORCHPORT_STRING)
    throw torchport::InputError(std::string("input '") + given.name + "' has dtype " + std::to_string(given.dtype), "",
                                "give one of torchport_dtype, but no texts");
  const auto dtype = static_cast<torchport::DType>(given.dtype);
  const torchport::Shape shape =
      given.rank ? torchport::Shape(given.shape, given.shape + given.rank) : torchport::Shape();
  const torchport::Tensor tensor = torchport::Tensor::over(dtype, shape, given.data);
  if (tensor.bytes() != given.bytes)
    throw torchport::InputError(std::string("input '") + given.name + "' has " + std::to_string(given.bytes) +
                                    " bytes, its shape " + torchport::text_of(shape) + " has " +
                                    std::to_string(tensor.bytes()),
                                "", "give as many bytes as the shape has");
  need(given.data != nullptr || tensor.bytes() == 0, "the data of an input");
  return tensor;
}

}  // namespace

const char* torchport_error(void) { return last_error.c_str(); }

int torchport_open(const char* path, const torchport_options* options, torchport_session** session) {
  if (session != nullptr) *session = nullptr;
  return guarded([&] {
    need(path != nullptr, "path");
    need(session != nullptr, "session");
    torchport::SessionOptions given;
    if (options != nullptr) {
      need(options->library_count == 0 || options->libraries != nullptr, "libraries");
      for (std::size_t i = 0; i < options->library_count; ++i) {
        need(options->libraries[i] != nullptr, "a library");
        given.libraries.emplace_back(options->libraries[i]);
      }
      if (options->threads != 0) given.threads = options->threads;
    }
    *session = std::make_unique<torchport_session>(path, given).release();
  });
}

void torchport_close(torchport_session* session) { delete session; }

size_t torchport_input_count(const torchport_session* session) {
  return session == nullptr ? 0 : session->session.inputs().size();
}

size_t torchport_output_count(const torchport_session* session) {
  return session == nullptr ? 0 : session->session.outputs().size();
}

int torchport_input_info(const torchport_session* session, size_t index, torchport_tensor* info) {
  return guarded([&] {
    need(info != nullptr && index < torchport_input_count(session), "the input");
    describe(session->session.inputs()[index], session->input_shapes[index], info);
  });
}

int torchport_output_info(const torchport_session* session, size_t index, torchport_tensor* info) {
  return guarded([&] {
    need(info != nullptr && index < torchport_output_count(session), "the output");
    describe(session->session.outputs()[index], session->output_shapes[index], info);
  });
}

int torchport_run(const torchport_session* session, const torchport_tensor* inputs, size_t count,
                  torchport_outputs** outputs) {
  if (outputs != nullptr) *outputs = nullptr;
  return guarded([&] {
    need(session != nullptr, "session");
    need(outputs != nullptr, "outputs");
    need(count == 0 || inputs != nullptr, "inputs");
    torchport::Tensors given;
    for (std::size_t i = 0; i < count; ++i) {
      torchport::Tensor tensor = tensor_of(inputs[i]);
      given.add(inputs[i].name, std::move(tensor));
    }
    auto found = std::make_unique<torchport_outputs>();
    found->tensors = session->session.run(given);
    *outputs = found.release();
  });
}

int torchport_output(const torchport_outputs* outputs, size_t index, torchport_tensor* output) {
  return guarded([&] {
    need(outputs != nullptr && output != nullptr && index < outputs->tensors.size(), "the output");
    const auto& [name, tensor] = outputs->tensors[index];
    if (tensor.dtype() == torchport::DType::string)
      throw torchport::InputError("output '" + name + "' holds texts", "the C API", "use the C++ library for texts");
    *output = {name.c_str(),  static_cast<int32_t>(tensor.dtype()), tensor.rank(), tensor.shape().data(), tensor.data(),
               tensor.bytes()};
  });
}

void torchport_free_outputs(torchport_outputs* outputs) { delete outputs; }
