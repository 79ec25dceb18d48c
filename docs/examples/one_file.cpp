// SPDX-License-Identifier: Apache-2.0
// Data-parallel training in one file: the specification of what Vitrine's engine computes, and of who holds and who
// sends what, without streams, pools, GPUs or libraries. Read it from top to bottom; nothing is used before it is
// defined.
//
//     g++ -std=c++20 -O3 -pthread one_file.cpp -o one_file
//     ./one_file --scheme dp --devices 3                 # dp, ddp or zero1
//     ./one_file --scheme dp --devices 3 --split 1,3,4   # leaves of each device (section 7)
//     ./one_file --model mlp --scheme zero1 --devices 8  # small-cnn, lenet5 or mlp
//
// Without flags: small-cnn under ddp on 3 devices, 10 steps (--steps) of 32 samples (--batch) in 8 leaves (--leaves:
// fixed parts of a batch, section 6). --data FILE is trained on once; --weights and --save are files too (section 10).
//
// The question of the file: a batch is cut among devices, each computes with its own samples, and afterwards all have
// the same new weights. Which bytes does each device hold and send for that, and why are the weights the same to the
// last bit on 1, 2, 3, 5 and 8 devices?
//
//     1  memory        what a device holds, by name          6  leaves and the tree   why the bits are the same
//     2  layers        convolution, maximum, ReLU, linear    7  schemes               who computes and owns what
//     3  models        where each parameter lies             8  wires                 what a device sends
//     4  loss          softmax and cross-entropy             9  a training step       all of the above, on one page
//     5  Adam          the update of the weights            10  tables, files, main
#include <algorithm>
#include <array>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <random>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

// ---------------------------------------------------------------------------------------------------------------------
// 1. Memory
//
// A device is a thread that computes in memory of its own. Everything a device holds is a Tensor, and a Tensor is
// entered in the device's Memory under one of these names, so that the table at the end can say where every byte is.

enum What { kParameters, kMoments, kBatch, kActivations, kLogits, kGradients, kReduction, kWhatCount };
constexpr std::array<const char*, kWhatCount> kWhatNames = {
    "parameters",  "Adam's moments",
    "batch",        // images and labels
    "activations",  // and their gradients
    "logits",       // their gradients, and the losses of leaves
    "gradients",    // of the parameters: an array for each node of the tree that is being added
    "reduction",    // such arrays at their owner, its own included, and under ddp the gathered sum
};

/// The bytes that a device holds now, and the most that it has held: of each name, and of all at the same time.
struct Memory {
  std::array<int64_t, kWhatCount> now = {}, most = {};
  int64_t most_at_once = 0;

  void change(What what, int64_t bytes) {
    now[what] += bytes;
    most[what] = std::max(most[what], now[what]);
    most_at_once = std::max(most_at_once, std::accumulate(now.begin(), now.end(), int64_t{0}));
  }
};

/// Sizes of a tensor: samples, channels, height, width. Labels are {samples}, parameters and gradients {1, elements}.
struct Shape {
  int n = 1, c = 1, h = 1, w = 1;
  int sample() const { return c * h * w; }  // elements of one sample
  int count() const { return n * sample(); }
};

/// Numbers in one device's memory, zero at first. They leave the Memory when the Tensor goes out of scope.
class Tensor {
 public:
  Tensor() = default;
  Tensor(Memory& memory, What what, Shape sizes)
      : shape(sizes), values(static_cast<size_t>(sizes.count())), memory_(&memory), what_(what) {
    memory.change(what, bytes());
  }
  Tensor(Tensor&& other) noexcept { *this = std::move(other); }
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(shape, other.shape);
    std::swap(values, other.values);
    std::swap(memory_, other.memory_);
    std::swap(what_, other.what_);
    return *this;
  }
  ~Tensor() {
    if (memory_ != nullptr) memory_->change(what_, -bytes());
  }

  float* sample(int n) { return values.data() + n * shape.sample(); }
  const float* sample(int n) const { return values.data() + n * shape.sample(); }
  bool empty() const { return values.empty(); }

  Shape shape;
  std::vector<float> values;

 private:
  int64_t bytes() const { return static_cast<int64_t>(values.size() * sizeof(float)); }

  Memory* memory_ = nullptr;
  What what_ = kParameters;
};

// ---------------------------------------------------------------------------------------------------------------------
// 2. Layers
//
// A layer has a forward pass, from its input x to its output y, and a backward pass, from dy, the gradient of the loss
// with respect to y, to dx and to the gradients of its parameters. Backward reads x or y again: that is why a device
// holds every layer's output until backward has passed it.
//
// Images lie sample by sample, channel by channel, row by row. There is no Flatten: those numbers in that order are the
// row that a linear layer reads.

enum class Kind { conv, relu, max_pool, linear };

struct Layer {
  Kind kind;
  std::string name;   // "features.0", the first part of its parameters' names
  Shape in, out;      // of one sample
  int window = 0;     // conv: height and width of the filters
  int pad = 0;        // conv: rows and columns of zeros around the image
  int weight_at = 0;  // where its weight begins among the model's parameters
  int bias_at = 0;

  bool has_parameters() const { return kind == Kind::conv || kind == Kind::linear; }
  int fan_in() const { return kind == Kind::conv ? in.c * window * window : in.count(); }  // inputs of each output
  int weight_count() const { return out.c * fan_in(); }
};

/// Calls row(y_offset, x_offset, count) for each row of an output plane that filter element (r, s) contributes to:
/// output pixel (p, q) sees input pixel (p + r - pad, q + s - pad). What lies outside the image is zero and left out.
template <class Row>
void for_rows_under(const Layer& layer, int r, int s, const Row& row) {
  const int dy = r - layer.pad, dx = s - layer.pad;
  const int first = std::max(0, -dx), last = std::min(layer.out.w, layer.in.w - dx);
  for (int p = std::max(0, -dy); p < std::min(layer.out.h, layer.in.h - dy); ++p)
    row(p * layer.out.w + first, (p + dy) * layer.in.w + first + dx, last - first);
}

/// y[k] = bias[k] + sum over c, r, s of weight[k][c][r][s] * x[c] moved by (r, s)
void conv_forward(const Layer& layer, const float* weight, const float* bias, const Tensor& x, Tensor& y) {
  const int in_plane = layer.in.h * layer.in.w, out_plane = layer.out.h * layer.out.w;
  for (int n = 0; n < x.shape.n; ++n) {
    const float* w = weight;
    for (int k = 0; k < layer.out.c; ++k) {
      float* const plane = y.sample(n) + k * out_plane;
      std::fill_n(plane, out_plane, bias[k]);
      for (int c = 0; c < layer.in.c; ++c) {
        const float* const image = x.sample(n) + c * in_plane;
        for (int r = 0; r < layer.window; ++r) {
          for (int s = 0; s < layer.window; ++s, ++w) {
            for_rows_under(layer, r, s, [&](int y_at, int x_at, int count) {
              for (int i = 0; i < count; ++i) plane[y_at + i] += *w * image[x_at + i];
            });
          }
        }
      }
    }
  }
}

/// Each product weight * x of forward gives dy * x to the weight's gradient, and dy * weight to that of x. Without dx
/// (the images need no gradient) the latter is left out.
void conv_backward(const Layer& layer, const float* weight, const Tensor& x, const Tensor& dy, float* d_weight,
                   float* d_bias, Tensor* dx) {
  const int in_plane = layer.in.h * layer.in.w, out_plane = layer.out.h * layer.out.w;
  for (int n = 0; n < x.shape.n; ++n) {
    for (int k = 0, at = 0; k < layer.out.c; ++k) {
      const float* const plane = dy.sample(n) + k * out_plane;
      d_bias[k] += std::accumulate(plane, plane + out_plane, 0.0F);
      for (int c = 0; c < layer.in.c; ++c) {
        const float* const image = x.sample(n) + c * in_plane;
        float* const d_image = dx != nullptr ? dx->sample(n) + c * in_plane : nullptr;
        for (int r = 0; r < layer.window; ++r) {
          for (int s = 0; s < layer.window; ++s, ++at) {
            float sum = 0;
            for_rows_under(layer, r, s, [&](int y_at, int x_at, int count) {
              for (int i = 0; i < count; ++i) sum += plane[y_at + i] * image[x_at + i];
              if (d_image == nullptr) return;
              for (int i = 0; i < count; ++i) d_image[x_at + i] += weight[at] * plane[y_at + i];
            });
            d_weight[at] += sum;
          }
        }
      }
    }
  }
}

/// y[o] = bias[o] + sum over i of weight[o][i] * x[i]
void linear_forward(const Layer& layer, const float* weight, const float* bias, const Tensor& x, Tensor& y) {
  const int inputs = layer.in.count(), outputs = layer.out.c;
  for (int n = 0; n < x.shape.n; ++n) {
    for (int o = 0; o < outputs; ++o)
      y.sample(n)[o] = std::inner_product(x.sample(n), x.sample(n) + inputs, weight + o * inputs, bias[o]);
  }
}

void linear_backward(const Layer& layer, const float* weight, const Tensor& x, const Tensor& dy, float* d_weight,
                     float* d_bias, Tensor* dx) {
  const int inputs = layer.in.count(), outputs = layer.out.c;
  for (int n = 0; n < x.shape.n; ++n) {
    for (int o = 0; o < outputs; ++o) {
      const float gradient = dy.sample(n)[o];
      d_bias[o] += gradient;
      for (int i = 0; i < inputs; ++i) d_weight[o * inputs + i] += gradient * x.sample(n)[i];
      if (dx == nullptr) continue;
      for (int i = 0; i < inputs; ++i) dx->sample(n)[i] += gradient * weight[o * inputs + i];
    }
  }
}

void relu_forward(const Tensor& x, Tensor& y) {
  for (size_t i = 0; i < x.values.size(); ++i) y.values[i] = std::max(x.values[i], 0.0F);
}

void relu_backward(const Tensor& y, const Tensor& dy, Tensor& dx) {
  for (size_t i = 0; i < y.values.size(); ++i) dx.values[i] = y.values[i] > 0 ? dy.values[i] : 0.0F;
}

/// The position of the largest of the 2x2 inputs of output pixel (p, q): the first one of equal ones.
int largest_of(const Layer& layer, const float* image, int p, int q) {
  int best = 2 * p * layer.in.w + 2 * q;
  for (const int at : {best + 1, best + layer.in.w, best + layer.in.w + 1})
    if (image[at] > image[best]) best = at;
  return best;
}

/// Calls element(y_offset, x_offset) for each output and the input that it was taken from.
template <class Element>
void for_largest(const Layer& layer, const Tensor& x, const Element& element) {
  const int in_plane = layer.in.h * layer.in.w;
  for (int image = 0, at = 0; image < x.shape.n * layer.in.c; ++image)
    for (int p = 0; p < layer.out.h; ++p)
      for (int q = 0; q < layer.out.w; ++q, ++at)
        element(at, image * in_plane + largest_of(layer, x.values.data() + image * in_plane, p, q));
}

void max_pool_forward(const Layer& layer, const Tensor& x, Tensor& y) {
  for_largest(layer, x, [&](int y_at, int x_at) { y.sample(0)[y_at] = x.sample(0)[x_at]; });
}

void max_pool_backward(const Layer& layer, const Tensor& x, const Tensor& dy, Tensor& dx) {
  for_largest(layer, x, [&](int y_at, int x_at) { dx.sample(0)[x_at] += dy.sample(0)[y_at]; });
}

// ---------------------------------------------------------------------------------------------------------------------
// 3. Models
//
// A model is a list of layers. All its parameters lie in one array, layer by layer, weight before bias. One array is
// all that Adam and the exchange between devices need to know about the model: they see elements 0 to parameters - 1.

struct Model {
  std::vector<Layer> layers;
  Shape image;
  int parameters = 0;

  int classes() const { return layers.back().out.c; }
};

constexpr int kClasses = 10;

/// Appends layers, each of which reads what the one before it writes.
class Builder {
 public:
  explicit Builder(Shape image) { model_.image = shape_ = image; }

  void linear(const std::string& name, int outputs) {
    add({.kind = Kind::linear, .name = name, .in = shape_, .out = {1, outputs, 1, 1}});
  }
  void linear_relu(const std::string& name, int outputs) {
    linear(name, outputs);
    relu();
  }
  void conv_relu_pool(const std::string& name, int channels, int window, int pad) {
    conv(name, channels, window, pad);
    relu();
    add({.kind = Kind::max_pool, .name = "max pool", .in = shape_, .out = {1, shape_.c, shape_.h / 2, shape_.w / 2}});
  }
  Model take() { return std::move(model_); }

 private:
  void conv(const std::string& name, int channels, int window, int pad) {
    const Shape out{1, channels, shape_.h + 2 * pad - window + 1, shape_.w + 2 * pad - window + 1};
    add({.kind = Kind::conv, .name = name, .in = shape_, .out = out, .window = window, .pad = pad});
  }
  void relu() { add({.kind = Kind::relu, .name = "relu", .in = shape_, .out = shape_}); }
  void add(Layer layer) {
    if (layer.out.h < 1 || layer.out.w < 1)
      throw std::runtime_error(layer.name + ": an image of " + std::to_string(model_.image.h) + "x" +
                               std::to_string(model_.image.w) + " pixels is too small for this model");
    if (layer.has_parameters()) {
      layer.weight_at = model_.parameters;
      layer.bias_at = layer.weight_at + layer.weight_count();
      model_.parameters = layer.bias_at + layer.out.c;
    }
    shape_ = layer.out;
    model_.layers.push_back(std::move(layer));
  }

  Model model_;
  Shape shape_;
};

Model make_model(const std::string& name, Shape image) {
  Builder b(image);
  if (name == "small-cnn") {
    b.conv_relu_pool("features.0", 32, 3, 1);
    b.conv_relu_pool("features.3", 64, 3, 1);
    b.linear_relu("classifier.0", 128);
    b.linear("classifier.2", kClasses);
  } else if (name == "lenet5") {
    b.conv_relu_pool("conv1", 6, 5, 2);
    b.conv_relu_pool("conv2", 16, 5, 0);
    b.linear_relu("fc1", 120);
    b.linear_relu("fc2", 84);
    b.linear("fc3", kClasses);
  } else if (name == "mlp") {
    b.linear_relu("classifier.0", 256);
    b.linear_relu("classifier.2", 128);
    b.linear("classifier.4", kClasses);
  } else {
    throw std::runtime_error("--model " + name + ": expected small-cnn, lenet5 or mlp");
  }
  return b.take();
}

void forward(const Layer& layer, const float* parameters, const Tensor& x, Tensor& y) {
  const float *const weight = parameters + layer.weight_at, *const bias = parameters + layer.bias_at;
  if (layer.kind == Kind::conv) conv_forward(layer, weight, bias, x, y);
  if (layer.kind == Kind::linear) linear_forward(layer, weight, bias, x, y);
  if (layer.kind == Kind::relu) relu_forward(x, y);
  if (layer.kind == Kind::max_pool) max_pool_forward(layer, x, y);
}

/// Adds the gradients of the layer's parameters to `gradients`, an array like the parameters', and those of
/// x to dx, if given, which must be zero.
void backward(const Layer& layer, const float* parameters, const Tensor& x, const Tensor& y, const Tensor& dy,
              float* gradients, Tensor* dx) {
  const float* const weight = parameters + layer.weight_at;
  float *const d_weight = gradients + layer.weight_at, *const d_bias = gradients + layer.bias_at;
  if (layer.kind == Kind::conv) conv_backward(layer, weight, x, dy, d_weight, d_bias, dx);
  if (layer.kind == Kind::linear) linear_backward(layer, weight, x, dy, d_weight, d_bias, dx);
  if (layer.kind == Kind::relu) relu_backward(y, dy, *dx);
  if (layer.kind == Kind::max_pool) max_pool_backward(layer, x, dy, *dx);
}

// ---------------------------------------------------------------------------------------------------------------------
// 4. Loss
//
// The loss of a batch is the mean of its samples' losses, so each sample contributes its loss divided by the size of
// the whole batch, wherever that sample is computed. Contributions of different devices then only need to be added.

/// Replaces each sample's logits with the loss's gradient with respect to them, and returns the samples' share of the
/// mean loss. Softmax turns logits z into probabilities exp(z) / sum; the loss is -log(probability of the label), whose
/// gradient is the probability, minus 1 for the label. Subtracting the largest logit first keeps exp() finite.
float softmax_cross_entropy(float* logits, const float* labels, int samples, int classes, int batch) {
  double loss = 0;
  for (int n = 0; n < samples; ++n) {
    float* const z = logits + n * classes;
    const double largest = *std::max_element(z, z + classes);
    double sum = 0;
    for (int c = 0; c < classes; ++c) sum += std::exp(z[c] - largest);
    const int label = static_cast<int>(labels[n]);
    loss += std::log(sum) - (z[label] - largest);
    for (int c = 0; c < classes; ++c) {
      const double probability = std::exp(z[c] - largest) / sum;
      z[c] = static_cast<float>((probability - (c == label ? 1 : 0)) / batch);
    }
  }
  return static_cast<float>(loss / batch);
}

// ---------------------------------------------------------------------------------------------------------------------
// 5. Adam
//
// Adam (Kingma and Ba 2015) keeps two running means for each parameter: of its gradient and of the gradient's square.
// They start at zero, which the division by 1 - beta^step corrects. Element i of the update reads only element i of
// everything, so any range of parameters can be updated by itself: section 7 uses that.

/// Both moments of a range of parameters.
struct Moments {
  Tensor mean, square;
};

void adam(float* parameters, const float* gradients, Moments& moments, int step) {
  const double learning_rate = 1e-3, beta1 = 0.9, beta2 = 0.999, epsilon = 1e-8;
  const double correction1 = 1 - std::pow(beta1, step), correction2 = 1 - std::pow(beta2, step);
  for (size_t i = 0; i < moments.mean.values.size(); ++i) {
    const double g = gradients[i];
    float &mean = moments.mean.values[i], &square = moments.square.values[i];
    mean = static_cast<float>(beta1 * mean + (1 - beta1) * g);
    square = static_cast<float>(beta2 * square + (1 - beta2) * g * g);
    const double update = mean / correction1 / (std::sqrt(square / correction2) + epsilon);
    parameters[i] = static_cast<float>(parameters[i] - learning_rate * update);
  }
}

// ---------------------------------------------------------------------------------------------------------------------
// 6. Leaves and the tree
//
// (a + b) + c and a + (b + c) differ in the last bit. If each device added up the gradients of its samples, and then
// the devices' sums were added, every number of devices would round differently, and training would amplify the
// difference.
//
// So the batch is cut into leaves, always the same ones, and the gradients of the leaves are added along one tree,
// which is always the same one:
//
//     0   1   2   3   4   5   6   7      leaf i of 8 has samples [i * batch / 8, (i + 1) * batch / 8)
//      \ /     \ /     \ /     \ /
//      0-1     2-3     4-5     6-7
//         \   /           \   /
//          0-3             4-7
//             \           /
//                  0-7
//
// A leaf is computed in the same way on any device, and so is a sum of two nodes. Who computes a node has no influence
// on its bits.

struct Leaves {
  int count = 0, batch = 0;

  /// By integer division, which cuts any batch: leaves may differ by one sample, and be empty in a small batch.
  int first_sample(int leaf) const { return static_cast<int>(int64_t{leaf} * batch / count); }
  int samples(int a, int b) const { return first_sample(b) - first_sample(a); }  // of leaves [a, b)
};

/// A node of the tree: leaves [a, b).
struct Node {
  int a = 0, b = 0;
  bool operator<(const Node& other) const { return a != other.a ? a < other.a : b < other.b; }

  bool is_leaf() const { return b - a == 1; }
  /// The left child gets the largest power of two of the leaves that leaves something to the right one.
  int middle() const {
    int left = 1;
    while (2 * left < b - a) left *= 2;
    return a + left;
  }
};

/// The sum of a node. `known` returns the node's value where it need not be added up from its children, else an empty
/// Tensor. At most one unfinished left sum is held for each level of the tree.
Tensor tree_sum(const Leaves& leaves, Node node, const std::function<Tensor(Node)>& known) {
  if (leaves.samples(node.a, node.b) == 0) return {};
  if (Tensor value = known(node); !value.empty()) return value;
  Tensor left = tree_sum(leaves, {node.a, node.middle()}, known);
  Tensor right = tree_sum(leaves, {node.middle(), node.b}, known);
  // An empty leaf is left out. Added as zeros, it would turn -0.0 into 0.0, which is another bit.
  if (left.empty()) return right;
  if (right.empty()) return left;
  for (size_t i = 0; i < left.values.size(); ++i) left.values[i] += right.values[i];
  return left;
}

/// The largest nodes that lie within leaves [first, last): what a device that has these leaves can add up alone,
/// without leaving the tree. Leaves 0 to 2 give nodes 0-1 and 2; 2 cannot be added to 0-1, because the tree adds it to
/// 3 first.
std::vector<Node> nodes_within(const Leaves& leaves, int first, int last) {
  std::vector<Node> nodes;
  const std::function<void(Node)> visit = [&](Node node) {
    if (node.b <= first || last <= node.a || leaves.samples(node.a, node.b) == 0) return;
    if (first <= node.a && node.b <= last) return nodes.push_back(node);
    visit({node.a, node.middle()});
    visit({node.middle(), node.b});
  };
  visit({0, leaves.count});
  return nodes;
}

// ---------------------------------------------------------------------------------------------------------------------
// 7. Schemes
//
// Three schemes, two differences:
//
//              whole batch    loss of a leaf          an element of the gradient is        then travels
//     dp       on device 0    on device 0             summed and updated by device 0       the new parameters
//     ddp      nowhere        on the leaf's device    summed by one of the devices         the sum; all update all
//     zero1    nowhere        on the leaf's device    summed and updated by one of them    the new parameters
//
// The device that sums an element owns it. Where owners update, only they hold Adam's moments for it.
// dp is zero1 in which device 0 owns everything, and device 0 also hands out the batch and computes the loss.

struct Scheme {
  /// Device 0 has the whole batch, computes the loss of all samples, and owns all elements.
  bool through_device0 = false;
  /// Only the owner of an element updates it; else every device updates all.
  bool owner_updates = false;
};

Scheme make_scheme(const std::string& name) {
  if (name == "dp") return {.through_device0 = true, .owner_updates = true};
  if (name == "ddp") return {.through_device0 = false, .owner_updates = false};
  if (name == "zero1") return {.through_device0 = false, .owner_updates = true};
  throw std::runtime_error("--scheme " + name + ": expected dp, ddp or zero1");
}

/// Cuts [0, count) into `parts` ranges of nearly equal size. Part i is [cut[i], cut[i + 1]).
std::vector<int> cut_equally(int count, int parts) {
  std::vector<int> cut;
  for (int i = 0; i <= parts; ++i) cut.push_back(static_cast<int>(int64_t{count} * i / parts));
  return cut;
}

struct Plan {
  Scheme scheme;
  int devices = 1;
  std::vector<int> leaf_cut;   // device d computes leaves [leaf_cut[d], leaf_cut[d + 1])
  std::vector<int> owner_cut;  // device d owns elements [owner_cut[d], owner_cut[d + 1])

  bool hands_out_batch(int rank) const { return scheme.through_device0 && rank == 0; }
};

/// The split: which device computes which leaves, and owns which elements. To give device 0 fewer samples, change
/// `leaves_of_device` (--split): one build computes the same bits as long as --leaves and --batch stay. On 3 devices,
/// --leaves 10 --batch 40 --split 2,4,4 gives it half of the others' samples. Where the cuts fall counts, too: a device
/// sends a gradient for each of its nodes (nodes_within), and under dp device 0 holds them all, so that 2,2,4 of
/// 8 leaves, 3 nodes, takes less of its memory than 2,3,3, which are 5.
///   elements  of a gradient: one for each parameter, and one for the loss
Plan make_plan(const Scheme& scheme, int devices, int leaves, const std::vector<int>& leaves_of_device, int elements) {
  Plan plan{.scheme = scheme, .devices = devices, .leaf_cut = {0}, .owner_cut = {}};
  for (const int count : leaves_of_device) plan.leaf_cut.push_back(plan.leaf_cut.back() + count);
  if (leaves_of_device.empty()) plan.leaf_cut = cut_equally(leaves, devices);
  if (static_cast<int>(plan.leaf_cut.size()) != devices + 1 || plan.leaf_cut.back() != leaves)
    throw std::runtime_error("--split: expected " + std::to_string(devices) + " numbers that add up to " +
                             std::to_string(leaves) + " leaves");
  plan.owner_cut = cut_equally(elements, devices);
  if (scheme.through_device0) std::fill(plan.owner_cut.begin() + 1, plan.owner_cut.end(), elements);
  return plan;
}

// ---------------------------------------------------------------------------------------------------------------------
// 8. Wires
//
// Devices share nothing but wires: a queue from each device to each other one. Only bytes travel; nobody adds on the
// way. (A library's all-reduce adds on the way, in an order of its own that depends on the number of devices.)

enum Message { kSamples, kOutputs, kOutputGradients, kSubtrees, kSums, kNewParameters, kMessageCount };
constexpr std::array<const char*, kMessageCount> kMessageNames = {
    "samples", "outputs", "gradients of outputs", "sums of subtrees", "sums of all leaves", "new parameters",
};

class Wires {
 public:
  explicit Wires(int devices) : devices_(devices), queues_(static_cast<size_t>(devices * devices)), sent_(devices) {}

  /// Never waits. What waits in a queue is on its way, so it is in no device's memory.
  void send(int from, int to, Message message, const float* first, int count) {
    const std::lock_guard lock(mutex_);
    queues_[from * devices_ + to].emplace_back(first, first + count);
    sent_[from][message] += int64_t{count} * static_cast<int64_t>(sizeof(float));
    arrived_.notify_all();
  }

  /// Waits for the next message from `from`. Messages on one wire keep their order, and both sides know the plan, so a
  /// message needs no header.
  void receive(int from, int to, float* first, int count) {
    std::unique_lock lock(mutex_);
    std::deque<std::vector<float>>& queue = queues_[from * devices_ + to];
    arrived_.wait(lock, [&] { return !queue.empty(); });
    if (static_cast<int>(queue.front().size()) != count) throw std::logic_error("sender and receiver disagree");
    std::copy(queue.front().begin(), queue.front().end(), first);
    queue.pop_front();
  }

  int64_t sent(int from, Message message) const { return sent_[from][message]; }

 private:
  int devices_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::vector<std::deque<std::vector<float>>> queues_;
  std::vector<std::array<int64_t, kMessageCount>> sent_;  // bytes, by sender
};

// ---------------------------------------------------------------------------------------------------------------------
// 9. A training step
//
// Every device runs Device::train_step() at the same time as the others. It meets them only at the wires.

/// What all devices read: samples and labels in the host's memory, in the order in which they are trained on.
struct Data {
  Shape image;
  std::vector<float> images, labels;  // labels: the numbers of the classes

  int samples() const { return static_cast<int>(labels.size()); }
};

class Device {
 public:
  Device(int rank, const Model& model, const Plan& plan, const std::vector<float>& initial, Wires& wires)
      : rank_(rank), model_(model), plan_(plan), wires_(wires) {
    parameters_ = Tensor(memory, kParameters, {1, model.parameters});
    parameters_.values = initial;
    const int updated = last_updated() - first_updated();
    moments_ = {Tensor(memory, kMoments, {1, updated}), Tensor(memory, kMoments, {1, updated})};
  }

  /// Trains on samples [first_sample, first_sample + leaves.batch) of the data. Returns the loss on the device that
  /// owns the last element of the gradient, which is the loss, else 0.
  ///   leaves  of this batch: the last one may be smaller
  float train_step(const Data& data, int first_sample, const Leaves& leaves) {
    leaves_ = leaves;
    ++step_;
    stage(data, first_sample);
    for (const int leaf : own_leaves()) forward_leaf(leaf);
    compute_losses();
    std::map<Node, Tensor> subtrees = backward_own_leaves();
    for (std::map<int, Tensor>* of_leaves : {&images_, &labels_, &logits_, &losses_})
      of_leaves->clear();  // outputs_ are given back
    Tensor sum = reduce(std::move(subtrees));
    const float loss = owns(model_.parameters) ? sum.values.back() : 0.0F;
    update_parameters(std::move(sum));
    return loss;
  }

  const std::vector<float>& parameters() const { return parameters_.values; }

  Memory memory;

 private:
  // Which leaves and elements are whose: everything the scheme decides.

  std::vector<int> leaves_of(int device) const {
    std::vector<int> result;
    for (int leaf = plan_.leaf_cut[device]; leaf < plan_.leaf_cut[device + 1]; ++leaf)
      if (leaves_.samples(leaf, leaf + 1) > 0) result.push_back(leaf);
    return result;
  }
  std::vector<int> own_leaves() const { return leaves_of(rank_); }
  int samples_of(int leaf) const { return leaves_.samples(leaf, leaf + 1); }
  std::vector<Node> nodes_of(int device) const {
    return nodes_within(leaves_, plan_.leaf_cut[device], plan_.leaf_cut[device + 1]);
  }
  int first_owned(int device) const { return plan_.owner_cut[device]; }
  int owned(int device) const { return plan_.owner_cut[device + 1] - plan_.owner_cut[device]; }
  bool owns(int element) const { return first_owned(rank_) <= element && element < first_owned(rank_ + 1); }
  // The parameters that this device updates. The element after the last parameter is the loss.
  int first_updated() const { return plan_.scheme.owner_updates ? std::min(first_owned(rank_), model_.parameters) : 0; }
  int last_updated() const {
    return plan_.scheme.owner_updates ? std::min(first_owned(rank_ + 1), model_.parameters) : model_.parameters;
  }

  void send(int to, Message message, const Tensor& tensor) {
    wires_.send(rank_, to, message, tensor.values.data(), tensor.shape.count());
  }
  Tensor receive(int from, What what, Shape shape) {
    Tensor tensor(memory, what, shape);
    wires_.receive(from, rank_, tensor.values.data(), shape.count());
    return tensor;
  }

  // The parts of a step, in their order.

  /// Brings samples to the devices that compute with them. Under dp all of them come to device 0, which keeps the whole
  /// batch until the end of backward and alone has the labels, because it computes the loss.
  void stage(const Data& data, int first_sample) {
    for (int device = 0; device < plan_.devices; ++device) {
      for (const int leaf : leaves_of(device)) {
        const Shape shape{samples_of(leaf), model_.image.c, model_.image.h, model_.image.w};
        if (plan_.hands_out_batch(rank_) || (!plan_.scheme.through_device0 && device == rank_)) {
          const int first = first_sample + leaves_.first_sample(leaf);
          const auto pixels = data.images.begin() + int64_t{first} * shape.sample();
          Tensor& images = images_[leaf] = Tensor(memory, kBatch, shape);
          std::copy(pixels, pixels + shape.count(), images.values.begin());
          Tensor& labels = labels_[leaf] = Tensor(memory, kBatch, {shape.n});
          std::copy_n(data.labels.begin() + first, shape.n, labels.values.begin());
          if (device != rank_) send(device, kSamples, images);
        } else if (device == rank_) {
          images_[leaf] = receive(0, kBatch, shape);
        }
      }
    }
  }

  /// Keeps every layer's output for backward. The last one, the logits, is kept apart, because under dp it travels.
  void forward_leaf(int leaf) {
    std::vector<Tensor>& outputs = outputs_[leaf];
    outputs.reserve(model_.layers.size());  // or x would move while the next layer reads it
    const Tensor* x = &images_.at(leaf);
    for (const Layer& layer : model_.layers) {
      const bool is_last = &layer == &model_.layers.back();
      Tensor y(memory, is_last ? kLogits : kActivations, {samples_of(leaf), layer.out.c, layer.out.h, layer.out.w});
      forward(layer, parameters_.values.data(), *x, y);
      if (is_last) {
        logits_[leaf] = std::move(y);
      } else {
        x = &outputs.emplace_back(std::move(y));
      }
    }
  }

  /// Turns the logits of own leaves into their gradients, and computes the leaves' losses. Under dp the logits make a
  /// journey for that, to device 0 and back. It is short, because logits are small in these models; in a language model
  /// they are the largest tensor. A loss comes back with the gradients, because it goes through the tree with those of
  /// its leaf.
  void compute_losses() {
    const bool travel = plan_.scheme.through_device0;
    if (travel && rank_ > 0) {
      for (const int leaf : own_leaves()) send(0, kOutputs, logits_.at(leaf));
      for (const int leaf : own_leaves()) {
        logits_[leaf] = receive(0, kLogits, logits_.at(leaf).shape);
        losses_[leaf] = receive(0, kLogits, {1});
      }
      return;
    }
    for (int device = 1; travel && device < plan_.devices; ++device)
      for (const int leaf : leaves_of(device))
        logits_[leaf] = receive(device, kLogits, {samples_of(leaf), model_.classes()});
    for (auto& [leaf, logits] : logits_) {
      losses_[leaf] = Tensor(memory, kLogits, {1});
      losses_[leaf].values[0] = softmax_cross_entropy(logits.sample(0), labels_.at(leaf).sample(0), logits.shape.n,
                                                      model_.classes(), leaves_.batch);
    }
    for (int device = 1; travel && device < plan_.devices; ++device) {
      for (const int leaf : leaves_of(device)) {
        send(device, kOutputGradients, logits_.at(leaf));
        send(device, kOutputGradients, losses_.at(leaf));
        logits_.erase(leaf);
      }
    }
  }

  /// The gradients of a leaf, in an array like the parameters', and behind them its loss, which is added along the same
  /// tree. Activations are given back on the way.
  Tensor backward_leaf(int leaf) {
    Tensor gradients(memory, kGradients, {1, model_.parameters + 1});
    std::vector<Tensor>& outputs = outputs_.at(leaf);
    Tensor dy = std::move(logits_.at(leaf));  // the gradients of the logits
    Tensor y;                                 // of layer i; empty for the last one, which is linear: it needs none
    gradients.values.back() = losses_.at(leaf).values[0];
    for (int i = static_cast<int>(model_.layers.size()) - 1; i >= 0; --i) {
      const Tensor& x = i > 0 ? outputs[i - 1] : images_.at(leaf);
      Tensor dx;
      if (i > 0) dx = Tensor(memory, kActivations, x.shape);
      backward(model_.layers[i], parameters_.values.data(), x, y, dy, gradients.values.data(), i > 0 ? &dx : nullptr);
      if (i == 0) break;
      dy = std::move(dx);
      y = std::move(outputs.back());
      outputs.pop_back();
    }
    return gradients;
  }

  /// The gradients of this device's nodes of the tree. Computing a leaf just before it is added keeps few of them.
  std::map<Node, Tensor> backward_own_leaves() {
    std::map<Node, Tensor> subtrees;
    for (const Node node : nodes_of(rank_)) {
      subtrees[node] =
          tree_sum(leaves_, node, [&](Node child) { return child.is_leaf() ? backward_leaf(child.a) : Tensor(); });
    }
    return subtrees;
  }

  /// Sends each owner its elements of this device's subtrees, and adds those of all devices for the elements that this
  /// device owns. Returns the sum over all leaves, of the elements owned.
  Tensor reduce(std::map<Node, Tensor> subtrees) {
    std::map<Node, Tensor> parts;
    for (const auto& [node, gradients] : subtrees) {
      for (int owner = 0; owner < plan_.devices; ++owner) {
        const float* const first = gradients.values.data() + first_owned(owner);
        if (owner != rank_) {
          if (owned(owner) > 0) wires_.send(rank_, owner, kSubtrees, first, owned(owner));
        } else {
          Tensor& part = parts[node] = Tensor(memory, kReduction, {1, owned(owner)});
          std::copy_n(first, owned(owner), part.values.begin());
        }
      }
    }
    subtrees.clear();
    if (owned(rank_) == 0) return {};
    for (int device = 0; device < plan_.devices; ++device) {
      if (device == rank_) continue;
      for (const Node node : nodes_of(device)) parts[node] = receive(device, kReduction, {1, owned(rank_)});
    }
    return tree_sum(leaves_, {0, leaves_.count}, [&](Node node) {
      const auto found = parts.find(node);
      return found != parts.end() ? std::move(found->second) : Tensor();
    });
  }

  /// Brings every device to the same new parameters: either the sums travel and every device updates everything (ddp),
  /// or owners update and the new parameters travel (dp, zero1). Both send as much, but for the loss, which
  /// is part of ddp's sums; owners hold fewer moments.
  void update_parameters(Tensor sum) {
    float* const parameters = parameters_.values.data();
    if (plan_.scheme.owner_updates) {
      adam(parameters + first_updated(), sum.values.data(), moments_, step_);
      all_gather(kNewParameters, parameters, model_.parameters);
    } else {
      Tensor gradients(memory, kReduction, {1, model_.parameters + 1});
      std::copy(sum.values.begin(), sum.values.end(), gradients.values.begin() + first_owned(rank_));
      sum = Tensor();
      all_gather(kSums, gradients.values.data(), model_.parameters + 1);
      adam(parameters, gradients.values.data(), moments_, step_);
    }
  }

  /// Each owner sends its elements of `values` to all others. Only elements below `end` are sent.
  void all_gather(Message message, float* values, int end) {
    const auto count = [&](int owner) {
      return std::max(0, std::min(first_owned(owner + 1), end) - first_owned(owner));
    };
    for (int device = 0; device < plan_.devices; ++device)
      if (device != rank_ && count(rank_) > 0)
        wires_.send(rank_, device, message, values + first_owned(rank_), count(rank_));
    for (int owner = 0; owner < plan_.devices; ++owner)
      if (owner != rank_ && count(owner) > 0) wires_.receive(owner, rank_, values + first_owned(owner), count(owner));
  }

  int rank_;
  const Model& model_;
  const Plan& plan_;
  Wires& wires_;
  Leaves leaves_;
  int step_ = 0;
  Tensor parameters_;
  Moments moments_;
  std::map<int, Tensor> images_, labels_, logits_, losses_;  // by leaf; under dp those of all leaves on device 0
  std::map<int, std::vector<Tensor>> outputs_;               // of the layers but the last, by leaf
};

// ---------------------------------------------------------------------------------------------------------------------
// 10. A run: threads, hash, tables, files

struct Options {
  std::string model, scheme, weights, data, save;
  int devices = 0, leaves = 0, batch = 0, steps = 0;
  std::vector<int> split;  // leaves of each device; empty: equal
};

struct Result {
  std::vector<float> losses;                             // of each step
  std::vector<std::vector<float>> parameters;            // of each device, at the end
  std::vector<Memory> held;                              // by each device
  std::vector<std::array<int64_t, kMessageCount>> sent;  // by each device, in all steps
};

/// A thread for each device. Whatever could be wrong with the input was checked before, so that no device fails while
/// others wait for it.
Result train(const Options& options, const Model& model, const Plan& plan, const Data& data,
             const std::vector<float>& initial) {
  const int steps = (data.samples() + options.batch - 1) / options.batch;
  Result result{.losses = std::vector<float>(steps), .parameters = {}, .held = {}, .sent = {}};
  result.parameters.resize(plan.devices);
  result.held.resize(plan.devices);
  result.sent.resize(plan.devices);
  Wires wires(plan.devices);
  const auto run_device = [&](int rank) {
    Device device(rank, model, plan, initial, wires);
    for (int step = 0; step < steps; ++step) {
      const int first = step * options.batch;
      const Leaves leaves{options.leaves, std::min(options.batch, data.samples() - first)};
      const float loss = device.train_step(data, first, leaves);
      if (plan.owner_cut[rank] <= model.parameters && model.parameters < plan.owner_cut[rank + 1])
        result.losses[step] = loss;
    }
    result.parameters[rank] = device.parameters();
    result.held[rank] = device.memory;
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < plan.devices; ++rank) threads.emplace_back(run_device, rank);
  for (std::thread& thread : threads) thread.join();
  for (int rank = 0; rank < plan.devices; ++rank)
    for (int message = 0; message < kMessageCount; ++message)
      result.sent[rank][message] = wires.sent(rank, static_cast<Message>(message));
  return result;
}

/// FNV-1a over the bits of the weights: equal hashes, equal weights.
uint64_t hash_of(const std::vector<float>& values) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const float value : values) {
    uint32_t bits = 0;
    std::memcpy(&bits, &value, sizeof bits);
    for (int shift = 0; shift < 32; shift += 8) hash = (hash ^ (bits >> shift & 0xff)) * 0x100000001b3;
  }
  return hash;
}

/// A row for each name and a column for each device. Rows in which no device has anything are left out.
void print_table(const char* title, int devices, int rows, const std::function<const char*(int row)>& name,
                 const std::function<int64_t(int device, int row)>& bytes) {
  std::printf("\n%-26s", title);
  for (int device = 0; device < devices; ++device) std::printf("%12s", ("device " + std::to_string(device)).c_str());
  for (int row = 0; row < rows; ++row) {
    bool any = false;
    for (int device = 0; device < devices; ++device) any = any || bytes(device, row) > 0;
    if (!any) continue;
    std::printf("\n  %-24s", name(row));
    for (int device = 0; device < devices; ++device) std::printf("%12lld", static_cast<long long>(bytes(device, row)));
  }
  std::printf("\n");
}

/// The most at the same time is less than the sum of the rows, which are highest at different times: reduce() begins
/// when batch and activations have been given back.
void print_tables(const Result& result) {
  const int devices = static_cast<int>(result.held.size());
  print_table(
      "Bytes held, at most", devices, kWhatCount + 1,
      [](int row) { return row < kWhatCount ? kWhatNames[row] : "at the same time"; },
      [&](int device, int row) {
        return row < kWhatCount ? result.held[device].most[row] : result.held[device].most_at_once;
      });
  if (devices == 1) return;  // nothing is sent
  print_table(
      "Bytes sent in all steps", devices, kMessageCount + 1,
      [](int row) { return row < kMessageCount ? kMessageNames[row] : "together"; },
      [&](int device, int row) {
        const std::array<int64_t, kMessageCount>& sent = result.sent[device];
        return row < kMessageCount ? sent[row] : std::accumulate(sent.begin(), sent.end(), int64_t{0});
      });
}

// Without files, images and weights are drawn at random: the same ones in every run, because mt19937 is specified to
// the bit. (The distributions of the standard library are not.)

float uniform(std::mt19937& random, float bound) {
  return bound * (static_cast<float>(random() >> 8) / static_cast<float>(1 << 23) - 1.0F);
}

/// Noise, and in each class's images a brighter row of its own.
Data synthetic(int samples) {
  std::mt19937 random(1);
  Data data{.image = {1, 3, 16, 16}, .images = {}, .labels = {}};
  for (int n = 0; n < samples; ++n) {
    const int label = static_cast<int>(random() % kClasses);
    data.labels.push_back(static_cast<float>(label));
    for (int i = 0; i < data.image.count(); ++i) {
      const int row = i / data.image.w % data.image.h;
      data.images.push_back(uniform(random, 1.0F) + (row == label ? 1.0F : 0.0F));
    }
  }
  return data;
}

/// Weights and biases between -1 and 1, divided by the square root of the inputs of each output.
std::vector<float> draw_weights(const Model& model) {
  std::mt19937 random(2);
  std::vector<float> values(model.parameters);
  for (const Layer& layer : model.layers) {
    if (!layer.has_parameters()) continue;
    const float bound = 1.0F / std::sqrt(static_cast<float>(layer.fan_in()));
    for (int i = layer.weight_at; i < layer.bias_at + layer.out.c; ++i) values[i] = uniform(random, bound);
  }
  return values;
}

// Files are numbers of 4 bytes, floats in the machine's order, and nothing else: of weights, the model's parameters in
// their order; of data, channels, height and width of an image, then for each sample its image and its label.

std::vector<float> read_numbers(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (!file || bytes.empty() || bytes.size() % sizeof(float) != 0)
    throw std::runtime_error(path + ": cannot be read, or is no file of floats");
  std::vector<float> numbers(bytes.size() / sizeof(float));
  std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

std::vector<float> read_weights(const std::string& path, const Model& model) {
  std::vector<float> values = read_numbers(path);
  if (static_cast<int>(values.size()) != model.parameters)
    throw std::runtime_error(path + ": has other parameters than the model, " + std::to_string(model.parameters));
  return values;
}

void write_weights(const std::string& path, const std::vector<float>& values) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(4 * values.size()));
  if (!file.flush()) throw std::runtime_error(path + ": cannot be written");
}

/// Samples in the order in which they are trained on.
Data read_data(const std::string& path) {
  std::vector<float> numbers = read_numbers(path);
  numbers.resize(std::max<size_t>(3, numbers.size()));
  Data data{.image = {1, static_cast<int>(numbers[0]), static_cast<int>(numbers[1]), static_cast<int>(numbers[2])},
            .images = {},
            .labels = {}};
  const int pixels = data.image.count();
  if (pixels < 1 || (numbers.size() - 3) % (pixels + 1) != 0)
    throw std::runtime_error(path + ": expected channels, height, width, then an image and a label for each sample");
  for (auto sample = numbers.begin() + 3; sample != numbers.end(); sample += pixels + 1) {
    data.images.insert(data.images.end(), sample, sample + pixels);
    data.labels.push_back(sample[pixels]);
    if (!(data.labels.back() >= 0 && data.labels.back() < kClasses))
      throw std::runtime_error(path + ": a label is not the number of one of " + std::to_string(kClasses) + " classes");
  }
  return data;
}

/// The flags and their values.
using Flags = std::map<std::string, std::string>;

int integer(const Flags& flags, const std::string& flag, int lowest, int highest) {
  std::istringstream text(flags.at(flag));
  int value = lowest - 1;
  if (!(text >> value) || !text.eof() || value < lowest || value > highest)
    throw std::runtime_error(flag + " " + text.str() + ": expected an integer from " + std::to_string(lowest) + " to " +
                             std::to_string(highest));
  return value;
}

Options parse(int argc, char** argv) {
  Flags flags = {{"--model", "small-cnn"}, {"--scheme", "ddp"}, {"--devices", "3"}, {"--leaves", "8"},
                 {"--batch", "32"},        {"--steps", "10"},   {"--split", ""},    {"--data", ""},
                 {"--weights", ""},        {"--save", ""}};
  for (int i = 1; i < argc; i += 2) {
    if (flags.count(argv[i]) == 0 || i + 1 == argc) {
      std::string known;
      for (const auto& [name, value] : flags) known += " " + name;
      throw std::runtime_error(std::string(argv[i]) + ": expected a value after one of" + known);
    }
    flags[argv[i]] = argv[i + 1];
  }
  Options options{.model = flags["--model"],
                  .scheme = flags["--scheme"],
                  .weights = flags["--weights"],
                  .data = flags["--data"],
                  .save = flags["--save"],
                  .split = {}};
  options.devices = integer(flags, "--devices", 1, 64);
  options.leaves = integer(flags, "--leaves", 1, 1024);
  options.batch = integer(flags, "--batch", 1, 65536);
  options.steps = integer(flags, "--steps", 1, 1000);
  std::istringstream parts(flags["--split"]);  // "1,3,4"
  for (std::string part; std::getline(parts, part, ',');)
    options.split.push_back(integer({{"--split", part}}, "--split", 0, 1024));
  return options;
}

void run(const Options& options) {
  const Data data = options.data.empty() ? synthetic(options.steps * options.batch) : read_data(options.data);
  const Model model = make_model(options.model, data.image);
  const Plan plan =
      make_plan(make_scheme(options.scheme), options.devices, options.leaves, options.split, model.parameters + 1);
  const std::vector<float> initial =
      options.weights.empty() ? draw_weights(model) : read_weights(options.weights, model);

  std::printf("%s with %d parameters, %s on %d devices, batches of %d in %d leaves\n", options.model.c_str(),
              model.parameters, options.scheme.c_str(), options.devices, options.batch, options.leaves);
  const Result result = train(options, model, plan, data, initial);
  for (size_t step = 0; step < result.losses.size(); ++step)
    std::printf("step %2zu  loss %.9g\n", step + 1, static_cast<double>(result.losses[step]));
  const uint64_t hash = hash_of(result.parameters[0]);
  for (const std::vector<float>& parameters : result.parameters)
    if (hash_of(parameters) != hash) throw std::logic_error("the devices have different weights");
  std::printf("hash of the weights: %016llx\n", static_cast<unsigned long long>(hash));
  print_tables(result);
  if (!options.save.empty()) write_weights(options.save, result.parameters[0]);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "one_file: %s\n", error.what());
    return 1;
  }
}
