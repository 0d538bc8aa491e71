// The comparison fails closed; tests/bundles/test_native.py holds it against torchport.numerics.
#include <torchport/compare.hpp>

#include <cmath>

#include "check.hpp"

using namespace torchport;

namespace {

OutputCheck floats(const std::vector<float>& reference, const std::vector<float>& candidate) {
  const auto count = static_cast<std::int64_t>(reference.size());
  return check_output("y", Array<float>({count}, reference), Array<float>({count}, candidate));
}

const float nan_ = std::nanf(""), inf_ = INFINITY;

}  // namespace

int main() {
  CHECK(floats({1, 2}, {1, 2}).ok() && floats({1, 2}, {1, 2.001f}).ok());
  CHECK(floats({1, 2}, {1, 2.1f}).problem == "1 of 2 numbers differ; first at [1]: 2.1, expected 2");
  CHECK(!floats({1, 2}, {1, nan_}).ok() && !floats({1, nan_}, {1, 2}).ok() && floats({1, nan_}, {1, nan_}).ok());
  CHECK(!floats({1, inf_}, {1, -inf_}).ok() && floats({1, inf_}, {1, inf_}).ok() && !floats({1, 2}, {1, inf_}).ok());
  CHECK(floats({1, nan_}, {1, 2}).problem.find("NaN or Inf in other places") != std::string::npos);
  CHECK(floats({0, 0}, {1e-9f, 0}).ok() && !floats({0, 0}, {1e-3f, 0}).ok());
  CHECK(!floats({-1e9f, 0.5f}, {-1e9f, 0.6f}).ok());  // a mask does not hide an error beside it
  CHECK(floats({}, {}).ok());
  const Array<std::int64_t> large({1}, {(std::int64_t{1} << 60) + 1}), near({1}, {std::int64_t{1} << 60});
  CHECK(!check_output("n", large, near).ok() && check_output("n", large, large).ok());  // equal as doubles
  CHECK(!check_output("n", large, near, Tolerance{1, 1}).ok());
  CHECK(check_output("y", Array<float>({2}), Array<double>({2})).problem == "dtype is float64, expected float32");
  CHECK(check_output("y", Array<float>({2}), Array<float>({2, 1})).problem == "shape is [2, 1], expected [2]");
  CHECK(!check_output("t", Array<std::string>({1}, {"a"}), Array<std::string>({1}, {"b"})).ok());
  CHECK(!same_bits(Array<float>({1}, {0.0f}), Array<float>({1}, {-0.0f})));
  return failures != 0;
}
