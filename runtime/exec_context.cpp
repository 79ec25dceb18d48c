// SPDX-License-Identifier: Apache-2.0
#include "runtime/exec_context.h"

#include <vector>

#include <fmt/format.h>

#include "runtime/copy.h"
#include "runtime/error.h"
#include "runtime/order_checker.h"

namespace vitrine {

ExecContext::ExecContext(DeviceId device, int ordinal, Stream& stream, std::shared_ptr<Pool> pool, Options options)
    : device_(device), ordinal_(ordinal), stream_(stream), pool_(std::move(pool)), options_(options) {}

ExecContext::~ExecContext() = default;

Tensor ExecContext::allocate(const Shape& shape, DType dtype, Category category, std::string_view name) {
  pool_->set_position(phase_, layer_);
  const Pool::Block block = pool_->allocate(shape.numel() * size_of(dtype), category, stream_, name);
  return Tensor(pool_, block, shape, dtype, device_);
}

namespace {

/// State shared by the copies of an adopted tensor.
struct Adopted {
  Adopted(Stream& on, std::shared_ptr<Pool> of, int64_t size, std::function<void()> then)
      : stream(on), pool(std::move(of)), bytes(size), release(std::move(then)) {
    pool->note_adopted(bytes);
  }
  Adopted(const Adopted&) = delete;
  Adopted& operator=(const Adopted&) = delete;
  ~Adopted() {
    pool->note_adopted(-bytes);
    try {
      const std::unique_ptr<Event> event = stream.make_event();
      stream.record(*event);
      event->synchronize();
    } catch (...) {  // NOLINT: a stream in error does no more work; synchronize() reports the error
    }
    try {
      if (release) release();
    } catch (...) {  // NOLINT: a destructor cannot report the error
    }
  }

  Stream& stream;
  std::shared_ptr<Pool> pool;
  int64_t bytes;
  std::function<void()> release;
};

}  // namespace

Tensor ExecContext::adopt(void* data, const Shape& shape, DType dtype, std::function<void()> release) {
  if (backend() == Backend::meta)
    throw UnsupportedError(fmt::format("adopt: {} has no memory; use a cpu or cuda device", device_.str()));
  if (data == nullptr) throw ConfigError("adopt: data is null, expected memory of the device");
  if (reinterpret_cast<uintptr_t>(data) % static_cast<uintptr_t>(size_of(dtype)) != 0) {
    throw ConfigError(fmt::format("adopt: data ({}) is not aligned to the {} bytes of an element of {}", data,
                                  size_of(dtype), dtype_name(dtype)));
  }
  stream_.check_owner(data);
  const View view{data, shape, dtype, device_};
  if (OrderChecker* const checker = stream_.checker()) {
    const MemoryAccess memory{data, view.bytes()};
    checker->note({.kind = ScheduleEvent::Kind::adopt, .stream = stream_.checker_index(), .accesses = {&memory, 1}});
  }
  return Tensor(std::make_shared<Adopted>(stream_, pool_, view.bytes(), std::move(release)), view);
}

void ExecContext::reserve_workspace(int64_t bytes, Setting setting) {
  release_workspace();
  workspace_setting_ = setting;
  workspace_ = allocate({bytes}, DType::u8, Category::workspace, "workspace");
  if (!options_.for_gpu) return;
  counters_ = allocate({kCounters}, DType::i32, Category::workspace, "counters of blocks");
  zero(*this, counters_);
}

void ExecContext::forget_plans() noexcept {
  int previous = -1;
  try {
    previous = stream_.enter();
  } catch (...) {  // NOLINT: a lost GPU; its plans are destroyed wherever this thread is
  }
  plans_.clear();
  stream_.leave(previous);
}

void ExecContext::wait(Event& event, const char* cause) {
  begin_span({Phase::wait, layer_, "", cause, step_});
  if (OrderChecker* const checker = stream_.checker())
    checker->note({.kind = ScheduleEvent::Kind::cause, .stream = stream_.checker_index(), .name = cause});
  stream_.wait(event);
  end_span();
}

void ExecContext::mark_step() {
  pool_->mark_step(step_);
  if (options_.trace == TraceLevel::off) return;
  begin_span({Phase::step, "", "", "", step_});
  end_span();
}

ExecContext::Operation::Operation(ExecContext& ctx, const OpInfo& info) : ctx_(ctx) {
  if (OrderChecker* checker = ctx.stream_.checker()) {
    declared_ = std::make_unique<DeclaredMemory>(DeclaredMemory{info.name, {}});
    std::vector<MemoryAccess>& accesses = declared_->accesses;
    accesses.reserve(info.reads.size() + info.writes.size() + 1);
    for (const ConstView& v : info.reads) {
      if (v && v.bytes() > 0) accesses.push_back({v.data, v.bytes(), false, info.name, v.device.is_host()});
    }
    for (const View& v : info.writes) {
      if (v && v.bytes() > 0) accesses.push_back({v.data, v.bytes(), true, info.name, v.device.is_host()});
    }
    checker->on_operation(ctx.stream_.checker_index(), info.name, accesses);
    // Of the stream alone, so its order is that of the stream.
    if (const View own = ctx.workspace()) accesses.push_back({own.data, own.bytes(), true, info.name});
  }
  previous_device_ = ctx.stream_.enter();
  if (ctx.options_.trace == TraceLevel::operation) ctx.begin_span({ctx.phase_, ctx.layer_, info.name, "", ctx.step_});
  for (SpanBytes& bytes : ctx.open_span_bytes_) {
    bytes.moved += info.bytes_moved;
    bytes.buffers += info.buffer_bytes;
  }
}

ExecContext::Operation::~Operation() {
  if (ctx_.options_.trace == TraceLevel::operation) ctx_.end_span();
  ctx_.stream_.leave(previous_device_);
}

void ExecContext::throw_no_cuda(const char* operation) const {
  throw UnsupportedError(fmt::format("{}: this operation has no CUDA implementation, but {} is a GPU; use cpu devices",
                                     operation, device_.str()));
}

void ExecContext::begin_span(const SpanInfo& info) {
  if (options_.trace == TraceLevel::off) return;
  stream_.begin_span(info);
  open_span_bytes_.push_back({});
}

void ExecContext::end_span() {
  if (options_.trace == TraceLevel::off) return;
  stream_.end_span(open_span_bytes_.back());
  open_span_bytes_.pop_back();
}

PhaseScope::PhaseScope(ExecContext& ctx, Phase phase, const char* layer)
    : ctx_(ctx), previous_(ctx.phase_), previous_layer_(ctx.layer_), opened_(ctx.phase_ != phase || layer != nullptr) {
  if (!opened_) return;
  ctx_.phase_ = phase;
  if (layer != nullptr) ctx_.layer_ = layer;
  ctx_.begin_span({phase, layer != nullptr ? layer : "", "", "", ctx_.step_});
}

PhaseScope::~PhaseScope() {
  if (!opened_) return;
  ctx_.end_span();
  ctx_.phase_ = previous_;
  ctx_.layer_ = previous_layer_;
}

LayerScope::LayerScope(ExecContext& ctx, const char* layer) : ctx_(ctx), previous_(ctx.layer_) {
  ctx_.layer_ = layer;
  if (ctx_.options_.trace == TraceLevel::operation) ctx_.begin_span({ctx_.phase_, layer, "", "", ctx_.step_});
}

LayerScope::~LayerScope() {
  if (ctx_.options_.trace == TraceLevel::operation) ctx_.end_span();
  ctx_.layer_ = previous_;
}

}  // namespace vitrine
