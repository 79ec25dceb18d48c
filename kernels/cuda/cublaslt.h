// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cublasLt.h>

#include "runtime/cuda/shared_library.h"
#include "runtime/exec_context.h"

namespace vitrine::cuda {

// The functions of cuBLASLt that we call, without their prefix.
#define VITRINE_CUBLASLT_FUNCTIONS(use, prefix)                                                                       \
  use(prefix, Create) use(prefix, Destroy) use(prefix, GetStatusName) use(prefix, GetStatusString)                    \
      use(prefix, GetVersion) use(prefix, Matmul) use(prefix, MatmulAlgoCheck)                                        \
          use(prefix, MatmulAlgoConfigGetAttribute) use(prefix, MatmulAlgoGetHeuristic) use(prefix, MatmulDescCreate) \
              use(prefix, MatmulDescDestroy) use(prefix, MatmulDescSetAttribute) use(prefix, MatmulPreferenceCreate)  \
                  use(prefix, MatmulPreferenceDestroy) use(prefix, MatmulPreferenceSetAttribute)                      \
                      use(prefix, MatrixLayoutCreate) use(prefix, MatrixLayoutDestroy)

struct CublasLt {
  VITRINE_CUBLASLT_FUNCTIONS(VITRINE_LIBRARY_MEMBER, cublasLt)
};

/// cuBLASLt, loaded by the first call, because loading costs 70 ms and 150 MiB that runs on CPU devices do not need.
/// Never unloaded. throws CudaError with the loader's reason and the remedy.
const CublasLt& cublaslt();

/// throws CudaError with expression, status name, text, device, file and line unless `status` is CUBLAS_STATUS_SUCCESS.
void check_cublas(cublasStatus_t status, const char* expression, const char* file, int line);
#define VITRINE_CUBLAS_CHECK(expression) \
  ::vitrine::cuda::check_cublas((expression), #expression, __FILE_NAME__, __LINE__)

enum class Epilogue { none, bias, row_sums };

/// A product of row-major matrices: c (m, n) = op(a) op(b) [+ c], then bias (n) added to each row. op(a) is (m, k): a
/// is (m, k), or (k, m) when transposed; op(b) is (k, n) likewise. With Epilogue::row_sums, `bias` (m) of c's dtype is
/// instead overwritten with the sums over the rows of op(a): the gradient of a bias, where a is a transposed gradient.
struct Matmul {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  DType dtype = DType::f32;    // of a and b; accumulates in f32
  DType c_dtype = DType::f32;  // of c and the bias: as of a and b, or f32
  bool accumulate = false;
  Epilogue epilogue = Epilogue::none;
};

/// Queues the product. cuBLASLt's heuristic chooses among deterministic algorithms that fit into `scratch`, with TF32
/// only if ctx.tf32(), unless the context has a tuned plan for the product (kernels/tuned_plans.h); the choice is kept
/// in ctx.plans(). A bias that is not aligned to 16 bytes is copied to `scratch`; an epilogue that cuBLASLt refuses, or
/// without room for that copy, runs as a separate kernel, which rounds 16-bit results once more. So do row sums that
/// are not aligned to 16 bytes.
///   requires  m >= 1, n >= 1; with k = 0 the product is zero; row sums need a transposed a and c in f32
///   throws    CudaError; UnsupportedError with the sizes when cuBLASLt has no algorithm
void matmul(ExecContext& ctx, const Matmul& product, const void* a, const void* b, void* c, const void* bias,
            View scratch);

}  // namespace vitrine::cuda
