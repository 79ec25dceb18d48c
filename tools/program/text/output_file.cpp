// SPDX-License-Identifier: Apache-2.0
#include "tools/program/text/output_file.h"

#include <cerrno>
#include <cstring>
#include <streambuf>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nn/atomic_file.h"

namespace vitrine::tools {

namespace {

/// What a std::ostream writes to an AtomicFile, in parts.
class FileBuffer : public std::streambuf {
 public:
  explicit FileBuffer(AtomicFile& file) : file_(file) {}

  void flush() {
    file_.write(text_);
    text_.clear();
  }

 protected:
  std::streamsize xsputn(const char* text, std::streamsize count) override {
    text_.append(text, static_cast<size_t>(count));
    if (text_.size() >= kPart) flush();
    return count;
  }
  int_type overflow(int_type character) override {
    if (traits_type::eq_int_type(character, traits_type::eof())) return traits_type::not_eof(character);
    const char c = traits_type::to_char_type(character);
    xsputn(&c, 1);
    return character;
  }

 private:
  static constexpr size_t kPart = size_t{1} << 20;
  AtomicFile& file_;
  std::string text_;
};

}  // namespace

void write_output_file(const std::string& option, const std::string& path,
                       const std::function<void(std::ostream&)>& content) {
  with_prefix<DataError>(option + " ", [&] {
    AtomicFile file(path);
    FileBuffer buffer(file);
    std::ostream stream(&buffer);
    stream.exceptions(std::ios::badbit);  // the file's own error, not a flag
    content(stream);
    buffer.flush();
    file.commit();
  });
}

void check_writable(const std::string& option, const std::string& path) {
  if (path.empty()) return;
  const auto refuse = [&] {
    throw DataError(
        fmt::format("{} {}: no file can be written there ({}); choose a folder that exists and that you may write to",
                    option, path, std::strerror(errno)));
  };
  struct stat status {};
  const bool exists = stat(path.c_str(), &status) == 0;
  if (!exists && errno != ENOENT) refuse();  // such as a name that is too long
  if (exists && S_ISDIR(status.st_mode))
    throw DataError(fmt::format("{} {}: it is a folder; name a file in it", option, path));
  if (exists && !S_ISREG(status.st_mode)) {  // /dev/stdout, a pipe: opening it could already be seen at its other end
    if (access(path.c_str(), W_OK) != 0) refuse();
    // Stays open until the program ends: a pipe that closes ends its reader. Waits for nobody.
    if (S_ISFIFO(status.st_mode) && open(path.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC) < 0)
      throw DataError(fmt::format("{} {}: nobody reads this pipe; start its reader first", option, path));
    return;
  }
  std::string probe;
  const int file = create_temporary(path, probe);
  if (file < 0) refuse();
  close(file);
  unlink(probe.c_str());
}

}  // namespace vitrine::tools
