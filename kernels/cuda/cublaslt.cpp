// SPDX-License-Identifier: Apache-2.0
#include "kernels/cuda/cublaslt.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <cublasLt.h>
#include <fmt/format.h>

#include "kernels/cuda/epilogues.h"
#include "kernels/plan_tuner.h"
#include "runtime/cuda/check.h"
#include "runtime/cuda/native.h"
#include "runtime/cuda/outside_memory.h"
#include "runtime/error.h"
#include "runtime/gpu_features.h"
#include "runtime/settings.h"

namespace vitrine::cuda {
namespace {

/// A product in cuBLASLt's column-major view. The descriptors are owned elsewhere.
struct LtProblem {
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
};

constexpr size_t kWords = std::size(cublasLtMatmulAlgo_t{}.data);
constexpr size_t kDigits = 16;  // of a word

/// -1: this algorithm does not have it.
template <class T>
int64_t config_attribute(const cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t name) {
  T value{};
  size_t written = 0;
  const cublasStatus_t status =
      cublaslt().MatmulAlgoConfigGetAttribute(&algorithm, name, &value, sizeof value, &written);
  return status == CUBLAS_STATUS_SUCCESS ? int64_t{value} : -1;
}

/// The algorithm as text: its attributes for readers, and all of it in hexadecimal digits, which only the same version
/// of cuBLASLt understands. "algorithm 21 tile 20 stages 11 splits 1 reduction 0 swizzle 0 custom 0 inner 0 cluster 0:
/// 0000001500000014..."
std::string algorithm_text(const cublasLtMatmulAlgo_t& algorithm) {
  std::string text =
      fmt::format("algorithm {} tile {} stages {} splits {} reduction {} swizzle {} custom {} inner {} cluster {}: ",
                  config_attribute<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_ID),
                  config_attribute<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID),
                  config_attribute<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_STAGES_ID),
                  config_attribute<int32_t>(algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
                  config_attribute<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME),
                  config_attribute<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING),
                  config_attribute<uint32_t>(algorithm, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION),
                  config_attribute<uint16_t>(algorithm, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID),
                  config_attribute<uint16_t>(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID));
  for (const uint64_t word : algorithm.data) text += fmt::format("{:016x}", word);
  return text;
}

/// The algorithm of the text; nothing if it is not such a text, or if cuBLASLt refuses the algorithm for this product
/// or in this much scratch.
std::optional<cublasLtMatmulAlgo_t> restore_algorithm(const LtProblem& problem, const std::string& text,
                                                      int64_t scratch_bytes) {
  const size_t colon = text.rfind(": ");
  if (colon == std::string::npos || text.size() != colon + 2 + kWords * kDigits) return std::nullopt;
  cublasLtMatmulAlgo_t algorithm{};
  for (size_t i = 0; i < kWords; ++i) {
    const char* const begin = text.data() + colon + 2 + i * kDigits;
    if (std::from_chars(begin, begin + kDigits, algorithm.data[i], 16).ptr != begin + kDigits) return std::nullopt;
  }
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status = cublaslt().MatmulAlgoCheck(problem.handle, problem.operation, problem.a, problem.b,
                                                           problem.c, problem.c, &algorithm, &result);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || status == CUBLAS_STATUS_INVALID_VALUE ||
      status == CUBLAS_STATUS_ARCH_MISMATCH)
    return std::nullopt;
  VITRINE_CUBLAS_CHECK(status);
  if (result.state != CUBLAS_STATUS_SUCCESS || result.workspaceSize > static_cast<size_t>(scratch_bytes))
    return std::nullopt;
  return algorithm;
}

cudaDataType_t cuda_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::f16:
      return CUDA_R_16F;
    case DType::bf16:
      return CUDA_R_16BF;
    default:
      throw DtypeError(fmt::format("matmul: the matrices are {}, expected f32, f16 or bf16", dtype_name(dtype)));
  }
}

/// The largest power of two, up to 256, that divides the address.
uint32_t alignment_of(const void* p) {
  const auto address = reinterpret_cast<uintptr_t>(p) | 256U;
  return static_cast<uint32_t>(address & (~address + 1));
}

/// Owns a descriptor of cuBLASLt.
template <class T, auto destroy>
class Descriptor {
 public:
  Descriptor() = default;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (value_ != nullptr) (cublaslt().*destroy)(value_);
  }
  T* address() { return &value_; }
  T get() const { return value_; }

 private:
  T value_ = nullptr;
};

struct Key {
  int64_t m, n, k;
  bool transpose_a, transpose_b, accumulate;
  DType dtype, c_dtype;
  Epilogue epilogue;
  uint32_t align_a, align_b, align_c;
  int64_t scratch_bytes;
  auto tie() const {
    return std::tie(m, n, k, transpose_a, transpose_b, accumulate, dtype, c_dtype, epilogue, align_a, align_b, align_c,
                    scratch_bytes);
  }
  bool operator<(const Key& other) const { return tie() < other.tie(); }
  /// Whether tuned algorithms may be used; the library's choice may assume more.
  bool is_aligned() const { return std::min({align_a, align_b, align_c}) >= kTunedAlignment; }

  static constexpr uint32_t kTunedAlignment = 16;
};

/// The descriptors and the algorithm of one kind of product.
struct Plan {
  Descriptor<cublasLtMatmulDesc_t, &CublasLt::MatmulDescDestroy> operation;
  Descriptor<cublasLtMatrixLayout_t, &CublasLt::MatrixLayoutDestroy> a, b, c;
  cublasLtMatmulAlgo_t algorithm{};
  bool epilogue_refused = false;  // then only the product without its epilogue can run

  LtProblem problem(cublasLtHandle_t handle) const { return {handle, operation.get(), b.get(), a.get(), c.get()}; }
};
/// Queues the product by an algorithm.
using RunAlgorithm = std::function<void(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm)>;

/// The handle and plans of a context.
class Library {
 public:
  ~Library() {
    plans_.clear();
    if (handle_ != nullptr) cublaslt().Destroy(handle_);
  }
  void open(ExecContext& ctx) {
    if (handle_ != nullptr) return;
    const OutsideMeter meter(ctx, "cublaslt");
    VITRINE_CUBLAS_CHECK(cublaslt().Create(&handle_));
    ctx.plans().get<PlanTuner>().on_change([this] { plans_.clear(); });
  }
  cublasLtHandle_t handle() const { return handle_; }
  std::unique_ptr<Plan>& plan(const Key& key) { return plans_[key]; }

 private:
  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, std::unique_ptr<Plan>> plans_;
};

template <class T>
void set(cublasLtMatmulDesc_t operation, cublasLtMatmulDescAttributes_t attribute, const T& value) {
  VITRINE_CUBLAS_CHECK(cublaslt().MatmulDescSetAttribute(operation, attribute, &value, sizeof value));
}

/// A row-major (rows, columns) matrix is the column-major matrix (columns, rows) with the same leading dimension.
void make_layout(cublasLtMatrixLayout_t* layout, cudaDataType_t type, int64_t rows, int64_t columns) {
  VITRINE_CUBLAS_CHECK(cublaslt().MatrixLayoutCreate(layout, type, static_cast<uint64_t>(columns),
                                                     static_cast<uint64_t>(rows), columns));
}

// The most algorithms that are timed for one product.
constexpr int kMostCandidates = 16;

/// Up to `most` algorithms in the order of cuBLASLt's heuristic; none if it has none.
///   alignments  of a, b, c
std::vector<cublasLtMatmulAlgo_t> find_algorithms(const LtProblem& problem, const Matmul& product,
                                                  int64_t scratch_bytes, const std::array<uint32_t, 3>& alignments,
                                                  int most) {
  Descriptor<cublasLtMatmulPreference_t, &CublasLt::MatmulPreferenceDestroy> preference;
  VITRINE_CUBLAS_CHECK(cublaslt().MatmulPreferenceCreate(preference.address()));
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    VITRINE_CUBLAS_CHECK(cublaslt().MatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value));
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<size_t>(scratch_bytes));
  // In place, split sums are added by atomics in any order; in an output type below f32 each of them would be rounded.
  const bool in_place = product.c_dtype == DType::f32 && product.epilogue != Epilogue::row_sums;
  const uint32_t in_output_type = in_place ? CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE : 0;
  prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | in_output_type);
  // In cuBLASLt's column-major view, a and b are swapped.
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignments[1]);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignments[0]);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignments[2]);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignments[2]);
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
  int found = 0;
  const cublasStatus_t status =
      cublaslt().MatmulAlgoGetHeuristic(problem.handle, problem.operation, problem.a, problem.b, problem.c, problem.c,
                                        preference.get(), most, results.data(), &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
  VITRINE_CUBLAS_CHECK(status);
  std::vector<cublasLtMatmulAlgo_t> algorithms;
  for (int i = 0; i < found; ++i) {
    // A result of a list may be one that does not run.
    if (most == 1 || results[static_cast<size_t>(i)].state == CUBLAS_STATUS_SUCCESS)
      algorithms.push_back(results[static_cast<size_t>(i)].algo);
  }
  return algorithms;
}

/// "matmul m 64 n 10 k 512 b transposed, f32 to f32, bias, scratch 33554432".
std::string signature(const Matmul& product, const Key& key, bool tf32) {
  constexpr std::array<const char*, 3> kEpilogues{"", ", bias", ", row sums"};
  return fmt::format("matmul m {} n {} k {}{}{}, {} to {}{}{}{}, scratch {}", product.m, product.n, product.k,
                     product.transpose_a ? " a transposed" : "", product.transpose_b ? " b transposed" : "",
                     dtype_name(product.dtype), dtype_name(product.c_dtype),
                     kEpilogues[static_cast<size_t>(product.epilogue)], product.accumulate ? ", accumulated" : "",
                     tf32 ? ", tf32" : "", key.scratch_bytes);
}

/// Chooses the algorithm among those that are timed, or that have been. False if cuBLASLt has none.
bool choose_tuned(ExecContext& ctx, const Library& library, Plan& plan, const Matmul& product, const Key& key,
                  const RunAlgorithm& run) {
  auto& tuner = ctx.plans().get<PlanTuner>();
  const std::string operation = signature(product, key, ctx.tf32() && product.dtype == DType::f32);
  const LtProblem problem = plan.problem(library.handle());
  const auto find = [&](int most) {
    return find_algorithms(problem, product, key.scratch_bytes,
                           {Key::kTunedAlignment, Key::kTunedAlignment, Key::kTunedAlignment}, most);
  };
  if (const TunedPlan* const known = tuner.find(operation)) {
    if (const auto algorithm = restore_algorithm(problem, known->plan, key.scratch_bytes)) {
      plan.algorithm = *algorithm;
      if (!tuner.searches()) return true;
      tuner.result().plans.put(*known);
      ++tuner.result().reused;
      return true;
    }
    if (!tuner.searches())
      throw CudaError(
          fmt::format("{}: cuBLASLt refuses its stored plan, {}; time the plans again", operation, known->plan));
    tuner.result().notes.push_back(
        fmt::format("{}: cuBLASLt refuses the stored plan, so it was timed again", operation));
  }
  const std::vector<cublasLtMatmulAlgo_t> algorithms = find(tuner.searches() ? kMostCandidates : 1);
  if (algorithms.empty()) return false;
  plan.algorithm = algorithms.front();
  if (!tuner.searches()) {
    tuner.note_missed(operation);
    return true;
  }
  std::vector<TimedCandidate> candidates;
  for (const cublasLtMatmulAlgo_t& algorithm : algorithms)
    candidates.push_back({algorithm_text(algorithm), [&] { run(plan, algorithm); }});
  const int fastest = time_candidates(ctx, operation, candidates);
  if (fastest < 0) return false;
  plan.algorithm = algorithms[static_cast<size_t>(fastest)];
  return true;
}

/// False if cuBLASLt has no algorithm.
bool choose_algorithm(ExecContext& ctx, const Library& library, Plan& plan, const Matmul& product, const Key& key,
                      const RunAlgorithm& run) {
  if (key.is_aligned() && ctx.plans().get<PlanTuner>().active())
    return choose_tuned(ctx, library, plan, product, key, run);
  const auto found = find_algorithms(plan.problem(library.handle()), product, key.scratch_bytes,
                                     {key.align_a, key.align_b, key.align_c}, 1);
  if (found.empty()) return false;
  plan.algorithm = found.front();
  return true;
}

std::unique_ptr<Plan> make_plan(ExecContext& ctx, const Library& library, const Matmul& product, const Key& key,
                                const void* bias, const RunAlgorithm& run) {
  auto plan = std::make_unique<Plan>();
  const cudaDataType_t type = cuda_type(product.dtype);
  const cudaDataType_t c_type = cuda_type(product.c_dtype);
  const bool tf32 = ctx.tf32() && product.dtype == DType::f32;
  VITRINE_CUBLAS_CHECK(cublaslt().MatmulDescCreate(
      plan->operation.address(), tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
  set(plan->operation.get(), CUBLASLT_MATMUL_DESC_TRANSA, product.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(plan->operation.get(), CUBLASLT_MATMUL_DESC_TRANSB, product.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  const cublasLtEpilogue_t epilogue = product.epilogue == Epilogue::bias       ? CUBLASLT_EPILOGUE_BIAS
                                      : product.epilogue == Epilogue::row_sums ? CUBLASLT_EPILOGUE_BGRADB  // its B is a
                                                                               : CUBLASLT_EPILOGUE_DEFAULT;
  set(plan->operation.get(), CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  if (product.epilogue != Epilogue::none) {
    set(plan->operation.get(), CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(c_type));
    // The heuristic may look at the pointer; every product sets its own.
    set(plan->operation.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    plan->epilogue_refused = !why_off(GpuFeature::fused_epilogues).empty();
    if (plan->epilogue_refused) return plan;
  }
  make_layout(plan->a.address(), type, product.transpose_a ? product.k : product.m,
              product.transpose_a ? product.m : product.k);
  make_layout(plan->b.address(), type, product.transpose_b ? product.n : product.k,
              product.transpose_b ? product.k : product.n);
  make_layout(plan->c.address(), c_type, product.m, product.n);
  if (choose_algorithm(ctx, library, *plan, product, key, run)) return plan;
  if (product.epilogue == Epilogue::none) {
    throw UnsupportedError(fmt::format(
        "matmul: cuBLASLt has no algorithm for m {}, n {}, k {} of {} to {} within {} bytes of scratch; give the "
        "workspace more",
        product.m, product.n, product.k, dtype_name(product.dtype), dtype_name(product.c_dtype), key.scratch_bytes));
  }
  plan->epilogue_refused = true;
  return plan;
}

/// The product, and its epilogue in a kernel of its own.
void matmul_then_epilogue(ExecContext& ctx, Matmul product, const void* a, const void* b, void* c, const void* bias,
                          View scratch) {
  if (product.epilogue == Epilogue::row_sums) {
    product.epilogue = Epilogue::none;
    matmul(ctx, product, a, b, c, nullptr, scratch);
    const View sums{const_cast<void*>(bias), {product.m}, DType::f32, ctx.device()};
    return column_sum(ctx, ConstView(a, {product.k, product.m}, product.dtype, ctx.device()), sums,
                      GradMode::overwrite);
  }
  const ConstView added(bias, {product.n}, product.c_dtype, ctx.device());
  product.epilogue = Epilogue::none;
  matmul(ctx, product, a, b, c, nullptr, scratch);
  add_bias_relu(ctx, added, false, View{c, {product.m, product.n}, product.c_dtype, ctx.device()});
}

}  // namespace

void check_cublas(cublasStatus_t status, const char* expression, const char* file, int line) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  check_device(expression, file, line);
  int device = -1;
  if (cudaGetDevice(&device) != cudaSuccess) cudaGetLastError();
  Reason reason = fmt::format("{}: {}: {} (cuda:{}, {}:{})", expression, cublaslt().GetStatusName(status),
                              cublaslt().GetStatusString(status), device, file, line);
  if (status == CUBLAS_STATUS_ALLOC_FAILED || status == CUBLAS_STATUS_NOT_INITIALIZED)
    reason += {"; the GPU's memory may be full: leave some outside the pools (", settings::kMemoryBytes, ")"};
  reason += gpu_safe_hint();
  throw CudaError(reason);
}

void matmul(ExecContext& ctx, const Matmul& product, const void* a, const void* b, void* c, const void* bias,
            View scratch) {
  // cuBLASLt chooses by the bytes that it may use: more than the least that plans reserve change nothing.
  constexpr int64_t kMostScratch = int64_t{32} << 20;
  if (scratch) scratch = scratch.rows(0, std::min(scratch.bytes(), kMostScratch));
  const cudaStream_t stream = native_stream(ctx);
  if (product.k == 0) {
    if (product.epilogue != Epilogue::none)
      throw UnsupportedError("matmul: a product over no terms with a bias or ReLU; drop the empty layer");
    const auto bytes = static_cast<size_t>(product.m * product.n * size_of(product.c_dtype));
    if (!product.accumulate) VITRINE_CUDA_CHECK(cudaMemsetAsync(c, 0, bytes, stream));
    return;
  }
  // The heuristic has no parameter for the alignment of the bias, and may choose an algorithm that reads it in 16
  // bytes: the scratch gets a copy.
  if (product.epilogue == Epilogue::bias && alignment_of(bias) < 16) {
    constexpr int64_t kAlignment = 256;
    const int64_t bytes = product.n * size_of(product.c_dtype),
                  copied = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    if (!scratch || scratch.bytes() < copied) return matmul_then_epilogue(ctx, product, a, b, c, bias, scratch);
    VITRINE_CUDA_CHECK(
        cudaMemcpyAsync(scratch.data, bias, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, stream));
    bias = scratch.data;
    scratch = View{static_cast<uint8_t*>(scratch.data) + copied, {scratch.bytes() - copied}, DType::u8, scratch.device};
  }
  if (product.epilogue == Epilogue::row_sums) {
    VITRINE_ASSERT(product.transpose_a && product.c_dtype == DType::f32, "row sums are those of a transposed gradient");
    if (alignment_of(bias) < 16) return matmul_then_epilogue(ctx, product, a, b, c, bias, scratch);
  }
  auto& library = ctx.plans().get<Library>();
  library.open(ctx);
  const int64_t scratch_bytes = scratch ? scratch.bytes() : 0;
  const Key key{product.m,          product.n,       product.k,       product.transpose_a, product.transpose_b,
                product.accumulate, product.dtype,   product.c_dtype, product.epilogue,    alignment_of(a),
                alignment_of(b),    alignment_of(c), scratch_bytes};
  const float alpha = 1.0F;
  const float beta = product.accumulate ? 1.0F : 0.0F;
  const auto run = [&](const Plan& plan, const cublasLtMatmulAlgo_t& algorithm) {
    if (product.epilogue != Epilogue::none) set(plan.operation.get(), CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    VITRINE_CUBLAS_CHECK(cublaslt().Matmul(library.handle(), plan.operation.get(), &alpha, b, plan.b.get(), a,
                                           plan.a.get(), &beta, c, plan.c.get(), c, plan.c.get(), &algorithm,
                                           scratch.data, static_cast<size_t>(scratch_bytes), stream));
  };
  std::unique_ptr<Plan>& plan = library.plan(key);
  if (plan == nullptr) plan = make_plan(ctx, library, product, key, bias, run);
  if (plan->epilogue_refused) return matmul_then_epilogue(ctx, product, a, b, c, bias, scratch);
  run(*plan, plan->algorithm);
}

}  // namespace vitrine::cuda
