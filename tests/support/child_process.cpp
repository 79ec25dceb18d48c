// SPDX-License-Identifier: Apache-2.0
#include "tests/support/child_process.h"

#include <array>
#include <csignal>
#include <cstdlib>
#include <stdexcept>

#include <fcntl.h>
#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

namespace vitrine::test {

namespace {

[[noreturn]] void execute(const std::vector<std::string>& command, const std::vector<std::string>& environment) {
  unsetenv("NO_COLOR");
  std::signal(SIGINT, SIG_DFL);  // tests that run in the background of a script inherit that it is ignored
  for (const std::string& entry : environment) putenv(const_cast<char*>(entry.c_str()));
  std::vector<char*> argv;
  for (const std::string& argument : command) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  execvp(argv[0], argv.data());
  _exit(127);
}

/// Appends the available output to `text`; closes the descriptor at end of file.
void drain(int& descriptor, std::string& text) {
  std::array<char, 4096> buffer{};
  const ssize_t count = read(descriptor, buffer.data(), buffer.size());
  if (count > 0) {
    text.append(buffer.data(), static_cast<size_t>(count));
    return;
  }
  close(descriptor);
  descriptor = -1;
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& command, Streams streams,
                           const std::vector<std::string>& environment) {
  if (streams == Streams::terminal) {
    pid_ = forkpty(&output_, nullptr, nullptr, nullptr);
    if (pid_ == 0) execute(command, environment);
    if (pid_ < 0) throw std::runtime_error("forkpty failed");
    return;
  }
  int output[2], error[2];
  if (pipe2(output, O_CLOEXEC) != 0 || pipe2(error, O_CLOEXEC) != 0) throw std::runtime_error("pipe2 failed");
  pid_ = fork();
  if (pid_ < 0) throw std::runtime_error("fork failed");
  if (pid_ == 0) {
    dup2(output[1], STDOUT_FILENO);
    dup2(error[1], STDERR_FILENO);
    execute(command, environment);
  }
  close(output[1]);
  close(error[1]);
  output_ = output[0];
  error_ = error[0];
}

ChildProcess::~ChildProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (output_ >= 0) close(output_);
  if (error_ >= 0) close(error_);
}

bool ChildProcess::read_some() {
  if (output_ < 0 && error_ < 0) return false;
  std::array<pollfd, 2> descriptors = {pollfd{output_, POLLIN, 0}, pollfd{error_, POLLIN, 0}};
  poll(descriptors.data(), descriptors.size(), -1);
  if (descriptors[0].revents != 0) drain(output_, result_.output);
  if (descriptors[1].revents != 0) drain(error_, result_.error);
  return true;
}

bool ChildProcess::wait_for(const std::string& text) {
  while (result_.output.find(text) == std::string::npos && result_.error.find(text) == std::string::npos) {
    if (!read_some()) return false;
  }
  return true;
}

void ChildProcess::send_signal(int signal_number) const { kill(pid_, signal_number); }

ChildResult ChildProcess::wait() {
  while (read_some()) {
  }
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  result_.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result_;
}

}  // namespace vitrine::test
