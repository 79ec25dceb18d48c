// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "nn/json_file.h"
#include "nn/layers/activations.h"
#include "nn/layers/attention.h"
#include "nn/layers/batch_norm2d.h"
#include "nn/layers/conv2d.h"
#include "nn/layers/dropout.h"
#include "nn/layers/embedding.h"
#include "nn/layers/layer_norm.h"
#include "nn/layers/linear.h"
#include "nn/layers/pool2d.h"
#include "nn/layers/residual.h"
#include "nn/model.h"
#include "nn/model_builder.h"
#include "runtime/descriptor.h"
#include "runtime/error.h"
#include "runtime/text.h"

namespace vitrine {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostLayers = 10'000, kLongestName = 100;
constexpr int64_t kLargestSize = int64_t{1} << 24;          // of channels, features, heights and widths
constexpr double kMostElements = double{int64_t{1} << 36};  // of a parameter or of an image's activation
constexpr int64_t kMostChannels = 4;                        // of images (see Dataset)

/// What is wrong with a layer, without the file and the layer.
struct Problem : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::string shown(const Json& json) { return excerpt(json.dump(-1, ' ', false, Json::error_handler_t::replace)); }

/// The settings of one layer. Each is read by name; those that no layer reads are unknown.
class Settings {
 public:
  explicit Settings(const Json& layer) : layer_(layer), known_{"name", "type"} {}

  const Json* find(const char* name) {
    known_.insert(name);
    const auto found = layer_.find(name);
    return found == layer_.end() || found->is_null() ? nullptr : &*found;
  }
  /// An integer, or a list of two equal ones. Without `standard` it must be there.
  int64_t size(const char* name, int64_t least, std::optional<int64_t> standard = {}) {
    const Json* value = find(name);
    if (value == nullptr) {
      if (standard) return *standard;
      std::string given;
      for (const auto& [key, ignored] : layer_.items()) given += (given.empty() ? "" : ", ") + key;
      throw Problem(fmt::format("{} is missing; the layer has {}", name, excerpt(given)));
    }
    if (value->is_array() && value->size() == 2) {
      if ((*value)[0] != (*value)[1])
        throw Problem(fmt::format("{} is {}, but windows, strides and padding are square", name, shown(*value)));
      value = &(*value)[0];
    }
    return whole(name, *value, least);
  }
  /// Height and width: an integer for both, or a list of two.
  std::pair<int64_t, int64_t> sizes(const char* name, int64_t least) {
    const Json* value = find(name);
    if (value != nullptr && value->is_array() && value->size() == 2)
      return {whole(name, (*value)[0], least), whole(name, (*value)[1], least)};
    const int64_t both = size(name, least);
    return {both, both};
  }
  double number(const char* name, double standard, double least, double most) {
    known_.insert(name);
    const auto value = layer_.find(name);  // null is no number: PyTorch's momentum None is another average
    if (value == layer_.end()) return standard;
    const double x = value->is_number() ? value->get<double>() : NAN;
    if (!(x >= least && x <= most))
      throw Problem(fmt::format("{} is {}, expected a number from {} to {}", name, shown(*value), least, most));
    return x;
  }
  /// The standard deviation of a normal distribution from which a weight starts, if it is there.
  std::optional<Init> deviation(const char* name) {
    if (find(name) == nullptr) return {};
    return Init{Init::Kind::normal, static_cast<float>(number(name, 0.0, 0.0, 1e6))};
  }
  bool flag(const char* name, bool standard) {
    const Json* value = find(name);
    if (value == nullptr) return standard;
    if (!value->is_boolean()) throw Problem(fmt::format("{} is {}, expected true or false", name, shown(*value)));
    return value->get<bool>();
  }
  /// A setting of PyTorch for which Vitrine has one value only.
  void only(const char* name, const Json& wanted) {
    const Json* value = find(name);
    const bool pair =
        value != nullptr && value->is_array() && value->size() == 2 && (*value)[0] == wanted && (*value)[1] == wanted;
    if (value != nullptr && *value != wanted && !pair)
      throw Problem(fmt::format("{} is {}, but only {} is supported", name, shown(*value), shown(wanted)));
  }
  /// The number of inputs, which the layer before has set.
  void expect(const char* name, int64_t there) {
    const Json* value = find(name);
    if (value != nullptr && whole(name, *value, 1) != there)
      throw Problem(fmt::format("{} is {}, but its input has {}", name, shown(*value), there));
  }
  /// Settings that change nothing here.
  void ignore(const char* name) { known_.insert(name); }
  void finish() const {
    for (const auto& [name, value] : layer_.items()) {
      if (!known_.contains(name)) throw Problem(fmt::format("unknown setting '{}'", excerpt(name)));
    }
  }

 private:
  static int64_t whole(const char* name, const Json& value, int64_t least) {
    const bool fits = value.is_number_integer() &&
                      (!value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(kLargestSize));
    if (!fits || value.get<int64_t>() < least || value.get<int64_t>() > kLargestSize) {
      throw Problem(
          fmt::format("{} is {}, expected an integer from {} to {}", name, shown(value), least, kLargestSize));
    }
    return value.get<int64_t>();
  }

  const Json& layer_;
  std::set<std::string> known_;
};

/// What follows the layer that is added, and is merged into it.
enum class Next { other, relu, relu_and_max_pool };

struct NamedLayer {
  std::string name, type;
  const Json* json;
};

std::vector<NamedLayer> layers_of(const Json& layers, bool outermost);

class FileModel {
 public:
  /// dropouts  of the model so far
  FileModel(const Shape& input, int64_t& dropouts) : builder_(input), dropouts_(dropouts) {}

  void add_all(const Json& json, bool outermost);

  /// Number of classes that the last layer distinguishes; `rank` is that of the output.
  int64_t classes(int rank) const {
    const Shape& shape = builder_.shape();
    if (shape.rank() != rank) {
      throw Problem(fmt::format("the output has shape {}, expected (N, {}classes): end with {}Linear", shape.str(),
                                rank == 3 ? "tokens, " : "", rank == 3 ? "" : "Flatten and "));
    }
    return shape[rank - 1];
  }
  std::unique_ptr<Sequential> build() { return builder_.build(); }

 private:
  static bool takes_relu(const std::string& type) {
    return type == "Conv2d" || type == "Linear" || type == "BatchNorm2d";
  }
  void add(const std::string& name, const std::string& type, Settings& s, Next next) {
    const auto found =
        std::find_if(std::begin(kTypes), std::end(kTypes), [&](const auto& known) { return type == known.name; });
    if (found == std::end(kTypes)) {
      std::vector<std::string> names;
      for (const auto& known : kTypes) names.emplace_back(known.name);
      throw Problem(fmt::format("layer type '{}' is not supported; supported types are {}", excerpt(type),
                                fmt::join(names, ", ")));
    }
    (this->*found->add)(name, s, next);
    s.finish();
    const double elements = elements_of(builder_.shape());
    if (elements > kMostElements)
      throw Problem(fmt::format("its output has {:.0f} elements for each image, expected at most {:.0f}", elements,
                                kMostElements));
  }
  static double elements_of(const Shape& shape) {
    double all = 1.0;
    for (int i = 0; i < shape.rank(); ++i) all *= static_cast<double>(shape[i]);
    return all;
  }
  static void check_weight(std::initializer_list<int64_t> sizes) {
    double all = 1.0;
    for (const int64_t size : sizes) all *= static_cast<double>(size);
    if (all > kMostElements)
      throw Problem(fmt::format("its weight has {:.0f} elements, expected at most {:.0f}", all, kMostElements));
  }
  int64_t channels(const char* what) const {
    if (builder_.shape().rank() != 4)
      throw Problem(fmt::format("{} needs images, but its input has shape {}", what, builder_.shape().str()));
    return builder_.shape()[3];
  }

  void conv2d(const std::string& name, Settings& s, Next next) {
    const int64_t in = channels("Conv2d");
    s.expect("in_channels", in);
    s.only("dilation", 1);
    s.only("groups", 1);
    s.only("padding_mode", "zeros");
    s.only("output_padding", 0);
    const int64_t window = s.size("kernel_size", 1);
    Conv2dLayerConfig config{.in_channels = in,
                             .out_channels = s.size("out_channels", 1),
                             .window = window,
                             .bias = s.flag("bias", true),
                             .conv = {s.size("stride", 1, 1), s.size("padding", 0, 0), next == Next::relu}};
    relu_waits_ = next == Next::relu_and_max_pool;
    check_weight({in, config.out_channels, window, window});
    builder_.add(name, std::make_unique<Conv2d>(config));
  }
  /// Of the last dimension of a layer that takes vectors, or sequences of them.
  int64_t features(const char* what) const {
    const Shape& shape = builder_.shape();
    if (shape.rank() != 2 && shape.rank() != 3)
      throw Problem(fmt::format("{} needs a Flatten before it: its input has shape {}", what, shape.str()));
    return shape[shape.rank() - 1];
  }
  void linear(const std::string& name, Settings& s, Next next) {
    const int64_t in = features("Linear"), out = s.size("out_features", 1);
    s.expect("in_features", in);
    check_weight({in, out});
    LinearConfig config{.in_features = in,
                        .out_features = out,
                        .bias = s.flag("bias", true),
                        .relu = next != Next::other,
                        .weight_init = s.deviation("std"),
                        .weight_layout = builder_.take_flattened()};
    if (const Json* const shared = s.find("shared_weight"))
      config.shared_weight = shared->is_string() ? shared->get<std::string>() : shown(*shared);
    builder_.add(name, std::make_unique<Linear>(config));
  }
  void conv1d(const std::string& name, Settings& s, Next) {  // transformers' name for a Linear with another layout
    const int64_t in = features("Conv1D"), out = s.size("nf", 1);
    s.expect("nx", in);
    check_weight({in, out});
    builder_.add(name, std::make_unique<Linear>(
                           LinearConfig{.in_features = in,
                                        .out_features = out,
                                        .weight_init = s.deviation("std").value_or(Init{Init::Kind::normal, 0.02F}),
                                        .weight_layout = {.kind = CheckpointLayout::Kind::transposed}}));
  }
  void layer_norm(const std::string& name, Settings& s, Next) {
    const int64_t in = features("LayerNorm");
    s.expect("normalized_shape", in);
    s.only("elementwise_affine", true);
    s.only("bias", true);
    builder_.add(name, std::make_unique<LayerNorm>(in, static_cast<float>(s.number("eps", 1e-5, 1e-30, 1.0))));
  }
  void embedding(const std::string& name, Settings& s, Next) {
    if (!builder_.empty() || builder_.shape().rank() != 2)
      throw Problem("Embedding takes tokens: it is the first layer, and \"input\" is [tokens]");
    const int64_t rows = s.size("num_embeddings", 1), size = s.size("embedding_dim", 1);
    check_weight({rows, size});
    s.only("padding_idx", nullptr);
    builder_.add(name,
                 std::make_unique<Embedding>(rows, size, s.deviation("std").value_or(Init{Init::Kind::normal, 1.0F})));
  }
  void positions(const std::string& name, Settings& s, Next) {
    if (builder_.shape().rank() != 3) throw Problem("Positions needs an Embedding before it");
    const int64_t size = builder_.shape()[2], count = s.size("num_embeddings", 1, builder_.shape()[1]);
    s.expect("embedding_dim", size);
    check_weight({count, size});
    builder_.add(name,
                 std::make_unique<Positions>(count, size, s.deviation("std").value_or(Init{Init::Kind::normal, 1.0F})));
  }
  void attention(const std::string& name, Settings& s, Next) {
    builder_.add(name, std::make_unique<Attention>(s.size("num_heads", 1)));
  }
  std::unique_ptr<Sequential> inner(Settings& s) {
    const Json* const layers = s.find("layers");
    if (layers == nullptr) throw Problem("layers is missing");
    FileModel parts(builder_.shape(), dropouts_);
    parts.add_all(*layers, false);
    return parts.build();
  }
  void sequential(const std::string& name, Settings& s, Next) { builder_.add(name, inner(s)); }
  void residual(const std::string& name, Settings& s, Next) {
    builder_.add(name, std::make_unique<Residual>(inner(s), nullptr, false));
  }
  void batch_norm(const std::string& name, Settings& s, Next next) {
    const int64_t in = channels("BatchNorm2d");
    s.expect("num_features", in);
    s.only("affine", true);
    s.only("track_running_stats", true);
    const double eps = s.number("eps", 1e-5, 1e-30, 1.0), momentum = s.number("momentum", 0.1, 0.0, 1.0);
    builder_.add(name, std::make_unique<BatchNorm2d>(in, BatchNormConfig{.eps = static_cast<float>(eps),
                                                                         .momentum = static_cast<float>(momentum),
                                                                         .relu = next != Next::other}));
  }
  static Pool2dConfig pool(Settings& s) {
    s.only("ceil_mode", false);
    const int64_t window = s.size("kernel_size", 1);
    return {.window = window, .stride = s.size("stride", 1, window), .pad = s.size("padding", 0, 0)};
  }
  void max_pool(const std::string& name, Settings& s, Next) {
    channels("MaxPool2d");
    s.only("dilation", 1);
    s.only("return_indices", false);
    builder_.add(name, std::make_unique<MaxPool2d>(pool(s), std::exchange(relu_waits_, false)));
  }
  void avg_pool(const std::string& name, Settings& s, Next) {
    channels("AvgPool2d");
    s.only("count_include_pad", true);
    s.only("divisor_override", nullptr);
    builder_.add(name, std::make_unique<AvgPool2d>(pool(s)));
  }
  void adaptive_avg_pool(const std::string& name, Settings& s, Next) {
    channels("AdaptiveAvgPool2d");
    const auto [height, width] = s.sizes("output_size", 1);
    builder_.add(name, std::make_unique<AdaptiveAvgPool2d>(height, width));
  }
  void relu(const std::string& name, Settings& s, Next) {
    s.ignore("inplace");
    builder_.add(name, std::make_unique<ReLU>());
  }
  void gelu(const std::string& name, Settings& s, Next) {
    const Json* const form = s.find("approximate");
    if (form != nullptr && *form == "tanh") return builder_.add(name, std::make_unique<GELU>(GeluForm::tanh));
    s.only("approximate", "none");
    builder_.add(name, std::make_unique<GELU>());
  }
  void dropout(const std::string& name, Settings& s, Next) {
    s.ignore("inplace");
    const double p = s.number("p", 0.5, 0.0, 1.0);
    builder_.add(name, std::make_unique<Dropout>(static_cast<float>(p), dropouts_++));
  }
  void flatten(const std::string& name, Settings& s, Next) {
    s.only("start_dim", 1);
    s.only("end_dim", -1);
    builder_.add_flatten(name);
  }

  struct Type {
    const char* name;
    void (FileModel::*add)(const std::string& name, Settings& s, Next next);
  };
  static constexpr Type kTypes[] = {{"AdaptiveAvgPool2d", &FileModel::adaptive_avg_pool},
                                    {"AvgPool2d", &FileModel::avg_pool},
                                    {"BatchNorm2d", &FileModel::batch_norm},
                                    {"CausalSelfAttention", &FileModel::attention},
                                    {"Conv1D", &FileModel::conv1d},
                                    {"Conv2d", &FileModel::conv2d},
                                    {"Dropout", &FileModel::dropout},
                                    {"Embedding", &FileModel::embedding},
                                    {"Flatten", &FileModel::flatten},
                                    {"GELU", &FileModel::gelu},
                                    {"LayerNorm", &FileModel::layer_norm},
                                    {"Linear", &FileModel::linear},
                                    {"MaxPool2d", &FileModel::max_pool},
                                    {"Positions", &FileModel::positions},
                                    {"ReLU", &FileModel::relu},
                                    {"Residual", &FileModel::residual},
                                    {"Sequential", &FileModel::sequential}};

  ModelBuilder builder_;
  bool relu_waits_ = false;  // for the maximum that comes next
  int64_t& dropouts_;
};

/// A text of the file that names something: letters, digits and "._-", as in the names of PyTorch's parameters.
std::string name_in(const Json& json, const std::string& what) {
  const std::string name = json.is_string() ? json.get<std::string>() : std::string();
  constexpr std::string_view kAllowed = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-";
  if (name.empty() || name.size() > kLongestName || name.find_first_not_of(kAllowed) != std::string::npos) {
    throw Problem(fmt::format("{} is {}, expected at most {} letters, digits, dots, dashes and underscores", what,
                              shown(json), kLongestName));
  }
  return name;
}

Json parse(const std::string& text) {
  std::vector<std::set<std::string>> keys;  // of each object around
  const auto refuse_second = [&](int /*depth*/, Json::parse_event_t event, Json& value) {
    if (event == Json::parse_event_t::object_start) keys.emplace_back();
    if (event == Json::parse_event_t::object_end) keys.pop_back();
    if (event == Json::parse_event_t::key && !keys.back().insert(value.get<std::string>()).second)
      throw Problem(fmt::format("an object has the key '{}' twice", excerpt(value.get<std::string>())));
    return true;
  };
  try {
    return Json::parse(text, refuse_second);
  } catch (const Json::exception& problem) {
    throw Problem(fmt::format("it is not JSON: {}", describe_json_error(problem)));
  }
}

/// [channels, height, width] of one image, or [tokens] of a sequence.
Shape input_of(const Json& input) {
  const auto fits = [](const Json& size, int64_t most) {
    return size.is_number_unsigned() && size.get<uint64_t>() >= 1 &&
           size.get<uint64_t>() <= static_cast<uint64_t>(most);
  };
  constexpr int64_t kLargestSide = int64_t{1} << 16;
  if (input.is_array() && input.size() == 1 && fits(input[0], kLargestSide) && input[0] > 1)
    return {1, input[0].get<int64_t>()};
  if (!input.is_array() || input.size() != 3 || !fits(input[0], kMostChannels) || !fits(input[1], kLargestSide) ||
      !fits(input[2], kLargestSide)) {
    throw Problem(
        fmt::format("input is {}, expected [channels, height, width] with 1 to {} channels and sides of 1 to {}, or "
                    "[tokens]",
                    shown(input), kMostChannels, kLargestSide));
  }
  return {1, input[1].get<int64_t>(), input[2].get<int64_t>(), input[0].get<int64_t>()};
}

std::vector<NamedLayer> layers_of(const Json& layers, bool outermost) {
  if (!layers.is_array() || layers.empty() || layers.size() > kMostLayers) {
    throw Problem(fmt::format("layers must be a list of 1 to {} layers", kMostLayers));
  }
  std::vector<NamedLayer> all;
  for (const Json& layer : layers) {
    const std::string place = fmt::format("layer {}", all.size());
    if (!layer.is_object() || !layer.contains("type") || !layer["type"].is_string())
      throw Problem(place + " has no type, such as \"Conv2d\"");
    std::string name = std::to_string(all.size());
    const bool unnamed = !outermost && layer.value("name", Json()) == "" && layer.contains("layers");
    if (layer.contains("name")) name = unnamed ? "" : name_in(layer["name"], place + ": name");
    all.push_back({std::move(name), layer["type"].get<std::string>(), &layer});
  }
  return all;
}

void FileModel::add_all(const Json& json, bool outermost) {
  const std::vector<NamedLayer> layers = layers_of(json, outermost);
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto& [name, type, settings] = layers[i];
    const auto is = [&](size_t index, const char* wanted) {
      return index < layers.size() && layers[index].type == wanted;
    };
    Next next = Next::other;
    if (takes_relu(type) && is(i + 1, "ReLU"))
      next = is(i + 2, "MaxPool2d") && type == "Conv2d" ? Next::relu_and_max_pool : Next::relu;
    size_t at = i;
    try {
      Settings own(*settings);
      add(name, type, own, next);
      if (next != Next::other) {
        Settings relu(*layers[at = ++i].json);
        relu.ignore("inplace");
        relu.finish();
      }
    } catch (const std::runtime_error& problem) {
      throw Problem(fmt::format("layer {} ({} {}): {}", at, excerpt(layers[at].type), layers[at].name, problem.what()));
    }
  }
}

Model model_of(const Json& json, const std::string& path) {
  if (!json.is_object()) throw Problem("expected an object with the keys 'input' and 'layers'");
  for (const char* key : {"input", "layers"}) {
    if (!json.contains(key)) throw Problem(fmt::format("'{}' is missing", key));
  }
  for (const auto& [key, value] : json.items()) {
    if (key != "name" && key != "input" && key != "layers")
      throw Problem(fmt::format("'{}' is unknown; a model has name, input and layers", excerpt(key)));
  }
  const Shape input = input_of(json["input"]);
  int64_t dropouts = 0;
  FileModel model(input, dropouts);
  model.add_all(json["layers"], true);
  const std::string name =
      json.contains("name") ? name_in(json["name"], "name") : std::filesystem::path(path).stem().string();
  const bool tokens = input.rank() == 2;
  Model result{.name = name, .classes = model.classes(tokens ? 3 : 2), .net = model.build()};
  if (tokens) {
    result.targets_per_sample = input[1];
    result.sample_shape = {input[1]};
  } else {
    result.height = input[1];
    result.width = input[2];
    result.channels = input[3];
  }
  if (result.net->parameters().empty()) throw Problem("no layer has parameters");
  return result;
}

}  // namespace

Model read_model_file(const std::string& path) {
  const std::string text = read_regular_file(path, kLargestJson);
  check_json_text(path, text);
  try {
    return model_of(parse(text), path);
  } catch (const std::runtime_error& problem) {
    throw DataError(fmt::format("{}: {}", path, problem.what()));
  }
}

}  // namespace vitrine
