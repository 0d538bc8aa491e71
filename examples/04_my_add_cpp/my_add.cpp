// The notes' operator: 3a + 2b, in C++, for PyTorch. Once for Python (pybind11), once for the dispatcher (TORCH_LIBRARY).
#include <torch/extension.h>

torch::Tensor my_add(torch::Tensor a, torch::Tensor b) { return 3 * a + 2 * b; }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("my_add", my_add); }

TORCH_LIBRARY(my_lib, m) { m.def("my_add(Tensor a, Tensor b) -> Tensor"); }
TORCH_LIBRARY_IMPL(my_lib, CPU, m) { m.impl("my_add", my_add); }
