// The comparison of tensors, by the rules of torchport.numerics in Python.
//
//     torchport::OutputCheck check = torchport::check_output("logits", golden, computed);
//     if (!check.ok()) std::cerr << check.problem;
//
// It fails closed: dtype and shape are exact, integers, booleans and texts too, NaN agrees with NaN only and an
// infinity with itself. A number of floats may be off by rtol * |reference| + atol * scale, where the scale is the
// largest magnitude in the reference.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <string>

#include "tensor.hpp"

namespace torchport {

struct Tolerance {
  double rtol = 0;
  double atol = 0;
};

inline Tolerance default_tolerance(DType dtype) {
  switch (dtype) {
    case DType::float64:
    case DType::complex128: return {1e-7, 1e-9};
    case DType::float32:
    case DType::complex64: return {1e-3, 1e-5};
    case DType::float16: return {1e-2, 1e-3};
    case DType::bfloat16: return {2e-2, 1e-2};
    default: return {};  // exact
  }
}

// How far one output is off. `problem` is empty where it agrees.
struct OutputCheck {
  std::string name;
  double max_abs = 0;
  double max_rel = 0;
  double cosine = 1;
  double sqnr = std::numeric_limits<double>::infinity();
  std::string problem;

  bool ok() const { return problem.empty(); }
};

namespace detail {

constexpr double infinite = std::numeric_limits<double>::infinity();
constexpr double scale_floor = 1e-3;            // what an all-zero reference is taken to be scaled by
constexpr double large = 1e4;                   // from here on a number may stand for "nothing", as -1e9 in a mask
constexpr double far_below = 16;                // masks with a score added to them are still near each other
constexpr double resolution = 1.0 / (1 << 23);  // of float32 near one
constexpr double clean = 50;                    // dB

inline bool is_float(DType dtype) { return dtype >= DType::float16 && dtype <= DType::complex128; }

// The numbers of a tensor as double, complex ones as real and imaginary part in turn.
class Numbers {
 public:
  explicit Numbers(const Tensor& tensor) : tensor_(tensor) {
    const bool complex = tensor.dtype() == DType::complex64 || tensor.dtype() == DType::complex128;
    width_ = complex ? 2 : 1;
  }

  std::size_t size() const { return tensor_.size() * width_; }
  std::size_t width() const { return width_; }

  double operator[](std::size_t i) const {
    const void* data = tensor_.data();
    switch (tensor_.dtype()) {
      case DType::boolean: return static_cast<const unsigned char*>(data)[i];
      case DType::int8: return static_cast<const std::int8_t*>(data)[i];
      case DType::int16: return static_cast<const std::int16_t*>(data)[i];
      case DType::int32: return static_cast<const std::int32_t*>(data)[i];
      case DType::int64: return static_cast<double>(static_cast<const std::int64_t*>(data)[i]);
      case DType::uint8: return static_cast<const std::uint8_t*>(data)[i];
      case DType::uint16: return static_cast<const std::uint16_t*>(data)[i];
      case DType::uint32: return static_cast<const std::uint32_t*>(data)[i];
      case DType::uint64: return static_cast<double>(static_cast<const std::uint64_t*>(data)[i]);
      case DType::float16: return static_cast<float>(static_cast<const Float16*>(data)[i]);
      case DType::bfloat16: return static_cast<float>(static_cast<const BFloat16*>(data)[i]);
      case DType::float32:
      case DType::complex64: return static_cast<double>(static_cast<const float*>(data)[i]);
      case DType::float64:
      case DType::complex128: return static_cast<const double*>(data)[i];
      case DType::string: break;
    }
    return 0;
  }

  bool same_bits(const Numbers& other, std::size_t i) const {
    const std::size_t each = item_size(tensor_.dtype()) / width_;
    return std::memcmp(static_cast<const char*>(tensor_.data()) + i * each,
                       static_cast<const char*>(other.tensor_.data()) + i * each, each) == 0;
  }

  // The number as its own type writes it: the shortest text that gives it back.
  std::string text(std::size_t i) const {
    char buffer[64];
    std::to_chars_result done{};
    if (tensor_.dtype() == DType::boolean) return (*this)[i] != 0 ? "True" : "False";
    if (tensor_.dtype() == DType::uint64) {
      done = std::to_chars(buffer, buffer + sizeof buffer, static_cast<const std::uint64_t*>(tensor_.data())[i]);
    } else if (tensor_.dtype() == DType::int64) {
      done = std::to_chars(buffer, buffer + sizeof buffer, static_cast<const std::int64_t*>(tensor_.data())[i]);
    } else if (tensor_.dtype() == DType::float64 || tensor_.dtype() == DType::complex128) {
      done = std::to_chars(buffer, buffer + sizeof buffer, (*this)[i]);
    } else {
      done = std::to_chars(buffer, buffer + sizeof buffer, static_cast<float>((*this)[i]));
    }
    return std::string(buffer, done.ptr);
  }

 private:
  const Tensor& tensor_;
  std::size_t width_ = 1;
};

inline double largest(const Numbers& numbers, double below = infinite) {
  double found = 0;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const double size = std::fabs(numbers[i]);
    if (std::isfinite(size) && size <= below && size > found) found = size;
  }
  return found;
}

// The nearest number of a dtype, for one that is not small.
inline double rounded_to(double number, DType dtype) {
  if (dtype == DType::float64 || dtype == DType::complex128) return number;
  if (dtype == DType::float32 || dtype == DType::complex64) return static_cast<float>(number);
  const double step = std::ldexp(1.0, std::ilogb(number) - (dtype == DType::float16 ? 10 : 7));
  return std::nearbyint(number / step) * step;
}

// Check that a number is one that people write: of two digits, or the largest of its dtype.
inline bool is_written(double number, DType dtype) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1e", number);
  for (const double limit : {65504.0, 3.4028234663852886e38, 1.7976931348623157e308, 3.3895313892515355e38})
    if (std::fabs(number) == limit) return true;
  return rounded_to(std::strtod(text, nullptr), dtype) == number;
}

// The largest magnitude, without numbers that stand for "nothing": beside -1e9 every error would be small. They are
// left out if somebody wrote them, and both tensors have them in the same places.
inline double scale_of(const Numbers& reference, const Numbers& candidate, const Tolerance& limit, DType dtype) {
  const double found = largest(reference);
  if (found < large) return found;
  const double rest = largest(reference, found / far_below);
  if (limit.atol * found < rest) return found;  // errors of the rest are seen beside it
  bool written = false;
  for (std::size_t i = 0; i < reference.size(); ++i) {
    const double number = reference[i], size = std::fabs(number);
    if (!std::isfinite(size) || size <= found / far_below) continue;
    if (number != candidate[i]) return found;
    written = written || is_written(number, dtype);
  }
  return written ? rest : found;
}

struct Errors {
  std::size_t wrong = 0, first_wrong = 0;
  bool special = false;  // NaN or Inf in other places
  double max_abs = 0, max_rel = 0, signal = 0, other = 0, dot = 0, noise = 0;

  double cosine() const {
    const double square = signal * other;
    const double length =
        square > 0 && std::isfinite(square) ? std::sqrt(square) : std::sqrt(signal) * std::sqrt(other);
    if (length == 0) return signal == other ? 1 : 0;
    return std::isfinite(length) ? std::clamp(dot / length, -1.0, 1.0) : std::numeric_limits<double>::quiet_NaN();
  }

  double sqnr() const {
    if (noise == 0) return special ? -infinite : infinite;
    if (signal == 0 || !std::isfinite(noise)) return -infinite;
    const double ratio = signal / noise;
    return 10 * (ratio > 0 && std::isfinite(ratio) ? std::log10(ratio) : std::log10(signal) - std::log10(noise));
  }

  void add(std::size_t place, double a, double b, bool beyond) {
    const bool is_special = !(std::isfinite(a) && std::isfinite(b));
    const double error = !is_special ? std::fabs(a - b) : beyond ? infinite : 0;
    if (beyond && wrong++ == 0) first_wrong = place;
    special = special || (is_special && beyond);
    max_abs = std::max(max_abs, error);
    if (is_special) {
      if (beyond) max_rel = infinite;
      return;
    }
    if (a != 0) max_rel = std::max(max_rel, error / std::fabs(a));
    signal += a * a;
    other += b * b;
    dot += a * b;
    noise += error * error;
  }
};

inline Errors errors_of(const Tensor& reference, const Tensor& candidate, const Tolerance& limit) {
  const Numbers ours(reference), theirs(candidate);
  const bool exact = !is_float(reference.dtype());
  const double scale = exact || limit.atol == 0 ? 0 : scale_of(ours, theirs, limit, reference.dtype());
  const double floor = limit.atol == 0 ? 0 : limit.atol * std::max(scale, scale_floor);
  Errors found;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    const double a = ours[i], b = theirs[i];
    bool beyond = exact ? !ours.same_bits(theirs, i) : !(std::fabs(a - b) <= limit.rtol * std::fabs(a) + floor);
    if (!std::isfinite(a) || !std::isfinite(b)) beyond = !(a == b || (std::isnan(a) && std::isnan(b)));
    found.add(i, a, b, beyond);
  }
  return found;
}

inline std::string place_text(std::size_t flat, const Shape& shape) {
  Shape index(shape.size(), 0);
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    const auto size = static_cast<std::size_t>(shape[axis]);
    index[axis] = static_cast<std::int64_t>(flat % size);
    flat /= size;
  }
  return text_of(index);
}

}  // namespace detail

// Compare an output with the reference, within a tolerance. Integers, booleans and texts are exact in any case.
inline OutputCheck check_output(const std::string& name, const Tensor& reference, const Tensor& candidate,
                                const Tolerance& limit) {
  OutputCheck check;
  check.name = name;
  const auto refuse = [&check](const std::string& problem) {
    check.max_abs = check.max_rel = detail::infinite;
    check.cosine = std::numeric_limits<double>::quiet_NaN();
    check.sqnr = -detail::infinite;
    check.problem = problem;
    return check;
  };
  if (reference.dtype() != candidate.dtype())
    return refuse(std::string("dtype is ") + name_of(candidate.dtype()) + ", expected " + name_of(reference.dtype()));
  if (reference.shape() != candidate.shape())
    return refuse("shape is " + text_of(candidate.shape()) + ", expected " + text_of(reference.shape()));
  if (reference.dtype() == DType::string) {
    const std::string* ours = reference.data_as<std::string>();
    if (!std::equal(ours, ours + reference.size(), candidate.data_as<std::string>())) check.problem = "texts differ";
    return check;
  }
  const detail::Errors found = detail::errors_of(reference, candidate, limit);
  check.max_abs = found.max_abs;
  check.max_rel = found.max_rel;
  check.cosine = found.cosine();
  check.sqnr = found.sqnr();
  // An output of numbers near 1e-5, such as the sigmoid of -10, is computed from numbers near one and has their error.
  const bool single = reference.dtype() == DType::float32 || reference.dtype() == DType::complex64;
  const bool rounding = single && !found.special && found.max_abs <= detail::resolution && check.sqnr >= detail::clean;
  if (found.wrong != 0 && !rounding) {
    const detail::Numbers ours(reference), theirs(candidate);
    check.problem = std::to_string(found.wrong) + " of " + std::to_string(ours.size()) + " numbers differ" +
                    (found.special ? ", NaN or Inf in other places" : "") + "; first at " +
                    detail::place_text(found.first_wrong / ours.width(), reference.shape()) + ": " +
                    theirs.text(found.first_wrong) + ", expected " + ours.text(found.first_wrong);
  }
  return check;
}

inline OutputCheck check_output(const std::string& name, const Tensor& reference, const Tensor& candidate) {
  return check_output(name, reference, candidate, default_tolerance(reference.dtype()));
}

// Check that two tensors have the same dtype, shape and bits.
inline bool same_bits(const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype() || a.shape() != b.shape()) return false;
  if (a.dtype() == DType::string) return check_output("", a, b).ok();
  return a.size() == 0 || std::memcmp(a.data(), b.data(), a.bytes()) == 0;
}

}  // namespace torchport
