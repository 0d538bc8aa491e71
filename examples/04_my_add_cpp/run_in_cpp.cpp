// Runs my_add.onnx in C++ with the library that `torchport ops build` made: run_in_cpp my_add.onnx libmy_add_kernel.so
#include <onnxruntime_cxx_api.h>

#include <iostream>
#include <vector>

int main(int argc, char** argv) {
  if (argc != 3) return std::cerr << "run_in_cpp MODEL LIBRARY\n", 2;
  Ort::Env env;
  Ort::SessionOptions options;
  options.RegisterCustomOpsLibrary(argv[2]);
  Ort::Session session(env, argv[1], options);
  std::vector<float> a{1, 2, 3, 4}, b{10, 20, 30, 40};
  std::vector<int64_t> shape{1, 4};
  auto memory = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);
  std::vector<Ort::Value> inputs;
  inputs.push_back(Ort::Value::CreateTensor<float>(memory, a.data(), a.size(), shape.data(), shape.size()));
  inputs.push_back(Ort::Value::CreateTensor<float>(memory, b.data(), b.size(), shape.data(), shape.size()));
  const char* names[] = {"a", "b"};
  const char* wanted[] = {"output"};
  auto outputs = session.Run(Ort::RunOptions{}, names, inputs.data(), 2, wanted, 1);
  const float* y = outputs[0].GetTensorData<float>();
  std::cout << "in C++: " << y[0] << " " << y[1] << " " << y[2] << " " << y[3] << "\n";
}
