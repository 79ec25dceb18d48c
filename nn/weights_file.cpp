// SPDX-License-Identifier: Apache-2.0
#include "nn/weights_file.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "nn/safetensors_header.h"
#include "nn/settings.h"
#include "runtime/error.h"
#include "runtime/printable.h"

namespace vitrine {
namespace {

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

/// The names as a message shows them: "a b c and 12 more".
std::string list_names(const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < std::min(kShown, names.size()); ++i) text += fmt::format(" {}", excerpt(names[i]));
  return names.size() > kShown ? text + fmt::format(" and {} more", names.size() - kShown) : text;
}

/// Tensors that the model does not have.
std::vector<std::string> unexpected_names(const FlatLayout& layout, const BufferLayout& buffers,
                                          const std::map<std::string, HostTensor>& tensors) {
  std::set<std::string> known(buffers.counters().begin(), buffers.counters().end());
  for (const FlatLayout* part : {&layout, &buffers.saved()}) {
    for (const ParamSpec& spec : part->specs()) known.insert(spec.name);
  }
  std::vector<std::string> unexpected;
  for (const auto& [name, tensor] : tensors) {
    if (!known.contains(name)) unexpected.push_back(name);
  }
  return unexpected;
}

/// Wrappers of modules put a prefix before every name: DistributedDataParallel "module.".
Reason remedy_for_prefix(const std::string& wanted, const std::vector<std::string>& unexpected) {
  const auto found = std::find_if(unexpected.begin(), unexpected.end(),
                                  [&](const std::string& name) { return name.ends_with("." + wanted); });
  if (found == unexpected.end()) return {};
  const std::string prefix = found->substr(0, found->size() - wanted.size());
  return {fmt::format(". Its names begin with '{}': use ", excerpt(prefix)), propose(settings::kStripPrefix, prefix)};
}

void check_names(const std::string& path, const FlatLayout& layout, const BufferLayout& buffers,
                 const std::map<std::string, HostTensor>& tensors, const std::vector<std::string>& unexpected) {
  std::vector<std::string> missing;
  for (const FlatLayout* part : {&layout, &buffers.saved()}) {
    for (const ParamSpec& spec : part->specs()) {
      if (!tensors.contains(spec.name)) missing.push_back(spec.name);
    }
  }
  if (missing.empty() && unexpected.empty()) return;
  Reason message(fmt::format("{} does not match the model:", path));
  if (!missing.empty()) message += fmt::format(" missing parameters:{}", list_names(missing));
  if (!unexpected.empty())
    message += fmt::format("{} unexpected parameters:{}", missing.empty() ? "" : ";", list_names(unexpected));
  const Reason remedy = missing.empty() ? Reason() : remedy_for_prefix(missing.front(), unexpected);
  if (unexpected.size() == tensors.size() && remedy.empty())
    throw DataError(message + "; no name fits: the weights are another model's");
  message += remedy;
  throw MismatchedWeights(message);
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

/// The data were allocated with the alignment of all fundamental types.
std::span<const float> floats_of(const HostTensor& tensor) {
  return {reinterpret_cast<const float*>(tensor.data.data()), tensor.data.size() / sizeof(float)};
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

/// Why a tensor cannot be that parameter: "shape (2) in the file, expected (3)"; empty if it can.
std::string misfit_of(const HostTensor& tensor, const ParamSpec& spec) {
  const Shape expected = order_of(spec).file_shape;
  if (!(tensor.shape == expected))
    return fmt::format("shape {} in the file, expected {}", tensor.shape.str(), expected.str());
  if (tensor.dtype != DType::f32)
    return fmt::format("dtype {} in the file, expected f32; save it as float32", dtype_name(tensor.dtype));
  return {};
}

void check_shapes(const std::string& path, const FlatLayout& layout, const Tensors& tensors) {
  for (const ParamSpec& spec : layout.specs()) {
    const std::string misfit = misfit_of(tensors.at(spec.name), spec);
    if (!misfit.empty()) throw MismatchedWeights(fmt::format("{}: {} has {}", path, spec.name, misfit));
  }
}

/// Removes from `tensors` what does not fit the layout, and says why. Returns how many fit.
int64_t keep_fitting(const FlatLayout& layout, Tensors& tensors, LoadedWeights& report) {
  int64_t fitting = 0;
  for (const ParamSpec& spec : layout.specs()) {
    const auto found = tensors.find(spec.name);
    const std::string misfit = found == tensors.end() ? "not in the file" : misfit_of(found->second, spec);
    if (misfit.empty()) {
      ++fitting;
      continue;
    }
    report.not_loaded.push_back(fmt::format("{}: {}", spec.name, misfit));
    if (found != tensors.end()) tensors.erase(found);
  }
  return fitting;
}

/// Renames "PREFIXname" to "name".
void strip_prefix(const std::string& path, const std::string& prefix, Tensors& tensors) {
  if (prefix.empty()) return;
  Tensors renamed;
  bool any = false;
  for (auto& [name, tensor] : tensors) {
    const bool has = name.starts_with(prefix);
    any = any || has;
    const std::string short_name = has ? name.substr(prefix.size()) : name;
    if (!renamed.emplace(short_name, std::move(tensor)).second)
      throw DataError(
          fmt::format("{}: without the prefix '{}', two tensors are named {}", path, prefix, excerpt(short_name)));
  }
  if (!any) throw DataError(fmt::format("{}: no tensor's name begins with '{}'", path, prefix));
  tensors = std::move(renamed);
}

void check_values(const std::string& path, const FlatLayout& layout, const Tensors& tensors) {
  for (const ParamSpec& spec : layout.specs()) {
    if (const auto found = tensors.find(spec.name); found != tensors.end())
      check_finite(path, spec.name, found->second.shape, floats_of(found->second));
  }
}

void check_counters(const std::string& path, const std::vector<std::string>& names, const Tensors& tensors) {
  for (const std::string& name : names) {
    const auto found = tensors.find(name);
    if (found == tensors.end()) continue;
    const HostTensor& tensor = found->second;
    if (tensor.shape == Shape{} && tensor.dtype == DType::i64) continue;
    throw DataError(fmt::format("{}: {} has shape {} and dtype {}, expected () and i64", path, name, tensor.shape.str(),
                                dtype_name(tensor.dtype)));
  }
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

}  // namespace

LoadedWeights load_parameters(const std::string& path, const FlatLayout& layout, std::span<float> flat,
                              const BufferLayout& buffer_layout, BufferValues& buffers, const LoadOptions& options) {
  check_size("load_parameters", layout, flat.size());
  LoadedWeights report{layout.size(), buffer_layout.saved().size(), {}, {}};
  // Throws, or leaves what is loaded in `tensors`.
  const auto select = [&](Tensors& tensors) {
    strip_prefix(path, options.strip_prefix, tensors);
    report.not_loaded.clear();
    report.unused = unexpected_names(layout, buffer_layout, tensors);
    if (options.partial) {
      report.parameters = keep_fitting(layout, tensors, report);
      report.buffers = keep_fitting(buffer_layout.saved(), tensors, report);
      if (report.parameters == 0) {
        throw DataError(Reason(fmt::format("{}: no tensor fits a parameter of the model; the first one: {}", path,
                                           report.not_loaded.front())) +
                        remedy_for_prefix(layout.specs().front().name, report.unused));
      }
    } else {
      check_names(path, layout, buffer_layout, tensors, report.unused);
      check_shapes(path, layout, tensors);
      check_shapes(path, buffer_layout.saved(), tensors);
    }
    check_counters(path, buffer_layout.counters(), tensors);
  };
  // The header is checked before data is read, and all values before the first is copied.
  Tensors tensors = read_safetensors(path, [&](Tensors without_data) { select(without_data); });
  select(tensors);
  if (!options.allow_non_finite) {
    check_values(path, layout, tensors);
    check_values(path, buffer_layout.saved(), tensors);
  }
  take(layout, tensors, flat);
  buffers = buffer_layout.initial();
  take(buffer_layout.saved(), tensors, buffers.values);
  for (size_t i = 0; i < buffers.counters.size(); ++i) {
    const auto found = tensors.find(buffer_layout.counters()[i]);
    if (found != tensors.end()) std::memcpy(&buffers.counters[i], found->second.data.data(), sizeof(int64_t));
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
    if (!(tensor.shape == order.file_shape) || tensor.dtype != DType::f32) {
      throw DataError(fmt::format("{}: {} has shape {} and dtype {}, expected {} and f32", path, name,
                                  tensor.shape.str(), dtype_name(tensor.dtype), order.file_shape.str()));
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

}  // namespace vitrine
