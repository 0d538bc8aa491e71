// numpy's .npy files: format versions 1 to 3, both byte orders, C and Fortran order.
//
//     torchport::Tensor x = torchport::read_npy("x.npy");
//     torchport::write_npy("y.npy", y);
//
// A header's claims are checked against the bytes that are there before memory is taken. Python objects (pickles) and
// structured dtypes are refused. bfloat16 is the dtype V2, as numpy writes it; texts are the dtype U.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "files.hpp"
#include "json.hpp"
#include "tensor.hpp"

namespace torchport {
namespace detail {

struct NpyHeader {
  char order = '<';  // of bytes: '<', '>', or '|' where there is one byte
  char kind = 'f';
  std::size_t width = 4;  // bytes of one item; of U: characters
  bool fortran = false;
  Shape shape;
};

// Read the Python dict at the start of a file: {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }
class NpyHeaderReader {
 public:
  NpyHeaderReader(std::string text, const std::string& label) : text_(std::move(text)), label_(label) {}

  NpyHeader read() {
    bool descr = false, order = false, shape = false;
    expect('{');
    while (!take('}')) {
      const std::string key = quoted();
      expect(':');
      if (key == "descr" && !descr) {
        descr = true;
        read_descr();
      } else if (key == "fortran_order" && !order) {
        order = true;
        read_order();
      } else if (key == "shape" && !shape) {
        shape = true;
        read_shape();
      } else {
        throw broken();
      }
      if (!take(',')) {
        expect('}');
        break;
      }
    }
    space();
    if (at_ != text_.size() || !descr || !order || !shape) throw broken();
    return header_;
  }

 private:
  InputError broken() const { return unreadable(label_, "its header is broken"); }

  void space() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }

  bool take(char wanted) {
    space();
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  void expect(char wanted) {
    if (!take(wanted)) throw broken();
  }

  std::string quoted() {
    space();
    if (at_ >= text_.size() || (text_[at_] != '\'' && text_[at_] != '"')) throw broken();
    const std::size_t end = text_.find(text_[at_], at_ + 1);
    if (end == std::string::npos) throw broken();
    std::string found = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return found;
  }

  void read_descr() {
    space();
    if (at_ < text_.size() && text_[at_] == '[') throw unreadable(label_, "it has a structured dtype");
    const std::string descr = quoted();
    if (descr.find('O') != std::string::npos) throw unreadable(label_, "it holds Python objects, no plain arrays");
    const bool digits = descr.size() >= 3 && descr.size() <= 11 &&
                        std::all_of(descr.begin() + 2, descr.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (!digits || std::string("<>|=").find(descr[0]) == std::string::npos)
      throw unreadable(label_, "its dtype '" + descr.substr(0, 40) + "' is none a tensor can have");
    header_.order = descr[0];
    header_.kind = descr[1];
    header_.width = static_cast<std::size_t>(std::stoull(descr.substr(2)));
  }

  void read_order() {
    space();
    for (const bool fortran : {true, false}) {
      const std::string word = fortran ? "True" : "False";
      if (text_.compare(at_, word.size(), word) == 0) {
        at_ += word.size();
        header_.fortran = fortran;
        return;
      }
    }
    throw broken();
  }

  void read_shape() {
    expect('(');
    while (!take(')')) {
      space();
      if (at_ < text_.size() && text_[at_] == '-') throw unreadable(label_, "its shape has a negative size");
      std::size_t end = at_;
      while (end < text_.size() && text_[end] >= '0' && text_[end] <= '9') ++end;
      if (end == at_) throw broken();
      const std::uint64_t size = end - at_ > 19 ? UINT64_MAX : std::stoull(text_.substr(at_, end - at_));
      if (size > INT64_MAX) throw unreadable(label_, "its shape has more numbers than can be addressed");
      header_.shape.push_back(static_cast<std::int64_t>(size));
      if (header_.shape.size() > 64) throw unreadable(label_, "its shape has more than 64 axes");
      at_ = end;
      if (!take(',')) {
        expect(')');
        return;
      }
    }
  }

  std::string text_;
  const std::string& label_;
  std::size_t at_ = 0;
  NpyHeader header_;
};

inline bool is_little_endian() {
  const std::uint16_t one = 1;
  unsigned char first;
  std::memcpy(&first, &one, 1);
  return first == 1;
}

inline DType dtype_in(const NpyHeader& header, const std::string& label) {
  static const struct {
    char kind;
    std::size_t width;
    DType dtype;
  } known[] = {
      {'b', 1, DType::boolean},   {'i', 1, DType::int8},        {'i', 2, DType::int16},    {'i', 4, DType::int32},
      {'i', 8, DType::int64},     {'u', 1, DType::uint8},       {'u', 2, DType::uint16},   {'u', 4, DType::uint32},
      {'u', 8, DType::uint64},    {'f', 2, DType::float16},     {'f', 4, DType::float32},  {'f', 8, DType::float64},
      {'c', 8, DType::complex64}, {'c', 16, DType::complex128}, {'V', 2, DType::bfloat16},
  };
  if (header.kind == 'U') return DType::string;
  for (const auto& entry : known)
    if (entry.kind == header.kind && entry.width == header.width) return entry.dtype;
  throw unreadable(label, "its dtype '" + std::string(1, header.kind) + std::to_string(header.width) +
                              "' is none a tensor can have");
}

// Where the item at each place in C order stands in Fortran order.
inline std::vector<std::size_t> fortran_places(const Shape& shape, std::size_t count) {
  std::vector<std::size_t> strides(shape.size(), 1);
  for (std::size_t axis = 1; axis < shape.size(); ++axis)
    strides[axis] = strides[axis - 1] * static_cast<std::size_t>(shape[axis - 1]);
  std::vector<std::size_t> places(count);
  Shape index(shape.size(), 0);
  std::size_t place = 0;
  for (std::size_t i = 0; i < count; ++i) {
    places[i] = place;
    for (std::size_t axis = shape.size(); axis-- > 0;) {
      place += strides[axis];
      if (++index[axis] < shape[axis]) break;
      place -= strides[axis] * static_cast<std::size_t>(shape[axis]);
      index[axis] = 0;
    }
  }
  return places;
}

inline void swap_bytes(unsigned char* data, std::size_t bytes, std::size_t width) {
  for (std::size_t i = 0; i + width <= bytes; i += width) std::reverse(data + i, data + i + width);
}

inline Tensor texts_in(const NpyHeader& header, const Bytes& numbers, std::size_t count, const std::string& label) {
  const bool swap = (header.order == '>') == is_little_endian();
  Tensor tensor(DType::string, header.shape);
  const auto places = header.fortran ? fortran_places(header.shape, count) : std::vector<std::size_t>();
  for (std::size_t i = 0; i < count; ++i) {
    std::string text;
    const unsigned char* item = numbers.data + (header.fortran ? places[i] : i) * header.width * 4;
    for (std::size_t c = 0; c < header.width; ++c) {
      unsigned char unit[4];
      std::memcpy(unit, item + c * 4, 4);
      if (swap) std::reverse(unit, unit + 4);
      std::uint32_t code;
      std::memcpy(&code, unit, 4);
      if (code > 0x10ffff) throw unreadable(label, "it has a text that is no Unicode");
      add_utf8(text, code);
    }
    text.erase(text.find_last_not_of('\0') + 1);  // numpy fills up with zeros
    tensor.data_as<std::string>()[i] = text;
  }
  return tensor;
}

// The tensor in the bytes of an .npy file; it shares them where they can be used as they are.
inline Tensor parse_npy(const Bytes& file, const std::string& label) {
  if (file.size < 10 || std::memcmp(file.data, "\x93NUMPY", 6) != 0)
    throw unreadable(label, file.size ? "it is no file of numpy's" : "it is empty");
  const unsigned major = file.data[6];
  if (major < 1 || major > 3)
    throw unreadable(label, "it has the format " + std::to_string(major) + ", which is unknown");
  std::size_t start = major == 1 ? 10 : 12, length = file.data[8] | (std::size_t{file.data[9]} << 8);
  if (file.size < start) throw unreadable(label, "it ends within its header");
  if (major > 1) length |= (std::size_t{file.data[10]} << 16) | (std::size_t{file.data[11]} << 24);
  if (length > file.size - start) throw unreadable(label, "it ends within its header");
  const std::string text(reinterpret_cast<const char*>(file.data) + start, length);
  const NpyHeader header = NpyHeaderReader(text, label).read();
  start += length;

  const DType dtype = dtype_in(header, label);
  const std::size_t each = dtype == DType::string ? header.width * 4 : item_size(dtype);
  std::size_t count = 0;
  try {
    count = count_of(header.shape, std::max(each, sizeof(std::string)));
  } catch (const InputError& error) {
    throw unreadable(label, error.happened());
  }
  if (count != 0 && each > (file.size - start) / count)
    throw unreadable(label, "its header claims the shape " + text_of(header.shape) + ", the file has only " +
                                std::to_string(file.size - start) + " bytes of it");
  if (dtype == DType::string && each == 0 && count > (std::size_t{1} << 20))
    throw unreadable(label, "it claims " + std::to_string(count) + " empty texts");
  Bytes numbers{file.owner, file.data + start, count * each};
  if (dtype == DType::string) return texts_in(header, numbers, count, label);

  const bool aligned = reinterpret_cast<std::uintptr_t>(numbers.data) % alignof(std::max_align_t) == 0;
  if (header.fortran && header.shape.size() > 1) {
    const Bytes turned = new_bytes(numbers.size);
    const auto places = fortran_places(header.shape, count);
    for (std::size_t i = 0; i < count; ++i)
      std::memcpy(turned.writable() + i * each, numbers.data + places[i] * each, each);
    numbers = turned;
  } else if (!aligned) {
    const Bytes moved = new_bytes(numbers.size);
    if (numbers.size) std::memcpy(moved.writable(), numbers.data, numbers.size);
    numbers = moved;
  }
  const std::size_t unit = header.kind == 'c' ? each / 2 : each;
  if (unit > 1 && header.order != '=' && header.order != '|' && (header.order == '>') == is_little_endian())
    swap_bytes(numbers.writable(), numbers.size, unit);
  if (dtype == DType::boolean)  // another byte than 0 and 1 is no bool of C++
    for (std::size_t i = 0; i < count; ++i) numbers.writable()[i] = numbers.data[i] != 0;
  return Tensor::over(dtype, header.shape, numbers.writable(), numbers.owner);
}

inline std::string descr_of(DType dtype, std::size_t characters) {
  static const char* const names[] = {"|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4",
                                      "<u8", "<f2", "<V2", "<f4", "<f8", "<c8", "<c16"};
  std::string descr =
      dtype == DType::string ? "<U" + std::to_string(characters) : names[static_cast<std::size_t>(dtype)];
  if (!is_little_endian() && descr[0] == '<') descr[0] = '>';
  return descr;
}

// The code points of UTF-8; a byte that is none stands for itself.
inline std::vector<std::uint32_t> code_points(const std::string& text) {
  std::vector<std::uint32_t> found;
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const std::size_t more = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc0 ? 1 : 0;
    std::uint32_t code = more == 0 ? lead : lead & (0x3fu >> more);
    for (std::size_t k = 1; k <= more && i + k < text.size(); ++k)
      code = (code << 6) | (static_cast<unsigned char>(text[i + k]) & 0x3fu);
    found.push_back(code);
    i += more + 1;
  }
  return found;
}

struct NpyParts {
  std::string head;                  // everything before the numbers
  std::vector<std::uint32_t> texts;  // the numbers of an array of texts
  const void* data = nullptr;
  std::size_t size = 0;
};

inline NpyParts npy_parts(const Tensor& tensor) {
  NpyParts parts;
  std::size_t longest = 1;
  if (tensor.dtype() == DType::string) {
    const std::string* texts = tensor.data_as<std::string>();
    for (std::size_t i = 0; i < tensor.size(); ++i) longest = std::max(longest, code_points(texts[i]).size());
    parts.texts.assign(tensor.size() * longest, 0);
    for (std::size_t i = 0; i < tensor.size(); ++i) {
      const auto codes = code_points(texts[i]);
      std::copy(codes.begin(), codes.end(), parts.texts.begin() + static_cast<std::ptrdiff_t>(i * longest));
    }
  }
  parts.data = tensor.dtype() == DType::string ? static_cast<const void*>(parts.texts.data()) : tensor.data();
  parts.size = tensor.dtype() == DType::string ? parts.texts.size() * 4 : tensor.bytes();
  std::string shape = "(";
  for (const std::int64_t size : tensor.shape()) shape += std::to_string(size) + ", ";
  if (tensor.rank() > 1) shape.erase(shape.size() - 2);
  if (tensor.rank() == 1) shape.pop_back();
  std::string header =
      "{'descr': '" + descr_of(tensor.dtype(), longest) + "', 'fortran_order': False, 'shape': " + shape + "), }";
  header.append(63 - (10 + header.size()) % 64, ' ');
  header += '\n';
  parts.head = std::string("\x93NUMPY\x01\0", 8) + static_cast<char>(static_cast<unsigned char>(header.size() & 0xff)) +
               static_cast<char>(static_cast<unsigned char>(header.size() >> 8)) + header;
  return parts;
}

}  // namespace detail

inline Tensor read_npy(const std::string& path) { return detail::parse_npy(detail::read_file(path), path); }

inline void write_npy(const std::string& path, const Tensor& tensor) {
  const detail::NpyParts parts = detail::npy_parts(tensor);
  detail::write_file(path, [&parts](std::FILE* file) {
    std::fwrite(parts.head.data(), 1, parts.head.size(), file);
    if (parts.size) std::fwrite(parts.data, 1, parts.size, file);
  });
}

}  // namespace torchport
