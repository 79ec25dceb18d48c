// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace vitrine {

class ProcessGroup;

namespace comm {

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

}  // namespace comm
}  // namespace vitrine
