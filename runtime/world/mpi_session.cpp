// SPDX-License-Identifier: Apache-2.0
#include "runtime/world/mpi_session.h"

#include <array>
#include <chrono>
#include <cstdlib>
#include <thread>

#include <fmt/format.h>

#include "runtime/error.h"
#ifdef VITRINE_HAVE_MPI
#include <mpi.h>
#endif

namespace vitrine::world {

#ifdef VITRINE_HAVE_MPI
namespace {

class OpenSession final : public MpiSession {
 public:
  OpenSession() {
    int initialized = 0, provided = 0;
    MPI_Initialized(&initialized);
    if (initialized != 0) {
      MPI_Query_thread(&provided);
    } else {
      MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
      owns_ = true;
    }
    if (provided < MPI_THREAD_SERIALIZED)
      throw UnsupportedError("MPI: it takes calls from one thread only; initialise it with MPI_THREAD_SERIALIZED or more");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string version() const override {
    std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
    int length = 0;
    MPI_Get_library_version(text.data(), &length);
    const std::string whole(text.data());
    // "Open MPI v4.1.4, package: ..."
    return whole.substr(0, whole.find_first_of(",\n"));
  }

  std::string broadcast(const std::string& from_rank0, int64_t timeout_ms) override {
    uint64_t length = from_rank0.size();
    broadcast_bytes(&length, sizeof length, timeout_ms);
    std::string text = from_rank0;
    text.resize(length);
    broadcast_bytes(text.data(), length, timeout_ms);
    return text;
  }

  void finish() override {
    int finalized = 0;
    MPI_Finalized(&finalized);
    if (owns_ && finalized == 0) MPI_Finalize();
    owns_ = false;
  }

 private:
  void broadcast_bytes(void* bytes, size_t count, int64_t timeout_ms) {
    MPI_Request request = MPI_REQUEST_NULL;
    if (MPI_Ibcast(bytes, static_cast<int>(count), MPI_BYTE, 0, MPI_COMM_WORLD, &request) != MPI_SUCCESS)
      throw CommError("MPI: its broadcast failed");
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(timeout_ms);
    for (int done = 0; done == 0; std::this_thread::sleep_for(std::chrono::microseconds(100))) {
      if (MPI_Test(&request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) throw CommError("MPI: its broadcast failed");
      if (done == 0 && std::chrono::steady_clock::now() > deadline) {
        throw CommError(fmt::format("MPI: rank {} waited {} s for rank 0 to tell where to meet", rank_, timeout_ms / 1000));
      }
    }
  }

  bool owns_ = false;
  int rank_ = 0, size_ = 1;
};

}  // namespace

std::unique_ptr<MpiSession> MpiSession::open() { return std::make_unique<OpenSession>(); }

#else

std::unique_ptr<MpiSession> MpiSession::open() {
  throw UnsupportedError(
      "MPI is not built in, so the processes cannot meet over it; build with libopenmpi-dev installed, or, with GPUs, say where to meet with "
      "--init tcp://HOST:PORT or --init file:PATH");
}

#endif

}  // namespace vitrine::world
