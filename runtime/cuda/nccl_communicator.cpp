// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/nccl_communicator.h"

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>

#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <nccl.h>

#include "runtime/comm/checked_communicator.h"
#include "runtime/comm/record.h"
#include "runtime/cuda/check.h"
#include "runtime/cuda/native.h"
#include "runtime/error.h"
#include "runtime/process_group/process_group.h"

namespace vitrine::cuda {
namespace {

using comm::Call;
using comm::Operation;
using Clock = std::chrono::steady_clock;

// Longer than the process group takes to find which process died.
constexpr int64_t kEchoPatienceMs = 2000;
// NCCL accepts a call immediately unless it must connect to a peer first.
constexpr int64_t kPollsBeforeWaiting = 100;
constexpr std::chrono::seconds kLongestFarewell{2};

/// Type of elements that are combined.
ncclDataType_t nccl_type(DType dtype) {
  if (dtype == DType::i32) return ncclInt32;
  if (dtype == DType::f16) return ncclFloat16;
  return dtype == DType::bf16 ? ncclBfloat16 : ncclFloat32;
}

ncclRedOp_t nccl_op(ReduceOp op) {
  switch (op) {
    case ReduceOp::min:
      return ncclMin;
    case ReduceOp::max:
      return ncclMax;
    case ReduceOp::average:
      return ncclAvg;
    case ReduceOp::sum:
      break;
  }
  return ncclSum;
}

std::string nccl_text(ncclResult_t result, ncclComm_t comm) {
  const char* const detail = ncclGetLastError(comm);
  return fmt::format("{}{}{}", ncclGetErrorString(result), detail != nullptr && *detail != '\0' ? ": " : "", detail != nullptr ? detail : "");
}

void check_nccl(ncclResult_t result, ncclComm_t comm, const char* expression, const char* file, int line) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  if (result == ncclUnhandledCudaError) check_device(expression, file, line);
  throw CommError(fmt::format("{}: {} ({}:{}); set NCCL_DEBUG=WARN to learn more", expression, nccl_text(result, comm), file, line));
}
#define VITRINE_NCCL_CHECK(comm, expression) check_nccl((expression), comm, #expression, __FILE__, __LINE__)

/// The communicators of one group, and operations that concern all of them.
class NcclGroup {
 public:
  NcclGroup(DeviceGroup& devices, bool owned)
      : ranks_(static_cast<size_t>(devices.size())),
        owned_(owned),
        first_rank_(devices.first_rank()),
        world_size_(devices.world_size()),
        timeout_ms_(devices.options().comm_timeout_ms),
        process_group_(devices.process_count() > 1 ? devices.options().process_group : nullptr) {
    for (int i = 0; i < devices.size(); ++i) {
      Rank& rank = at(i);
      rank.name = fmt::format("rank {} ({})", first_rank_ + i, devices[i].name());
      rank.gpu = devices[i].id().index;
    }
    // The process group knows better than a deadline of this process alone which rank is late.
    if (process_group_) timeout_ms_ = std::numeric_limits<int32_t>::max();
    if (process_group_) number_ = process_group_->new_group();
    if (process_group_) handler_ = process_group_->on_failure([this](const Reason& reason) { abort(reason); });
  }
  ~NcclGroup() {
    if (process_group_) process_group_->remove_handler(handler_);
    if (process_group_ && owned_ && process_group_->failure().empty()) leave_peers();
    for (Rank& rank : ranks_) {
      if (rank.comm != nullptr && owned_) ncclCommAbort(rank.comm);  // nothing is in flight: the streams have been synchronized
      if (rank.word != nullptr) cudaFree(rank.word);
    }
    cudaGetLastError();
  }

  void create(DeviceGroup& devices);
  void start_joining(DeviceGroup& devices, const ncclUniqueId& id);
  void adopt(DeviceGroup& devices);

  /// Calls NCCL for a rank and waits until the call has been accepted; only then may an event be recorded after it.
  template <class Work>
  void call(int index, const char* operation, const Work& work) {
    Rank& rank = at(index);
    {
      const std::lock_guard lock(rank.mutex);
      throw_if_broken();
      throw_if_process_group_failed();
      try {
        work(rank.comm);
      } catch (...) {
        rethrow_with_prefix(std::current_exception(), rank.name + ": ");
      }
    }
    const Clock::time_point deadline = Clock::now() + std::chrono::milliseconds(timeout_ms_);
    std::optional<ProcessGroup::Waiting> waiting;
    for (int64_t polls = 0; in_progress(rank); ++polls) {
      if (process_group_ && polls == kPollsBeforeWaiting) waiting.emplace(*process_group_, fmt::format("{} of {}", operation, rank.name));
      if (Clock::now() > deadline) {
        const std::string reason = fmt::format(
            "{}: {} waited longer than {} ms for its peers: {} have not issued it; every rank must issue the same "
            "collectives in the same order, from a separate thread",
            operation, rank.name, timeout_ms_, late_peers(index));
        abort(reason);
        throw CommError(reason);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    rank.issued.fetch_add(1, std::memory_order_relaxed);
  }
  void abort(const Reason& reason);
  Reason failure();
  void* word(int rank) { return at(rank).word; }
  int first_rank() const { return first_rank_; }
  int world_size() const { return world_size_; }
  ProcessGroup* process_group() const { return process_group_.get(); }
  /// Number of this group in the process group.
  int number() const { return number_; }

 private:
  struct Rank {
    std::mutex mutex;  // held during calls to NCCL, because an abort frees the communicator
    ncclComm_t comm = nullptr;
    int gpu = 0;
    void* word = nullptr;  // one float in device memory, for barriers
    std::string name;
    std::atomic<int64_t> issued{0};
  };
  Rank& at(int rank) { return ranks_[static_cast<size_t>(rank)]; }

  /// Between ncclGroupStart and ncclGroupEnd, even if an exception is thrown.
  class GroupCalls {
   public:
    GroupCalls() { VITRINE_NCCL_CHECK(nullptr, ncclGroupStart()); }
    ~GroupCalls() {
      if (!ended_) ncclGroupEnd();
    }
    GroupCalls(const GroupCalls&) = delete;
    GroupCalls& operator=(const GroupCalls&) = delete;
    void end() {
      ended_ = true;
      VITRINE_NCCL_CHECK(nullptr, ncclGroupEnd());
    }

   private:
    bool ended_ = false;
  };
  /// Peers on other machines may still need data that NCCL sends outside the streams: lets it finish if it does so soon.
  void leave_peers() noexcept;
  /// throws the reason if the group is aborted, or an asynchronous error.
  bool in_progress(Rank& rank) {
    const std::lock_guard lock(rank.mutex);
    throw_if_broken();
    ncclResult_t state = ncclSuccess;
    VITRINE_NCCL_CHECK(rank.comm, ncclCommGetAsyncError(rank.comm, &state));
    if (state == ncclInProgress) return true;
    if (state != ncclSuccess) throw CommError(fmt::format("{}: NCCL reports {}", rank.name, nccl_text(state, rank.comm)));
    return false;
  }
  void throw_if_broken() {
    const std::lock_guard lock(mutex_);
    if (!reason_.empty()) throw CommError(reason_);
  }
  /// The process group aborts this group shortly after it has failed.
  void throw_if_process_group_failed() {
    if (!process_group_) return;
    const Reason verdict = process_group_->failure();
    if (!verdict.empty()) throw CommError(verdict);
  }
  std::string late_peers(int index) {
    std::string late;
    const int64_t mine = at(index).issued.load(std::memory_order_relaxed);
    for (Rank& rank : ranks_) {
      if (&rank != &at(index) && rank.issued.load(std::memory_order_relaxed) <= mine) late += (late.empty() ? "" : ", ") + rank.name;
    }
    return late.empty() ? "no rank is known to be behind" : late;
  }
  void allocate_words(DeviceGroup& devices) {
    for (int i = 0; i < devices.size(); ++i) {
      const DeviceScope scope(devices[i].id().index);
      VITRINE_CUDA_CHECK(cudaMalloc(&at(i).word, sizeof(float)));
      VITRINE_CUDA_CHECK(cudaMemset(at(i).word, 0, sizeof(float)));
    }
  }

  std::vector<Rank> ranks_;  // of this process
  bool owned_;
  int first_rank_, world_size_;
  int64_t timeout_ms_;
  std::shared_ptr<ProcessGroup> process_group_;  // null if this process is alone
  int number_ = 0;
  uint64_t handler_ = 0;
  std::mutex mutex_;
  Reason reason_;
};

void NcclGroup::start_joining(DeviceGroup& devices, const ncclUniqueId& id) {
  // The process group may fail meanwhile and would abort the communicators under construction.
  std::vector<std::unique_lock<std::mutex>> locks;
  for (Rank& rank : ranks_) locks.emplace_back(rank.mutex);
  throw_if_broken();
  GroupCalls calls;
  for (int i = 0; i < devices.size(); ++i) {
    const DeviceScope scope(devices[i].id().index);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    VITRINE_NCCL_CHECK(nullptr, ncclCommInitRankConfig(&at(i).comm, world_size_, id, first_rank_ + i, &config));
  }
  calls.end();
}

void NcclGroup::leave_peers() noexcept {
  for (Rank& rank : ranks_) {
    if (rank.comm != nullptr) ncclCommFinalize(rank.comm);
  }
  const Clock::time_point deadline = Clock::now() + kLongestFarewell;
  for (Rank& rank : ranks_) {
    ncclResult_t state = ncclInProgress;
    while (rank.comm != nullptr && ncclCommGetAsyncError(rank.comm, &state) == ncclSuccess && state == ncclInProgress && Clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    if (rank.comm == nullptr || state != ncclSuccess) continue;
    ncclCommDestroy(rank.comm);
    rank.comm = nullptr;
  }
}

void NcclGroup::create(DeviceGroup& devices) {
  setenv("NCCL_ALGO", "Ring", 0);
  setenv("NCCL_PROTO", "Simple", 0);
  allocate_words(devices);
  ncclUniqueId id{};
  if (!process_group_ || process_group_->rank() == 0) VITRINE_NCCL_CHECK(nullptr, ncclGetUniqueId(&id));
  if (process_group_) {
    const std::string bytes = process_group_->broadcast("NCCL's unique id", std::string(id.internal, sizeof id.internal));
    bytes.copy(id.internal, sizeof id.internal);
  }
  std::optional<ProcessGroup::Waiting> waiting;
  if (process_group_) waiting.emplace(*process_group_, "the initialization of NCCL");
  start_joining(devices, id);
  const Clock::time_point deadline = Clock::now() + std::chrono::milliseconds(timeout_ms_);
  for (Rank& rank : ranks_) {
    while (in_progress(rank)) {
      if (Clock::now() > deadline) {
        const std::string reason = fmt::format(
            "NCCL: {} did not join the group within {} ms; is its GPU in use elsewhere? Set NCCL_DEBUG=INFO to learn more", rank.name, timeout_ms_);
        abort(reason);
        throw CommError(reason);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
}

void NcclGroup::adopt(DeviceGroup& devices) {
  for (int i = 0; i < devices.size(); ++i) {
    auto* const comm = static_cast<ncclComm_t>(devices.options().nccl_communicators[static_cast<size_t>(i)]);
    if (comm == nullptr) throw ConfigError(fmt::format("{}: its NCCL communicator is null", devices[i].name()));
    int count = 0, rank = 0, gpu = 0;
    VITRINE_NCCL_CHECK(comm, ncclCommCount(comm, &count));
    VITRINE_NCCL_CHECK(comm, ncclCommUserRank(comm, &rank));
    VITRINE_NCCL_CHECK(comm, ncclCommCuDevice(comm, &gpu));
    if (count != world_size_ || rank != first_rank_ + i || gpu != devices[i].id().index) {
      throw ConfigError(fmt::format("{}: its NCCL communicator is rank {} of {} on cuda:{}, expected rank {} of {} on {}", devices[i].name(), rank,
                                    count, gpu, first_rank_ + i, world_size_, devices[i].id().str()));
    }
    at(i).comm = comm;
  }
  allocate_words(devices);
}

void NcclGroup::abort(const Reason& reason) {
  {
    const std::lock_guard lock(mutex_);
    if (!reason_.empty()) return;
    reason_ = reason.empty() ? Reason("the group was aborted") : reason;
    if (!owned_) reason_ += "; the caller's NCCL communicators are aborted: open the devices again with new ones";
  }
  for (Rank& rank : ranks_) {
    const std::lock_guard lock(rank.mutex);
    if (rank.comm == nullptr) continue;
    int previous = 0;
    const bool known = cudaGetDevice(&previous) == cudaSuccess;
    cudaSetDevice(rank.gpu);  // NCCL restores the current device, which must be one that is in use
    ncclCommAbort(rank.comm);
    rank.comm = nullptr;
    if (known) set_device_back(previous);
  }
}

Reason NcclGroup::failure() {
  {
    const std::lock_guard lock(mutex_);
    if (!reason_.empty()) return reason_;
  }
  for (Rank& rank : ranks_) {
    const std::lock_guard lock(rank.mutex);
    if (rank.comm == nullptr) continue;
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = ncclCommGetAsyncError(rank.comm, &state);
    if (asked != ncclSuccess) state = asked;
    if (state != ncclSuccess && state != ncclInProgress) return fmt::format("{}: NCCL reports {}", rank.name, nccl_text(state, rank.comm));
  }
  return {};
}

class NcclCommunicator final : public CheckedCommunicator {
 public:
  NcclCommunicator(std::shared_ptr<NcclGroup> group, int device)
      : CheckedCommunicator(group->first_rank() + device, group->world_size(), device), group_(std::move(group)), device_(device) {}

  std::string description() const override {
    const auto of = [](const char* name) {
      const char* const value = std::getenv(name);
      return std::string(value == nullptr ? "its own choice" : value);
    };
    return fmt::format("NCCL {}, {} ranks, algorithm {}, protocol {}", nccl_version(), size(), of("NCCL_ALGO"), of("NCCL_PROTO"));
  }
  void abort(const Reason& reason) override {
    // NCCL also reports a lost peer, but the process group knows better which one.
    ProcessGroup* const process_group = group_->process_group();
    if (process_group == nullptr) return group_->abort(reason);
    const Reason broken = group_->failure();
    process_group->fail(broken.empty() ? reason : broken, broken.empty() ? 0 : kEchoPatienceMs);
    const Reason verdict = process_group->failure();
    group_->abort(verdict.empty() ? reason : verdict);
  }
  Reason failure() override { return group_->failure(); }

 private:
  void queue(ExecContext& ctx, const OpInfo& info, Call call) override {
    ctx.dispatch(
        info, [] {},
        [&] {
          copy_own_part(ctx, call);
          if (ProcessGroup* process_group = group_->process_group()) {
            CollectiveRecord record = comm::record_of(ctx, call, issued_++);
            record.group = group_->number();
            record.end_is_reported = false;  // only the GPU knows
            process_group->begin_collective(device_, record);
          }
          group_->call(device_, info.name, [&](ncclComm_t comm) { issue(ctx, call, comm); });
        });
  }
  void issue(ExecContext& ctx, const Call& call, ncclComm_t comm);
  void issue_scattered(ExecContext& ctx, const Call& call, ncclComm_t comm);
  /// Copies the part that an operation that sends keeps on this rank.
  void copy_own_part(ExecContext& ctx, const Call& call);

  std::shared_ptr<NcclGroup> group_;
  int device_;  // of this process
  uint64_t issued_ = 0;
};

void NcclCommunicator::copy_own_part(ExecContext& ctx, const Call& call) {
  const auto* from = static_cast<const std::byte*>(call.input);
  auto* to = static_cast<std::byte*>(call.output);
  int64_t bytes = call.count * size_of(call.dtype);
  switch (call.operation) {
    case Operation::scatter:
    case Operation::gather:
      if (rank() != call.root) return;
      (call.operation == Operation::scatter ? from += part_offset(call, rank()) : to += part_offset(call, rank()));
      bytes = part_bytes(call, rank());
      break;
    case Operation::all_to_all:
      from += rank() * bytes;
      to += rank() * bytes;
      break;
    case Operation::send_receive:
      if (call.to != rank()) return;
      if (call.from != rank()) throw CommError(fmt::format("send_receive: rank {} sends to itself, but does not receive from itself", rank()));
      break;
    default:
      return;
  }
  if (from == to || bytes == 0) return;
  VITRINE_CUDA_CHECK(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice, native_stream(ctx)));
}

void NcclCommunicator::issue(ExecContext& ctx, const Call& call, ncclComm_t comm) {
  const cudaStream_t stream = native_stream(ctx);
  const auto count = static_cast<size_t>(call.count);
  const size_t bytes = count * static_cast<size_t>(size_of(call.dtype));
  switch (call.operation) {
    case Operation::all_reduce:
      return VITRINE_NCCL_CHECK(comm, ncclAllReduce(call.input, call.output, count, nccl_type(call.dtype), nccl_op(call.reduction.op), comm, stream));
    case Operation::reduce:
      return VITRINE_NCCL_CHECK(
          comm, ncclReduce(call.input, call.output, count, nccl_type(call.dtype), nccl_op(call.reduction.op), call.root, comm, stream));
    case Operation::broadcast:
      return VITRINE_NCCL_CHECK(comm,
                                ncclBroadcast(rank() == call.root ? call.input : call.output, call.output, bytes, ncclInt8, call.root, comm, stream));
    case Operation::reduce_scatter:
      return VITRINE_NCCL_CHECK(comm,
                                ncclReduceScatter(call.input, call.output, count, nccl_type(call.dtype), nccl_op(call.reduction.op), comm, stream));
    case Operation::all_gather:
      return VITRINE_NCCL_CHECK(comm, ncclAllGather(call.input, call.output, bytes, ncclInt8, comm, stream));
    case Operation::barrier: {
      void* const word = group_->word(device_);
      return VITRINE_NCCL_CHECK(comm, ncclAllReduce(word, word, 1, ncclFloat32, ncclSum, comm, stream));
    }
    case Operation::scatter:
    case Operation::gather:
      return issue_scattered(ctx, call, comm);
    case Operation::all_to_all:
    case Operation::send_receive:
      break;
  }
  if (bytes == 0) return;
  // The part that stays on this rank has been copied already.
  const auto sends_to = [&](int r) { return r != rank() && (call.operation == Operation::all_to_all || r == call.to); };
  const auto receives_from = [&](int r) { return r != rank() && (call.operation == Operation::all_to_all || r == call.from); };
  const auto place = [&](int r) { return call.operation == Operation::all_to_all ? static_cast<size_t>(r) * bytes : 0; };
  VITRINE_NCCL_CHECK(comm, ncclGroupStart());
  for (int r = 0; r < size(); ++r) {
    if (sends_to(r)) VITRINE_NCCL_CHECK(comm, ncclSend(static_cast<const std::byte*>(call.input) + place(r), bytes, ncclInt8, r, comm, stream));
    if (receives_from(r)) VITRINE_NCCL_CHECK(comm, ncclRecv(static_cast<std::byte*>(call.output) + place(r), bytes, ncclInt8, r, comm, stream));
  }
  VITRINE_NCCL_CHECK(comm, ncclGroupEnd());
}

void NcclCommunicator::issue_scattered(ExecContext& ctx, const Call& call, ncclComm_t comm) {
  const cudaStream_t stream = native_stream(ctx);
  const bool scatters = call.operation == Operation::scatter;
  const auto part = [&](int r) { return static_cast<size_t>(part_bytes(call, r)); };
  VITRINE_NCCL_CHECK(comm, ncclGroupStart());
  if (rank() == call.root) {
    for (int r = 0; r < size(); ++r) {
      if (r == rank() || part(r) == 0) continue;
      if (scatters) {
        VITRINE_NCCL_CHECK(comm, ncclSend(static_cast<const std::byte*>(call.input) + part_offset(call, r), part(r), ncclInt8, r, comm, stream));
      } else {
        VITRINE_NCCL_CHECK(comm, ncclRecv(static_cast<std::byte*>(call.output) + part_offset(call, r), part(r), ncclInt8, r, comm, stream));
      }
    }
  } else if (part(rank()) > 0) {
    if (scatters) {
      VITRINE_NCCL_CHECK(comm, ncclRecv(call.output, part(rank()), ncclInt8, call.root, comm, stream));
    } else {
      VITRINE_NCCL_CHECK(comm, ncclSend(call.input, part(rank()), ncclInt8, call.root, comm, stream));
    }
  }
  VITRINE_NCCL_CHECK(comm, ncclGroupEnd());
}

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_nccl_communicators(DeviceGroup& devices) {
  const bool given = !devices.options().nccl_communicators.empty();
  const auto group = std::make_shared<NcclGroup>(devices, !given);
  if (given) {
    group->adopt(devices);
  } else {
    group->create(devices);
  }
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int device = 0; device < devices.size(); ++device) communicators.push_back(std::make_unique<NcclCommunicator>(group, device));
  return communicators;
}

}  // namespace vitrine::cuda

std::string vitrine::nccl_version() {
  using cuda::check_nccl;
  int version = 0;
  VITRINE_NCCL_CHECK(nullptr, ncclGetVersion(&version));
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}
