// SPDX-License-Identifier: Apache-2.0
#include "nn/weights_file.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "nn/atomic_file.h"
#include "nn/safetensors.h"
#include "runtime/error.h"
#include "runtime/half.h"
#include "runtime/text.h"

namespace vitrine {
namespace {

using safetensors::kConvertWeights;

// Order of the elements of a parameter: here (outer, positions, channels), in a weights file (outer, channels,
// positions).
struct Order {
  int64_t outer = 1, positions = 1, channels = 1;
  Shape file_shape;

  bool same() const { return positions == 1 || channels == 1; }
};

Order order_of(const ParamSpec& spec) {
  const Shape& s = spec.shape;
  switch (spec.layout.kind) {
    case CheckpointLayout::Kind::conv_oihw:
      return {s[0], s[1] * s[2], s[3], {s[0], s[3], s[1], s[2]}};
    case CheckpointLayout::Kind::linear_chw:
      return {s[0], spec.layout.h * spec.layout.w, spec.layout.c, s};
    case CheckpointLayout::Kind::transposed:
      return {1, s[0], s[1], {s[1], s[0]}};
    case CheckpointLayout::Kind::same:
      break;
  }
  return {s.numel(), 1, 1, s};
}

// Transposes (outer, rows, columns) to (outer, columns, rows).
void transpose(int64_t outer, int64_t rows, int64_t columns, const float* from, float* to) {
  for (int64_t o = 0; o < outer; ++o, from += rows * columns, to += rows * columns) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < columns; ++c) to[c * rows + r] = from[r * columns + c];
    }
  }
}

void check_size(const char* operation, const FlatLayout& layout, size_t size) {
  if (static_cast<int64_t>(size) < layout.parameter_elements()) {
    throw ShapeError(fmt::format("{}: flat has {} elements, expected {} or more for the parameters", operation, size,
                                 layout.parameter_elements()));
  }
}

/// A name as a message shows it.
std::string shown_name(const std::string& name) { return name.empty() ? "''" : excerpt(name); }

/// The names as a message shows them: "a b c and 12 more".
std::string list_names(const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < std::min(kShown, names.size()); ++i) text += fmt::format(" {}", shown_name(names[i]));
  return names.size() > kShown ? text + fmt::format(" and {} more", names.size() - kShown) : text;
}

std::string suffixed(const std::string& name, const std::string& suffix) {
  return suffix.empty() ? name : fmt::format("{}.{}", name, suffix);
}

/// The index of an element of a tensor: "(0, 3, 1, 2)".
std::string index_text(const Shape& shape, int64_t element) {
  std::vector<int64_t> index(static_cast<size_t>(shape.rank()));
  for (size_t d = index.size(); d-- > 0;) {
    index[d] = element % shape[static_cast<int>(d)];
    element /= shape[static_cast<int>(d)];
  }
  return fmt::format("({})", fmt::join(index, ", "));
}

/// requires f32      The data were allocated with the alignment of all fundamental types.
std::span<const float> floats_of(const HostTensor& tensor) {
  return {reinterpret_cast<const float*>(tensor.data.data()), tensor.data.size() / sizeof(float)};
}

/// Turns values of 16 bits into the same values in f32.
void widen_to_f32(HostTensor& tensor) {
  if (tensor.dtype == DType::f32) return;
  std::vector<std::byte> wide(tensor.data.size() / 2 * sizeof(float));
  const auto count = static_cast<int64_t>(tensor.data.size() / 2);
  const auto to_f32 = [&](const auto* from) { cpu::widen(from, reinterpret_cast<float*>(wide.data()), count); };
  if (tensor.dtype == DType::f16) {
    to_f32(reinterpret_cast<const cpu::Half*>(tensor.data.data()));
  } else {
    to_f32(reinterpret_cast<const cpu::BFloat16*>(tensor.data.data()));
  }
  tensor.data = std::move(wide);
  tensor.dtype = DType::f32;
}

void check_finite(const std::string& path, const std::string& name, const Shape& shape, std::span<const float> values) {
  const auto is_bad = [](float value) { return !std::isfinite(value); };
  const auto bad = std::find_if(values.begin(), values.end(), is_bad);
  if (bad == values.end()) return;
  throw NonFiniteWeights(
      fmt::format("{}: {} is {} at index {}; {} of its {} values are not finite: the training that saved them "
                  "diverged, use an earlier "
                  "file",
                  path, name, *bad, index_text(shape, bad - values.begin()), std::count_if(bad, values.end(), is_bad),
                  values.size()));
}

using Tensors = std::map<std::string, HostTensor>;

/// What makes a number of that dtype readable, if anything does.
std::string remedy_for_dtype(const HostTensor& tensor) {
  return tensor.foreign.starts_with("dtype F") ? fmt::format("; convert the file with {}", kConvertWeights) : "";
}

/// Why a tensor cannot be that parameter: "shape (2) in the file, expected (3)"; empty if it can.
std::string misfit_of(const HostTensor& tensor, const ParamSpec& spec) {
  const Shape expected = order_of(spec).file_shape;
  if (!tensor.foreign.empty()) {
    return fmt::format("{} in the file, expected shape {} of f32, f16 or bf16{}", tensor.foreign, expected.str(),
                       remedy_for_dtype(tensor));
  }
  if (!(tensor.shape == expected))
    return fmt::format("shape {} in the file, expected {}", tensor.shape.str(), expected.str());
  if (tensor.dtype != DType::f32 && tensor.dtype != DType::f16 && tensor.dtype != DType::bf16)
    return fmt::format("dtype {} in the file, expected f32, f16 or bf16", dtype_name(tensor.dtype));
  return {};
}

/// The layer of a parameter: "classifier.6" of "classifier.6.weight".
std::string layer_of(const std::string& name) { return name.substr(0, name.rfind('.')); }

/// What PyTorch's wrappers put before each name: DistributedDataParallel, torch.compile, and transformers' models with
/// a head.
constexpr std::string_view kPrefixes[] = {"module.", "_orig_mod.", "transformer."};

/// What transformers' GPT-2 saves beside its parameters: the causal masks.
bool is_mask(std::string_view name) { return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias"); }

void check_values(const std::string& path, const FlatLayout& layout, const Tensors& tensors) {
  for (const ParamSpec& spec : layout.specs()) {
    if (const auto found = tensors.find(spec.name); found != tensors.end())
      check_finite(path, spec.name, found->second.shape, floats_of(found->second));
  }
}

/// The value of a counter, which PyTorch saves as an i64 scalar and converters as other numbers. 0 without data.
int64_t counter_in(const std::string& path, const std::string& name, HostTensor tensor) {
  const auto refuse = [&](const std::string& found) {
    throw DataError(
        fmt::format("{}: {} has {}, expected one whole number{}", path, name, found, remedy_for_dtype(tensor)));
  };
  if (!tensor.foreign.empty()) refuse(tensor.foreign);
  if (tensor.shape.numel() != 1) refuse(fmt::format("shape {}", tensor.shape.str()));
  if (tensor.data.empty()) return 0;
  const auto integer = [&](auto value) {
    std::memcpy(&value, tensor.data.data(), sizeof value);
    return static_cast<int64_t>(value);
  };
  if (tensor.dtype == DType::i64) return integer(int64_t{});
  if (tensor.dtype == DType::i32) return integer(int32_t{});
  if (tensor.dtype == DType::u8) return integer(uint8_t{});
  widen_to_f32(tensor);
  constexpr float kLargest = 9e15F;
  const float value = floats_of(tensor).front();
  if (!(value >= 0.0F && value <= kLargest) || value != std::floor(value)) refuse(fmt::format("the value {}", value));
  return static_cast<int64_t>(value);
}

/// Copies the tensors of a layout, and frees them.
void take(const FlatLayout& layout, Tensors& tensors, std::span<float> flat) {
  for (int i = 0; i < layout.size(); ++i) {
    const ParamSpec& spec = layout.specs()[static_cast<size_t>(i)];
    const auto found = tensors.find(spec.name);
    if (found == tensors.end()) continue;  // of a partial load
    const Order order = order_of(spec);
    transpose(order.outer, order.channels, order.positions, floats_of(found->second).data(),
              flat.data() + layout.offset(i));
    found->second.data = {};
  }
}

/// What of a file's tensors becomes a model's parameters and buffers.
class Selection {
 public:
  Selection(const std::string& path, const FlatLayout& layout, const BufferLayout& buffers)
      : path_(path), layout_(layout), buffers_(buffers), known_(buffers.counters().begin(), buffers.counters().end()) {
    for (const FlatLayout* part : {&layout, &buffers.saved()}) {
      for (const ParamSpec& spec : part->specs()) {
        known_.insert(spec.name);
        known_.insert(spec.other_names.begin(), spec.other_names.end());
      }
    }
  }

  /// Leaves in `tensors` what is loaded, under the model's names. throws DataError
  LoadedWeights select(Tensors& tensors, const LoadOptions& options) const {
    LoadedWeights report;
    report.prefixes = remove_prefixes(tensors);
    remove_other_names(tensors);
    std::erase_if(tensors, [&](const auto& one) { return !known_.contains(one.first) && is_mask(one.first); });
    const std::vector<std::string> unexpected = unexpected_names(tensors);
    for (const std::string& name : unexpected) {
      const std::string& foreign = tensors.at(name).foreign;
      report.unused.push_back(foreign.empty() ? shown_name(name) : fmt::format("{}: {}", shown_name(name), foreign));
    }
    std::vector<std::string> missing;
    std::string first_misfit;
    for (const FlatLayout* part : {&layout_, &buffers_.saved()}) {
      for (const ParamSpec& spec : part->specs()) {
        const auto found = tensors.find(spec.name);
        const std::string misfit = found == tensors.end() ? "not in the file" : misfit_of(found->second, spec);
        if (misfit.empty()) {
          ++(part == &layout_ ? report.parameters : report.buffers);
          continue;
        }
        report.not_loaded.push_back(fmt::format("{}: {}", spec.name, misfit));
        if (found == tensors.end()) {
          missing.push_back(spec.name);
        } else if (options.partial && is_another_head(spec, found->second)) {
          tensors.erase(found);
        } else if (first_misfit.empty()) {
          first_misfit = fmt::format("{} has {}", spec.name, misfit);
        }
      }
    }
    const bool any = report.parameters > 0 || report.not_loaded.empty();
    if (!missing.empty() && (!options.partial || !any)) throw DataError(describe_missing(missing, unexpected, tensors));
    if (first_misfit.empty() && !any) first_misfit = report.not_loaded.front();
    if (!first_misfit.empty()) throw DataError(fmt::format("{}: {}", path_, first_misfit));
    for (const std::string& name : buffers_.counters()) {
      if (const auto found = tensors.find(name); found != tensors.end()) counter_in(path_, name, found->second);
    }
    return report;
  }

 private:
  /// Tensors that the model does not have.
  std::vector<std::string> unexpected_names(const Tensors& tensors) const {
    std::vector<std::string> unexpected;
    for (const auto& [name, tensor] : tensors) {
      if (!known_.contains(name)) unexpected.push_back(name);
    }
    return unexpected;
  }

  /// Renames tensors that have the model's names behind prefixes. Returns the prefixes.
  std::set<std::string> remove_prefixes(Tensors& tensors) const {
    std::map<std::string, std::string> names;  // in the model, and in the file
    std::set<std::string> prefixes;
    for (const std::string& name : unexpected_names(tensors)) {
      std::string rest = name;
      while (!known_.contains(rest)) {
        const auto* const prefix = std::ranges::find_if(kPrefixes, [&](auto p) { return rest.starts_with(p); });
        if (prefix == std::end(kPrefixes)) break;
        rest.erase(0, prefix->size());
      }
      if (!known_.contains(rest) || tensors.contains(rest)) continue;
      if (const auto [other, fresh] = names.emplace(rest, name); !fresh)
        throw DataError(fmt::format("{}: {} and {} are both {} without their prefixes", path_, excerpt(other->second),
                                    excerpt(name), rest));
      prefixes.insert(name.substr(0, name.size() - rest.size()));
    }
    for (const auto& [name, in_file] : names) {
      auto node = tensors.extract(in_file);
      node.key() = name;
      tensors.insert(std::move(node));
    }
    return prefixes;
  }

  /// Leaves one tensor of each parameter that several parts share.
  void remove_other_names(Tensors& tensors) const {
    for (const ParamSpec& spec : layout_.specs()) {
      for (const std::string& name : spec.other_names) {
        auto node = tensors.extract(name);
        if (!node) continue;
        const auto found = tensors.find(spec.name);
        if (found == tensors.end()) {
          node.key() = spec.name;
          tensors.insert(std::move(node));
        } else if (node.mapped().data != found->second.data) {
          throw DataError(
              fmt::format("{}: {} differs from {}, but the model has one weight for both", path_, name, spec.name));
        }
      }
    }
  }

  bool is_another_head(const ParamSpec& spec, const HostTensor& tensor) const {
    return layer_of(spec.name) == layer_of(layout_.specs().back().name) && tensor.foreign.empty() &&
           !(tensor.shape == order_of(spec).file_shape);
  }

  std::string describe_missing(const std::vector<std::string>& missing, const std::vector<std::string>& unexpected,
                               const Tensors& tensors) const {
    std::string text = fmt::format("{} does not match the model: missing parameters:{}", path_, list_names(missing));
    if (!unexpected.empty()) text += fmt::format("; unexpected parameters:{}", list_names(unexpected));
    if (unexpected.size() == tensors.size()) text += "; no name fits: the weights are another model's";
    return text;
  }

  const std::string& path_;
  const FlatLayout& layout_;
  const BufferLayout& buffers_;
  std::set<std::string> known_;  // names
};

}  // namespace

LoadedWeights load_parameters(const std::string& path, const FlatLayout& layout, std::span<float> flat,
                              const BufferLayout& buffer_layout, BufferValues& buffers, const LoadOptions& options) {
  check_size("load_parameters", layout, flat.size());
  const Selection selection(path, layout, buffer_layout);
  // The header is checked before data is read, and all values before the first is copied.
  Tensors tensors = read_safetensors(path, [&](Tensors without_data) { selection.select(without_data, options); });
  LoadedWeights report = selection.select(tensors, options);
  for (const FlatLayout* part : {&layout, &buffer_layout.saved()}) {
    for (const ParamSpec& spec : part->specs()) {
      if (const auto found = tensors.find(spec.name); found != tensors.end()) widen_to_f32(found->second);
    }
    if (!options.allow_non_finite) check_values(path, *part, tensors);
  }
  take(layout, tensors, flat);
  buffers = buffer_layout.initial();
  take(buffer_layout.saved(), tensors, buffers.values);
  for (size_t i = 0; i < buffers.counters.size(); ++i) {
    const std::string& name = buffer_layout.counters()[i];
    if (const auto found = tensors.find(name); found != tensors.end())
      buffers.counters[i] = counter_in(path, name, found->second);
  }
  return report;
}

void save_parameters(const std::string& path, const FlatLayout& layout, std::span<const float> flat,
                     const BufferLayout& buffer_layout, const BufferValues& buffers,
                     const std::map<std::string, std::string>& metadata, const WriteProgress& progress) {
  check_size("save_parameters", layout, flat.size());
  check_size("save_parameters", buffer_layout.saved(), buffers.values.size());
  VITRINE_ASSERT(buffers.counters.size() == buffer_layout.counters().size(), "there is a value for each counter");
  std::vector<TensorSource> sources;
  for (size_t i = 0; i < buffers.counters.size(); ++i) {
    const auto bytes = std::as_bytes(std::span(&buffers.counters[i], 1));
    sources.push_back({buffer_layout.counters()[i], Shape{}, DType::i64, [bytes] { return bytes; }});
  }
  std::vector<float> scratch(
      static_cast<size_t>(std::max(reordered_elements(layout), reordered_elements(buffer_layout.saved()))));
  for (TensorSource& source : tensor_sources(layout, flat, {}, scratch)) sources.push_back(std::move(source));
  for (TensorSource& source : tensor_sources(buffer_layout.saved(), buffers.values, {}, scratch))
    sources.push_back(std::move(source));
  // Larger elements come first, so that all are aligned: readers map the data.
  std::sort(sources.begin(), sources.end(), [](const TensorSource& a, const TensorSource& b) {
    return std::pair(-size_of(a.dtype), std::string_view(a.name)) <
           std::pair(-size_of(b.dtype), std::string_view(b.name));
  });
  stream_safetensors(path, sources, metadata, progress);
}

std::vector<TensorSource> tensor_sources(const FlatLayout& layout, std::span<const float> flat,
                                         const std::string& suffix, std::span<float> scratch) {
  check_size("tensor_sources", layout, flat.size());
  VITRINE_ASSERT(static_cast<int64_t>(scratch.size()) >= reordered_elements(layout),
                 "the scratch holds the largest parameter that is reordered");
  std::vector<TensorSource> sources;
  for (int i = 0; i < layout.size(); ++i) {
    const ParamSpec& spec = layout.specs()[static_cast<size_t>(i)];
    const Order order = order_of(spec);
    const auto produce =
        [order, from = flat.subspan(static_cast<size_t>(layout.offset(i)), static_cast<size_t>(spec.shape.numel())),
         scratch] {
          if (order.same()) return std::as_bytes(from);
          transpose(order.outer, order.positions, order.channels, from.data(), scratch.data());
          return std::as_bytes(std::span<const float>(scratch.first(from.size())));
        };
    sources.push_back({suffixed(spec.name, suffix), order.file_shape, DType::f32, produce});
  }
  return sources;
}

void read_tensors(const std::string& path, const std::map<std::string, HostTensor>& tensors, const FlatLayout& layout,
                  const std::string& suffix, std::span<float> flat) {
  check_size("read_tensors", layout, flat.size());
  std::fill(flat.begin(), flat.end(), 0.0F);
  for (int i = 0; i < layout.size(); ++i) {
    const ParamSpec& spec = layout.specs()[static_cast<size_t>(i)];
    const std::string name = suffixed(spec.name, suffix);
    const auto found = tensors.find(name);
    if (found == tensors.end())
      throw DataError(
          fmt::format("{}: tensor {} is missing, expected one for each parameter of the model", path, name));
    const HostTensor& tensor = found->second;
    const Order order = order_of(spec);
    if (!tensor.foreign.empty() || !(tensor.shape == order.file_shape) || tensor.dtype != DType::f32) {
      const std::string found_here =
          tensor.foreign.empty() ? fmt::format("shape {} and dtype {}", tensor.shape.str(), dtype_name(tensor.dtype))
                                 : tensor.foreign;
      throw DataError(
          fmt::format("{}: {} has {}, expected {} and f32", path, name, found_here, order.file_shape.str()));
    }
    transpose(order.outer, order.channels, order.positions, floats_of(tensor).data(), flat.data() + layout.offset(i));
  }
}

int64_t reordered_elements(const FlatLayout& layout) {
  int64_t elements = 0;
  for (const ParamSpec& spec : layout.specs()) {
    if (!order_of(spec).same()) elements = std::max(elements, spec.shape.numel());
  }
  return elements;
}

void write_npy(const std::string& path, std::span<const float> values, int64_t rows, int64_t columns) {
  static_assert(std::endian::native == std::endian::little, "the header declares little-endian data");
  if (rows < 0 || columns < 0 || static_cast<int64_t>(values.size()) != rows * columns) {
    throw DataError(fmt::format("write_npy: {}: values has {} elements, expected those of a matrix ({}, {})", path,
                                values.size(), rows, columns));
  }
  std::string header = fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
  // Magic, version and length take 10 bytes; the data begins at a multiple of 64.
  constexpr size_t kPrefixBytes = 10;
  constexpr size_t kAlignment = 64;
  const size_t used = kPrefixBytes + header.size() + 1;
  header.append((kAlignment - used % kAlignment) % kAlignment, ' ');
  header += '\n';
  std::string prefix = "\x93NUMPY";
  prefix += '\x01';
  prefix += '\0';
  prefix += static_cast<char>(header.size() & 0xFF);
  prefix += static_cast<char>(header.size() >> 8);
  AtomicFile file(path);
  file.write(prefix + header);
  file.write(std::as_bytes(values));
  file.commit();
}

}  // namespace vitrine
