// SPDX-License-Identifier: Apache-2.0
#include "tools/program/text/standard_streams.h"

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <unistd.h>

namespace vitrine::tools {

namespace {

struct StandardStream {
  int descriptor;
  std::atomic<int> problem{0};  // errno of the first write that failed
};

StandardStream standard_output{STDOUT_FILENO}, standard_error{STDERR_FILENO};
std::FILE* results = stdout;

ssize_t write_all(void* cookie, const char* text, size_t size) {
  auto& stream = *static_cast<StandardStream*>(cookie);
  for (size_t done = 0; done < size && stream.problem == 0;) {
    const ssize_t written = write(stream.descriptor, text + done, size - done);
    if (written >= 0) {
      done += static_cast<size_t>(written);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      pollfd room{stream.descriptor, POLLOUT, 0};
      poll(&room, 1, -1);
    } else if (errno != EINTR) {
      stream.problem = errno;
    }
  }
  return static_cast<ssize_t>(size);  // pretends success: a failed write must not end the program
}

std::FILE* open_stream(StandardStream& stream, int buffering) {
  cookie_io_functions_t functions{};
  functions.write = write_all;
  std::FILE* const file = fopencookie(&stream, "w", functions);
  if (file != nullptr) std::setvbuf(file, nullptr, buffering, BUFSIZ);
  return file;
}

/// Waits until mpirun has read what was written. Returns false after ten seconds: on a busy machine it reads late.
bool wait_for_mpirun(int descriptor) {
  constexpr int kLooks = 50000, kMicroseconds = 200;
  for (int look = 0, unread = 0; look < kLooks; ++look) {
    if (ioctl(descriptor, FIONREAD, &unread) != 0 || unread == 0) return true;
    usleep(kMicroseconds);
  }
  return false;
}

/// Breaks a line of JSON after a comma where it has more than 2 KiB.
std::vector<std::string> short_lines(const std::string& json) {
  std::vector<std::string> lines(1);
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    lines.back() += json[i];
    if (json[i] == '\\') {
      lines.back() += json[++i];
    } else if (json[i] == '"') {
      in_string = !in_string;
    } else if (json[i] == ',' && !in_string && lines.back().size() > 2048) {
      lines.back() += '\n';
      lines.emplace_back();
    }
  }
  return lines;
}

}  // namespace

void keep_standard_streams() {
  // A write to a closed pipe, or beyond a limit on file sizes, fails with an error instead of ending the program.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  // A stream that the caller closed must not become the first file that is opened; writes to it fail, as they should.
  for (int descriptor = STDIN_FILENO; descriptor <= STDERR_FILENO; ++descriptor) {
    if (fcntl(descriptor, F_GETFD) < 0) [[maybe_unused]]
      const int null = open("/dev/null", O_RDONLY);
  }
  std::FILE* const output = open_stream(standard_output, isatty(STDOUT_FILENO) == 1 ? _IOLBF : _IOFBF);
  std::FILE* const error = open_stream(standard_error, _IONBF);
  // Out of memory: the streams stay unchanged.
  if (output != nullptr) results = stdout = output;
  if (error != nullptr) stderr = error;
}

void print_results(const std::string& json) {
  const bool under_mpirun = std::getenv("PMIX_RANK") != nullptr;
  bool waits = under_mpirun && wait_for_mpirun(STDERR_FILENO);
  for (const std::string& line : under_mpirun ? short_lines(json) : std::vector{json}) {
    std::fwrite(line.data(), 1, line.size(), results);
    std::fflush(results);
    waits = waits && wait_for_mpirun(STDOUT_FILENO);
  }
}

void keep_stdout_for_results() { stdout = stderr; }

std::string finish_stdout() {
  std::fflush(results);
  const int problem = standard_output.problem;
  return problem == 0 ? std::string() : std::strerror(problem);
}

}  // namespace vitrine::tools
