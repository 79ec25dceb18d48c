// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <typeindex>
#include <unordered_map>
#include <utility>

#include <vitrine/runtime/cpu/stream.h>
#include <vitrine/runtime/settings.h>
#include <vitrine/runtime/tensor.h>

namespace vitrine {

/// Name of an operation and the memory that it accesses, for the order checker and the trace.
struct OpInfo {
  const char* name = "";
  std::initializer_list<ConstView> reads;
  std::initializer_list<View> writes;
  int64_t bytes_moved = 0;   // between devices or host and device; 0 for kernels
  int64_t buffer_bytes = 0;  // of a collective: SpanBytes::buffers
};

/// Objects that a backend's kernels keep between calls (library primitives, plans), one of each type. Belongs to one
/// stream; on CPU only that stream's worker uses it.
class PlanCache {
 public:
  template <class T>
  T& get() {
    auto& slot = entries_[std::type_index(typeid(T))];
    if (!slot) slot = std::make_shared<T>();
    return *static_cast<T*>(slot.get());
  }
  void clear() { entries_.clear(); }

 private:
  std::unordered_map<std::type_index, std::shared_ptr<void>> entries_;
};

/// Where operations run: a stream of a device, with the device's pool, a workspace arena, a plan cache, and the
/// position (phase, layer, step) that memory and spans are attributed to. Every kernel and collective takes one as its
/// first argument. One thread at a time issues to it.
///
/// Implementations under kernels/cpu run later, on the stream's worker, and may use only plans(), workspace(),
/// workspace_setting() and thread_count() of the context. Those under kernels/cuda run immediately, on the issuing
/// thread, and queue work on the GPU. Neither allocates.
class ExecContext {
 public:
  struct Options {
    TraceLevel trace = TraceLevel::off;
    int thread_count = 1;   // of the device's team of threads, for CPU kernels
    bool tf32 = false;      // CUDA: let matrix products and convolutions round their inputs to TF32
    bool for_gpu = false;   // on a GPU, or on a meta device that stands for one
    bool winograd = false;  // CPU: let convolutions of f32 run by Winograd's algorithm
  };
  ExecContext(DeviceId device, int ordinal, Stream& stream, std::shared_ptr<Pool> pool, Options options);
  ExecContext(const ExecContext&) = delete;
  ExecContext& operator=(const ExecContext&) = delete;
  ~ExecContext();

  Backend backend() const { return device_.backend; }
  DeviceId device() const { return device_; }
  /// Index of the logical device in its group.
  int ordinal() const { return ordinal_; }
  Stream& stream() { return stream_; }
  Pool& pool() { return *pool_; }
  int thread_count() const { return options_.thread_count; }
  bool tf32() const { return options_.tf32; }
  bool winograd() const { return options_.winograd; }
  TraceLevel trace_level() const { return options_.trace; }

  /// Allocates an uninitialized tensor from the device's pool, for this stream. throws OutOfMemory.
  Tensor allocate(const Shape& shape, DType dtype, Category category, std::string_view name);

  /// Adopts memory of the device that was not allocated from its pool. When the last copy of the tensor is destroyed,
  /// on the thread that issues to this stream, the host waits for the stream's work so far and then calls `release`.
  /// The memory counts only in PoolStatistics::adopted_bytes, so plans stay exact. The DeviceGroup must outlive the
  /// tensor.
  ///   data  aligned to its elements; for a GPU's stream, memory of that GPU
  /// throws ConfigError (null or misaligned memory), DeviceError (memory of another device), UnsupportedError (a meta
  ///        device), without calling `release`.
  Tensor adopt(void* data, const Shape& shape, DType dtype, std::function<void()> release);

  /// Reserves the arena for library workspaces: counted once, at full size, in Category::workspace. Kernels choose
  /// algorithms that fit. For a GPU, reserves counters(), too.
  ///   setting  of the caller, which sets the size: operations that need a larger arena propose it
  void reserve_workspace(int64_t bytes, Setting setting = settings::kReserveWorkspace);
  /// Returns the arena and the counters to the pool. requires an idle stream
  void release_workspace() { workspace_ = counters_ = Tensor(); }
  /// The arena as u8, shape (n); empty before reserve_workspace. Its content is valid during one operation.
  View workspace() const { return workspace_.view(); }
  Setting workspace_setting() const { return workspace_setting_; }
  /// Counters of the blocks of a GPU kernel that are done, (kCounters) i32: 0 between operations, because the last
  /// block resets what it used. Empty before reserve_workspace, and on CPU devices.
  View counters() const { return counters_.view(); }
  static constexpr int64_t kCounters = 1024;
  PlanCache& plans() { return plans_; }
  /// Destroys the plans, with the stream's GPU current. requires an idle stream
  void forget_plans() noexcept;

  /// Issues one operation: checks its order, records it, and runs `cpu` on the stream's worker, or `cuda` immediately
  /// with the stream's GPU current (it queues work there), or neither on meta. Both take no arguments; `cpu` is moved
  /// into the queue, so capture views by value.
  template <class CpuFn, class CudaFn>
  void dispatch(const OpInfo& info, CpuFn cpu, CudaFn cuda) {
    Operation operation(*this, info);
    if (backend() == Backend::cpu) {
      static_cast<CpuStream&>(stream_).enqueue(std::move(cpu), {info.name, layer_, operation.take_declared()});
    } else if (backend() == Backend::cuda) {
      cuda();
    }
  }
  /// Issues an operation without a CUDA implementation. throws UnsupportedError with its name on CUDA.
  template <class CpuFn>
  void dispatch(const OpInfo& info, CpuFn cpu) {
    dispatch(info, std::move(cpu), [&] { throw_no_cuda(info.name); });
  }

  void record(Event& event) { stream_.record(event); }
  /// Makes the stream wait, in a separate span that names `cause`.
  void wait(Event& event, const char* cause);

  /// The current position. Use PhaseScope and LayerScope to set it.
  Phase phase() const { return phase_; }
  const char* layer() const { return layer_; }
  int64_t step() const { return step_; }
  void set_step(int64_t step) { step_ = step; }
  /// Marks the beginning of the step in the trace and in the pool's history.
  void mark_step();

 private:
  friend class PhaseScope;
  friend class LayerScope;
  /// One operation, from its checks to the end of its span.
  class Operation {
   public:
    Operation(ExecContext& ctx, const OpInfo& info);
    ~Operation();
    Operation(const Operation&) = delete;
    Operation& operator=(const Operation&) = delete;
    /// The memory that it may access, for CPU devices; null if the order is not checked.
    std::unique_ptr<const DeclaredMemory> take_declared() { return std::move(declared_); }

   private:
    ExecContext& ctx_;
    std::unique_ptr<DeclaredMemory> declared_;
    int previous_device_;
  };
  [[noreturn]] void throw_no_cuda(const char* operation) const;
  void begin_span(const SpanInfo& info);
  void end_span();

  DeviceId device_;
  int ordinal_;
  Stream& stream_;
  std::shared_ptr<Pool> pool_;
  Options options_;
  Tensor workspace_, counters_;
  Setting workspace_setting_ = settings::kReserveWorkspace;
  PlanCache plans_;
  Phase phase_ = Phase::setup;
  const char* layer_ = "";
  int64_t step_ = 0;
  std::vector<SpanBytes> open_span_bytes_;
};

/// Attributes the work issued in its lifetime to a phase, in a span. Entering the current phase again has no effect.
/// With `layer`, work and span also carry that name (a bucket of gradients), and the span is always opened.
class PhaseScope {
 public:
  PhaseScope(ExecContext& ctx, Phase phase, const char* layer = nullptr);
  ~PhaseScope();
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  ExecContext& ctx_;
  Phase previous_;
  const char* previous_layer_;
  bool opened_;
};

/// Attributes the work issued in its lifetime to a layer; opens a span at TraceLevel::operation.
class LayerScope {
 public:
  LayerScope(ExecContext& ctx, const char* layer);
  ~LayerScope();
  LayerScope(const LayerScope&) = delete;
  LayerScope& operator=(const LayerScope&) = delete;

 private:
  ExecContext& ctx_;
  const char* previous_;
};

}  // namespace vitrine
