// A kernel for ONNX Runtime as one C++ function. torchport compiles it; so does any compiler that has ONNX Runtime's
// headers (1.21 or later), and any program with ONNX Runtime 1.21 or later can load the library.
//
//     #include "torchport.h"
//     using namespace torchport;
//
//     template <typename T>
//     void my_add(const Input<T>& a, const Input<T>& b, double alpha, Output<T>& y) {
//       T* out = y.resize(a.shape());
//       for (size_t i = 0; i < a.size(); ++i) out[i] = a[i] * static_cast<T>(alpha) + b[i];
//     }
//     TORCHPORT_KERNEL("mylib::MyAdd", {"alpha"}, my_add<float>, my_add<double>)
//
// Parameters, in the order of the node's inputs, then of its outputs; attributes anywhere:
//     const Input<T>&       an input               const Optional<T>&    one that may be left out
//     const Inputs<T>&      the rest of them       Output<T>&            an output; resize() gives its memory
//     float, double, int64_t, bool, std::string, std::vector of float, double, int64_t, bool or std::string:
//                           an attribute; as std::optional<...> one that may be left out
// The names in braces are the attributes', in the order of their parameters. One function for each type of tensor.
// Throw std::invalid_argument to refuse an input; the message reaches the user.
#pragma once

#ifndef ORT_API_MANUAL_INIT
#define ORT_API_MANUAL_INIT  // the API comes from the program that loads the library, not from a library linked in
#endif
#include <onnxruntime_cxx_api.h>

#include <cstdint>
#include <initializer_list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

// Hidden: two libraries loaded by one program must not share what they declared.
namespace torchport __attribute__((visibility("hidden"))) {

constexpr uint32_t kApi = 21;  // what the library asks for: every ONNX Runtime from 1.21 on has it
using Shape = std::vector<int64_t>;

inline const OrtApi*& api() {
  static const OrtApi* table = nullptr;
  return table;
}

inline void check(OrtStatus* status) {
  if (status == nullptr) return;
  std::string message = api()->GetErrorMessage(status);
  api()->ReleaseStatus(status);
  throw std::runtime_error(message);
}

inline size_t count(const Shape& shape) {
  size_t n = 1;
  for (int64_t d : shape) n *= static_cast<size_t>(d);
  return n;
}

template <typename T> class Input {
 public:
  using Element = T;
  Input() = default;
  explicit Input(const OrtValue* value) {
    OrtTensorTypeAndShapeInfo* info = nullptr;
    check(api()->GetTensorTypeAndShape(value, &info));
    size_t rank = 0;
    OrtStatus* status = api()->GetDimensionsCount(info, &rank);
    if (status == nullptr) {
      shape_.resize(rank);
      status = api()->GetDimensions(info, shape_.data(), rank);
    }
    api()->ReleaseTensorTypeAndShapeInfo(info);
    check(status);
    void* data = nullptr;
    check(api()->GetTensorMutableData(const_cast<OrtValue*>(value), &data));
    data_ = static_cast<const T*>(data);
    size_ = count(shape_);
  }
  const Shape& shape() const { return shape_; }
  int64_t shape(size_t axis) const { return shape_.at(axis); }
  size_t rank() const { return shape_.size(); }
  size_t size() const { return size_; }
  const T* data() const { return data_; }
  const T& operator[](size_t i) const { return data_[i]; }
  const T* begin() const { return data_; }
  const T* end() const { return data_ + size_; }

 private:
  const T* data_ = nullptr;
  Shape shape_;
  size_t size_ = 0;
};

template <typename T> using Optional = std::optional<Input<T>>;
template <typename T> using Inputs = std::vector<Input<T>>;

template <typename T> class Output {
 public:
  using Element = T;
  Output(OrtKernelContext* context, size_t index) : context_(context), index_(index) {}
  T* resize(const Shape& shape) {
    resized_ = true;
    OrtValue* value = nullptr;
    check(api()->KernelContext_GetOutput(context_, index_, shape.data(), shape.size(), &value));
    if (value == nullptr) {  // nobody asked for this output
      unused_.reset(new T[count(shape)]);
      return unused_.get();
    }
    void* data = nullptr;
    check(api()->GetTensorMutableData(value, &data));
    return static_cast<T*>(data);
  }
  void check_resized(const std::string& name) const {
    if (!resized_) throw std::logic_error(name + ": the kernel did not resize() output " + std::to_string(index_));
  }

 private:
  OrtKernelContext* context_;
  size_t index_;
  bool resized_ = false;
  std::unique_ptr<T[]> unused_;
};

namespace detail {

template <typename T> struct Onnx;
#define TORCHPORT_TYPE(T, NAME) \
  template <> struct Onnx<T> { static constexpr auto type = ONNX_TENSOR_ELEMENT_DATA_TYPE_##NAME; }
TORCHPORT_TYPE(float, FLOAT);
TORCHPORT_TYPE(double, DOUBLE);
TORCHPORT_TYPE(int8_t, INT8);
TORCHPORT_TYPE(int16_t, INT16);
TORCHPORT_TYPE(int32_t, INT32);
TORCHPORT_TYPE(int64_t, INT64);
TORCHPORT_TYPE(uint8_t, UINT8);
TORCHPORT_TYPE(uint16_t, UINT16);
TORCHPORT_TYPE(uint32_t, UINT32);
TORCHPORT_TYPE(uint64_t, UINT64);
TORCHPORT_TYPE(bool, BOOL);
TORCHPORT_TYPE(Ort::Float16_t, FLOAT16);
TORCHPORT_TYPE(Ort::BFloat16_t, BFLOAT16);
#undef TORCHPORT_TYPE

enum class Kind { input, output, attribute };

// What a parameter of the user's function is. Attributes are read once, when the kernel is made.
template <typename P> struct Parameter {
  static constexpr Kind kind = Kind::attribute;
};
template <typename T> struct Parameter<Input<T>> {
  static constexpr Kind kind = Kind::input;
  static constexpr auto type = Onnx<T>::type;
  static constexpr auto presence = INPUT_OUTPUT_REQUIRED;
};
template <typename T> struct Parameter<Optional<T>> {
  static constexpr Kind kind = Kind::input;
  static constexpr auto type = Onnx<T>::type;
  static constexpr auto presence = INPUT_OUTPUT_OPTIONAL;
};
template <typename T> struct Parameter<Inputs<T>> {
  static constexpr Kind kind = Kind::input;
  static constexpr auto type = Onnx<T>::type;
  static constexpr auto presence = INPUT_OUTPUT_VARIADIC;
};
template <typename T> struct Parameter<Output<T>> {
  static constexpr Kind kind = Kind::output;
  static constexpr auto type = Onnx<T>::type;
  static constexpr auto presence = INPUT_OUTPUT_REQUIRED;
};

template <typename T> struct IsOptional : std::false_type {};
template <typename T> struct IsOptional<std::optional<T>> : std::true_type {};

inline bool read(const OrtKernelInfo* info, const char* name, float& value) {
  OrtStatus* status = api()->KernelInfoGetAttribute_float(info, name, &value);
  if (status != nullptr) api()->ReleaseStatus(status);
  return status == nullptr;
}
inline bool read(const OrtKernelInfo* info, const char* name, int64_t& value) {
  OrtStatus* status = api()->KernelInfoGetAttribute_int64(info, name, &value);
  if (status != nullptr) api()->ReleaseStatus(status);
  return status == nullptr;
}
inline bool read(const OrtKernelInfo* info, const char* name, std::string& value) {
  size_t size = 0;
  OrtStatus* status = api()->KernelInfoGetAttribute_string(info, name, nullptr, &size);
  if (status != nullptr) return api()->ReleaseStatus(status), false;
  value.resize(size);
  check(api()->KernelInfoGetAttribute_string(info, name, value.data(), &size));
  value.resize(size > 0 ? size - 1 : 0);  // without the closing zero
  return true;
}
inline bool read(const OrtKernelInfo* info, const char* name, std::vector<float>& value) {
  size_t size = 0;
  OrtStatus* status = api()->KernelInfoGetAttributeArray_float(info, name, nullptr, &size);
  if (status != nullptr) return api()->ReleaseStatus(status), false;
  value.resize(size);
  check(api()->KernelInfoGetAttributeArray_float(info, name, value.data(), &size));
  return true;
}
inline bool read(const OrtKernelInfo* info, const char* name, std::vector<int64_t>& value) {
  size_t size = 0;
  OrtStatus* status = api()->KernelInfoGetAttributeArray_int64(info, name, nullptr, &size);
  if (status != nullptr) return api()->ReleaseStatus(status), false;
  value.resize(size);
  check(api()->KernelInfoGetAttributeArray_int64(info, name, value.data(), &size));
  return true;
}
inline bool read(const OrtKernelInfo* info, const char* name, bool& value) {
  int64_t number = 0;
  bool found = read(info, name, number);
  value = number != 0;
  return found;
}
inline bool read(const OrtKernelInfo* info, const char* name, double& value) {
  float number = 0;  // ONNX has no attributes of more than 32 bits
  bool found = read(info, name, number);
  value = number;
  return found;
}
template <typename T, typename Stored>
bool read_as(const OrtKernelInfo* info, const char* name, std::vector<T>& value) {
  std::vector<Stored> numbers;
  bool found = read(info, name, numbers);
  value.assign(numbers.begin(), numbers.end());
  return found;
}
inline bool read(const OrtKernelInfo* info, const char* name, std::vector<double>& value) {
  return read_as<double, float>(info, name, value);
}
inline bool read(const OrtKernelInfo* info, const char* name, std::vector<bool>& value) {
  return read_as<bool, int64_t>(info, name, value);
}
// ONNX Runtime gives kernels no lists of texts: torchport writes one as a tensor of texts.
inline bool read(const OrtKernelInfo* info, const char* name, std::vector<std::string>& value) {
  OrtAllocator* allocator = nullptr;
  check(api()->GetAllocatorWithDefaultOptions(&allocator));
  OrtValue* given = nullptr;
  OrtStatus* status = api()->KernelInfoGetAttribute_tensor(info, name, allocator, &given);
  if (status != nullptr) return api()->ReleaseStatus(status), false;
  Ort::Value tensor{given};
  value.clear();
  for (size_t i = 0; i < tensor.GetTensorTypeAndShapeInfo().GetElementCount(); ++i)
    value.push_back(tensor.GetStringTensorElement(i));
  return true;
}
template <typename T> bool read(const OrtKernelInfo* info, const char* name, std::optional<T>& value) {
  T given{};
  if (read(info, name, given)) value = given;
  return true;
}

template <typename P> constexpr bool is(Kind kind) { return Parameter<std::decay_t<P>>::kind == kind; }

// An attribute, or nothing in the place of a tensor.
template <typename P>
using Stored = std::conditional_t<Parameter<std::decay_t<P>>::kind == Kind::attribute, std::decay_t<P>, char>;

template <typename... P> struct Operator : OrtCustomOp {
  using Function = void (*)(P...);
  static constexpr size_t inputs = (size_t{is<P>(Kind::input)} + ... + 0);
  static constexpr size_t outputs = (size_t{is<P>(Kind::output)} + ... + 0);
  static constexpr size_t attributes = sizeof...(P) - inputs - outputs;

  std::string name;
  std::vector<std::string> names;
  Function function;

  // How many parameters of this kind stand before the I-th.
  template <size_t I> static constexpr size_t before(Kind kind) {
    constexpr Kind kinds[] = {Parameter<std::decay_t<P>>::kind..., Kind::input};
    size_t n = 0;
    for (size_t i = 0; i < I; ++i) n += kinds[i] == kind;
    return n;
  }

  struct Kernel {
    const Operator* op;
    std::tuple<Stored<P>...> attributes;

    template <size_t I> void read_one(const OrtKernelInfo* info) {
      using Given = std::decay_t<std::tuple_element_t<I, std::tuple<P...>>>;
      if constexpr (Parameter<Given>::kind == Kind::attribute) {
        const std::string& name = op->names[before<I>(Kind::attribute)];
        if (!read(info, name.c_str(), std::get<I>(attributes)))
          throw std::invalid_argument(op->name + ": attribute '" + name + "' is missing, or of another kind");
      }
    }

    template <size_t I> decltype(auto) argument(OrtKernelContext* context) {
      using Given = std::decay_t<std::tuple_element_t<I, std::tuple<P...>>>;
      if constexpr (Parameter<Given>::kind == Kind::attribute) {
        return static_cast<Given&>(std::get<I>(attributes));
      } else if constexpr (Parameter<Given>::kind == Kind::output) {
        return Given(context, before<I>(Kind::output));
      } else {
        constexpr size_t first = before<I>(Kind::input);
        size_t given = 0;
        check(api()->KernelContext_GetInputCount(context, &given));
        auto value = [&](size_t n) {
          const OrtValue* found = nullptr;
          if (n < given) check(api()->KernelContext_GetInput(context, n, &found));
          return found;
        };
        if constexpr (Parameter<Given>::presence == INPUT_OUTPUT_VARIADIC) {
          Given all;
          for (size_t n = first; n < given; ++n) all.emplace_back(value(n));
          return all;
        } else if constexpr (Parameter<Given>::presence == INPUT_OUTPUT_OPTIONAL) {
          const OrtValue* found = value(first);
          return found == nullptr ? Given() : Given(std::in_place, found);
        } else {
          return Given(value(first));
        }
      }
    }

    template <size_t... I> void compute(OrtKernelContext* context, std::index_sequence<I...>) {
      std::tuple<decltype(argument<I>(context))...> arguments{argument<I>(context)...};
      op->function(std::get<I>(arguments)...);
      (check_one(std::get<I>(arguments)), ...);
    }

    template <typename Given> void check_one(const Given& given) {
      if constexpr (Parameter<Given>::kind == Kind::output) given.check_resized(op->name);
    }
  };

  template <size_t... I> static void read_all(Kernel& kernel, const OrtKernelInfo* info, std::index_sequence<I...>) {
    (kernel.template read_one<I>(info), ...);
  }

  // The type and presence of the n-th input or output.
  struct Slot {
    ONNXTensorElementDataType type;
    OrtCustomOpInputOutputCharacteristic presence;
  };
  template <typename One> static void add(std::vector<Slot>& slots, Kind kind) {
    using Given = std::decay_t<One>;
    if constexpr (Parameter<Given>::kind != Kind::attribute) {
      if (Parameter<Given>::kind == kind) slots.push_back({Parameter<Given>::type, Parameter<Given>::presence});
    }
  }
  static const Slot& slot(Kind kind, size_t n) {
    static const auto made = [] {
      std::pair<std::vector<Slot>, std::vector<Slot>> both;
      (add<P>(both.first, Kind::input), ...);
      (add<P>(both.second, Kind::output), ...);
      return both;
    }();
    return (kind == Kind::input ? made.first : made.second).at(n);
  }

  Operator(const char* operator_name, std::vector<std::string> attribute_names, Function compute)
      : OrtCustomOp{}, name(operator_name), names(std::move(attribute_names)), function(compute) {
    if (names.size() != attributes)
      throw std::invalid_argument(name + ": " + std::to_string(names.size()) + " attributes are named, the function has " +
                                  std::to_string(attributes));
    version = kApi;
    GetName = [](const OrtCustomOp* op) { return static_cast<const Operator*>(op)->name.c_str(); };
    GetExecutionProviderType = [](const OrtCustomOp*) -> const char* { return nullptr; };
    GetInputTypeCount = [](const OrtCustomOp*) { return inputs; };
    GetOutputTypeCount = [](const OrtCustomOp*) { return outputs; };
    GetInputType = [](const OrtCustomOp*, size_t n) { return slot(Kind::input, n).type; };
    GetOutputType = [](const OrtCustomOp*, size_t n) { return slot(Kind::output, n).type; };
    GetInputCharacteristic = [](const OrtCustomOp*, size_t n) { return slot(Kind::input, n).presence; };
    GetOutputCharacteristic = [](const OrtCustomOp*, size_t n) { return slot(Kind::output, n).presence; };
    GetInputMemoryType = [](const OrtCustomOp*, size_t) { return OrtMemTypeDefault; };
    GetVariadicInputMinArity = [](const OrtCustomOp*) { return 0; };
    GetVariadicInputHomogeneity = [](const OrtCustomOp*) { return 1; };
    GetVariadicOutputMinArity = [](const OrtCustomOp*) { return 0; };
    GetVariadicOutputHomogeneity = [](const OrtCustomOp*) { return 1; };
    GetStartVersion = [](const OrtCustomOp*) { return 1; };
    GetEndVersion = [](const OrtCustomOp*) { return INT32_MAX; };
    CreateKernelV2 = [](const OrtCustomOp* op, const OrtApi*, const OrtKernelInfo* info, void** made) -> OrtStatus* {
      try {
        auto kernel = std::make_unique<Kernel>();
        kernel->op = static_cast<const Operator*>(op);
        read_all(*kernel, info, std::index_sequence_for<P...>());
        *made = kernel.release();
        return nullptr;
      } catch (const std::exception& error) {
        return api()->CreateStatus(ORT_INVALID_ARGUMENT, error.what());
      }
    };
    KernelComputeV2 = [](void* kernel, OrtKernelContext* context) -> OrtStatus* {
      try {
        static_cast<Kernel*>(kernel)->compute(context, std::index_sequence_for<P...>());
        return nullptr;
      } catch (const std::exception& error) {
        return api()->CreateStatus(ORT_FAIL, error.what());
      } catch (...) {
        return api()->CreateStatus(ORT_FAIL, "the kernel threw what is no std::exception");
      }
    };
    KernelDestroy = [](void* kernel) { delete static_cast<Kernel*>(kernel); };
  }
};

// Operators in the order they were declared, with their domains. They live as long as the library.
inline std::vector<std::pair<std::string, const OrtCustomOp*>>& declared() {
  static auto& all = *new std::vector<std::pair<std::string, const OrtCustomOp*>>();  // kept for good, as the domains
  return all;
}
inline std::string& fault() {
  static std::string message;
  return message;
}

struct Declaration {
  template <typename... P> void add(const std::string& full, std::vector<std::string> names, void (*function)(P...)) {
    size_t colons = full.find("::");
    if (colons == std::string::npos) throw std::invalid_argument("'" + full + "' is no domain::Name");
    auto* made = new Operator<P...>(full.substr(colons + 2).c_str(), std::move(names), function);
    declared().emplace_back(full.substr(0, colons), made);
  }
  template <typename... F> Declaration(const char* full, std::vector<std::string> names, F... functions) {
    try {
      (add(full, names, functions), ...);
    } catch (const std::exception& error) {
      fault() = error.what();
    }
  }
};

}  // namespace detail
}  // namespace torchport

#define TORCHPORT_JOIN_(a, b) a##b
#define TORCHPORT_JOIN(a, b) TORCHPORT_JOIN_(a, b)
#define TORCHPORT_KERNEL(...) \
  static const torchport::detail::Declaration TORCHPORT_JOIN(torchport_kernel_, __LINE__)(__VA_ARGS__);

// What ONNX Runtime calls after loading the library. Weak, so that several files of one library may have it.
extern "C" __attribute__((weak, visibility("default"))) OrtStatus* RegisterCustomOps(OrtSessionOptions* options,
                                                                                     const OrtApiBase* base) {
  using namespace torchport;
  const OrtApi* table = base->GetApi(kApi);
  if (table == nullptr) {
    std::string message = std::string("this library needs ONNX Runtime 1.21 or later, not ") + base->GetVersionString();
    return base->GetApi(1)->CreateStatus(ORT_FAIL, message.c_str());
  }
  api() = table;
  Ort::InitApi(table);
  if (!detail::fault().empty()) return table->CreateStatus(ORT_INVALID_ARGUMENT, detail::fault().c_str());
  static std::mutex guard;
  static auto& domains = *new std::map<std::string, OrtCustomOpDomain*>();  // kept for good: sessions refer to them
  std::lock_guard<std::mutex> lock(guard);
  if (domains.empty()) {
    for (const auto& [domain, made] : detail::declared()) {
      OrtCustomOpDomain*& found = domains[domain];
      if (found == nullptr) {
        OrtStatus* status = table->CreateCustomOpDomain(domain.c_str(), &found);
        if (status != nullptr) return status;
      }
      OrtStatus* status = table->CustomOpDomain_Add(found, made);
      if (status != nullptr) return status;
    }
  }
  for (const auto& entry : domains) {
    OrtStatus* status = table->AddCustomOpDomain(options, entry.second);
    if (status != nullptr) return status;
  }
  return nullptr;
}
