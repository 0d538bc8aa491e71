// The inputs and outputs of a model, and the checks of what is fed to it.
#pragma once

#include <cctype>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "json.hpp"
#include "tensor.hpp"

namespace torchport {

// One axis of a declared shape: a fixed size, or -1 with the name of the dimension, empty where it has none.
struct Dim {
  std::int64_t size = -1;
  std::string name;

  Dim(std::int64_t fixed) : size(fixed) {}
  Dim(std::string dimension) : name(std::move(dimension)) {}
  Dim(const char* dimension) : name(dimension) {}

  std::string text() const { return size >= 0 ? std::to_string(size) : name.empty() ? "?" : name; }
};

struct TensorInfo {
  std::string name;
  DType dtype = DType::float32;
  std::vector<Dim> shape;
  bool has_shape = true;  // false where even the rank is unknown

  std::string text() const {
    std::string dims = has_shape ? "" : "?";
    for (std::size_t i = 0; i < shape.size(); ++i) dims += (i ? "," : "") + shape[i].text();
    return name + ": " + name_of(dtype) + "[" + dims + "]";
  }
};

struct Signature {
  std::vector<TensorInfo> inputs, outputs;

  bool empty() const { return inputs.empty() && outputs.empty(); }
};

namespace detail {

inline std::string texts_of(const std::vector<TensorInfo>& infos) {
  std::string text;
  for (const TensorInfo& info : infos) text += (text.empty() ? "" : ", ") + info.text();
  return text;
}

// The sizes of a dimension that a model is good for: from `least` on, and multiples of `step`.
struct Bound {
  std::int64_t least = 0, step = 1;
};

// Read the bounds that torchport writes into a model's metadata; none where somebody else wrote something else.
inline std::map<std::string, Bound> read_bounds(const std::string& text) {
  std::map<std::string, Bound> found;
  Json json;
  if (!JsonReader::read(text, json) || json.kind != Json::Kind::object) return {};
  for (const auto& [name, entry] : json.fields) {
    const auto least = entry.fields.find("min"), step = entry.fields.find("step");
    if (least == entry.fields.end() || step == entry.fields.end()) return {};
    const double first = least->second.number, each = step->second.number;
    if (!(first >= 0 && first < 1e15 && each < 1e15)) return {};
    found[name] = Bound{static_cast<std::int64_t>(first), each < 1 ? 1 : static_cast<std::int64_t>(each)};
  }
  return found;
}

// A text that only says that a size is unknown, "?" or "None": two of it need not be one size.
inline bool is_placeholder(std::string text) {
  bool letters = false;
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    letters = letters || std::isalpha(byte) || byte >= 0x80;
    c = static_cast<char>(std::tolower(byte));
  }
  for (const char* known : {"none", "null", "any", "unk", "unknown", "dynamic", "undefined"})
    if (text == known) return true;
  return !letters;
}

// Checks inputs against a signature. What can be prepared is prepared once: a run costs no allocation.
class InputChecker {
 public:
  InputChecker() = default;

  InputChecker(std::vector<TensorInfo> inputs, const std::map<std::string, Bound>& bounds)
      : inputs_(std::move(inputs)) {
    std::map<std::string, Axis> first;
    for (std::size_t i = 0; i < inputs_.size(); ++i)
      for (std::size_t axis = 0; axis < inputs_[i].shape.size(); ++axis) {
        const Dim& dim = inputs_[i].shape[axis];
        if (dim.size >= 0 || dim.name.empty() || is_placeholder(dim.name)) continue;
        const Axis here{i, axis};
        const auto known = first.emplace(dim.name, here);
        if (!known.second) equal_.push_back({known.first->second, here});
        const auto bound = bounds.find(dim.name);
        if (known.second && bound != bounds.end()) bounded_.push_back({here, bound->second});
      }
  }

  const std::vector<TensorInfo>& inputs() const { return inputs_; }

  // Check the inputs, given in the signature's order.
  void check(const Tensor* const* tensors) const {
    for (std::size_t i = 0; i < inputs_.size(); ++i) check_one(inputs_[i], *tensors[i]);
    for (const auto& [a, b] : equal_)
      if (size(tensors, a) != size(tensors, b)) throw two_sizes(tensors, a, b);
    for (const auto& [axis, bound] : bounded_) {
      const std::int64_t own = size(tensors, axis);
      if (own < bound.least || own % bound.step != 0) throw out_of_bounds(own, axis, bound);
    }
  }

 private:
  struct Axis {
    std::size_t input, axis;
  };

  static std::int64_t size(const Tensor* const* tensors, const Axis& at) { return tensors[at.input]->shape()[at.axis]; }

  static void check_one(const TensorInfo& info, const Tensor& tensor) {
    if (tensor.dtype() != info.dtype)
      throw InputError(
          "input '" + info.name + "' is " + name_of(tensor.dtype()) + ", the model takes " + name_of(info.dtype), "",
          std::string("convert it to ") + name_of(info.dtype));
    if (!info.has_shape) return;
    if (tensor.rank() != info.shape.size())
      throw InputError("input '" + info.name + "' has rank " + std::to_string(tensor.rank()) + ", the model takes " +
                           std::to_string(info.shape.size()),
                       info.text(), "give it " + std::to_string(info.shape.size()) + " axes, as shown above");
    for (std::size_t axis = 0; axis < info.shape.size(); ++axis) {
      const std::int64_t fixed = info.shape[axis].size, own = tensor.shape()[axis];
      if (fixed >= 0 && own != fixed)
        throw InputError("input '" + info.name + "' has size " + std::to_string(own) + " at axis " +
                             std::to_string(axis) + ", the model is fixed to " + std::to_string(fixed),
                         info.text(), "export it with that axis dynamic, or give it that size");
    }
  }

  std::string place(const Axis& at) const { return inputs_[at.input].name + " axis " + std::to_string(at.axis); }

  const std::string& dim_name(const Axis& at) const { return inputs_[at.input].shape[at.axis].name; }

  InputError two_sizes(const Tensor* const* tensors, const Axis& a, const Axis& b) const {
    return InputError("dimension '" + dim_name(a) + "' has two sizes: " + std::to_string(size(tensors, a)) + " and " +
                          std::to_string(size(tensors, b)),
                      place(a) + " and " + place(b), "give both the same size");
  }

  InputError out_of_bounds(std::int64_t own, const Axis& at, const Bound& bound) const {
    std::string good = "from " + std::to_string(bound.least) + " on";
    if (bound.step > 1) good += ", multiples of " + std::to_string(bound.step);
    return InputError(
        "dimension '" + dim_name(at) + "' is " + std::to_string(own) + "; the model was exported for sizes " + good,
        place(at), "feed a size that it is good for, or export it again for this one");
  }

  struct Equal {
    Axis a, b;
  };
  struct Bounded {
    Axis axis;
    Bound bound;
  };

  std::vector<TensorInfo> inputs_;
  std::vector<Equal> equal_;
  std::vector<Bounded> bounded_;
};

// Check that what a program was written for is what the model has: names and dtypes in order, and ranks.
inline void check_expected(const std::vector<TensorInfo>& expected, const std::vector<TensorInfo>& own,
                           const std::string& kind, const std::string& path) {
  bool same = expected.size() == own.size();
  for (std::size_t i = 0; same && i < own.size(); ++i)
    same = expected[i].name == own[i].name && expected[i].dtype == own[i].dtype &&
           (!expected[i].has_shape || !own[i].has_shape || expected[i].shape.size() == own[i].shape.size());
  if (!same)
    throw InputError("the model has other " + kind + " than this program was written for: " + texts_of(own),
                     path + "; written for: " + texts_of(expected), "generate the program again: torchport cpp");
}

}  // namespace detail
}  // namespace torchport
