// torchport-run: run an ONNX model on given inputs, compare with golden outputs, measure. No Python.
#include <torchport/torchport.hpp>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iostream>
#include <new>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace {

using torchport::OptionError;
using torchport::Tensor;
using torchport::Tensors;

constexpr const char* usage = R"(usage: torchport-run MODEL.onnx [options]

Run an ONNX model and show its outputs.

  torchport-run model.onnx -i x=x.npy -o out.npz
  torchport-run model.onnx -i inputs.npz --golden outputs.npz
  torchport-run model.onnx -i inputs.npz --bench 5

  -i, --input SPEC    x=x.npy, x=data.npz:key, data.npz, x.npy; repeat for each
  -o, --output FILE   save the outputs as .npz, or a single one as .npy
  --golden FILE       compare with these outputs: .npz, or .npy for one output
  --rtol T, --atol T  tolerances of the comparison  [default: by dtype]
  --exact             compare bit for bit
  --bench SECONDS     measure for so long: median, p90, p99, throughput
  --library FILE      an operator library that you trust; repeat for each
  --threads N         threads for one run  [default: the engine's choice]
  --info              show the model's inputs and outputs, and stop
  --version           show the version and the engine's
  -h, --help          show this text

Exit codes: 0 done, and right where --golden is given; 1 the model was refused
or its outputs differ; 2 a mistake in the call.
)";

struct Options {
  std::string model, output, golden;
  std::vector<std::string> inputs;
  torchport::SessionOptions session;
  std::optional<double> rtol, atol, bench;
  bool exact = false, info = false;
};

double number(const std::string& option, const std::string& text) {
  double value = 0;
  const auto done = std::from_chars(text.data(), text.data() + text.size(), value);
  if (done.ec != std::errc() || done.ptr != text.data() + text.size() || !std::isfinite(value) || value < 0)
    throw OptionError(option + " is '" + text + "'", "torchport-run " + option, "give a number of at least zero");
  return value;
}

int whole_number(const std::string& option, const std::string& text) {
  int value = 0;
  const auto done = std::from_chars(text.data(), text.data() + text.size(), value);
  if (done.ec != std::errc() || done.ptr != text.data() + text.size())
    throw OptionError(option + " is '" + text + "'", "torchport-run " + option,
                      "give a whole number from 1 to " + std::to_string(torchport::most_threads));
  return value;
}

void set(Options& options, const std::string& option, const std::string& value) {
  if (option == "-i" || option == "--input")
    options.inputs.push_back(value);
  else if (option == "-o" || option == "--output")
    options.output = value;
  else if (option == "--golden")
    options.golden = value;
  else if (option == "--rtol")
    options.rtol = number(option, value);
  else if (option == "--atol")
    options.atol = number(option, value);
  else if (option == "--bench")
    options.bench = number(option, value);
  else if (option == "--library")
    options.session.libraries.push_back(value);
  else if (option == "--threads")
    options.session.threads = whole_number(option, value);
  else
    throw OptionError("there is no option '" + option + "'", "torchport-run", "torchport-run --help shows them");
}

Options parse(const std::vector<std::string>& words) {
  Options options;
  for (std::size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--exact") {
      options.exact = true;
    } else if (word == "--info") {
      options.info = true;
    } else if (word.size() > 1 && word[0] == '-') {
      const std::size_t sign = word.compare(0, 2, "--") == 0 ? word.find('=') : std::string::npos;
      if (sign != std::string::npos) {
        set(options, word.substr(0, sign), word.substr(sign + 1));
      } else {
        if (i + 1 >= words.size()) {
          set(options, word, "0");  // an unknown option is said to be that
          throw OptionError(word + " needs a value", "torchport-run", "torchport-run --help shows how it is called");
        }
        set(options, word, words[++i]);
      }
    } else if (options.model.empty()) {
      options.model = word;
    } else {
      throw OptionError("two models are given: '" + options.model + "' and '" + word + "'", "torchport-run",
                        "give one; inputs go to --input");
    }
  }
  if (options.model.empty()) throw OptionError("no model is given", "torchport-run", "torchport-run MODEL.onnx");
  if ((options.rtol || options.atol || options.exact) && options.golden.empty())
    throw OptionError("tolerances are given, and nothing to compare with", "torchport-run", "give --golden FILE");
  return options;
}

// --- inputs and outputs
// -----------------------------------------------------------------------------------------------

Tensor one_of(const Tensors& arrays, const std::string& key, const std::string& path) {
  if (!key.empty()) return arrays.at(key);
  if (arrays.size() == 1) return arrays[0].second;
  throw torchport::InputError(path + " has " + std::to_string(arrays.size()) + " arrays", "--input " + path,
                              "say which one: name=" + path + ":key");
}

bool has_suffix(const std::string& path) {
  const std::string suffix = torchport::detail::lower_suffix(path);
  return suffix == ".npy" || suffix == ".npz";
}

// Where the name in "x=data.npz:key" ends: the names of the model's inputs may have equal signs themselves.
std::size_t end_of_name(const std::string& spec, const torchport::Session& session) {
  for (const torchport::TensorInfo& info : session.inputs())
    if (spec.compare(0, info.name.size() + 1, info.name + "=") == 0) return info.name.size();
  return spec.find('=');
}

void add_input(Tensors& inputs, const std::string& spec, const torchport::Session& session) {
  const std::size_t sign = end_of_name(spec, session);
  std::string path = sign == std::string::npos ? spec : spec.substr(sign + 1), key;
  const std::size_t colon = path.rfind(':');
  if (!has_suffix(path) && colon != std::string::npos && has_suffix(path.substr(0, colon))) {
    key = path.substr(colon + 1);
    path = path.substr(0, colon);
  }
  if (!has_suffix(path))
    throw OptionError("'" + spec + "' is no input", "--input " + spec, "give x=x.npy, x=data.npz:key or data.npz");
  const Tensors arrays = torchport::read_arrays(path);
  const auto add = [&inputs](const std::string& name, const Tensor& tensor) {
    if (inputs.find(name) != nullptr)
      throw torchport::InputError("input '" + name + "' is given twice", "--input", "give each input once");
    inputs.add(name, tensor);
  };
  if (sign != std::string::npos) return add(spec.substr(0, sign), one_of(arrays, key, path));
  if (torchport::detail::lower_suffix(path) == ".npy" || !key.empty()) {
    for (const torchport::TensorInfo& info : session.inputs())
      if (inputs.find(info.name) == nullptr) return add(info.name, one_of(arrays, key, path));
    throw torchport::InputError("there are more inputs than the model has", "--input " + spec, "leave it out");
  }
  for (const auto& [name, tensor] : arrays)
    if (name.compare(0, 2, torchport::detail::notes_prefix) != 0) add(name, tensor);
}

std::string one_line(const Tensor& tensor) {
  std::ostringstream text;
  text.precision(6);
  std::string shape = torchport::text_of(tensor.shape());
  shape.erase(std::remove(shape.begin(), shape.end(), ' '), shape.end());
  text << torchport::name_of(tensor.dtype()) << shape << "  ";
  if (tensor.dtype() == torchport::DType::string) {
    for (std::size_t i = 0; i < std::min<std::size_t>(tensor.size(), 8); ++i)
      text << (i ? ", " : "") << '\'' << tensor.data_as<std::string>()[i] << '\'';
    return text.str();
  }
  const torchport::detail::Numbers numbers(tensor);
  if (numbers.size() <= 8) {
    for (std::size_t i = 0; i < numbers.size(); ++i) text << (i ? ", " : "") << numbers[i];
    return text.str();
  }
  double low = numbers[0], high = numbers[0], sum = 0;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    low = std::min(low, numbers[i]);
    high = std::max(high, numbers[i]);
    sum += numbers[i];
  }
  text << "min " << low << "  max " << high << "  mean " << sum / static_cast<double>(numbers.size());
  return text.str();
}

void check_target(const std::string& path) {
  if (!path.empty() && !has_suffix(path))
    throw torchport::SaveError("'" + path + "' is neither .npz nor .npy", "--output " + path, "name it out.npz");
}

void save(const std::string& path, const Tensors& outputs) {
  if (torchport::detail::lower_suffix(path) == ".npz") return torchport::write_npz(path, outputs);
  if (outputs.size() != 1)
    throw torchport::SaveError("there are " + std::to_string(outputs.size()) + " outputs, a .npy holds one",
                               "--output " + path, "name it out.npz");
  torchport::write_npy(path, outputs[0].second);
}

// --- comparison
// -------------------------------------------------------------------------------------------------------

std::string decibels(double sqnr) {
  if (std::isinf(sqnr)) return sqnr > 0 ? "exact" : "-";
  char text[32];
  std::snprintf(text, sizeof text, "%.0f dB", sqnr);
  return text;
}

// Compare with golden outputs. All of them must be there, and nothing else.
bool compare(const Options& options, const Tensors& outputs) {
  Tensors golden = torchport::read_arrays(options.golden);
  if (golden.size() == 1 && outputs.size() == 1 && golden[0].first == "arr_0")
    golden = Tensors{{outputs[0].first, golden[0].second}};
  for (const auto& item : golden)
    if (outputs.find(item.first) == nullptr)
      throw torchport::InputError("there is no output '" + item.first + "'", "--golden " + options.golden,
                                  "save the outputs of this model: torchport run -o outputs.npz");
  std::size_t right = 0;
  for (const auto& [name, tensor] : outputs) {
    const Tensor* reference = golden.find(name);
    if (reference == nullptr) {
      std::cout << name << ": not in " << options.golden << "\n";
      continue;
    }
    torchport::Tolerance limit = torchport::default_tolerance(reference->dtype());
    if (options.rtol) limit.rtol = *options.rtol;
    if (options.atol) limit.atol = *options.atol;
    torchport::OutputCheck check = torchport::check_output(name, *reference, tensor, limit);
    const bool bits = torchport::same_bits(*reference, tensor);
    if (check.ok() && options.exact && !bits) check.problem = "not the same bit for bit";
    if (check.ok()) ++right;
    char figures[96];
    std::snprintf(figures, sizeof figures, "max abs %.1e  max rel %.1e  %s  ", check.max_abs, check.max_rel,
                  decibels(check.sqnr).c_str());
    std::cout << name << ": " << figures << (check.ok() ? (bits ? "same bits" : "pass") : "FAIL: " + check.problem)
              << "\n";
  }
  std::cout << right << " of " << outputs.size() << " outputs agree with " << options.golden << "\n";
  return right == outputs.size();
}

// --- benchmark
// --------------------------------------------------------------------------------------------------------

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string human(double seconds) {
  const char* const units[] = {"s", "ms", "us", "ns"};
  std::size_t unit = 0;
  while (seconds < 1 && unit < 3) {
    seconds *= 1000;
    ++unit;
  }
  char text[32];
  std::snprintf(text, sizeof text, "%.4g %s", seconds, units[unit]);
  return text;
}

double percentile(const std::vector<double>& sorted, double share) {
  const double rank = std::ceil(share * static_cast<double>(sorted.size()));
  return sorted[static_cast<std::size_t>(std::max(rank, 1.0)) - 1];
}

void bench(const torchport::Session& session, const Tensors& inputs, double seconds, double load, double first) {
  std::vector<Tensor> ordered;
  for (const torchport::TensorInfo& info : session.inputs()) ordered.push_back(inputs.at(info.name));
  const auto warm = std::chrono::steady_clock::now();
  while (seconds_since(warm) < seconds / 5) session.run(ordered);
  std::vector<double> times;
  const auto start = std::chrono::steady_clock::now();
  do {
    const auto before = std::chrono::steady_clock::now();
    session.run(ordered);
    times.push_back(seconds_since(before));
  } while (seconds_since(start) < seconds);
  const double whole = seconds_since(start);
  std::sort(times.begin(), times.end());
  std::cout << times.size() << " runs: median " << human(percentile(times, 0.5)) << "  p90 "
            << human(percentile(times, 0.9)) << "  p99 " << human(percentile(times, 0.99)) << "\n";
  std::cout << static_cast<double>(times.size()) / whole << " runs a second; load " << human(load) << ", first run "
            << human(first) << "\n";
}

int run(const Options& options) {
  check_target(options.output);
  auto start = std::chrono::steady_clock::now();
  const torchport::Session session(options.model, options.session);
  const double load = seconds_since(start);
  if (options.info) {
    for (const auto& info : session.inputs()) std::cout << "in   " << info.text() << "\n";
    for (const auto& info : session.outputs()) std::cout << "out  " << info.text() << "\n";
    return 0;
  }
  Tensors inputs;
  for (const std::string& spec : options.inputs) add_input(inputs, spec, session);
  start = std::chrono::steady_clock::now();
  const Tensors outputs = session.run(inputs);
  const double first = seconds_since(start);
  for (const auto& [name, tensor] : outputs) std::cout << name << ": " << one_line(tensor) << std::endl;
  if (!options.output.empty()) {
    save(options.output, outputs);
    std::cout << "saved to " << options.output << "\n";
  }
  const bool right = options.golden.empty() || compare(options, outputs);
  if (options.bench) bench(session, inputs, *options.bench, load, first);
  return right ? 0 : 1;
}

int fail(const char* label, const std::string& text, int code) {
  std::cerr << label << ": " << text << "\n";
  return code;
}

}  // namespace

int main(int count, char** arguments) {
  const std::vector<std::string> words(arguments + 1, arguments + count);
  try {
    for (const std::string& word : words) {
      if (word == "-h" || word == "--help") {
        std::cout << usage;
        return 0;
      }
      if (word == "--version") {
        std::cout << "torchport-run " << TORCHPORT_VERSION << ", " << torchport::Session::engine() << " "
                  << torchport::Session::engine_version() << "\n";
        return 0;
      }
    }
    return run(parse(words));
  } catch (const torchport::Error& error) {
    return fail(error.exit_code() == 1 ? "refused" : "error", error.what(), error.exit_code());
  } catch (const std::bad_alloc&) {
    return fail("refused", "there is not enough memory\nnext:  give smaller inputs", 1);
  } catch (const std::exception& error) {
    return fail("refused", error.what(), 1);
  }
}
