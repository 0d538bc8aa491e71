// A check that says where it failed; the program's exit code counts the failures.
#pragma once

#include <torchport/error.hpp>

#include <iostream>
#include <string>

inline int failures = 0;

#define CHECK(condition)                                                                \
  do {                                                                                  \
    if (!(condition)) {                                                                 \
      ++failures;                                                                       \
      std::cerr << __FILE__ << ":" << __LINE__ << ": not true: " << #condition << "\n"; \
    }                                                                                   \
  } while (false)

// Check that a function throws an error of torchport's whose text has these words.
template <typename Function>
void check_error(int line, const std::string& words, Function function) {
  try {
    function();
  } catch (const torchport::Error& error) {
    if (std::string(error.what()).find(words) != std::string::npos) return;
    ++failures;
    std::cerr << "line " << line << ": '" << error.what() << "' has no '" << words << "'\n";
    return;
  }
  ++failures;
  std::cerr << "line " << line << ": no error, expected '" << words << "'\n";
}

#define CHECK_ERROR(words, ...) check_error(__LINE__, words, [&] { static_cast<void>(__VA_ARGS__); })
