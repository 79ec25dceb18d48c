// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

/// Controls of the stand-in GPUs for tests. They apply to the whole process; call reset() between tests.
namespace vitrine::standins {

enum class Driver { present, missing, without_gpu };

struct Machine {
  int device_count = 8;
  int64_t capacity_bytes =
      int64_t{4} << 30;  // of each device, touched lazily; the first use of a device takes kContextBytes of it
  bool peer_access = true;
  int most_peers = 8;                // to which a device enables access
  bool garbles_peer_copies = false;  // as behind some IOMMUs
  int taken = -1;                    // a device that another process uses alone
  int compute_major = 9, compute_minor = 0;
  int other_kind = -1;  // a device with another name than the others
  Driver driver = Driver::present;
  bool lazy_loading = true;   // the first launch of a function on a device keeps the other threads of its process from
                              // loading another, and waits for all work of the device
  bool cudnn_aborts = false;  // it ends the process when it plans, as without its cuBLASLt
  bool cudnn_of_cuda_77 = false;
};
// What else takes memory of a device.
inline constexpr int64_t kContextBytes = int64_t{8} << 20, kHandleBytes = int64_t{1} << 20,
                         kCommunicatorBytes = int64_t{2} << 20,
                         kConnectionBytes = int64_t{3} << 20;  // from a communicator's first collective on

/// Creates another machine: new devices without errors, with full capacity. Objects of the old one must have been
/// destroyed.
/// throws std::logic_error listing the remaining ones.
///   CUDA_VISIBLE_DEVICES applies at each configure() and at the start of the process, as in CUDA. The environment
///     variable
///   VITRINE_STANDIN_DEVICES=N (0: no GPU; "no-driver") configures a whole process, as does VITRINE_STANDIN_FAULT:
///   "taken" (device 0), "garbled" (peer copies), "cudnn" (aborts), or "cuda77" (its cuDNN).
void configure(const Machine& machine);
/// configure() with the defaults.
void reset();

/// Makes this thread count as a separate process that works with these devices, until the thread ends: calls that wait
/// for all work of their process wait only for the work of these devices.
void be_process_of(std::vector<int> devices);

/// Number of streams, events, graphs, executable graphs, allocations on devices and pinned, handles, descriptors of
/// cuBLASLt and cuDNN, and communicators that have not been destroyed.
int64_t live_objects();
/// Bytes allocated by cudaMalloc on a device.
int64_t allocated_bytes(int device);

/// Whether the device has been used: made current, or by a call that needs a context while it was.
bool has_context(int device);

/// Calls of the imitated libraries.
struct CallCounts {
  int64_t launches = 0, products = 0, convolutions = 0, collectives = 0;  // of kernels, of cuBLASLt, cuDNN and NCCL
  int64_t graph_launches =
      0;  // launches, products and convolutions count when they are captured, not when they are replayed
  int64_t copies = 0, fills = 0;
  int64_t timed_records = 0, records = 0, waits = 0, created_events = 0;
  int64_t queries = 0;  // that ask for the current device, the last error, or properties of devices
  int64_t all = 0;      // including those that are not counted apart
};
/// The calls since the last take_call_counts().
CallCounts take_call_counts();

/// Lets the next cudaMalloc on the device fail.
void fail_next_malloc(int device);
/// Lets the n-th launch on the device from now on (1: the next) fail while it runs: cudaErrorIllegalAddress, which
/// stays until configure().
void fail_launch(int device, int64_t n);

/// Lets one of this thread's calls that capture, instantiate or launch a graph fail, the n-th from now on: a capture in
/// progress becomes invalid. n = 0: none. VITRINE_STANDIN_FAIL_CAPTURE=N is the n with which each thread begins.
void fail_capture_call(int64_t n);
/// Such calls of this thread since fail_capture_call().
int64_t capture_calls();

/// Lets one of this thread's calls of CUDA and its libraries fail, the n-th from now on: it does nothing and returns an
/// error, which does not stay. n = 0: none.
void fail_call(int64_t n);
/// The function that failed since; empty: none has.
const char* failed_call();

/// Whether cuBLASLt's heuristic refuses every epilogue, or finds no algorithm for any product, on all devices.
void refuse_epilogues(bool refuse);
void refuse_products(bool refuse);

/// An algorithm that cuBLASLt's heuristic proposes.
struct ProductAlgorithm {
  double simulated_ms = 0;  // by which its products advance the time of their device's events; nothing waits for it
  bool fails = false;       // every product by it is refused
};
/// The algorithms for every product from now on, in the heuristic's order, each of which sums in another order; until
/// configure(), which leaves one that takes no simulated time.
void set_product_algorithms(const std::vector<ProductAlgorithm>& algorithms);
/// What cublasLtGetVersion() returns, until configure().
void set_cublaslt_version(size_t version);

/// Whether the stand-in for cuDNN is built in: where cuDNN's headers were found.
bool has_cudnn();
/// An engine of cuDNN with choices of its knobs.
struct ConvolutionEngine {
  int64_t index = 0;                                // cuDNN's number of the engine
  std::vector<std::pair<int, int64_t>> knobs = {};  // cudnnBackendKnobType_t and value
  int64_t workspace_bytes = 0;                      // that it fills with garbage
  double simulated_ms = 0;      // by which it advances the time of its device's events; nothing waits for it
  int64_t least_alignment = 1;  // of tensors, in bytes
  bool tensor_cores = false;    // it rounds f32 to TF32
  bool deterministic = true, winograd = false, compiled = false;             // its other notes, which change nothing
  enum class Proposed { first, fallback, both } proposed = Proposed::first;  // by which of the modes A and fallback
  enum class Fault { none, at_finalization, at_execution } fault = Fault::none;
};
/// The engines that serve every convolution from now on, in the order of cuDNN's heuristics, until configure(), which
/// leaves none: cuDNN then refuses the imitated GPUs, as a release older than the GPU does. An engine splits each sum
/// of 16 terms or more in as many parts, beyond those for the sizes, as the sum of its index and the values of its
/// knobs. requires has_cudnn()
void set_convolution_engines(const std::vector<ConvolutionEngine>& engines);
/// What cudnnGetVersion() returns, until configure(). requires has_cudnn()
void set_cudnn_version(size_t version);

/// Faults of NCCL, by rank in any group, until configure(). A call is a collective, or a group of transfers; n = 1: the
/// next one of this rank.
void hang_nccl_init(int rank);         // the rank's next communicator never joins its group
void hang_nccl_call(int rank, int n);  // the rank never reaches its n-th call from now on
void fail_nccl_call(int rank, int n);  // the same, and its communicator reports ncclSystemError
void break_nccl(int rank);             // the rank's communicators report ncclSystemError from now on

/// Communicators that were finalized or destroyed since configure() while graphs with their collectives existed, for
/// whose end NCCL waits. An abort does not count: it ends the collectives first.
int64_t communicators_ended_before_graphs();
/// The first device of the process (see be_process_of) that created the unique id.
int creator_of_nccl_id(uint64_t id);

}  // namespace vitrine::standins
