// SPDX-License-Identifier: Apache-2.0
// Every supported version of oneDNN computes every convolution and matrix product of the built-in models in the
// workspace that plans give them.
#include "kernels/cpu/onednn.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "kernels/libraries.h"
#include "nn/layers/conv2d.h"
#include "nn/layers/linear.h"
#include "nn/model.h"
#include "nn/parallel/engine.h"
#include "nn/parallel/plan/memory_plan.h"
#include "tests/support/device_fixture.h"

namespace vitrine::test {
namespace {

namespace onednn = cpu::onednn;

constexpr int64_t kDataSize = 28;  // of models that take the size of their images from the data

std::vector<DType> dtypes() {
  std::vector<DType> all{DType::f32};
  if (onednn::computes(DType::bf16)) all.push_back(DType::bf16);
  return all;
}

/// The operations that fall back to Eigen on a device, one per line.
class Fallbacks {
 public:
  Fallbacks(TestDevice& device, int64_t workspace_bytes) : device_(device) {
    device.ctx().reserve_workspace(workspace_bytes);
  }

  void check(const Sequential& net, Shape shape, DType dtype) {
    for (const Sequential::Part& part : net.parts()) {
      const bool first = &part == &net.parts().front();  // the gradient of the images is not computed
      if (const auto* conv = dynamic_cast<const Conv2d*>(part.layer.get())) {
        // The gradient of a merged ReLU, or the layer after it, sums the gradient of the bias if it can.
        const bool elsewhere =
            conv->config().conv.relu || (&part != &net.parts().back() && (&part + 1)->layer->sums_grad_x());
        check(conv->config(), first, elsewhere, shape, dtype);
      }
      if (const auto* linear = dynamic_cast<const Linear*>(part.layer.get())) {
        check(linear->config(), shape.numel() / linear->config().in_features, dtype);
      }
      shape = part.layer->output_shape(shape);
    }
  }

  std::set<std::string> lines;

 private:
  void check(const Conv2dLayerConfig& layer, bool first, bool sums_bias_elsewhere, const Shape& x, DType dtype) {
    const Shape w{layer.out_channels, layer.window, layer.window, layer.in_channels};
    for (const Conv2dPass pass : {Conv2dPass::forward, Conv2dPass::backward_data, Conv2dPass::backward_weight}) {
      if (first && pass == Conv2dPass::backward_data) continue;
      const bool bias = layer.bias && !(sums_bias_elsewhere && pass == Conv2dPass::backward_weight);
      const int64_t bytes = onednn::conv2d_bytes(ctx(), {pass, layer.conv, dtype, x, w, {}, bias});
      const int64_t most = ctx().workspace().bytes();
      if (bytes < 0 ||
          (bytes > most &&
           dtype == DType::f32)) {  // the planned workspace is meant for f32; with less, 16 bits are slower
        lines.insert(fmt::format("pass {} of {} {} * {}: needs {} of {} bytes", static_cast<int>(pass),
                                 dtype_name(dtype), x.str(), w.str(), bytes, most));
      }
    }
  }

  void check(const LinearConfig& layer, int64_t rows, DType dtype) {
    const int64_t in = layer.in_features, out = layer.out_features;
    check({{.m = rows,
            .n = out,
            .k = in,
            .dtype = dtype,
            .c_dtype = dtype,
            .transpose_b = true,
            .bias = layer.bias,
            .relu = layer.relu},
           out});
    check({{.m = rows, .n = in, .k = out, .dtype = dtype, .c_dtype = dtype}, in});
    for (const bool accumulate : {false, true}) {
      check({{.m = out,
              .n = in,
              .k = rows,
              .dtype = dtype,
              .c_dtype = DType::f32,
              .transpose_a = true,
              .accumulate = accumulate},
             in});
    }
  }

  ExecContext& ctx() { return device_.ctx(); }
  void check(const onednn::Product& p) {
    if (onednn::eigen_is_faster(p.transpose_a, p.transpose_b) || onednn::takes(ctx(), ctx().workspace(), p)) return;
    lines.insert(fmt::format("{} product m {} n {} k {}, transposed {} {}, bias {}, accumulate {}", dtype_name(p.dtype),
                             p.m, p.n, p.k, p.transpose_a, p.transpose_b, p.bias, p.accumulate));
  }

  TestDevice& device_;
};

constexpr int64_t kBatches[] = {1, 7, 16, 64};

/// The workspace of a plan for all batches on a CPU device with this number of threads.
int64_t planned_workspace(const Model& model, DType dtype, int threads) {
  DeviceGroupOptions options{.devices = {DeviceId{Backend::meta, 0}}, .threads_per_device = {threads}};
  const DeviceGroup group(options);
  EngineConfig config;
  config.batch_size = *std::max_element(std::begin(kBatches), std::end(kBatches));
  config.image_dtype = DType::f32;
  config.precision = {.compute = dtype, .loss_scaling = {}};
  config.workspace_bytes = std::nullopt;
  return full_workspace_bytes(model, group, config, {{std::begin(kBatches), std::end(kBatches)}, {}});
}

class OneDnn : public ThreadsTest {};

TEST_P(OneDnn, ServesEveryConvolutionAndProductOfTheModels) {
  if (on_gpu()) GTEST_SKIP() << "oneDNN serves CPU devices";
  for (const std::string& name : model_names()) {
    if (model_sequence_length(name) > 0) continue;
    Model model;
    try {
      model = make_model(name, {});
    } catch (const ConfigError&) {
      model = make_model(name, {.image_size = kDataSize});
    }
    for (const DType dtype : dtypes()) {
      TestDevice device(GetParam());
      Fallbacks fallbacks(device, planned_workspace(model, dtype, GetParam()));
      // On the device's own thread: some plans depend on the number of its threads.
      device.ctx().dispatch({"plans", {}, {}}, [&] {
        for (const int64_t samples : kBatches) fallbacks.check(*model.net, model.input_shape(samples), dtype);
      });
      device.synchronize();
      for (const std::string& line : fallbacks.lines) ADD_FAILURE() << name << ": " << line;
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Threads, OneDnn, ::testing::Values(1, 4));

TEST(OneDnnDtypes, Bf16NeedsFastInstructions) {
  EXPECT_TRUE(onednn::computes(DType::f32));
  EXPECT_FALSE(onednn::computes(DType::f16));
  std::ifstream file("/proc/cpuinfo");
  const std::string processor(std::istreambuf_iterator<char>(file), {});
  const auto has = [&](const char* text) { return processor.find(text) != std::string::npos; };
  EXPECT_TRUE(has(" amx_bf16") || (has("AuthenticAMD") && has(" avx512_bf16")) || !onednn::computes(DType::bf16));
}

TEST(OneDnnVersion, IsReported) {
  for (const LibraryInfo& library : kernel_libraries(Backend::cpu)) {
    if (library.name == "oneDNN") {
      EXPECT_EQ(library.version.substr(0, 2), VITRINE_TEST_ONEDNN_MAJOR ".")
          << "the headers are of another version than the library";
      return;
    }
  }
  FAIL() << "oneDNN is not listed";
}

}  // namespace
}  // namespace vitrine::test
