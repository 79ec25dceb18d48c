// SPDX-License-Identifier: Apache-2.0
#include "runtime/descriptor.h"

#include <cerrno>

#include <unistd.h>

namespace vitrine {

Descriptor::~Descriptor() {
  if (fd_ >= 0) close(fd_);
}

bool read_content(const Descriptor& file, size_t most_bytes, std::string& content) {
  content.assign(most_bytes, '\0');
  size_t size = 0;
  for (ssize_t count = 1; count != 0 && size < content.size();) {
    count = read(file.get(), content.data() + size, content.size() - size);
    if (count > 0) size += static_cast<size_t>(count);
    if (count < 0 && errno != EINTR) return false;
  }
  content.resize(size);
  return true;
}

}  // namespace vitrine
