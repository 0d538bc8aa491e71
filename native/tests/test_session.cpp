// A session by name and by position, from many threads, and outputs that outlive it. Takes square.onnx of
// test_native.py: x: float32[batch,3], y = x * x.
#include <torchport/torchport.hpp>

#include <thread>
#include <vector>

#include "check.hpp"

using namespace torchport;

namespace {

Array<float> filled(std::int64_t rows, float value) {
  Array<float> x({rows, 3});
  for (float& number : x) number = value;
  return x;
}

bool is_square(const Tensor& y, std::int64_t rows, float value) {
  const Array<float> numbers(y);
  bool same = y.shape() == Shape{rows, 3};
  for (const float number : numbers) same = same && number == value * value;
  return same;
}

void many_threads_share_a_session(const Session& session) {
  std::vector<int> wrong(4, 0);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < wrong.size(); ++t)
    threads.emplace_back([&session, &wrong, t] {
      for (int i = 0; i < 200; ++i) {
        const auto rows = static_cast<std::int64_t>(t) + 1;
        const auto value = static_cast<float>(i) + static_cast<float>(t) / 4;
        if (!is_square(session.run(std::vector<Tensor>{filled(rows, value)})[0], rows, value)) ++wrong[t];
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const int count : wrong) CHECK(count == 0);
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 2) return 2;
  const std::string path = arguments[1];
  Tensor kept;
  {
    SessionOptions options;
    options.threads = 2;
    const Session session(path, options);
    CHECK(session.inputs().size() == 1 && session.inputs()[0].name == "x");
    CHECK(is_square(session.run({{"x", filled(2, 3)}}).at("y"), 2, 3));
    CHECK(session.run({{"x", filled(0, 3)}}).at("y").shape() == (Shape{0, 3}));
    CHECK_ERROR("input 'x' is missing", session.run(Tensors()));
    CHECK_ERROR("there is no input 'z'", session.run({{"x", filled(1, 1)}, {"z", filled(1, 1)}}));
    CHECK_ERROR("2 inputs given, the model has 1", session.run(std::vector<Tensor>{filled(1, 1), filled(1, 1)}));
    CHECK_ERROR("is float64, the model takes float32", session.run({{"x", Array<double>({1, 3})}}));
    CHECK_ERROR("has rank 1, the model takes 2", session.run({{"x", Array<float>({3})}}));
    many_threads_share_a_session(session);
    kept = session.run({{"x", filled(5, 7)}}).at("y");
  }
  CHECK(is_square(kept, 5, 7));
  SessionOptions other;
  other.expected =
      Signature{{{"x", DType::float32, {"batch", std::int64_t{3}}, true}}, {{"z", DType::float32, {}, false}}};
  CHECK_ERROR("the model has other outputs", Session(path, other));
  other = SessionOptions();
  other.threads = 0;
  CHECK_ERROR("the number of threads is 0", Session(path, other));
  return failures != 0;
}
