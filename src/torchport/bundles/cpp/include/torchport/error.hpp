// Errors: what happened, where, and what to do next, as in torchport's Python package.
//
//     Error
//     ├── UserError              the caller can fix it; a program exits 2
//     │   ├── OptionError        an option has a value that is not valid
//     │   ├── InputError         the inputs do not fit the model
//     │   ├── FileError          a file is missing, broken or of another format
//     │   └── SaveError          the target cannot be written
//     └── RefusedError           the model was refused; a program exits 1
//         └── EngineError        the engine refuses the model or fails while running it
#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace torchport {

class Error : public std::runtime_error {
 public:
  Error(std::string happened, std::string where, std::string next, int exit_code)
      : std::runtime_error(lines(happened, where, next)),
        happened_(std::move(happened)),
        where_(std::move(where)),
        next_(std::move(next)),
        exit_code_(exit_code) {}

  // what() has all three, one a line.
  const std::string& happened() const { return happened_; }
  const std::string& where() const { return where_; }
  const std::string& next() const { return next_; }
  int exit_code() const { return exit_code_; }

 private:
  static std::string lines(const std::string& happened, const std::string& where, const std::string& next) {
    std::string text = happened;
    if (!where.empty()) text += "\nwhere: " + where;
    if (!next.empty()) text += "\nnext:  " + next;
    return text;
  }

  std::string happened_, where_, next_;
  int exit_code_;
};

class UserError : public Error {
 public:
  explicit UserError(std::string happened, std::string where = "", std::string next = "")
      : Error(std::move(happened), std::move(where), std::move(next), 2) {}
};

class OptionError : public UserError {
  using UserError::UserError;
};

class InputError : public UserError {
  using UserError::UserError;
};

class FileError : public UserError {
  using UserError::UserError;
};

class SaveError : public UserError {
  using UserError::UserError;
};

class RefusedError : public Error {
 public:
  explicit RefusedError(std::string happened, std::string where = "", std::string next = "")
      : Error(std::move(happened), std::move(where), std::move(next), 1) {}
};

class EngineError : public RefusedError {
  using RefusedError::RefusedError;
};

}  // namespace torchport
