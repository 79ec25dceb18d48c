// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>

#include "runtime/comm/fused.h"
#include "runtime/comm/process_exchange.h"

namespace vitrine::comm {

/// Memory that all processes of a group map, filled with zeros. It has no name in a file system: the system frees it
/// when the last of them has unmapped it or ended, by SIGKILL too.
class SharedSegment {
 public:
  struct Created {
    std::unique_ptr<SharedSegment> segment;
    std::string refusal;  // why there is none
  };
  /// All processes must call it, in the same order as other exchanges. No segment on all of them if they are on several
  /// machines or one of them cannot map the memory.   throws  CommError when the process group fails
  static Created create(ProcessGroup& process_group, int64_t bytes);

  SharedSegment(void* data, int64_t bytes) : data_(static_cast<std::byte*>(data)), bytes_(bytes) {}
  ~SharedSegment();
  SharedSegment(const SharedSegment&) = delete;
  SharedSegment& operator=(const SharedSegment&) = delete;

  std::byte* data() const { return data_; }

 private:
  std::byte* data_;
  int64_t bytes_;
};

/// A sum over processes, segment by segment. In each segment every rank has a slice: it adds the partial sums of its
/// slice, of which a rank may contribute several or none.
struct SegmentedSum {
  DType dtype = DType::f32, result_dtype = DType::f32;  // of the partial sums, and of the result
  std::vector<const void*> partials = {};               // of this rank
  std::vector<int> counts = {};                         // of each rank's partial sums
  /// Adds `elements` elements of the partial sums, which are in the order of their ranks, and writes every output.
  std::function<void(std::span<const void* const> partials, std::span<void* const> outputs, int64_t elements)> add = {};
  int64_t segments = 0;
  std::function<Slice(int64_t segment, int rank)> slice = {};  // elements
  std::function<void*(int64_t element)> result_at = {};        // where the sum of an element is stored
  std::function<bool(int rank)> gets = {};  // whether a rank gets the sums of the other ranks' slices

  /// Where an element of one of this rank's partial sums is.
  const std::byte* partial_at(size_t i, int64_t element) const {
    return static_cast<const std::byte*>(partials[i]) + element * size_of(dtype);
  }
};

/// Sums over the processes of one machine through memory that all of them map: a rank writes its partials of a segment
/// there, adds its slice from all partials, and writes the sums for those that get them. Two segments are in flight, so
/// that a rank can go on while others add. Calls from two threads at once throw CommError.
class SharedSums {
 public:
  /// Bytes of the segment that SharedSums uses, for so many processes.
  static int64_t segment_bytes(int processes);

  ///   segment  segment_bytes() zeros, mapped by all ranks      poll  called while waiting; may throw
  ///   added    called for each segment that this rank has added
  SharedSums(std::unique_ptr<SharedSegment> segment, int rank, int processes, std::function<void()> poll,
             std::function<void()> added, bool past_the_caches = false);

  /// The most elements of a slice to which no rank contributes more than so many partial sums.
  int64_t slice_elements(DType dtype, int partials) const { return partial_bytes(partials) / size_of(dtype); }
  /// requires  slices of at most slice_elements()
  void add(const SegmentedSum& sum);
  /// Waits until all ranks have arrived with the same tag; returns the last one, or this one.
  int barrier(uint64_t tag);

 private:
  struct Progress;
  Progress& progress(int rank) const;
  /// A rank's part of one of the two segments in flight: its partials of all slices, then the sum of its slice.
  std::byte* partials(int64_t segment, int rank) const;
  std::byte* sums(int64_t segment, int rank) const { return partials(segment, rank) + processes_ * slice_bytes_; }
  int64_t partial_bytes(int partials) const;
  /// What a slice of the sum takes of a rank's part. Small sums that follow one another lie side by side, so that a
  /// rank seldom writes to lines that another core still has in its cache, which takes twice as long.
  int64_t place_bytes(const SegmentedSum& sum) const;
  /// Tells the others that this rank's progress has changed.
  void announce();
  /// Waits until done(), which depends on the rank's progress.
  template <class Done>
  void wait_for(int rank, const Done& done);
  /// Waits until all other ranks have done the segment.
  void await(std::atomic<int64_t> Progress::*done, int64_t segment);
  std::unique_lock<std::mutex> enter();

  /// Copies to memory that other ranks have read and will read again: past the caches for a while, after two copies
  /// through them that were slow.
  void write_shared(std::byte* to, const std::byte* from, int64_t bytes);
  void write_partials(const SegmentedSum& sum, int64_t segment, int64_t number);
  void add_slice(const SegmentedSum& sum, int64_t segment, int64_t number);
  void read_sums(const SegmentedSum& sum, int64_t segment, int64_t number);

  std::unique_ptr<SharedSegment> segment_;
  int rank_, processes_;
  int64_t slice_bytes_;
  int64_t place_bytes_;  // of the sum in progress
  std::function<void()> poll_, added_;
  std::mutex in_use_;
  int64_t segments_ = 0;  // added so far, by all ranks alike
  uint64_t barriers_ = 0;
  int64_t uncached_bytes_;  // to be written past the caches
  bool last_write_was_slow_ = false;
  bool core_is_shared_ = false;  // other threads run on this core, so waiting sleeps instead of spinning
};

}  // namespace vitrine::comm
