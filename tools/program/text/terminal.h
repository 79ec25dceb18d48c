// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <limits>
#include <string>

namespace vitrine::tools {

/// Whether the descriptor is a terminal that supports escape sequences: not with TERM=dumb, and not under mpirun, which
/// gives its processes a pseudo terminal and copies what they write into one stream.
bool is_terminal(int descriptor);

/// The style of text on a stream.
struct Style {
  static constexpr int kUnlimited = std::numeric_limits<int>::max(), kLeastWidth = 40;

  bool color = false;
  int width = kUnlimited;  // characters of a line

  /// The style for a file descriptor. Colors only on a terminal, and never with NO_COLOR in the environment. The width
  /// is COLUMNS, else the terminal's, and at least kLeastWidth; in files and pipes nothing is wrapped.
  static Style of(int descriptor);
  std::string bold(const std::string& text) const;
  std::string dim(const std::string& text) const;
  /// Lines outside tables: printable, and broken between words. A word that is longer than a line stays whole, because
  /// it may be a path.
  std::string prose(const std::string& text) const;
};

enum class LongWords { cut, kept };

/// Breaks the lines of `text` between words, so that none is longer than `width`, except for longer words that are
/// kept. Each line keeps its indentation.
std::string wrap(const std::string& text, int width, LongWords long_words = LongWords::cut);

}  // namespace vitrine::tools
