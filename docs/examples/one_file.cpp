// SPDX-License-Identifier: Apache-2.0
// Data-parallel training in one file: the specification of what Vitrine's engine computes, and of who holds and who
// sends what, without streams, pools, GPUs or libraries. Read it from top to bottom.
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
#include <bit>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <deque>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
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

enum What { kParameters, kMoments, kBatch, kActivations, kLogits, kGradients, kReduction, kAtTheSameTime, kWhatCount };
constexpr std::array<const char*, kWhatCount> kWhatNames = {
    "parameters",
    "Adam's moments",
    "batch",        // images and labels
    "activations",  // and their gradients
    "logits",       // their gradients, and the losses of leaves
    "gradients",    // of the parameters: an array for each node of the tree that is being added
    "reduction",    // such arrays at their owner, its own included, and under ddp the gathered sum
    "at the same time",
};

/// The bytes that a device holds now, and the most that it has held. The most at the same time is less than the sum of
/// the rows, which are highest at different times.
struct Memory {
  std::array<int64_t, kWhatCount> now = {}, most = {};

  void change(What what, int64_t bytes) {
    for (const What row : {what, kAtTheSameTime}) {
      now[row] += bytes;
      most[row] = std::max(most[row], now[row]);
    }
  }
};

/// Sizes of a tensor: samples, channels, height, width. Labels are {samples}, parameters and gradients {1, elements}.
struct Shape {
  int n = 1, c = 1, h = 1, w = 1;
  int sample() const { return c * h * w; }  // elements of one sample
  int count() const { return n * sample(); }
};

/// Numbers in one device's memory, zero at first. They leave the Memory when the Tensor goes out of scope.
struct Tensor {
  Tensor() = default;
  Tensor(Memory& memory, What what, Shape sizes) : shape(sizes), values(static_cast<size_t>(sizes.count())) {
    const int64_t bytes = int64_t{sizes.count()} * static_cast<int64_t>(sizeof(float));
    memory.change(what, bytes);
    entry = {&memory, [what, bytes](Memory* entered) { entered->change(what, -bytes); }};
  }

  float* sample(int n) { return values.data() + n * shape.sample(); }
  const float* sample(int n) const { return values.data() + n * shape.sample(); }
  bool empty() const { return values.empty(); }

  Shape shape;
  std::vector<float> values;
  std::unique_ptr<Memory, std::function<void(Memory*)>> entry;  // the deleter takes the bytes out of it
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
  Shape in, out;      // of one sample
  int window = 0;     // conv: height and width of the filters
  int pad = 0;        // conv: rows and columns of zeros around the image
  int weight_at = 0;  // where its weight begins among the model's parameters; its bias follows

  int in_plane() const { return in.h * in.w; }
  int out_plane() const { return out.h * out.w; }
  int fan_in() const { return kind == Kind::conv ? in.c * window * window : in.count(); }  // inputs of each output
  int weight_count() const { return out.c * fan_in(); }
  int parameter_count() const { return kind == Kind::conv || kind == Kind::linear ? weight_count() + out.c : 0; }
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

/// Calls element(at, k, c, r, s) for each element of a convolution's weight: `at` is its position, and filter k applies
/// element (r, s) to channel c.
template <class Element>
void for_each_weight(const Layer& layer, const Element& element) {
  int at = 0;
  for (int k = 0; k < layer.out.c; ++k)
    for (int c = 0; c < layer.in.c; ++c)
      for (int r = 0; r < layer.window; ++r)
        for (int s = 0; s < layer.window; ++s) element(at++, k, c, r, s);
}

/// y[k] = bias[k] + sum over c, r, s of weight[k][c][r][s] * x[c] moved by (r, s)
void conv_forward(const Layer& layer, const float* weight, const float* bias, const Tensor& x, Tensor& y) {
  for (int n = 0; n < x.shape.n; ++n) {
    for (int k = 0; k < layer.out.c; ++k) std::fill_n(y.sample(n) + k * layer.out_plane(), layer.out_plane(), bias[k]);
    for_each_weight(layer, [&](int at, int k, int c, int r, int s) {
      const float* const image = x.sample(n) + c * layer.in_plane();
      float* const plane = y.sample(n) + k * layer.out_plane();
      for_rows_under(layer, r, s, [&](int y_at, int x_at, int count) {
        for (int i = 0; i < count; ++i) plane[y_at + i] += weight[at] * image[x_at + i];
      });
    });
  }
}

/// Each product weight * x of forward gives dy * x to the weight's gradient, and dy * weight to that of x. Without dx
/// (the images need no gradient) the latter is left out.
void conv_backward(const Layer& layer, const float* weight, const Tensor& x, const Tensor& dy, float* d_weight,
                   float* d_bias, Tensor& dx) {
  for (int n = 0; n < x.shape.n; ++n) {
    for (int k = 0; k < layer.out.c; ++k) {
      const float* const plane = dy.sample(n) + k * layer.out_plane();
      d_bias[k] += std::accumulate(plane, plane + layer.out_plane(), 0.0F);
    }
    for_each_weight(layer, [&](int at, int k, int c, int r, int s) {
      const float* const image = x.sample(n) + c * layer.in_plane();
      const float* const plane = dy.sample(n) + k * layer.out_plane();
      float sum = 0;
      for_rows_under(layer, r, s, [&](int y_at, int x_at, int count) {
        for (int i = 0; i < count; ++i) sum += plane[y_at + i] * image[x_at + i];
        if (dx.empty()) return;
        float* const d_image = dx.sample(n) + c * layer.in_plane();
        for (int i = 0; i < count; ++i) d_image[x_at + i] += weight[at] * plane[y_at + i];
      });
      d_weight[at] += sum;
    });
  }
}

/// y[o] = bias[o] + sum over i of weight[o][i] * x[i]
void linear_forward(const Layer& layer, const float* weight, const float* bias, const Tensor& x, Tensor& y) {
  const int inputs = layer.in.count(), outputs = layer.out.c;
  for (int n = 0; n < x.shape.n; ++n)
    for (int o = 0; o < outputs; ++o)
      y.sample(n)[o] = std::inner_product(x.sample(n), x.sample(n) + inputs, weight + o * inputs, bias[o]);
}

void linear_backward(const Layer& layer, const float* weight, const Tensor& x, const Tensor& dy, float* d_weight,
                     float* d_bias, Tensor& dx) {
  const int inputs = layer.in.count(), outputs = layer.out.c;
  for (int n = 0; n < x.shape.n; ++n) {
    for (int o = 0; o < outputs; ++o) {
      const float gradient = dy.sample(n)[o];
      d_bias[o] += gradient;
      for (int i = 0; i < inputs; ++i) d_weight[o * inputs + i] += gradient * x.sample(n)[i];
      if (dx.empty()) continue;
      for (int i = 0; i < inputs; ++i) dx.sample(n)[i] += gradient * weight[o * inputs + i];
    }
  }
}

void relu_forward(const Tensor& x, Tensor& y) {
  for (size_t i = 0; i < x.values.size(); ++i) y.values[i] = std::max(x.values[i], 0.0F);
}

void relu_backward(const Tensor& y, const Tensor& dy, Tensor& dx) {
  for (size_t i = 0; i < y.values.size(); ++i) dx.values[i] = y.values[i] > 0 ? dy.values[i] : 0.0F;
}

/// Calls element(y_offset, x_offset) for each output and the input that it is taken from, the largest of 2x2: the first
/// one of equal ones.
template <class Element>
void for_largest(const Layer& layer, const Tensor& x, const Element& element) {
  int y_at = 0;
  for (int image = 0; image < x.shape.count(); image += layer.in_plane()) {
    for (int p = 0; p < layer.out.h; ++p) {
      for (int q = 0; q < layer.out.w; ++q) {
        int best = image + 2 * p * layer.in.w + 2 * q;
        for (const int at : {best + 1, best + layer.in.w, best + layer.in.w + 1})
          if (x.values[at] > x.values[best]) best = at;
        element(y_at++, best);
      }
    }
  }
}

void max_pool_forward(const Layer& layer, const Tensor& x, Tensor& y) {
  for_largest(layer, x, [&](int y_at, int x_at) { y.values[y_at] = x.values[x_at]; });
}

void max_pool_backward(const Layer& layer, const Tensor& x, const Tensor& dy, Tensor& dx) {
  for_largest(layer, x, [&](int y_at, int x_at) { dx.values[x_at] += dy.values[y_at]; });
}

// ---------------------------------------------------------------------------------------------------------------------
// 3. Models
//
// A model is a list of layers. All its parameters lie in one array, layer by layer, weight before bias. One array is
// all that Adam and the exchange between devices need to know about the model: they see elements 0 to parameters - 1.

constexpr Shape kImage{1, 3, 16, 16};  // to train on other images, change only this
constexpr int kClasses = 10;

struct Model {
  std::vector<Layer> layers;
  int parameters = 0;

  /// Appends a layer, which reads what the one before it writes.
  void add(Kind kind, Shape out, int window = 0, int pad = 0) {
    layers.push_back({kind, output(), out, window, pad, parameters});
    parameters += layers.back().parameter_count();
  }
  void linear(int outputs) { add(Kind::linear, {1, outputs}); }
  void linear_relu(int outputs) {
    linear(outputs);
    add(Kind::relu, output());
  }
  void conv_relu_pool(int channels, int window, int pad) {
    const int grown = 2 * pad - window + 1;
    add(Kind::conv, {1, channels, output().h + grown, output().w + grown}, window, pad);
    add(Kind::relu, output());
    add(Kind::max_pool, {1, channels, output().h / 2, output().w / 2});
  }
  Shape output() const { return layers.empty() ? kImage : layers.back().out; }
};

Model make_model(const std::string& name) {
  Model model;
  if (name == "small-cnn") {
    model.conv_relu_pool(32, 3, 1);
    model.conv_relu_pool(64, 3, 1);
    model.linear_relu(128);
  } else if (name == "lenet5") {
    model.conv_relu_pool(6, 5, 2);
    model.conv_relu_pool(16, 5, 0);
    model.linear_relu(120);
    model.linear_relu(84);
  } else if (name == "mlp") {
    model.linear_relu(256);
    model.linear_relu(128);
  } else {
    throw std::runtime_error("--model " + name + ": expected small-cnn, lenet5 or mlp");
  }
  model.linear(kClasses);
  return model;
}

void forward(const Layer& layer, const float* parameters, const Tensor& x, Tensor& y) {
  const float *const weight = parameters + layer.weight_at, *const bias = weight + layer.weight_count();
  if (layer.kind == Kind::conv) conv_forward(layer, weight, bias, x, y);
  if (layer.kind == Kind::linear) linear_forward(layer, weight, bias, x, y);
  if (layer.kind == Kind::relu) relu_forward(x, y);
  if (layer.kind == Kind::max_pool) max_pool_forward(layer, x, y);
}

/// Adds the gradients of the layer's parameters to `gradients`, an array like the parameters', and those of x to dx,
/// which must be zero, or empty if they are not needed.
void backward(const Layer& layer, const float* parameters, const Tensor& x, const Tensor& y, const Tensor& dy,
              float* gradients, Tensor& dx) {
  const float* const weight = parameters + layer.weight_at;
  float *const d_weight = gradients + layer.weight_at, *const d_bias = d_weight + layer.weight_count();
  if (layer.kind == Kind::conv) conv_backward(layer, weight, x, dy, d_weight, d_bias, dx);
  if (layer.kind == Kind::linear) linear_backward(layer, weight, x, dy, d_weight, d_bias, dx);
  if (layer.kind == Kind::relu) relu_backward(y, dy, dx);
  if (layer.kind == Kind::max_pool) max_pool_backward(layer, x, dy, dx);
}

// ---------------------------------------------------------------------------------------------------------------------
// 4. Loss
//
// The loss of a batch is the mean of its samples' losses, so each sample contributes its loss divided by the size of
// the whole batch, wherever that sample is computed. Contributions of different devices then only need to be added.

/// Replaces each sample's logits with the loss's gradient with respect to them, and returns the samples' share of the
/// mean loss. Softmax turns logits z into probabilities exp(z) / sum; the loss is -log(probability of the label), whose
/// gradient is the probability, minus 1 for the label. Subtracting the largest logit first keeps exp() finite.
float softmax_cross_entropy(Tensor& logits, const Tensor& labels, int batch) {
  double loss = 0;
  for (int n = 0; n < logits.shape.n; ++n) {
    float* const z = logits.sample(n);
    const double largest = *std::max_element(z, z + kClasses);
    double sum = 0;
    for (int c = 0; c < kClasses; ++c) sum += std::exp(z[c] - largest);
    const int label = static_cast<int>(labels.values[n]);
    loss += std::log(sum) - (z[label] - largest);
    for (int c = 0; c < kClasses; ++c) {
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
// A leaf has the same bits wherever it is computed, and so has a sum of two nodes.

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
  bool through_device0 = false;  // device 0 has the whole batch, computes the loss of all samples, owns all elements
  bool owner_updates = false;    // only the owner of an element updates it; else every device updates all
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
};

/// The split: which device computes which leaves, and owns which elements. To give device 0 fewer samples, change
/// `leaves_of_device` (--split): one build computes the same bits as long as --leaves and --batch stay. On 3 devices,
/// --leaves 10 --batch 40 --split 2,4,4 gives it half of the others' samples. Where the cuts fall counts, too: a device
/// sends a gradient for each of its nodes (nodes_within), and under dp device 0 holds them all, so that 2,2,4 of
/// 8 leaves, 3 nodes, takes less of its memory than 2,3,3, which are 5.
///   elements  of a gradient: one for each parameter, and one for the loss
Plan make_plan(const Scheme& scheme, int devices, int leaves, const std::vector<int>& leaves_of_device, int elements) {
  Plan plan{.scheme = scheme, .devices = devices, .leaf_cut = {0}, .owner_cut = cut_equally(elements, devices)};
  for (const int count : leaves_of_device) plan.leaf_cut.push_back(plan.leaf_cut.back() + count);
  if (leaves_of_device.empty()) plan.leaf_cut = cut_equally(leaves, devices);
  if (static_cast<int>(plan.leaf_cut.size()) != devices + 1 || plan.leaf_cut.back() != leaves)
    throw std::runtime_error("--split: expected " + std::to_string(devices) + " numbers that add up to " +
                             std::to_string(leaves) + " leaves");
  if (scheme.through_device0) std::fill(plan.owner_cut.begin() + 1, plan.owner_cut.end(), elements);
  return plan;
}

// ---------------------------------------------------------------------------------------------------------------------
// 8. Wires
//
// Devices share nothing but wires: a queue from each device to each other one. Only bytes travel; nobody adds on the
// way. (A library's all-reduce adds on the way, in an order of its own that depends on the number of devices.)

class Wires {
 public:
  /// Never waits. What waits in a queue is on its way, so it is in no device's memory.
  void send(int from, int to, const float* first, int count) {
    const std::lock_guard lock(mutex_);
    queues_[{from, to}].emplace_back(first, first + count);
    arrived_.notify_all();
  }

  /// Waits for the next message from `from`. Messages on one wire keep their order, and both sides know the plan, so a
  /// message needs no header.
  void receive(int from, int to, float* first, int count) {
    std::unique_lock lock(mutex_);
    std::deque<std::vector<float>>& queue = queues_[{from, to}];
    arrived_.wait(lock, [&] { return !queue.empty(); });
    if (static_cast<int>(queue.front().size()) != count) throw std::logic_error("sender and receiver disagree");
    std::copy(queue.front().begin(), queue.front().end(), first);
    queue.pop_front();
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::pair<int, int>, std::deque<std::vector<float>>> queues_;  // by sender and receiver
};

/// What a device sends, for the table at the end.
enum Message { kSamples, kOutputs, kOutputGradients, kSubtrees, kSums, kNewParameters, kTogether, kMessageCount };
constexpr std::array<const char*, kMessageCount> kMessageNames = {
    "samples",        "outputs", "gradients of outputs", "sums of subtrees", "sums of all leaves",
    "new parameters", "together"};

// ---------------------------------------------------------------------------------------------------------------------
// 9. A training step
//
// Every device runs Device::train_step() at the same time as the others. It meets them only at the wires.

/// What all devices read: samples and labels in the host's memory, in the order in which they are trained on.
struct Data {
  std::vector<float> images, labels;  // labels: the numbers of the classes

  int samples() const { return static_cast<int>(labels.size()); }
};

/// What a device holds of a leaf between the parts of a step.
struct LeafTensors {
  Tensor images, labels, logits, loss;
  std::vector<Tensor> outputs;  // of the layers but the last
};

class Device {
 public:
  Device(int rank, const Model& model, const Plan& plan, const std::vector<float>& initial, Wires& wires)
      : rank_(rank), model_(model), plan_(plan), wires_(wires) {
    parameters_ = Tensor(memory, kParameters, {1, model.parameters});
    parameters_.values = initial;
    const int updated = plan.scheme.owner_updates ? owned_below(model.parameters, rank) : model.parameters;
    moments_ = {Tensor(memory, kMoments, {1, updated}), Tensor(memory, kMoments, {1, updated})};
  }

  /// Trains on samples [first_sample, first_sample + leaves.batch) of the data. Returns the loss on the device that
  /// owns the last element of the gradient, which is the loss.
  ///   leaves  of this batch: the last one may be smaller
  std::optional<float> train_step(const Data& data, int first_sample, const Leaves& leaves) {
    leaves_ = leaves;
    ++step_;
    stage(data, first_sample);
    for (const int leaf : leaves_of(rank_)) forward_leaf(tensors_.at(leaf));
    compute_losses();
    std::map<Node, Tensor> subtrees = backward_own_leaves();
    tensors_.clear();
    Tensor sum = reduce(std::move(subtrees));
    std::optional<float> loss;
    if (owned(rank_) > owned_below(model_.parameters, rank_)) loss = sum.values.back();
    update_parameters(std::move(sum));
    return loss;
  }

  const std::vector<float>& parameters() const { return parameters_.values; }

  Memory memory;
  std::array<int64_t, kMessageCount> sent = {};  // bytes in all steps

 private:
  // Which leaves and elements are whose: everything the scheme decides.

  int samples_of(int leaf) const { return leaves_.samples(leaf, leaf + 1); }
  std::vector<int> leaves_of(int device) const {
    std::vector<int> result;
    for (int leaf = plan_.leaf_cut[device]; leaf < plan_.leaf_cut[device + 1]; ++leaf)
      if (samples_of(leaf) > 0) result.push_back(leaf);
    return result;
  }
  std::vector<Node> nodes_of(int device) const {
    return nodes_within(leaves_, plan_.leaf_cut[device], plan_.leaf_cut[device + 1]);
  }
  int first_owned(int device) const { return plan_.owner_cut[device]; }
  /// The elements below `end` that a device owns. The element after the last parameter is the loss.
  int owned_below(int end, int device) const {
    return std::max(0, std::min(first_owned(device + 1), end) - first_owned(device));
  }
  int owned(int device) const { return owned_below(model_.parameters + 1, device); }

  /// Nothing is sent where there is nothing to send.
  void send(int to, Message message, const float* first, int count) {
    if (count == 0) return;
    wires_.send(rank_, to, first, count);
    for (const Message row : {message, kTogether}) sent[row] += int64_t{count} * static_cast<int64_t>(sizeof(float));
  }
  void send(int to, Message message, const Tensor& tensor) {
    send(to, message, tensor.values.data(), tensor.shape.count());
  }
  void receive(int from, float* first, int count) {
    if (count > 0) wires_.receive(from, rank_, first, count);
  }
  Tensor receive(int from, What what, Shape shape) {
    Tensor tensor(memory, what, shape);
    receive(from, tensor.values.data(), shape.count());
    return tensor;
  }

  // The parts of a step, in their order.

  /// Brings samples to the devices that compute with them. Under dp all of them come to device 0, which keeps the whole
  /// batch until the end of backward and alone has the labels, because it computes the loss.
  void stage(const Data& data, int first_sample) {
    for (int device = 0; device < plan_.devices; ++device) {
      const int reader = plan_.scheme.through_device0 ? 0 : device;
      for (const int leaf : leaves_of(device)) {
        const Shape shape{samples_of(leaf), kImage.c, kImage.h, kImage.w};
        if (rank_ == reader) {
          const int first = first_sample + leaves_.first_sample(leaf);
          Tensor& images = tensors_[leaf].images = Tensor(memory, kBatch, shape);
          std::copy_n(data.images.begin() + int64_t{first} * shape.sample(), shape.count(), images.values.begin());
          Tensor& labels = tensors_[leaf].labels = Tensor(memory, kBatch, {shape.n});
          std::copy_n(data.labels.begin() + first, shape.n, labels.values.begin());
          if (rank_ != device) send(device, kSamples, images);
        } else if (rank_ == device) {
          tensors_[leaf].images = receive(reader, kBatch, shape);
        }
      }
    }
  }

  /// Keeps every layer's output for backward. The last one, the logits, is kept apart, because under dp it travels.
  void forward_leaf(LeafTensors& leaf) {
    leaf.outputs.reserve(model_.layers.size());  // or x would move while the next layer reads it
    const Tensor* x = &leaf.images;
    for (const Layer& layer : model_.layers) {
      const What what = &layer == &model_.layers.back() ? kLogits : kActivations;
      Tensor& y = leaf.outputs.emplace_back(memory, what, Shape{x->shape.n, layer.out.c, layer.out.h, layer.out.w});
      forward(layer, parameters_.values.data(), *x, y);
      x = &y;
    }
    leaf.logits = std::move(leaf.outputs.back());
    leaf.outputs.pop_back();
  }

  /// Turns the logits of own leaves into their gradients, and computes the leaves' losses. Under dp the logits make a
  /// journey for that, to device 0 and back. It is short, because logits are small in these models; in a language model
  /// they are the largest tensor. A loss comes back with the gradients, because it goes through the tree with those of
  /// its leaf.
  void compute_losses() {
    const bool travel = plan_.scheme.through_device0;
    if (travel && rank_ > 0) {
      for (const auto& [leaf, tensors] : tensors_) send(0, kOutputs, tensors.logits);
      for (auto& [leaf, tensors] : tensors_) {
        tensors.logits = receive(0, kLogits, tensors.logits.shape);
        tensors.loss = receive(0, kLogits, {1});
      }
      return;
    }
    for (int device = 1; travel && device < plan_.devices; ++device)
      for (const int leaf : leaves_of(device))
        tensors_.at(leaf).logits = receive(device, kLogits, {samples_of(leaf), kClasses});
    for (auto& [leaf, tensors] : tensors_) {
      tensors.loss = Tensor(memory, kLogits, {1});
      tensors.loss.values[0] = softmax_cross_entropy(tensors.logits, tensors.labels, leaves_.batch);
    }
    for (int device = 1; travel && device < plan_.devices; ++device) {
      for (const int leaf : leaves_of(device)) {
        LeafTensors& tensors = tensors_.at(leaf);
        send(device, kOutputGradients, tensors.logits);
        send(device, kOutputGradients, tensors.loss);
        tensors.logits = Tensor();
      }
    }
  }

  /// The gradients of a leaf, in an array like the parameters', and behind them its loss, which is added along the same
  /// tree. Activations are given back on the way.
  Tensor backward_leaf(LeafTensors& leaf) {
    Tensor gradients(memory, kGradients, {1, model_.parameters + 1});
    gradients.values.back() = leaf.loss.values[0];
    Tensor dy = std::move(leaf.logits);  // the gradients of the logits
    Tensor y;                            // of layer i; empty for the last one, which is linear: it needs none
    for (int i = static_cast<int>(model_.layers.size()) - 1; i >= 0; --i) {
      const Tensor& x = i > 0 ? leaf.outputs[i - 1] : leaf.images;
      Tensor dx = i > 0 ? Tensor(memory, kActivations, x.shape) : Tensor();
      backward(model_.layers[i], parameters_.values.data(), x, y, dy, gradients.values.data(), dx);
      if (i == 0) break;
      dy = std::move(dx);
      y = std::move(leaf.outputs.back());
      leaf.outputs.pop_back();
    }
    return gradients;
  }

  /// The gradients of this device's nodes of the tree. Computing a leaf just before it is added keeps few of them.
  std::map<Node, Tensor> backward_own_leaves() {
    std::map<Node, Tensor> subtrees;
    const auto of_leaf = [&](Node node) { return node.is_leaf() ? backward_leaf(tensors_.at(node.a)) : Tensor(); };
    for (const Node node : nodes_of(rank_)) subtrees[node] = tree_sum(leaves_, node, of_leaf);
    return subtrees;
  }

  /// Sends each owner its elements of this device's subtrees, and adds those of all devices for the elements that this
  /// device owns. Returns the sum over all leaves, of the elements owned.
  Tensor reduce(std::map<Node, Tensor> subtrees) {
    std::map<Node, Tensor> parts;
    for (const auto& [node, gradients] : subtrees) {
      for (int owner = 0; owner < plan_.devices; ++owner)
        if (owner != rank_) send(owner, kSubtrees, gradients.values.data() + first_owned(owner), owned(owner));
      Tensor& part = parts[node] = Tensor(memory, kReduction, {1, owned(rank_)});
      std::copy_n(gradients.values.begin() + first_owned(rank_), owned(rank_), part.values.begin());
    }
    subtrees.clear();
    if (owned(rank_) == 0) return {};
    for (int device = 0; device < plan_.devices; ++device)
      if (device != rank_)
        for (const Node node : nodes_of(device)) parts[node] = receive(device, kReduction, {1, owned(rank_)});
    return tree_sum(leaves_, {0, leaves_.count}, [&](Node node) {
      const auto found = parts.find(node);
      return found != parts.end() ? std::move(found->second) : Tensor();
    });
  }

  /// Brings every device to the same new parameters: either the sums travel and every device updates everything (ddp),
  /// or owners update and the new parameters travel (dp, zero1). Both send as much, but for the loss, which is part of
  /// ddp's sums; owners hold fewer moments.
  void update_parameters(Tensor sum) {
    float* const parameters = parameters_.values.data();
    if (plan_.scheme.owner_updates) {
      if (!sum.empty()) adam(parameters + first_owned(rank_), sum.values.data(), moments_, step_);
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
    for (int device = 0; device < plan_.devices; ++device)
      if (device != rank_) send(device, message, values + first_owned(rank_), owned_below(end, rank_));
    for (int owner = 0; owner < plan_.devices; ++owner)
      if (owner != rank_) receive(owner, values + first_owned(owner), owned_below(end, owner));
  }

  int rank_;
  const Model& model_;
  const Plan& plan_;
  Wires& wires_;
  Leaves leaves_;
  int step_ = 0;
  Tensor parameters_;
  Moments moments_;
  std::map<int, LeafTensors> tensors_;  // by leaf; under dp those of all leaves on device 0
};

// ---------------------------------------------------------------------------------------------------------------------
// 10. A run: threads, hash, tables, files

/// Trains on the data once, with a thread for each device, and returns the loss of each step. Whatever could be wrong
/// with the input was checked before, so that no device fails while others wait for it.
std::vector<float> train(std::deque<Device>& devices, const Data& data, int batch, int leaves) {
  std::vector<float> losses;
  const auto train_device = [&](Device& device) {
    for (int first = 0; first < data.samples(); first += batch) {
      const Leaves cut{leaves, std::min(batch, data.samples() - first)};
      const std::optional<float> loss = device.train_step(data, first, cut);
      if (loss) losses.push_back(*loss);  // on one device, always the same one
    }
  };
  std::vector<std::thread> threads;
  for (Device& device : devices) threads.emplace_back(train_device, std::ref(device));
  for (std::thread& thread : threads) thread.join();
  return losses;
}

/// FNV-1a over the bits of the weights: equal hashes, equal weights.
uint64_t hash_of(const std::vector<float>& values) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const float value : values) {
    const auto bits = std::bit_cast<uint32_t>(value);
    for (int shift = 0; shift < 32; shift += 8) hash = (hash ^ (bits >> shift & 0xff)) * 0x100000001b3;
  }
  return hash;
}

/// A row for each name and a column for each device. Rows in which no device has anything are left out.
template <size_t rows>
void print_table(const char* title, const std::array<const char*, rows>& names,
                 const std::vector<std::array<int64_t, rows>>& devices) {
  std::printf("\n%-26s", title);
  for (size_t rank = 0; rank < devices.size(); ++rank) std::printf("%12s", ("device " + std::to_string(rank)).c_str());
  for (size_t row = 0; row < rows; ++row) {
    if (std::all_of(devices.begin(), devices.end(), [&](const auto& bytes) { return bytes[row] == 0; })) continue;
    std::printf("\n  %-24s", names[row]);
    for (const auto& bytes : devices) std::printf("%12lld", static_cast<long long>(bytes[row]));
  }
  std::printf("\n");
}

// Without files, images and weights are drawn at random: the same ones in every run, because mt19937 is specified to
// the bit. (The distributions of the standard library are not.)

float uniform(std::mt19937& random, float bound) {
  return bound * (static_cast<float>(random() >> 8) / static_cast<float>(1 << 23) - 1.0F);
}

/// Noise, and in each class's images a brighter row of its own.
Data draw_data(int samples) {
  std::mt19937 random(1);
  Data data;
  for (int n = 0; n < samples; ++n) {
    const int label = static_cast<int>(random() % kClasses);
    data.labels.push_back(static_cast<float>(label));
    for (int i = 0; i < kImage.count(); ++i) {
      const int row = i / kImage.w % kImage.h;
      data.images.push_back(uniform(random, 1.0F) + (row == label ? 1.0F : 0.0F));
    }
  }
  return data;
}

/// Weights and biases between -1 and 1, divided by the square root of the inputs of each output.
std::vector<float> draw_weights(const Model& model) {
  std::mt19937 random(2);
  std::vector<float> values;
  for (const Layer& layer : model.layers) {
    const float bound = 1.0F / std::sqrt(static_cast<float>(layer.fan_in()));
    for (int i = 0; i < layer.parameter_count(); ++i) values.push_back(uniform(random, bound));
  }
  return values;
}

// Files are floats in the machine's order, and nothing else: of weights, the model's parameters in their order; of
// data, for each sample its image (kImage) and its label, in the order in which they are trained on.

std::vector<float> read_floats(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  if (!file || bytes.size() % sizeof(float) != 0)
    throw std::runtime_error(path + ": cannot be read, or is no file of floats");
  std::vector<float> floats(bytes.size() / sizeof(float));
  std::memcpy(floats.data(), bytes.data(), bytes.size());
  return floats;
}

void write_weights(const std::string& path, const std::vector<float>& values) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(values.data()), static_cast<std::streamsize>(4 * values.size()));
  if (!file.flush()) throw std::runtime_error(path + ": cannot be written");
}

Data read_data(const std::string& path) {
  const std::vector<float> floats = read_floats(path);
  const int pixels = kImage.count();
  if (floats.empty() || floats.size() % (pixels + 1) != 0)
    throw std::runtime_error(path + ": expected " + std::to_string(pixels) + " pixels and a label for each sample");
  Data data;
  for (auto sample = floats.begin(); sample != floats.end(); sample += pixels + 1) {
    data.images.insert(data.images.end(), sample, sample + pixels);
    data.labels.push_back(sample[pixels]);
    if (!(data.labels.back() >= 0 && data.labels.back() < kClasses))
      throw std::runtime_error(path + ": a label is not the number of one of " + std::to_string(kClasses) + " classes");
  }
  return data;
}

int integer(const std::string& flag, const std::string& value, int lowest, int highest) {
  std::istringstream text(value);
  int number = lowest - 1;
  if (!(text >> number) || !text.eof() || number < lowest || number > highest)
    throw std::runtime_error(flag + " " + value + ": expected an integer from " + std::to_string(lowest) + " to " +
                             std::to_string(highest));
  return number;
}

void run(int argc, char** argv) {
  std::map<std::string, std::string> flags = {
      {"--model", "small-cnn"}, {"--scheme", "ddp"}, {"--devices", "3"}, {"--split", ""}, {"--leaves", "8"},
      {"--batch", "32"},        {"--steps", "10"},   {"--weights", ""},  {"--data", ""},  {"--save", ""}};
  for (int i = 1; i < argc; i += 2) {
    if (flags.count(argv[i]) == 0 || i + 1 == argc)
      throw std::runtime_error(std::string(argv[i]) + ": unknown flag, or a flag without a value");
    flags[argv[i]] = argv[i + 1];
  }
  const int device_count = integer("--devices", flags["--devices"], 1, 64);
  const int leaves = integer("--leaves", flags["--leaves"], 1, 1024);
  const int batch = integer("--batch", flags["--batch"], 1, 65536);
  const int steps = integer("--steps", flags["--steps"], 1, 1000);
  std::vector<int> split;  // empty: equal
  std::istringstream parts(flags["--split"]);
  for (std::string part; std::getline(parts, part, ',');) split.push_back(integer("--split", part, 0, 1024));

  const Model model = make_model(flags["--model"]);
  const Plan plan = make_plan(make_scheme(flags["--scheme"]), device_count, leaves, split, model.parameters + 1);
  const Data data = flags["--data"].empty() ? draw_data(steps * batch) : read_data(flags["--data"]);
  const std::vector<float> initial = flags["--weights"].empty() ? draw_weights(model) : read_floats(flags["--weights"]);
  if (static_cast<int>(initial.size()) != model.parameters)
    throw std::runtime_error(flags["--weights"] + ": expected " + std::to_string(model.parameters) + " parameters");
  Wires wires;
  std::deque<Device> devices;
  for (int rank = 0; rank < device_count; ++rank) devices.emplace_back(rank, model, plan, initial, wires);

  std::printf("%s with %d parameters, %s on %d devices, batches of %d in %d leaves\n", flags["--model"].c_str(),
              model.parameters, flags["--scheme"].c_str(), device_count, batch, leaves);
  const std::vector<float> losses = train(devices, data, batch, leaves);
  for (size_t step = 0; step < losses.size(); ++step)
    std::printf("step %2zu  loss %.9g\n", step + 1, static_cast<double>(losses[step]));
  std::vector<std::array<int64_t, kWhatCount>> held;
  std::vector<std::array<int64_t, kMessageCount>> sent;
  const uint64_t hash = hash_of(devices[0].parameters());
  for (const Device& device : devices) {
    if (hash_of(device.parameters()) != hash) throw std::logic_error("the devices have different weights");
    held.push_back(device.memory.most);
    sent.push_back(device.sent);
  }
  std::printf("hash of the weights: %016llx\n", static_cast<unsigned long long>(hash));
  print_table("Bytes held, at most", kWhatNames, held);
  if (device_count > 1) print_table("Bytes sent in all steps", kMessageNames, sent);
  if (!flags["--save"].empty()) write_weights(flags["--save"], devices[0].parameters());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "one_file: %s\n", error.what());
    return 1;
  }
}
