// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include <cuda_runtime_api.h>

#include "runtime/stream.h"

namespace vitrine {

/// A stream of a GPU: a cudaStream_t of its own (non-blocking), with spans timed by event pairs against an anchor, so that tracing adds no
/// synchronisation. A private header: the public ones name no CUDA type.
class CudaStream final : public Stream {
 public:
  CudaStream(Identity identity, OrderChecker* checker);
  ~CudaStream() override;

  cudaStream_t native() const { return stream_; }
  std::unique_ptr<Event> make_event() override;
  void begin_span(const SpanInfo& info) override;
  void end_span(int64_t bytes) override;
  std::vector<SpanRecord> take_spans() override;
  bool failed() const override;
  /// A GPU tells of failures only when it is asked: failed() and synchronize() call the handler.
  void set_error_handler(std::function<void(const std::string&)> handler) override { handler_ = std::move(handler); }

 private:
  struct TimedSpan {
    SpanRecord record;
    cudaEvent_t begin = nullptr, end = nullptr;
  };
  void do_record(Event& event) override;
  void do_wait(Event& event) override;
  void do_synchronize() override;
  cudaEvent_t timing_event();

  cudaStream_t stream_ = nullptr;
  std::function<void(const std::string&)> handler_;
  cudaEvent_t anchor_ = nullptr;
  int64_t anchor_ns_ = 0;
  std::vector<TimedSpan> open_, closed_;
  std::vector<cudaEvent_t> spare_;
};

}  // namespace vitrine
