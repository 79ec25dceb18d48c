// SPDX-License-Identifier: Apache-2.0
#include "runtime/cuda/nccl_group.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <limits>
#include <optional>
#include <thread>
#include <utility>

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include "runtime/cuda/check.h"
#include "runtime/cuda/native.h"
#include "runtime/cuda/outside_memory.h"
#include "runtime/error.h"
#include "runtime/process_group/process_group.h"

namespace vitrine::cuda {
namespace {

using Clock = std::chrono::steady_clock;

// NCCL accepts a call within microseconds, on a separate thread, unless it must connect to a peer first. A sleep takes
// longer than that.
constexpr std::chrono::microseconds kSpin{200};
constexpr std::chrono::milliseconds kAcceptedWithin{2};
// Time that abort() gives calls to return by themselves. Only calls on blocking communicators that wait for their peers
// take longer.
constexpr std::chrono::milliseconds kReturnsWithin{100};
constexpr std::chrono::seconds kLongestFarewell{2};

std::string nccl_text(ncclResult_t result, ncclComm_t comm) {
  const char* const detail = nccl().GetLastError(comm);
  return fmt::format("{}{}{}", nccl().GetErrorString(result), detail != nullptr && *detail != '\0' ? ": " : "",
                     detail != nullptr ? detail : "");
}

}  // namespace

void check_nccl(ncclResult_t result, ncclComm_t comm, const char* expression, const char* file, int line) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  if (result == ncclUnhandledCudaError) check_device(expression, file, line);
  throw CommError(fmt::format("{}: {} ({}:{}); set NCCL_DEBUG=WARN to learn more", expression, nccl_text(result, comm),
                              file, line));
}

NcclGroup::NcclGroup(DeviceGroup& devices, bool owned)
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
  if (!process_group_ && size() > 1) watch_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
}

NcclGroup::~NcclGroup() {
  watch_ = {};  // stops it, and waits
  if (process_group_) process_group_->remove_handler(handler_);
  if (process_group_ && owned_ && process_group_->failure().empty()) leave_peers();
  for (Rank& rank : ranks_) {
    avoid_unused_gpu(rank.gpu);
    if (rank.comm != nullptr && owned_)
      nccl().CommAbort(rank.comm);  // nothing is in flight: the streams have been synchronized
    if (rank.word != nullptr) cudaFree(rank.word);
  }
  cudaGetLastError();
}

void NcclGroup::call(int index, const char* operation, cudaStream_t stream,
                     const std::function<void(ncclComm_t)>& work) {
  Rank& rank = at(index);
  const bool in_step = size() > 1 && in_step_.load(std::memory_order_relaxed);
  const int64_t mine = rank.begun.fetch_add(1, std::memory_order_relaxed) + 1;
  if (in_step) {
    const auto is_behind = [mine](const Rank& r) { return r.begun.load(std::memory_order_relaxed) < mine; };
    wait_while(index, operation, [&] {
      throw_if_aborted();
      return std::ranges::any_of(ranks_, is_behind);
    });
  }
  ncclComm_t comm = nullptr;
  {
    const std::lock_guard lock(rank.mutex);
    throw_if_broken();
    comm = rank.comm;
    rank.in_call = true;
  }
  const auto leave_call = [&rank] {
    const std::lock_guard lock(rank.mutex);
    rank.in_call = false;
    rank.returned.notify_all();
  };
  try {
    // Without the lock: on a blocking communicator the call may wait for its peers until another thread aborts it.
    work(comm);
    leave_call();
  } catch (const CommError&) {
    leave_call();
    throw_if_aborted();  // the reason of the abort that ended the call
    rethrow_with_prefix(std::current_exception(), rank.name + ": ");
  } catch (...) {
    leave_call();
    rethrow_with_prefix(std::current_exception(), rank.name + ": ");
  }
  wait_while(index, operation, [&] { return in_progress(rank); });
  if (!in_step) return;
  VITRINE_CUDA_CHECK_ON(rank.gpu, cudaStreamSynchronize(stream));
  throw_if_aborted();
}

void NcclGroup::wait_while(int index, const char* operation, const std::function<bool()>& waits) {
  const Clock::time_point begin = Clock::now(), deadline = begin + std::chrono::milliseconds(timeout_ms_);
  std::optional<ProcessGroup::Waiting> waiting;
  while (waits()) {
    const Clock::time_point now = Clock::now();
    if (process_group_ && !waiting && now - begin > kAcceptedWithin)
      waiting.emplace(*process_group_, fmt::format("{} of {}", operation, at(index).name));
    if (now > deadline) {
      const std::string reason = lateness(index, operation);
      abort(reason);
      throw CommError(reason);
    }
    if (now - begin < kSpin) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }
}

bool NcclGroup::in_progress(Rank& rank) {
  const std::lock_guard lock(rank.mutex);
  throw_if_aborted();
  ncclResult_t state = ncclSuccess;
  VITRINE_NCCL_CHECK(rank.comm, nccl().CommGetAsyncError(rank.comm, &state));
  if (state == ncclInProgress) return true;
  if (state != ncclSuccess) throw CommError(fmt::format("{}: NCCL reports {}", rank.name, nccl_text(state, rank.comm)));
  return false;
}

void NcclGroup::throw_if_broken() {
  throw_if_aborted();
  // The process group aborts this group shortly after it has failed.
  if (const Reason verdict = process_group_ ? process_group_->failure() : Reason(); !verdict.empty())
    throw CommError(verdict);
}

void NcclGroup::throw_if_aborted() {
  const std::lock_guard lock(mutex_);
  if (!reason_.empty()) throw CommError(reason_);
}

void NcclGroup::watch(const std::stop_token& stop) {
  const std::chrono::milliseconds timeout(timeout_ms_);
  const auto begun_of = [](const Rank& rank) { return rank.begun.load(std::memory_order_relaxed); };
  int64_t least = 0;
  Clock::time_point since = Clock::now();  // that the last rank is where it is
  std::unique_lock lock(mutex_);
  while (!ends_.wait_for(lock, stop, timeout / 8, [&] { return !reason_.empty(); }) && !stop.stop_requested()) {
    const auto [last, first] = std::ranges::minmax_element(ranks_, {}, begun_of);
    const int64_t begun = begun_of(*last);
    if (begun == begun_of(*first) || std::exchange(least, begun) != begun) since = Clock::now();
    if (Clock::now() - since < timeout) continue;
    lock.unlock();
    return abort(lateness(static_cast<int>(first - ranks_.begin()), "a collective"));
  }
}

std::string NcclGroup::lateness(int index, const char* operation) {
  std::string late;
  const int64_t mine = at(index).begun.load(std::memory_order_relaxed);
  for (Rank& rank : ranks_) {
    if (rank.begun.load(std::memory_order_relaxed) < mine) late += (late.empty() ? "" : ", ") + rank.name;
  }
  return fmt::format(
      "{}: {} waited longer than {} ms for its peers: {} have not issued it; every rank must issue the same "
      "collectives in the same order, from a separate thread",
      operation, at(index).name, timeout_ms_, late.empty() ? "no rank is known to be behind" : late);
}

void NcclGroup::allocate_words(DeviceGroup& devices) {
  for (int i = 0; i < devices.size(); ++i) {
    const DeviceScope scope(devices[i].id().index);
    VITRINE_CUDA_CHECK(cudaMalloc(&at(i).word, sizeof(float)));
    VITRINE_CUDA_CHECK(cudaMemset(at(i).word, 0, sizeof(float)));
  }
}

void NcclGroup::call_for_all(const std::function<void(int)>& work) {
  // The process group may fail meanwhile and would abort the communicators under construction.
  std::vector<std::unique_lock<std::mutex>> locks;
  for (Rank& rank : ranks_) locks.emplace_back(rank.mutex);
  throw_if_aborted();
  GroupCalls calls;
  for (int i = 0; i < size(); ++i) {
    const DeviceScope scope(at(i).gpu);
    work(i);
  }
  calls.end();
}

void NcclGroup::start_joining(const std::string& ids) {
  std::vector<ncclUniqueId> list(ids.size() / sizeof(ncclUniqueId::internal));
  for (size_t i = 0; i < list.size(); ++i)
    ids.copy(list[i].internal, sizeof list[i].internal, i * sizeof list[i].internal);
  call_for_all([&](int i) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    VITRINE_NCCL_CHECK(nullptr, nccl().CommInitRankScalable(&at(i).comm, world_size_, first_rank_ + i,
                                                            static_cast<int>(list.size()), list.data(), &config));
  });
}

void NcclGroup::leave_peers() noexcept {
  for (Rank& rank : ranks_) {
    if (rank.comm != nullptr) nccl().CommFinalize(rank.comm);
  }
  const Clock::time_point deadline = Clock::now() + kLongestFarewell;
  for (Rank& rank : ranks_) {
    ncclResult_t state = ncclInProgress;
    while (rank.comm != nullptr && nccl().CommGetAsyncError(rank.comm, &state) == ncclSuccess &&
           state == ncclInProgress && Clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    if (rank.comm == nullptr || state != ncclSuccess) continue;
    nccl().CommDestroy(rank.comm);
    rank.comm = nullptr;
  }
}

void NcclGroup::create(DeviceGroup& devices) {
  allocate_words(devices);
  const std::string ids = exchange_nccl_ids(devices);
  std::optional<ProcessGroup::Waiting> waiting;
  if (process_group_) waiting.emplace(*process_group_, "the initialization of NCCL");
  std::deque<OutsideMeter> meters;
  for (int i = 0; i < devices.size(); ++i) meters.emplace_back(devices[i].communication(), "nccl");
  start_joining(ids);
  wait_until_ready("join the group");
  connect(devices);
}

void NcclGroup::connect(DeviceGroup& devices) {
  const auto stream = [&](int i) { return native_stream(devices[i].communication()); };
  call_for_all([&](int i) {
    VITRINE_NCCL_CHECK(at(i).comm,
                       nccl().AllReduce(at(i).word, at(i).word, 1, ncclFloat32, ncclSum, at(i).comm, stream(i)));
  });
  wait_until_ready("connect to the other ranks");
  for (int i = 0; i < size(); ++i) VITRINE_CUDA_CHECK_ON(at(i).gpu, cudaStreamSynchronize(stream(i)));
}

void NcclGroup::wait_until_ready(const char* what) {
  const Clock::time_point deadline = Clock::now() + std::chrono::milliseconds(timeout_ms_);
  for (Rank& rank : ranks_) {
    while (in_progress(rank)) {
      if (Clock::now() > deadline) {
        const std::string reason = fmt::format(
            "NCCL: {} did not {} within {} ms; is its GPU in use elsewhere? Set NCCL_DEBUG=INFO to learn more",
            rank.name, what, timeout_ms_);
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
    VITRINE_NCCL_CHECK(comm, nccl().CommCount(comm, &count));
    VITRINE_NCCL_CHECK(comm, nccl().CommUserRank(comm, &rank));
    VITRINE_NCCL_CHECK(comm, nccl().CommCuDevice(comm, &gpu));
    if (count != world_size_ || rank != first_rank_ + i || gpu != devices[i].id().index) {
      throw ConfigError(
          fmt::format("{}: its NCCL communicator is rank {} of {} on cuda:{}, expected rank {} of {} on {}",
                      devices[i].name(), rank, count, gpu, first_rank_ + i, world_size_, devices[i].id().str()));
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
  const Clock::time_point deadline = Clock::now() + kReturnsWithin;
  for (Rank& rank : ranks_) {
    ncclComm_t comm = nullptr;
    {
      std::unique_lock lock(rank.mutex);
      rank.returned.wait_until(lock, deadline, [&] { return !rank.in_call; });
      comm = std::exchange(rank.comm, nullptr);
    }
    if (comm == nullptr) continue;
    int previous = 0;
    const bool known = cudaGetDevice(&previous) == cudaSuccess;
    cudaSetDevice(rank.gpu);  // NCCL restores the current device, which must be one that is in use
    nccl().CommAbort(comm);
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
    if (rank.comm == nullptr || rank.in_call) continue;  // NCCL forbids the question during a call
    ncclResult_t state = ncclSuccess;
    const ncclResult_t asked = nccl().CommGetAsyncError(rank.comm, &state);
    if (asked != ncclSuccess) state = asked;
    if (state != ncclSuccess && state != ncclInProgress)
      return fmt::format("{}: NCCL reports {}", rank.name, nccl_text(state, rank.comm));
  }
  return {};
}

namespace {

std::string new_id() {
  ncclUniqueId id{};
  VITRINE_NCCL_CHECK(nullptr, nccl().GetUniqueId(&id));
  return {id.internal, sizeof id.internal};
}

}  // namespace

int nccl_id_count(int world_size, int ranks_per_id) { return (world_size - 1) / ranks_per_id + 1; }

int first_rank_of_nccl_id(int id, int count, int world_size) {
  return id * (world_size / count) + std::min(id, world_size % count);
}

std::string exchange_nccl_ids(const DeviceGroup& devices, int ranks_per_id) {
  const int world_size = devices.world_size(), first = devices.first_rank(), last = first + devices.size();
  const int count = nccl_id_count(world_size, ranks_per_id);
  std::string mine;
  for (int id = 0; id < count; ++id) {
    const int rank = first_rank_of_nccl_id(id, count, world_size);
    if (rank >= first && rank < last) mine += new_id();
  }
  if (devices.process_count() == 1) return mine;
  const auto join_parts = [](const std::vector<std::string>& parts) {
    std::string all;  // processes are in the order of their ranks, and so are the ids
    for (const std::string& part : parts) all += part;
    return std::vector<std::string>{all};
  };
  std::string ids = devices.process_group()->exchange("NCCL's unique ids", mine, join_parts);
  const size_t bytes = static_cast<size_t>(count) * sizeof(ncclUniqueId::internal);
  if (ids.size() != bytes)
    throw CommError(fmt::format("NCCL's unique ids: expected {} in {} bytes, got {} bytes", count, bytes, ids.size()));
  return ids;
}

}  // namespace vitrine::cuda
