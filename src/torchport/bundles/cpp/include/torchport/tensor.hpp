// Tensors: a dtype, a shape and numbers in C order. Array<T> is a tensor whose dtype the compiler knows.
//
//     torchport::Array<float> x({2, 3}, {1, 2, 3, 4, 5, 6});
//     torchport::Array<float> view = torchport::Array<float>::borrow({2, 3}, pointer);  // no copy
//     torchport::Tensor any = x;                                                        // shares the numbers
//
// Copies of a tensor share its numbers, as arrays do in Python.
#pragma once

#include <complex>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "error.hpp"

namespace torchport {

enum class DType : std::int32_t {
  boolean,
  int8,
  int16,
  int32,
  int64,
  uint8,
  uint16,
  uint32,
  uint64,
  float16,
  bfloat16,
  float32,
  float64,
  complex64,
  complex128,
  string,
};

namespace detail {

struct DTypeEntry {
  DType dtype;
  const char* name;
  std::size_t size;  // bytes of one number; 0 for strings
};

constexpr DTypeEntry dtype_table[] = {
    {DType::boolean, "bool", 1},    {DType::int8, "int8", 1},           {DType::int16, "int16", 2},
    {DType::int32, "int32", 4},     {DType::int64, "int64", 8},         {DType::uint8, "uint8", 1},
    {DType::uint16, "uint16", 2},   {DType::uint32, "uint32", 4},       {DType::uint64, "uint64", 8},
    {DType::float16, "float16", 2}, {DType::bfloat16, "bfloat16", 2},   {DType::float32, "float32", 4},
    {DType::float64, "float64", 8}, {DType::complex64, "complex64", 8}, {DType::complex128, "complex128", 16},
    {DType::string, "string", 0},
};

}  // namespace detail

inline const char* name_of(DType dtype) { return detail::dtype_table[static_cast<std::size_t>(dtype)].name; }

inline std::size_t item_size(DType dtype) { return detail::dtype_table[static_cast<std::size_t>(dtype)].size; }

// Find a dtype by its name, "float32"; false if there is none of that name.
inline bool find_dtype(const std::string& name, DType& found) {
  for (const auto& entry : detail::dtype_table)
    if (name == entry.name) {
      found = entry.dtype;
      return true;
    }
  return false;
}

// A number of 16 bits, which C++17 has no type for. It converts to float; arithmetic is done there.
struct Float16 {
  std::uint16_t bits = 0;

  explicit operator float() const {
    const std::uint32_t sign = static_cast<std::uint32_t>(bits & 0x8000u) << 16;
    std::uint32_t exponent = (bits >> 10) & 0x1fu;
    std::uint32_t mantissa = bits & 0x3ffu;
    std::uint32_t wide = sign;
    if (exponent == 0x1f) {
      wide |= 0x7f800000u | (mantissa << 13);
    } else if (exponent != 0) {
      wide |= ((exponent + 112) << 23) | (mantissa << 13);
    } else if (mantissa != 0) {  // below the smallest normal number: shift until the leading bit is implicit
      exponent = 113;
      while ((mantissa & 0x400u) == 0) {
        mantissa <<= 1;
        --exponent;
      }
      wide |= (exponent << 23) | ((mantissa & 0x3ffu) << 13);
    }
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
};

struct BFloat16 {
  std::uint16_t bits = 0;

  explicit operator float() const {
    const std::uint32_t wide = static_cast<std::uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &wide, sizeof value);
    return value;
  }
};

template <typename T>
struct DTypeOf;
template <>
struct DTypeOf<bool> : std::integral_constant<DType, DType::boolean> {};
template <>
struct DTypeOf<std::int8_t> : std::integral_constant<DType, DType::int8> {};
template <>
struct DTypeOf<std::int16_t> : std::integral_constant<DType, DType::int16> {};
template <>
struct DTypeOf<std::int32_t> : std::integral_constant<DType, DType::int32> {};
template <>
struct DTypeOf<std::int64_t> : std::integral_constant<DType, DType::int64> {};
template <>
struct DTypeOf<std::uint8_t> : std::integral_constant<DType, DType::uint8> {};
template <>
struct DTypeOf<std::uint16_t> : std::integral_constant<DType, DType::uint16> {};
template <>
struct DTypeOf<std::uint32_t> : std::integral_constant<DType, DType::uint32> {};
template <>
struct DTypeOf<std::uint64_t> : std::integral_constant<DType, DType::uint64> {};
template <>
struct DTypeOf<Float16> : std::integral_constant<DType, DType::float16> {};
template <>
struct DTypeOf<BFloat16> : std::integral_constant<DType, DType::bfloat16> {};
template <>
struct DTypeOf<float> : std::integral_constant<DType, DType::float32> {};
template <>
struct DTypeOf<double> : std::integral_constant<DType, DType::float64> {};
template <>
struct DTypeOf<std::complex<float>> : std::integral_constant<DType, DType::complex64> {};
template <>
struct DTypeOf<std::complex<double>> : std::integral_constant<DType, DType::complex128> {};
template <>
struct DTypeOf<std::string> : std::integral_constant<DType, DType::string> {};

using Shape = std::vector<std::int64_t>;

inline std::string text_of(const Shape& shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i ? ", " : "") + std::to_string(shape[i]);
  return text + "]";
}

// Return how many numbers a shape has. A negative size, or more bytes than can be addressed, is an InputError.
inline std::size_t count_of(const Shape& shape, std::size_t bytes_each = 1) {
  constexpr std::uint64_t plain = std::uint64_t{1} << 31;  // two factors below it cannot overflow
  std::uint64_t count = 1;
  bool empty = false, overflow = false;
  for (const std::int64_t size : shape) {
    if (size < 0)
      throw InputError("the shape " + text_of(shape) + " has a negative size", "", "give sizes of 0 or more");
    const auto factor = static_cast<std::uint64_t>(size);
    empty = empty || factor == 0;
    overflow = overflow || ((count >= plain || factor >= plain) && factor != 0 && count > PTRDIFF_MAX / factor);
    count *= factor == 0 ? 1 : factor;
  }
  if (empty) return 0;
  if (overflow || (count >= plain && bytes_each != 0 && count > PTRDIFF_MAX / bytes_each))
    throw InputError("the shape " + text_of(shape) + " has more numbers than can be addressed", "",
                     "give a smaller shape");
  return static_cast<std::size_t>(count);
}

class Tensor {
 public:
  Tensor() = default;

  // A tensor with numbers of its own, all zero; strings are empty.
  Tensor(DType dtype, Shape shape) : dtype_(dtype), shape_(std::move(shape)) {
    count_ = count_of(shape_, dtype == DType::string ? sizeof(std::string) : item_size(dtype));
    if (dtype == DType::string) {
      auto texts = std::make_shared<std::vector<std::string>>(count_);
      data_ = texts->data();
      keeper_ = std::move(texts);
    } else {
      // new[] aligns for every fundamental type
      std::shared_ptr<unsigned char> bytes(new unsigned char[bytes_in(count_)](),
                                           std::default_delete<unsigned char[]>());
      data_ = bytes.get();
      keeper_ = std::move(bytes);
    }
  }

  // A tensor of numbers that are elsewhere. `keeper` keeps them alive; without one, the caller does.
  static Tensor over(DType dtype, Shape shape, void* data, std::shared_ptr<void> keeper = nullptr) {
    Tensor tensor;
    tensor.count_ = count_of(shape, dtype == DType::string ? sizeof(std::string) : item_size(dtype));
    tensor.dtype_ = dtype;
    tensor.shape_ = std::move(shape);
    tensor.data_ = data;
    tensor.keeper_ = std::move(keeper);
    return tensor;
  }

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::size_t rank() const { return shape_.size(); }
  std::size_t size() const { return count_; }
  std::size_t bytes() const { return bytes_in(count_); }

  // Writing to a tensor that is const is writing to numbers it shares: constness is that of dtype and shape.
  void* data() const { return data_; }

  template <typename T>
  T* data_as() const {
    if (DTypeOf<T>::value != dtype_)
      throw InputError(std::string("the tensor is ") + name_of(dtype_) + ", not " + name_of(DTypeOf<T>::value), "",
                       "read it with the type that it has");
    return static_cast<T*>(data_);
  }

 private:
  std::size_t bytes_in(std::size_t count) const { return count * item_size(dtype_); }

  DType dtype_ = DType::float32;
  Shape shape_{0};
  std::size_t count_ = 0;
  void* data_ = nullptr;
  std::shared_ptr<void> keeper_;
};

// A tensor of numbers of type T.
template <typename T>
class Array {
 public:
  Array() : Array(Shape{0}) {}

  // All zero.
  explicit Array(Shape shape) : tensor_(DTypeOf<T>::value, std::move(shape)) {}

  // A copy of the numbers, which must be as many as the shape has.
  Array(Shape shape, const std::vector<T>& numbers) : Array(std::move(shape)) {
    if (numbers.size() != size())
      throw InputError(std::to_string(numbers.size()) + " numbers are given for the shape " + text_of(this->shape()),
                       "", "give " + std::to_string(size()) + " numbers");
    for (std::size_t i = 0; i < numbers.size(); ++i) data()[i] = numbers[i];
  }

  // The numbers of a tensor, shared; an InputError if it has another dtype.
  explicit Array(Tensor tensor) : tensor_(std::move(tensor)) { static_cast<void>(tensor_.data_as<T>()); }

  // Numbers of the caller, who keeps them alive for as long as the array is used.
  static Array borrow(Shape shape, T* numbers) {
    return Array(Tensor::over(DTypeOf<T>::value, std::move(shape), numbers));
  }

  const Shape& shape() const { return tensor_.shape(); }
  std::size_t size() const { return tensor_.size(); }
  T* data() const { return static_cast<T*>(tensor_.data()); }
  T& operator[](std::size_t i) const { return data()[i]; }
  T* begin() const { return data(); }
  T* end() const { return data() + size(); }
  const Tensor& tensor() const { return tensor_; }
  operator const Tensor&() const { return tensor_; }

 private:
  Tensor tensor_;
};

// Tensors by name, in order: the inputs or the outputs of a model, or the arrays of an .npz file.
class Tensors {
 public:
  using Item = std::pair<std::string, Tensor>;

  Tensors() = default;
  Tensors(std::initializer_list<Item> items) : items_(items) {}

  void add(std::string name, Tensor tensor) { items_.emplace_back(std::move(name), std::move(tensor)); }

  const Tensor* find(const std::string& name) const {
    for (const Item& item : items_)
      if (item.first == name) return &item.second;
    return nullptr;
  }

  const Tensor& at(const std::string& name) const {
    if (const Tensor* found = find(name)) return *found;
    std::string known;
    for (const Item& item : items_) known += (known.empty() ? "" : ", ") + item.first;
    throw InputError("there is no tensor '" + name + "'", known.empty() ? "there are none" : known,
                     "name one of these");
  }

  std::size_t size() const { return items_.size(); }
  bool empty() const { return items_.empty(); }
  std::vector<Item>::const_iterator begin() const { return items_.begin(); }
  std::vector<Item>::const_iterator end() const { return items_.end(); }
  const Item& operator[](std::size_t i) const { return items_[i]; }

 private:
  std::vector<Item> items_;
};

}  // namespace torchport
