// SPDX-License-Identifier: Apache-2.0
// Stand-in for cuBLASLt: products of f32, f16 and bf16 matrices with sums in f32. Checks what the real one checks, and
// also cases in which that would compute garbage.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>
#include <utility>
#include <vector>

#include <cublasLt.h>

#include "tests/standins/arithmetic.h"
#include "tests/standins/controls.h"
#include "tests/standins/machine.h"
#include "tests/standins/sanitizers.h"

namespace standins = vitrine::standins;
using vitrine::standins::Call;
using vitrine::standins::explain;
using vitrine::standins::MatrixAt;
using vitrine::standins::Product;

struct cublasLtContext {
  standins::Device* device;
};

namespace {

constexpr size_t kScratchBytes = 512;  // the most that the only algorithm uses

std::atomic<bool> epilogues_refused{false}, products_refused{false};
std::atomic<size_t> version{CUBLAS_VERSION};

std::mutex algorithms_mutex;
std::vector<standins::ProductAlgorithm> algorithms{1};
std::vector<standins::ProductAlgorithm> known_algorithms() {
  const std::lock_guard lock(algorithms_mutex);
  return algorithms;
}

struct Operation {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  int32_t transpose_a, transpose_b;
  uint32_t epilogue;
  const void* bias;
  int32_t bias_type;  // -1: same as d
};
struct Layout {
  cudaDataType_t type;
  uint64_t rows, columns;
  int64_t stride;
  int32_t order;
};
struct Preference {
  uint64_t scratch_bytes;
  uint32_t alignments[4];  // of a, b, c, d
};
/// The problem for which an algorithm was chosen.
struct Algorithm {
  uint64_t mark;
  uint64_t m, n, k;
  uint64_t scratch_bytes;
  uint16_t alignments[4];
  uint32_t index;  // among known_algorithms()
};
constexpr uint64_t kMark = 0x76697472696E6531;
static_assert(sizeof(Operation) <= sizeof(cublasLtMatmulDescOpaque_t) &&
              sizeof(Layout) <= sizeof(cublasLtMatrixLayoutOpaque_t));
static_assert(sizeof(Preference) <= sizeof(cublasLtMatmulPreferenceOpaque_t) &&
              sizeof(Algorithm) <= sizeof(cublasLtMatmulAlgo_t));

template <class T, class Opaque>
T get(const Opaque* opaque) {
  T value;
  std::memcpy(&value, opaque, sizeof value);
  return value;
}
template <class T, class Opaque>
void put(Opaque* opaque, const T& value) {
  std::memcpy(opaque, &value, sizeof value);
}
std::atomic<int64_t> descriptors{0};

template <class T, class Opaque>
cublasStatus_t create(Opaque** descriptor, const T& value) {
  ++descriptors;
  *descriptor = new Opaque{};
  put(*descriptor, value);
  return CUBLAS_STATUS_SUCCESS;
}
template <class Opaque>
cublasStatus_t destroy(Opaque* descriptor) {
  if (descriptor != nullptr) --descriptors;
  delete descriptor;
  return CUBLAS_STATUS_SUCCESS;
}
template <class T>
cublasStatus_t assign(T& member, const void* value, size_t bytes) {
  if (value == nullptr || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&member, value, sizeof(T));
  return CUBLAS_STATUS_SUCCESS;
}

MatrixAt matrix(const Layout& layout, const void* data) {
  const bool by_columns = layout.order == CUBLASLT_ORDER_COL;
  return {data,
          layout.type,
          static_cast<int64_t>(layout.rows),
          static_cast<int64_t>(layout.columns),
          by_columns ? 1 : layout.stride,
          by_columns ? layout.stride : 1};
}

bool is_sound(const Layout& layout, const char* name) {
  const uint64_t least = layout.order == CUBLASLT_ORDER_COL ? layout.rows : layout.columns;
  if (layout.rows > 0 && layout.columns > 0 && layout.stride >= static_cast<int64_t>(least)) return true;
  explain("cuBLASLt: matrix %s of %lu rows and %lu columns has leading dimension %ld", name, layout.rows,
          layout.columns, layout.stride);
  return false;
}

bool is_float(cudaDataType_t type) { return type == CUDA_R_32F || type == CUDA_R_16F || type == CUDA_R_16BF; }

/// The product that the descriptors describe, without its data; or the error in them.
cublasStatus_t describe(const Operation& operation, const Layout& a, const Layout& b, const Layout& c, const Layout& d,
                        Product& product) {
  if (!is_sound(a, "A") || !is_sound(b, "B") || !is_sound(c, "C") || !is_sound(d, "D"))
    return CUBLAS_STATUS_INVALID_VALUE;
  product.a = matrix(a, nullptr);
  product.b = matrix(b, nullptr);
  product.c = matrix(c, nullptr);
  product.d = matrix(d, nullptr);
  if (operation.transpose_a != CUBLAS_OP_N) product.a = product.a.transposed();
  if (operation.transpose_b != CUBLAS_OP_N) product.b = product.b.transposed();
  const bool fit = product.a.columns == product.b.rows && product.d.rows == product.a.rows &&
                   product.d.columns == product.b.columns && c.rows == d.rows && c.columns == d.columns;
  if (!fit) {
    explain("cuBLASLt: (%ld, %ld) times (%ld, %ld) is not (%ld, %ld)", product.a.rows, product.a.columns,
            product.b.rows, product.b.columns, product.d.rows, product.d.columns);
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  product.tf32 = operation.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  product.relu = operation.epilogue != CUBLASLT_EPILOGUE_BGRADB && (operation.epilogue & CUBLASLT_EPILOGUE_RELU) != 0;
  const bool known_epilogue = operation.epilogue == CUBLASLT_EPILOGUE_DEFAULT ||
                              operation.epilogue == CUBLASLT_EPILOGUE_BGRADB ||
                              (operation.epilogue & ~(uint32_t{CUBLASLT_EPILOGUE_RELU} | CUBLASLT_EPILOGUE_BIAS)) == 0;
  const bool known_compute = operation.compute == CUBLAS_COMPUTE_32F ||
                             operation.compute == CUBLAS_COMPUTE_32F_PEDANTIC || (product.tf32 && a.type == CUDA_R_32F);
  const bool known_types =
      is_float(a.type) && a.type == b.type && c.type == d.type && (d.type == a.type || d.type == CUDA_R_32F);
  const bool known_bias = operation.bias_type == -1 || operation.bias_type == static_cast<int32_t>(d.type);
  if (!known_epilogue || !known_compute || !known_types || !known_bias || operation.scale != CUDA_R_32F)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  return CUBLAS_STATUS_SUCCESS;
}

/// The real library leaves it to chance what happens otherwise.
bool is_current(const standins::Device& device, const char* call) {
  if (standins::current_index() == device.index) return true;
  explain("%s: the handle is of device %d, but device %d is current", call, device.index, standins::current_index());
  return false;
}

bool is_aligned(const void* p, uint16_t alignment, const char* name) {
  if (reinterpret_cast<uintptr_t>(p) % alignment == 0) return true;
  explain("cublasLtMatmul: %s at %p is not aligned to %u bytes, which the algorithm may assume", name, p, alignment);
  return false;
}

bool is_for(const Algorithm& algorithm, const Product& product) {
  return algorithm.mark == kMark && static_cast<int64_t>(algorithm.m) == product.d.rows &&
         static_cast<int64_t>(algorithm.n) == product.d.columns &&
         static_cast<int64_t>(algorithm.k) == product.a.columns;
}

cublasStatus_t check_algorithm(const Algorithm& algorithm, const Product& product, size_t scratch_bytes) {
  if (!is_for(algorithm, product) || scratch_bytes < algorithm.scratch_bytes) {
    explain("cublasLtMatmul: the algorithm was chosen for another product or for more workspace");
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const bool aligned = is_aligned(product.a.data, algorithm.alignments[0], "A") &&
                       is_aligned(product.b.data, algorithm.alignments[1], "B") &&
                       is_aligned(product.c.data, algorithm.alignments[2], "C") &&
                       is_aligned(product.d.data, algorithm.alignments[3], "D");
  return aligned ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

/// On the stream's worker.
void run(const Product& p, void* scratch, size_t scratch_bytes) {
  standins::tell_read(p.a.data, p.a.bytes());
  standins::tell_read(p.b.data, p.b.bytes());
  if (p.beta != 0) standins::tell_read(p.c.data, p.c.bytes());
  if (p.bias != nullptr) standins::tell_read(p.bias, p.d.rows * standins::element_bytes(p.d.type));
  standins::tell_write(p.d.data, p.d.bytes());
  if (p.column_sums != nullptr) standins::tell_write(p.column_sums, p.d.columns * standins::element_bytes(p.d.type));
  if (scratch_bytes > 0) std::memset(scratch, 0xFF, scratch_bytes);
  standins::multiply(p);
}

}  // namespace

void vitrine::standins::refuse_epilogues(bool refuse) { epilogues_refused = refuse; }
void vitrine::standins::refuse_products(bool refuse) { products_refused = refuse; }
void vitrine::standins::set_product_algorithms(const std::vector<ProductAlgorithm>& wanted) {
  const std::lock_guard lock(algorithms_mutex);
  algorithms = wanted;
}
void vitrine::standins::set_cublaslt_version(size_t wanted) { version = wanted; }
void vitrine::standins::clear_product_algorithms() {
  set_product_algorithms(std::vector<ProductAlgorithm>(1));
  version = CUBLAS_VERSION;
}
int64_t vitrine::standins::live_descriptors() { return descriptors; }

const char* cublasLtGetStatusName(cublasStatus_t status) {
  constexpr std::pair<cublasStatus_t, const char*> kNames[] = {
      {CUBLAS_STATUS_SUCCESS, "CUBLAS_STATUS_SUCCESS"},
      {CUBLAS_STATUS_NOT_INITIALIZED, "CUBLAS_STATUS_NOT_INITIALIZED"},
      {CUBLAS_STATUS_ALLOC_FAILED, "CUBLAS_STATUS_ALLOC_FAILED"},
      {CUBLAS_STATUS_INVALID_VALUE, "CUBLAS_STATUS_INVALID_VALUE"},
      {CUBLAS_STATUS_EXECUTION_FAILED, "CUBLAS_STATUS_EXECUTION_FAILED"},
      {CUBLAS_STATUS_NOT_SUPPORTED, "CUBLAS_STATUS_NOT_SUPPORTED"}};
  for (const auto& [known, name] : kNames)
    if (known == status) return name;
  return "CUBLAS_STATUS_INTERNAL_ERROR";
}
const char* cublasLtGetStatusString(cublasStatus_t status) { return cublasLtGetStatusName(status); }
size_t cublasLtGetVersion() { return version; }
size_t cublasLtGetCudartVersion() { return CUDART_VERSION; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  cudaError_t code = cudaSuccess;
  standins::Device* const device = standins::current_device(code);
  if (device == nullptr) return CUBLAS_STATUS_NOT_INITIALIZED;
  const std::unique_lock lock(standins::state().mutex);
  if (device->used_bytes + standins::kHandleBytes > standins::state().machine.capacity_bytes)
    return CUBLAS_STATUS_ALLOC_FAILED;
  device->used_bytes += standins::kHandleBytes;
  *handle = new cublasLtContext{device};
  standins::state().cublas_handles.insert(*handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  standins::count_call(Call::other);
  const std::unique_lock lock(standins::state().mutex);
  if (!standins::state().cublas_handles.contains(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  if (!is_current(*handle->device, "cublasLtDestroy")) return CUBLAS_STATUS_INVALID_VALUE;
  standins::state().cublas_handles.erase(handle);
  handle->device->used_bytes -= standins::kHandleBytes;
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* descriptor, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  return create(descriptor,
                Operation{compute, scale, CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, nullptr, -1});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t descriptor) { return destroy(descriptor); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t descriptor, cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t bytes) {
  auto operation = get<Operation>(descriptor);
  cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSA) status = assign(operation.transpose_a, value, bytes);
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSB) status = assign(operation.transpose_b, value, bytes);
  if (attribute == CUBLASLT_MATMUL_DESC_EPILOGUE) status = assign(operation.epilogue, value, bytes);
  if (attribute == CUBLASLT_MATMUL_DESC_BIAS_POINTER) status = assign(operation.bias, value, bytes);
  if (attribute == CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE) status = assign(operation.bias_type, value, bytes);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED)
    explain("cublasLtMatmulDescSetAttribute: attribute %d is not supported by the stand-in",
            static_cast<int>(attribute));
  put(descriptor, operation);
  return status;
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t rows,
                                          uint64_t columns, int64_t stride) {
  return create(layout, Layout{type, rows, columns, stride, CUBLASLT_ORDER_COL});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return destroy(layout); }
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t descriptor,
                                                cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                size_t bytes) {
  auto layout = get<Layout>(descriptor);
  int32_t batch_count = 1;
  cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
  if (attribute == CUBLASLT_MATRIX_LAYOUT_ORDER) status = assign(layout.order, value, bytes);
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) status = assign(batch_count, value, bytes);
  const bool known = (layout.order == CUBLASLT_ORDER_COL || layout.order == CUBLASLT_ORDER_ROW) && batch_count == 1;
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || !known) {
    explain("cublasLtMatrixLayoutSetAttribute: this value of attribute %d is not supported by the stand-in",
            static_cast<int>(attribute));
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  put(descriptor, layout);
  return status;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return create(preference, Preference{0, {256, 256, 256, 256}});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) { return destroy(preference); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t descriptor,
                                                    cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                                                    size_t bytes) {
  auto preference = get<Preference>(descriptor);
  uint32_t ignored = 0;  // the only algorithm has no variants
  cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
  if (attribute == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) status = assign(preference.scratch_bytes, value, bytes);
  if (attribute == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) status = assign(ignored, value, bytes);
  if (attribute == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES) status = assign(preference.alignments[0], value, bytes);
  if (attribute == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES) status = assign(preference.alignments[1], value, bytes);
  if (attribute == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES) status = assign(preference.alignments[2], value, bytes);
  if (attribute == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES) status = assign(preference.alignments[3], value, bytes);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED)
    explain("cublasLtMatmulPreferenceSetAttribute: attribute %d is not supported by the stand-in",
            static_cast<int>(attribute));
  put(descriptor, preference);
  return status;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t operation,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t wanted, int requested,
                                              cublasLtMatmulHeuristicResult_t results[], int* returned) {
  *returned = 0;
  if (requested <= 0) return CUBLAS_STATUS_INVALID_VALUE;
  Product product;
  const cublasStatus_t status =
      describe(get<Operation>(operation), get<Layout>(a), get<Layout>(b), get<Layout>(c), get<Layout>(d), product);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  if (products_refused) return CUBLAS_STATUS_SUCCESS;  // and returned none
  if (epilogues_refused && get<Operation>(operation).epilogue != CUBLASLT_EPILOGUE_DEFAULT)
    return CUBLAS_STATUS_NOT_SUPPORTED;
  if (const Operation o = get<Operation>(operation);
      o.bias == nullptr && (o.epilogue & (CUBLASLT_EPILOGUE_BIAS | CUBLASLT_EPILOGUE_BGRADB)) != 0) {
    explain("cublasLtMatmulAlgoGetHeuristic: the epilogue needs a bias, whose pointer is not set");
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  const auto preference = wanted == nullptr ? Preference{0, {256, 256, 256, 256}} : get<Preference>(wanted);
  Algorithm algorithm{kMark,
                      static_cast<uint64_t>(product.d.rows),
                      static_cast<uint64_t>(product.d.columns),
                      static_cast<uint64_t>(product.a.columns),
                      preference.scratch_bytes >= kScratchBytes ? kScratchBytes : 0,
                      {},
                      0};
  for (int i = 0; i < 4; ++i) algorithm.alignments[i] = static_cast<uint16_t>(preference.alignments[i]);
  const int count = std::min(requested, static_cast<int>(known_algorithms().size()));
  for (int i = 0; i < count; ++i) {
    algorithm.index = static_cast<uint32_t>(i);
    results[i] = {};
    put(&results[i].algo, algorithm);
    results[i].workspaceSize = algorithm.scratch_bytes;
    results[i].state = CUBLAS_STATUS_SUCCESS;
    results[i].wavesCount = 1;
  }
  *returned = count;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algo,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute, void* value,
                                                    size_t bytes, size_t* written) {
  const auto algorithm = get<Algorithm>(algo);
  if (algorithm.mark != kMark) return CUBLAS_STATUS_INVALID_VALUE;
  if (attribute != CUBLASLT_ALGO_CONFIG_ID) return CUBLAS_STATUS_NOT_SUPPORTED;  // it has no other
  const auto id = static_cast<int32_t>(algorithm.index);
  if (value == nullptr || bytes < sizeof id) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(value, &id, sizeof id);
  *written = sizeof id;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t operation, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t* algo, cublasLtMatmulHeuristicResult_t* result) {
  Product product;
  const cublasStatus_t status =
      describe(get<Operation>(operation), get<Layout>(a), get<Layout>(b), get<Layout>(c), get<Layout>(d), product);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  const auto algorithm = get<Algorithm>(algo);
  if (!is_for(algorithm, product)) return CUBLAS_STATUS_INVALID_VALUE;
  if (algorithm.index >= known_algorithms().size()) return CUBLAS_STATUS_NOT_SUPPORTED;
  result->workspaceSize = algorithm.scratch_bytes;
  result->state = CUBLAS_STATUS_SUCCESS;
  result->wavesCount = 1;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t descriptor, const void* alpha,
                              const void* a_data, cublasLtMatrixLayout_t a_layout, const void* b_data,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c_data,
                              cublasLtMatrixLayout_t c_layout, void* d_data, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* scratch, size_t scratch_bytes,
                              cudaStream_t stream) {
  if (standins::note_call(Call::product)) return CUBLAS_STATUS_EXECUTION_FAILED;
  {
    const std::shared_lock lock(standins::state().mutex);
    if (!standins::state().cublas_handles.contains(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
  }
  if (!is_current(*handle->device, "cublasLtMatmul")) return CUBLAS_STATUS_INVALID_VALUE;
  if (!standins::is_live(stream, "cublasLtMatmul")) return CUBLAS_STATUS_INVALID_VALUE;
  const auto operation = get<Operation>(descriptor);
  Product p;
  const cublasStatus_t status = describe(operation, get<Layout>(a_layout), get<Layout>(b_layout), get<Layout>(c_layout),
                                         get<Layout>(d_layout), p);
  if (status != CUBLAS_STATUS_SUCCESS) return status;
  p.a.data = a_data;
  p.b.data = b_data;
  p.c.data = c_data;
  p.d.data = d_data;
  p.alpha = *static_cast<const float*>(alpha);
  p.beta = *static_cast<const float*>(beta);
  const bool sums = operation.epilogue == CUBLASLT_EPILOGUE_BGRADB,
             adds = !sums && (operation.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0;
  if (adds) p.bias = operation.bias;
  if (sums) p.column_sums = const_cast<void*>(operation.bias);
  if ((adds || sums) && operation.bias == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if ((adds || sums) && !is_aligned(operation.bias, 16, "the bias"))
    return CUBLAS_STATUS_INVALID_VALUE;  // the real heuristic may assume it
  if (c_data == d_data && std::memcmp(c_layout, d_layout, sizeof *c_layout) != 0) return CUBLAS_STATUS_INVALID_VALUE;
  size_t used_scratch = 0;
  int64_t simulated_ns = 0;
  if (algorithm != nullptr) {
    const auto chosen = get<Algorithm>(algorithm);
    if (const cublasStatus_t checked = check_algorithm(chosen, p, scratch_bytes); checked != CUBLAS_STATUS_SUCCESS)
      return checked;
    used_scratch = chosen.scratch_bytes;
    const std::vector<standins::ProductAlgorithm> known = known_algorithms();
    if (chosen.index >= known.size() || known[chosen.index].fails) return CUBLAS_STATUS_NOT_SUPPORTED;
    simulated_ns = static_cast<int64_t>(known[chosen.index].simulated_ms * 1e6);
    p.more_parts = static_cast<int64_t>(chosen.index);
  }
  if (scratch != nullptr && !is_aligned(scratch, 256, "the workspace")) return CUBLAS_STATUS_INVALID_VALUE;
  const standins::Device& device = stream->device;
  const void* const bias = adds || sums ? operation.bias : nullptr;
  const auto bias_bytes = bias == nullptr ? 0 : (sums ? p.d.columns : p.d.rows) * standins::element_bytes(p.d.type);
  const bool touches = standins::may_touch(device, p.a.data, p.a.bytes(), "cublasLtMatmul's A") &&
                       standins::may_touch(device, p.b.data, p.b.bytes(), "cublasLtMatmul's B") &&
                       standins::may_touch(device, p.c.data, p.c.bytes(), "cublasLtMatmul's C") &&
                       standins::may_touch(device, p.d.data, p.d.bytes(), "cublasLtMatmul's D") &&
                       standins::may_touch(device, bias, bias_bytes, "cublasLtMatmul's bias") &&
                       standins::may_touch(device, used_scratch > 0 ? scratch : nullptr,
                                           static_cast<int64_t>(used_scratch), "its workspace");
  if (handle->device != &device) {
    explain("cublasLtMatmul: the handle is of device %d, the stream of device %d", handle->device->index, device.index);
    return CUBLAS_STATUS_INVALID_VALUE;
  }
  // Another shape may be another kernel.
  standins::load_function(stream, 1 + static_cast<uint64_t>(p.d.rows * 31 + p.d.columns * 1009 + p.a.columns * 65537));
  const auto work = [p, scratch, used_scratch, simulated_ns, &on = stream->device] {
    run(p, scratch, used_scratch);
    on.simulated_ns.fetch_add(simulated_ns, std::memory_order_relaxed);
  };
  return standins::queue_work(stream, touches, work) == cudaSuccess ? CUBLAS_STATUS_SUCCESS
                                                                    : CUBLAS_STATUS_EXECUTION_FAILED;
}
