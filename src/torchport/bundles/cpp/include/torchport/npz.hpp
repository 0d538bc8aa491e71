// numpy's .npz files: zip archives of .npy members, stored or deflated, zip64 included.
//
//     torchport::Tensors inputs = torchport::read_npz("inputs.npz");
//     torchport::write_npz("outputs.npz", outputs);
//
// numpy.savez_compressed deflates: such members are read where zlib was found (TORCHPORT_ZLIB). Offsets and sizes are
// checked against the file before memory is taken, and checksums after. A member "__dtypes__" names the dtypes that
// numpy has no word for, as torchport writes it in Python.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <limits>
#include <set>
#include <string>
#include <vector>

#if defined(TORCHPORT_ZLIB)
#include <zlib.h>
#endif

#include "json.hpp"
#include "npy.hpp"

namespace torchport {
namespace detail {

constexpr std::uint64_t free_size = std::uint64_t{1} << 30;  // bytes below which a file may unpack to any size
constexpr std::uint64_t most_times = 100;                // its own size, for a larger one
constexpr const char* dtypes_member = "__dtypes__";
constexpr const char* notes_prefix = "__";  // before what torchport notes beside the arrays of a recorded call

inline std::uint32_t crc32_of(const void* data, std::size_t size, std::uint32_t known = 0) {
  static const std::array<std::uint32_t, 256> table = [] {
    std::array<std::uint32_t, 256> made{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t value = i;
      for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1u) ? 0xedb88320u : 0u);
      made[i] = value;
    }
    return made;
  }();
  std::uint32_t crc = ~known;
  const auto* bytes = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < size; ++i) crc = (crc >> 8) ^ table[(crc ^ bytes[i]) & 0xffu];
  return ~crc;
}

struct ZipMember {
  std::string name;
  unsigned method = 0;
  unsigned flags = 0;
  std::uint32_t crc = 0;
  std::uint64_t packed = 0;    // bytes in the archive
  std::uint64_t unpacked = 0;  // bytes of the member
  std::uint64_t header = 0;    // where its local header is
};

class ZipReader {
 public:
  ZipReader(Bytes file, const std::string& label) : file_(std::move(file)), label_(label) { read_directory(); }

  const std::vector<ZipMember>& members() const { return members_; }

  Bytes bytes_of(const ZipMember& member) const {
    const std::uint64_t at = member.header;
    need(at, 30);
    if (number(at, 4) != 0x04034b50u) throw broken("the place of '" + member.name + "' is wrong");
    const std::uint64_t start = at + 30 + number(at + 26, 2) + number(at + 28, 2);
    need(start, member.packed);
    if (member.flags & 1u) throw broken("'" + member.name + "' is encrypted");
    Bytes found;
    if (member.method == 0) {
      if (member.packed != member.unpacked) throw broken("the sizes of '" + member.name + "' contradict each other");
      found = Bytes{file_.owner, file_.data + start, static_cast<std::size_t>(member.packed)};
    } else if (member.method == 8) {
      found = inflated(member, file_.data + start);
    } else {
      throw broken("'" + member.name + "' is packed by method " + std::to_string(member.method) +
                   ", only stored and deflated ones are read");
    }
    if (crc32_of(found.data, found.size) != member.crc) throw broken("the checksum of '" + member.name + "' is wrong");
    return found;
  }

 private:
  InputError broken(const std::string& reason) const { return unreadable(label_, reason); }

  void need(std::uint64_t at, std::uint64_t size) const {
    if (at > file_.size || size > file_.size - at) throw broken("it ends too early, or its sizes are wrong");
  }

  std::uint64_t number(std::uint64_t at, unsigned bytes) const {
    need(at, bytes);
    std::uint64_t value = 0;
    for (unsigned i = bytes; i-- > 0;) value = (value << 8) | file_.data[at + i];
    return value;
  }

  // Where the end record is: at the end, behind a comment of up to 65535 bytes.
  std::uint64_t find_end() const {
    if (file_.size < 22) throw broken("it is no zip archive");
    const std::uint64_t last = file_.size - 22, first = last > 65535 ? last - 65535 : 0;
    for (std::uint64_t at = last + 1; at-- > first;)
      if (number(at, 4) == 0x06054b50u && at + 22 + number(at + 20, 2) == file_.size) return at;
    throw broken("it has no list of its members; it was cut off, or is no zip archive");
  }

  void read_directory() {
    const std::uint64_t end = find_end();
    std::uint64_t count = number(end + 10, 2), size = number(end + 12, 4), at = number(end + 16, 4);
    if (count == 0xffff || size == 0xffffffffu || at == 0xffffffffu) {
      if (end < 20 || number(end - 20, 4) != 0x07064b50u) throw broken("its zip64 record is missing");
      const std::uint64_t wide = number(end - 20 + 8, 8);
      need(wide, 56);
      if (number(wide, 4) != 0x06064b50u) throw broken("its zip64 record is broken");
      count = number(wide + 32, 8);
      size = number(wide + 40, 8);
      at = number(wide + 48, 8);
    }
    need(at, size);
    if (count > size / 46) throw broken("it claims " + std::to_string(count) + " members, and lists fewer");
    std::set<std::string> names;
    std::uint64_t total = 0;
    for (std::uint64_t i = 0; i < count; ++i) {
      members_.push_back(read_entry(at));
      const ZipMember& member = members_.back();
      if (!names.insert(member.name).second) throw broken("it has '" + member.name + "' twice");
      total = member.unpacked > std::numeric_limits<std::uint64_t>::max() - total
                  ? std::numeric_limits<std::uint64_t>::max()
                  : total + member.unpacked;
    }
    if (total > memory()) throw broken("it unpacks to " + std::to_string(total) + " bytes, more than the memory");
    std::uint64_t inflated = 0;  // the sum above did not overflow, so this one does not
    for (const ZipMember& member : members_) inflated += member.method == 8 ? member.unpacked : 0;
    if (inflated > free_size && inflated / most_times > file_.size)
      throw InputError("'" + label_ + "' cannot be read: " + std::to_string(file_.size) + " bytes unpack to " +
                           std::to_string(inflated) + ", as in a file made to fill the memory",
                       "", "write it with numpy.savez, which does not compress");
  }

  ZipMember read_entry(std::uint64_t& at) const {
    if (number(at, 4) != 0x02014b50u) throw broken("its list of members is broken");
    ZipMember member;
    member.flags = static_cast<unsigned>(number(at + 8, 2));
    member.method = static_cast<unsigned>(number(at + 10, 2));
    member.crc = static_cast<std::uint32_t>(number(at + 16, 4));
    member.packed = number(at + 20, 4);
    member.unpacked = number(at + 24, 4);
    const std::uint64_t name = number(at + 28, 2), extra = number(at + 30, 2), comment = number(at + 32, 2);
    member.header = number(at + 42, 4);
    need(at + 46, name + extra + comment);
    member.name.assign(reinterpret_cast<const char*>(file_.data) + at + 46, static_cast<std::size_t>(name));
    read_wide_sizes(member, at + 46 + name, extra);
    at += 46 + name + extra + comment;
    return member;
  }

  // zip64: the sizes that do not fit into 32 bits are in an extra field, in this order.
  void read_wide_sizes(ZipMember& member, std::uint64_t at, std::uint64_t size) const {
    const std::uint64_t end = at + size;
    while (end - at >= 4) {
      const std::uint64_t kind = number(at, 2), length = number(at + 2, 2);
      at += 4;
      if (length > end - at) throw broken("the extra fields of '" + member.name + "' are broken");
      if (kind == 1) {
        std::uint64_t field = at;
        for (std::uint64_t* wide : {&member.unpacked, &member.packed, &member.header}) {
          if (*wide != 0xffffffffu) continue;
          if (field + 8 > at + length) throw broken("the zip64 sizes of '" + member.name + "' are missing");
          *wide = number(field, 8);
          field += 8;
        }
      }
      at += length;
    }
  }

  Bytes inflated(const ZipMember& member, const unsigned char* packed) const {
#if defined(TORCHPORT_ZLIB)
    if (member.unpacked / 1032 > member.packed + 1)  // deflate packs no better
      throw broken("'" + member.name + "' claims more bytes than it can hold");
    const Bytes found = new_bytes(static_cast<std::size_t>(member.unpacked));
    z_stream stream{};
    if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw broken("zlib cannot be started");
    std::uint64_t left_in = member.packed, left_out = member.unpacked;
    stream.next_in = const_cast<unsigned char*>(packed);
    stream.next_out = found.writable();
    int state = Z_OK;
    while (state == Z_OK) {
      const std::uint64_t most = std::numeric_limits<uInt>::max();
      const auto in = static_cast<uInt>(std::min(left_in, most)), out = static_cast<uInt>(std::min(left_out, most));
      stream.avail_in = in;
      stream.avail_out = out;
      state = inflate(&stream, Z_NO_FLUSH);
      left_in -= in - stream.avail_in;
      left_out -= out - stream.avail_out;
      if (in == stream.avail_in && out == stream.avail_out) break;  // no progress: it is cut off, or too long
    }
    inflateEnd(&stream);
    if (state != Z_STREAM_END || left_out != 0) throw broken("'" + member.name + "' cannot be unpacked");
    return found;
#else
    static_cast<void>(packed);
    throw InputError(
        "'" + label_ + "' cannot be read: '" + member.name + "' is compressed, and this program has no zlib", "",
        "write it with numpy.savez, or install zlib and build the program again");
#endif
  }

  Bytes file_;
  const std::string& label_;
  std::vector<ZipMember> members_;
};

// Give back the dtypes that numpy's files have no word for: the note says {"x": "bfloat16"}.
inline Tensors with_noted_dtypes(const Tensors& read, const std::string& label) {
  const Tensor* note = read.find(dtypes_member);
  if (note == nullptr) return read;
  Json noted;
  const bool text = note->dtype() == DType::string && note->size() == 1;
  if (!text || !JsonReader::read(*note->data_as<std::string>(), noted) || noted.kind != Json::Kind::object)
    throw unreadable(label, "its note of dtypes is broken");
  Tensors found;
  for (const auto& [name, tensor] : read) {
    if (name == dtypes_member) continue;
    const auto entry = noted.fields.find(name);
    DType dtype = tensor.dtype();
    if (entry != noted.fields.end() &&
        (!find_dtype(entry->second.text, dtype) || item_size(dtype) != item_size(tensor.dtype())))
      throw unreadable(label, "'" + name + "' is " + entry->second.text + ", which no tensor here can be");
    if (dtype == tensor.dtype()) {
      found.add(name, tensor);
    } else {
      const auto keeper = std::make_shared<Tensor>(tensor);
      found.add(name, Tensor::over(dtype, tensor.shape(), tensor.data(), keeper));
    }
  }
  return found;
}

inline Tensors parse_npz(const Bytes& file, const std::string& label) {
  const ZipReader zip(file, label);
  Tensors read;
  for (const ZipMember& member : zip.members()) {
    const std::string suffix = ".npy";
    const std::size_t length = member.name.size();
    if (length < suffix.size() || member.name.compare(length - suffix.size(), suffix.size(), suffix) != 0)
      throw unreadable(label, "its member '" + member.name + "' is no array");
    read.add(member.name.substr(0, length - suffix.size()), parse_npy(zip.bytes_of(member), label + ":" + member.name));
  }
  return with_noted_dtypes(read, label);
}

// Writes members that are stored, with zip64 where a size needs it.
class ZipWriter {
 public:
  explicit ZipWriter(std::FILE* file) : file_(file) {}

  void add(const std::string& name, const NpyParts& parts) {
    ZipMember member;
    member.name = name;
    member.packed = member.unpacked = parts.head.size() + parts.size;
    member.header = at_;
    member.crc = crc32_of(parts.data, parts.size, crc32_of(parts.head.data(), parts.head.size()));
    const bool wide = member.packed >= 0xffffffffu;
    put(0x04034b50u, 4);
    put_common(member, wide);
    put(wide ? 20 : 0, 2);
    write(name.data(), name.size());
    if (wide) {
      put(1, 2);
      put(16, 2);
      put(member.unpacked, 8);
      put(member.packed, 8);
    }
    write(parts.head.data(), parts.head.size());
    write(parts.data, parts.size);
    members_.push_back(member);
  }

  void finish() {
    const std::uint64_t start = at_;
    for (const ZipMember& member : members_) put_entry(member);
    const std::uint64_t size = at_ - start, end = at_;
    const bool wide = start >= 0xffffffffu || members_.size() >= 0xffff;
    if (wide) {
      put(0x06064b50u, 4);
      put(44, 8);
      put(45, 2);
      put(45, 2);
      put(0, 8);
      put(members_.size(), 8);
      put(members_.size(), 8);
      put(size, 8);
      put(start, 8);
      put(0x07064b50u, 4);
      put(0, 4);
      put(end, 8);
      put(1, 4);
    }
    put(0x06054b50u, 4);
    put(0, 4);
    put(wide ? 0xffff : members_.size(), 2);
    put(wide ? 0xffff : members_.size(), 2);
    put(std::min<std::uint64_t>(size, 0xffffffffu), 4);
    put(std::min<std::uint64_t>(start, 0xffffffffu), 4);
    put(0, 2);
  }

 private:
  void write(const void* data, std::size_t size) {
    if (size) std::fwrite(data, 1, size, file_);
    at_ += size;
  }

  void put(std::uint64_t value, unsigned bytes) {
    unsigned char little[8];
    for (unsigned i = 0; i < bytes; ++i) little[i] = static_cast<unsigned char>((value >> (8 * i)) & 0xff);
    write(little, bytes);
  }

  void put_common(const ZipMember& member, bool wide) {
    put(wide ? 45 : 20, 2);
    put(0x0800, 2);  // the name is UTF-8
    put(0, 2);
    put(0, 2);
    put(0x21, 2);  // the first day that zip knows, so that equal arrays give equal files
    put(member.crc, 4);
    put(wide ? 0xffffffffu : member.packed, 4);
    put(wide ? 0xffffffffu : member.unpacked, 4);
    put(member.name.size(), 2);
  }

  void put_entry(const ZipMember& member) {
    const bool wide = member.packed >= 0xffffffffu || member.header >= 0xffffffffu;
    put(0x02014b50u, 4);
    put(wide ? 45 : 20, 2);
    put_common(member, wide);
    put(wide ? 28 : 0, 2);
    put(0, 2);
    put(0, 2);
    put(0, 2);
    put(0, 4);
    put(wide ? 0xffffffffu : member.header, 4);
    write(member.name.data(), member.name.size());
    if (!wide) return;
    put(1, 2);
    put(24, 2);
    put(member.unpacked, 8);
    put(member.packed, 8);
    put(member.header, 8);
  }

  std::FILE* file_;
  std::uint64_t at_ = 0;
  std::vector<ZipMember> members_;
};

}  // namespace detail

inline Tensors read_npz(const std::string& path) { return detail::parse_npz(detail::read_file(path), path); }

// Read an .npz, or an .npy as one array called "arr_0"; the first bytes tell which it is.
inline Tensors read_arrays(const std::string& path) {
  const detail::Bytes file = detail::read_file(path);
  if (file.size >= 2 && std::memcmp(file.data, "PK", 2) == 0) return detail::parse_npz(file, path);
  return Tensors{{"arr_0", detail::parse_npy(file, path)}};
}

inline void write_npz(const std::string& path, const Tensors& tensors) {
  std::string noted;
  Tensors saved;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.dtype() == DType::bfloat16) {
      noted += (noted.empty() ? "{" : ", ") + detail::json_text(name) + ": \"bfloat16\"";
      saved.add(name, Tensor::over(DType::uint16, tensor.shape(), tensor.data()));
    } else {
      saved.add(name, tensor);
    }
  }
  if (!noted.empty()) saved.add(detail::dtypes_member, Array<std::string>({}, {noted + "}"}));
  detail::write_file(path, [&saved](std::FILE* file) {
    detail::ZipWriter zip(file);
    for (const auto& [name, tensor] : saved) zip.add(name + ".npy", detail::npy_parts(tensor));
    zip.finish();
  });
}

}  // namespace torchport
