// torchport in C++: open a model, read and write numpy's files, run, compare. Header-only, C++17.
#pragma once

#include "compare.hpp"
#include "error.hpp"
#include "npy.hpp"
#include "npz.hpp"
#include "session.hpp"
#include "tensor.hpp"
