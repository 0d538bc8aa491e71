// The JSON that torchport writes into models and .npz files: read, with limits on depth, and texts escaped.
#pragma once

#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

namespace torchport {
namespace detail {

struct Json {
  enum class Kind { null, boolean, number, text, list, object };
  Kind kind = Kind::null;
  double number = 0;
  std::string text;
  std::vector<Json> items;
  std::map<std::string, Json> fields;
};

// Read a JSON text; false if it is none. A \u escape gives UTF-8.
class JsonReader {
 public:
  static bool read(const std::string& text, Json& value) {
    JsonReader reader(text);
    return reader.value(value, 0) && (reader.space(), reader.at_ == text.size());
  }

 private:
  explicit JsonReader(const std::string& text) : text_(text) {}

  static constexpr int deepest = 32;

  void space() {
    while (at_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[at_]))) ++at_;
  }

  bool take(char wanted) {
    space();
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  bool word(const char* wanted) {
    const std::string whole = wanted;
    if (text_.compare(at_, whole.size(), whole) != 0) return false;
    at_ += whole.size();
    return true;
  }

  bool value(Json& found, int depth) {
    space();
    if (depth > deepest || at_ >= text_.size()) return false;
    switch (text_[at_]) {
      case '{': return object(found, depth);
      case '[': return list(found, depth);
      case '"': found.kind = Json::Kind::text; return string(found.text);
      case 't':
        found.kind = Json::Kind::boolean;
        found.number = 1;
        return word("true");
      case 'f': found.kind = Json::Kind::boolean; return word("false");
      case 'n': return word("null");
      default: return number(found);
    }
  }

  bool object(Json& found, int depth) {
    found.kind = Json::Kind::object;
    if (!take('{')) return false;
    if (take('}')) return true;
    do {
      std::string key;
      space();
      if (!string(key) || !take(':') || !value(found.fields[key], depth + 1)) return false;
    } while (take(','));
    return take('}');
  }

  bool list(Json& found, int depth) {
    found.kind = Json::Kind::list;
    if (!take('[')) return false;
    if (take(']')) return true;
    do {
      found.items.emplace_back();
      if (!value(found.items.back(), depth + 1)) return false;
    } while (take(','));
    return take(']');
  }

  bool number(Json& found) {
    found.kind = Json::Kind::number;
    const char* start = text_.c_str() + at_;
    char* end = nullptr;
    found.number = std::strtod(start, &end);
    at_ += static_cast<std::size_t>(end - start);
    return end != start;
  }

  bool string(std::string& found) {
    if (at_ >= text_.size() || text_[at_] != '"') return false;
    for (++at_; at_ < text_.size(); ++at_) {
      const char c = text_[at_];
      if (c == '"') {
        ++at_;
        return true;
      }
      if (c != '\\') {
        found += c;
        continue;
      }
      if (!escape(found)) return false;
    }
    return false;
  }

  bool escape(std::string& found) {
    if (++at_ >= text_.size()) return false;
    switch (text_[at_]) {
      case 'n': found += '\n'; return true;
      case 't': found += '\t'; return true;
      case 'r': found += '\r'; return true;
      case 'b': found += '\b'; return true;
      case 'f': found += '\f'; return true;
      case 'u': return code_point(found);
      default: found += text_[at_]; return true;
    }
  }

  bool four(std::uint32_t& code) {
    if (at_ + 4 >= text_.size()) return false;
    code = 0;
    for (int i = 0; i < 4; ++i) {
      const auto c = static_cast<unsigned char>(text_[++at_]);
      if (!std::isxdigit(c)) return false;
      code = code * 16 + static_cast<std::uint32_t>(std::isdigit(c) ? c - '0' : std::tolower(c) - 'a' + 10);
    }
    return true;
  }

  bool code_point(std::string& found);

  const std::string& text_;
  std::size_t at_ = 0;
};

// Add a Unicode code point as UTF-8.
inline void add_utf8(std::string& text, std::uint32_t code) {
  const auto add = [&text](std::uint32_t byte) { text += static_cast<char>(static_cast<unsigned char>(byte)); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xc0 | (code >> 6));
    add(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    add(0xe0 | (code >> 12));
    add(0x80 | ((code >> 6) & 0x3f));
    add(0x80 | (code & 0x3f));
  } else {
    add(0xf0 | (code >> 18));
    add(0x80 | ((code >> 12) & 0x3f));
    add(0x80 | ((code >> 6) & 0x3f));
    add(0x80 | (code & 0x3f));
  }
}

inline bool JsonReader::code_point(std::string& found) {
  std::uint32_t code = 0;
  if (!four(code)) return false;
  if (code >= 0xd800 && code < 0xdc00) {  // the first half of a pair
    std::uint32_t low = 0;
    if (at_ + 2 >= text_.size() || text_[at_ + 1] != '\\' || text_[at_ + 2] != 'u') return false;
    at_ += 2;
    if (!four(low) || low < 0xdc00 || low > 0xdfff) return false;
    code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
  }
  add_utf8(found, code);
  return true;
}

inline std::string json_text(const std::string& text) {
  std::string found = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      found += '\\';
      found += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      char code[8];
      std::snprintf(code, sizeof code, "\\u%04x", static_cast<unsigned>(c));
      found += code;
    } else {
      found += c;
    }
  }
  return found + "\"";
}

}  // namespace detail
}  // namespace torchport
