// Kernels for test_defining.py: every kind of parameter.
#include <cmath>

#include "torchport.h"

using namespace torchport;

template <typename T>
void scale_add(const Input<T>& a, const Input<T>& b, double alpha, Output<T>& y) {
  T* out = y.resize(a.shape());
  for (size_t i = 0; i < a.size(); ++i) out[i] = a[i] * static_cast<T>(alpha) + b[i];
}
TORCHPORT_KERNEL("tests::ScaleAdd", {"alpha"}, scale_add<float>, scale_add<double>, scale_add<int64_t>)

// two outputs, the second of another type
template <typename T> void sum_and_count(const Input<T>& x, Output<T>& sum, Output<int64_t>& count) {
  T total = 0;
  for (T v : x) total += v;
  *sum.resize({}) = total;
  *count.resize({1}) = static_cast<int64_t>(x.size());
}
TORCHPORT_KERNEL("tests::SumAndCount", {}, sum_and_count<float>)

// an input that may be left out, and attributes of every kind
void blend(const Input<float>& x, const Optional<float>& weight, int64_t power, bool negate, const std::string& mode,
           const std::vector<int64_t>& counts, const std::vector<double>& factors, const std::vector<std::string>& words,
           std::optional<double> extra, Output<float>& y) {
  if (mode != "sum" && mode != "product") throw std::invalid_argument("mode is '" + mode + "', not sum or product");
  double offset = extra.value_or(0.0);
  for (int64_t c : counts) offset += static_cast<double>(c);
  for (double f : factors) offset += f;
  for (const std::string& w : words) offset += static_cast<double>(w.size());
  float* out = y.resize(x.shape());
  for (size_t i = 0; i < x.size(); ++i) {
    double v = std::pow(x[i], static_cast<double>(power));
    if (weight) v = mode == "sum" ? v + (*weight)[i] : v * (*weight)[i];
    out[i] = static_cast<float>((negate ? -v : v) + offset);
  }
}
TORCHPORT_KERNEL("tests::Blend", {"power", "negate", "mode", "counts", "factors", "words", "extra"}, blend)

// as many inputs as there are
void total(const Inputs<float>& parts, Output<float>& y) {
  float* out = y.resize(parts.at(0).shape());
  for (size_t i = 0; i < parts[0].size(); ++i) {
    out[i] = 0;
    for (const Input<float>& part : parts) out[i] += part[i];
  }
}
TORCHPORT_KERNEL("tests::Total", {}, total)

// a size that only the values tell
void positives(const Input<float>& x, Output<float>& y) {
  std::vector<float> kept;
  for (float v : x)
    if (v > 0) kept.push_back(v);
  std::copy(kept.begin(), kept.end(), y.resize({static_cast<int64_t>(kept.size())}));
}
TORCHPORT_KERNEL("tests::Positives", {}, positives)
