// .npy and .npz files: what is written comes back, and hostile bytes are refused in words.
#include <torchport/npy.hpp>
#include <torchport/npz.hpp>

#include <cstdio>
#include <filesystem>
#include <random>

#include "check.hpp"

using namespace torchport;
using torchport::detail::Bytes;

namespace {

Bytes bytes_of(const std::string& text) {
  const Bytes bytes = detail::new_bytes(text.size());
  if (!text.empty()) std::memcpy(bytes.writable(), text.data(), text.size());
  return bytes;
}

std::string npy(const std::string& header, const std::string& numbers, char major = 1) {
  std::string text("\x93NUMPY", 6);
  text += major;
  text += '\0';
  text += static_cast<char>(header.size() & 0xff);
  text += static_cast<char>(header.size() >> 8);
  if (major > 1) text += std::string(2, '\0');
  return text + header + numbers;
}

Tensor parse(const std::string& text) { return detail::parse_npy(bytes_of(text), "x.npy"); }

std::string folder() {
  static const std::string made = [] {
    const auto path = std::filesystem::temp_directory_path() / ("torchport-" + std::to_string(getpid()));
    std::filesystem::create_directories(path);
    return path.string() + "/";
  }();
  return made;
}

std::string content(const std::string& path) {
  const Bytes bytes = detail::read_file(path);
  return std::string(reinterpret_cast<const char*>(bytes.data), bytes.size);
}

template <typename T>
void comes_back(const Shape& shape, const std::vector<T>& numbers) {
  const Array<T> array(shape, numbers);
  write_npy(folder() + "a.npy", array);
  const Tensor read = read_npy(folder() + "a.npy");
  CHECK(read.dtype() == DTypeOf<T>::value && read.shape() == shape);
  for (std::size_t i = 0; i < numbers.size(); ++i) CHECK(read.data_as<T>()[i] == numbers[i]);
}

void arrays_come_back() {
  comes_back<float>({2, 3}, {1, 2, 3, 4, 5, 6});
  comes_back<double>({}, {1.5});
  comes_back<std::int64_t>({3}, {1, -2, 3});
  comes_back<std::uint8_t>({0, 4}, {});
  comes_back<bool>({2}, {true, false});
  comes_back<std::complex<float>>({1}, {{1, 2}});
  comes_back<std::string>({2}, {"a", "größer 😀"});
}

void headers_are_read() {
  const std::string tail = "'fortran_order': False, 'shape': (2,), }\n", two = std::string(8, '\0');
  CHECK(parse(npy("{'descr': '<f4', " + tail, two)).dtype() == DType::float32);
  CHECK(parse(npy("{'descr': '<f4', " + tail, two, 2)).shape() == Shape{2});
  CHECK(parse(npy("{\"shape\": (2,), \"descr\": \"<f4\", \"fortran_order\": False}", two, 3)).size() == 2);
  const Tensor big =
      parse(npy("{'descr': '>i2', 'fortran_order': False, 'shape': (2,), }", std::string("\x01\x02\0\x05", 4)));
  CHECK(big.data_as<std::int16_t>()[0] == 0x102 && big.data_as<std::int16_t>()[1] == 5);
  const Tensor turned =
      parse(npy("{'descr': '|u1', 'fortran_order': True, 'shape': (2, 3), }", "\x01\x02\x03\x04\x05\x06"));
  const std::uint8_t expected[] = {1, 3, 5, 2, 4, 6};
  CHECK(std::equal(expected, expected + 6, turned.data_as<std::uint8_t>()));
  const Tensor truths =
      parse(npy("{'descr': '|b1', 'fortran_order': False, 'shape': (2,), }", std::string("\x07\0", 2)));
  CHECK(truths.data_as<bool>()[0] && !truths.data_as<bool>()[1]);
}

void hostile_headers_are_refused() {
  const auto with = [](const std::string& descr, const std::string& shape) {
    return npy("{'descr': " + descr + ", 'fortran_order': False, 'shape': " + shape + ", }", std::string(16, 'x'));
  };
  CHECK_ERROR("it is empty", parse(""));
  CHECK_ERROR("no file of numpy's", parse("hello, this is a text"));
  CHECK_ERROR("format 9", parse(npy("{}", "", 9)));
  CHECK_ERROR("ends within its header", parse(std::string("\x93NUMPY\x01\0\xff\xff{'d", 13)));
  CHECK_ERROR("ends within its header", parse(std::string("\x93NUMPY\x02\0\xff\xff\xff\x7f{'d", 15)));
  CHECK_ERROR("Python objects", parse(with("'|O'", "(2,)")));
  CHECK_ERROR("structured dtype", parse(with("[('a', '<f4')]", "(2,)")));
  CHECK_ERROR("none a tensor can have", parse(with("'<f3'", "(2,)")));
  CHECK_ERROR("none a tensor can have", parse(with("'<M8[ns]'", "(2,)")));
  CHECK_ERROR("none a tensor can have", parse(with("'|V7'", "(2,)")));
  CHECK_ERROR("negative size", parse(with("'<f4'", "(-2,)")));
  CHECK_ERROR("claims the shape [5]", parse(with("'<f4'", "(5,)")));
  CHECK_ERROR("claims the shape", parse(with("'<f4'", "(1000000000000,)")));
  CHECK_ERROR("more numbers than can be addressed", parse(with("'<f4'", "(4294967296, 4294967296)")));
  CHECK_ERROR("more numbers than can be addressed", parse(with("'<f4'", "(99999999999999999999,)")));
  CHECK_ERROR("more numbers than can be addressed", parse(with("'<U0'", "(4611686018427387904, 2)")));
  CHECK_ERROR("empty texts", parse(with("'<U0'", "(100000000,)")));
  CHECK_ERROR("no Unicode", parse(with("'<U4'", "(1,)")));
  CHECK_ERROR("more than 64 axes", [&] {
    std::string ones = "(";
    for (int i = 0; i < 80; ++i) ones += "1, ";
    return parse(with("'<f4'", ones + ")"));
  }());
  for (const char* shape : {"(2", "2", "(a,)", "(2;)", "(2.5,)"})
    CHECK_ERROR("header is broken", parse(with("'<f4'", shape)));
  CHECK_ERROR("header is broken", parse(npy("{'descr': '<f4'}", "")));
  CHECK_ERROR("header is broken",
              parse(npy("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (0,)}", "")));
  CHECK(parse(with("'<f4'", "(0, 4611686018427387904)")).size() == 0);
}

// A zip archive of one stored member, as this library writes it.
std::string small_zip() {
  write_npz(folder() + "a.npz", Tensors{{"x", Array<float>({2}, {1, 2})}});
  return content(folder() + "a.npz");
}

Tensors unzip(const std::string& text) { return detail::parse_npz(bytes_of(text), "a.npz"); }

void archives_come_back() {
  const Array<BFloat16> halves({2}, {BFloat16{0x3f80}, BFloat16{0x4000}});
  write_npz(folder() + "b.npz",
            Tensors{{"x", Array<float>({2}, {1, 2})}, {"half", halves}, {"größe", Array<bool>({1}, {true})}});
  const Tensors read = read_npz(folder() + "b.npz");
  CHECK(read.size() == 3 && read.at("x").data_as<float>()[1] == 2);
  CHECK(static_cast<float>(read.at("half").data_as<BFloat16>()[1]) == 2.0f);
  CHECK(read.at("größe").data_as<bool>()[0]);
  CHECK_ERROR("there is no tensor 'y'", read.at("y"));
  write_npz(folder() + "none.npz", Tensors());
  CHECK(read_npz(folder() + "none.npz").empty());
}

void hostile_archives_are_refused() {
  const std::string good = small_zip();
  CHECK(unzip(good).size() == 1);
  CHECK_ERROR("no zip archive", unzip("PK"));
  CHECK_ERROR("cut off", unzip(good.substr(0, good.size() - 5)));
  const std::size_t list = good.find("PK\x01\x02"), end = good.find("PK\x05\x06");
  const auto changed = [&good](std::size_t at, const std::string& bytes) {
    std::string text = good;
    return text.replace(at, bytes.size(), bytes);
  };
  CHECK_ERROR("contradict each other", unzip(changed(list + 20, "\x10")));
  CHECK_ERROR("sizes are wrong", unzip(changed(list + 42, "\xff\xff\xff\x7f")));
  CHECK_ERROR("checksum", unzip(changed(list + 16, "\x12\x34\x56\x78")));
  CHECK_ERROR("method 12", unzip(changed(list + 10, "\x0c")));
  CHECK_ERROR("encrypted", unzip(changed(list + 8, "\x01")));
  CHECK_ERROR("claims 9 members", unzip(changed(end + 10, "\x09")));
  CHECK_ERROR("zip64 record is missing", unzip(changed(end + 10, "\xff\xff")));
  CHECK_ERROR("is no array", unzip(changed(list + 46, "x.txt")));
  CHECK_ERROR("sizes are wrong", unzip(changed(list + 20, std::string("\xfe\xff\xff\xff\xfe\xff\xff\xff", 8))));
  std::string bomb = changed(list + 10, "\x08");  // a hundred bytes that claim to be deflated from 2 GiB
  CHECK_ERROR("made to fill the memory", unzip(bomb.replace(list + 24, 4, std::string("\x00\x00\x00\x80", 4))));
}

// Every byte of an archive changed in turn, and random ones: an error of ours, or arrays, and nothing else.
void no_byte_breaks_the_reader() {
  const std::string good = small_zip();
  std::mt19937 random(1);
  const auto survives = [](const std::string& text) {
    try {
      unzip(text);
    } catch (const Error&) {
    }
  };
  for (std::size_t i = 0; i < good.size(); ++i)
    for (const int change : {1, 0x80, 0xff}) {
      std::string text = good;
      text[i] = static_cast<char>(text[i] ^ change);
      survives(text);
      survives(good.substr(0, i));
    }
  for (int i = 0; i < 3000; ++i) {
    std::string text = good;
    for (int k = 0; k < 4; ++k) text[random() % text.size()] = static_cast<char>(random() & 0xff);
    survives(text);
    try {
      parse(text.substr(text.find("\x93") == std::string::npos ? 0 : text.find("\x93")));
    } catch (const Error&) {
    }
  }
}

void tensors_check_what_they_are_given() {
  CHECK_ERROR("negative size", Tensor(DType::float32, {2, -1}));
  CHECK_ERROR("more numbers than can be addressed", Tensor(DType::float64, {std::int64_t{1} << 62}));
  CHECK_ERROR("3 numbers are given", Array<float>({2}, {1, 2, 3}));
  CHECK_ERROR("not int64", Tensor(DType::float32, {2}).data_as<std::int64_t>());
  CHECK(static_cast<float>(Float16{0x3c00}) == 1.0f && static_cast<float>(Float16{0xc000}) == -2.0f);
  CHECK(static_cast<float>(Float16{0x0001}) == 5.9604644775390625e-8f &&
        static_cast<float>(Float16{0x7bff}) == 65504.0f);
  CHECK(static_cast<float>(Float16{0x0400}) == 6.103515625e-5f);
  CHECK_ERROR("cannot be written", write_npy("/there/is/none/x.npy", Array<float>({1})));
  CHECK_ERROR("there is no file", read_npy("/there/is/none/x.npy"));
  CHECK_ERROR("not a regular file", read_npy("/dev/zero"));
}

}  // namespace

int main() {
  arrays_come_back();
  headers_are_read();
  hostile_headers_are_refused();
  archives_come_back();
  hostile_archives_are_refused();
  no_byte_breaks_the_reader();
  tensors_check_what_they_are_given();
  std::filesystem::remove_all(folder());
  return failures != 0;
}
