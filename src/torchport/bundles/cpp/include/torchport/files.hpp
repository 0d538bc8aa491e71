// Whole files: read with their size checked first, written in one go.
#pragma once

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <system_error>

#if defined(_WIN32)
#include <process.h>
#else
#include <unistd.h>
#endif

#include "error.hpp"

namespace torchport {
namespace detail {

// A stretch of bytes, and what keeps them alive.
struct Bytes {
  std::shared_ptr<unsigned char> owner;
  const unsigned char* data = nullptr;
  std::size_t size = 0;

  unsigned char* writable() const { return const_cast<unsigned char*>(data); }  // the owner's bytes are our own
};

inline Bytes new_bytes(std::size_t size) {
  Bytes made;
  made.owner.reset(new unsigned char[size ? size : 1], std::default_delete<unsigned char[]>());
  made.data = made.owner.get();
  made.size = size;
  return made;
}

// Return the bytes of memory that this machine has: no file makes us ask for more.
inline std::uint64_t memory() {
#if defined(_SC_PHYS_PAGES) && defined(_SC_PAGESIZE)
  const long pages = sysconf(_SC_PHYS_PAGES), each = sysconf(_SC_PAGESIZE);
  if (pages > 0 && each > 0) return static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(each);
#endif
  return std::uint64_t{1} << 40;
}

inline InputError unreadable(const std::string& path, const std::string& reason) {
  return InputError("'" + path + "' cannot be read: " + reason, "",
                    "save arrays of numbers with numpy.save or numpy.savez");
}

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

inline Bytes read_file(const std::string& path) {
  std::error_code fault;
  const auto status = std::filesystem::status(path, fault);
  if (!std::filesystem::exists(status)) throw InputError("there is no file '" + path + "'", "", "check the path");
  if (!std::filesystem::is_regular_file(status))
    throw InputError("'" + path + "' is not a regular file", "", "give a .npy or .npz file");
  const std::uint64_t size = std::filesystem::file_size(path, fault);
  if (fault) throw unreadable(path, fault.message());
  if (size > memory()) throw unreadable(path, "it is larger than the memory");
  File file(std::fopen(path.c_str(), "rb"));
  if (!file) throw unreadable(path, std::strerror(errno));
  Bytes bytes = new_bytes(static_cast<std::size_t>(size));
  if (std::fread(bytes.writable(), 1, bytes.size, file.get()) != bytes.size)
    throw unreadable(path, "it became shorter while it was read");
  return bytes;
}

// Write a file beside the target, then rename it: a reader sees the old file or the whole new one.
inline void write_file(const std::string& path, const std::function<void(std::FILE*)>& write) {
#if defined(_WIN32)
  const std::string part = path + "." + std::to_string(_getpid()) + ".part";
#else
  const std::string part = path + "." + std::to_string(getpid()) + ".part";
#endif
  const auto fail = [&](const std::string& reason) {
    std::remove(part.c_str());
    return SaveError("'" + path + "' cannot be written: " + reason, "", "name a file in a folder of yours");
  };
  std::FILE* opened = std::fopen(part.c_str(), "wb");
  if (opened == nullptr) throw fail(std::strerror(errno));
  File file(opened);
  write(opened);
  const bool whole = std::ferror(opened) == 0 && std::fflush(opened) == 0;
  const std::string reason = std::strerror(errno);
  file.reset();
  if (!whole) throw fail(reason);
  std::error_code fault;
  std::filesystem::rename(part, path, fault);
  if (fault) throw fail(fault.message());
}

inline std::string lower_suffix(const std::string& path) {
  std::string suffix = std::filesystem::path(path).extension().string();
  for (char& c : suffix)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return suffix;
}

}  // namespace detail
}  // namespace torchport
