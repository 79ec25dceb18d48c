// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace vitrine::tools {

/// Whether a person reads the descriptor on a terminal that obeys escape sequences: not with TERM=dumb, and not under mpirun, which gives its
/// processes a pseudo terminal and copies what they write into one stream.
bool is_terminal(int descriptor);

/// How text looks on a stream.
struct Style {
  static constexpr int kDefaultWidth = 120, kLeastWidth = 40;

  bool colour = false;
  int width = kDefaultWidth;  // characters of a line

  /// That of a file descriptor. Colours only on a terminal, and never with NO_COLOR in the environment; the width is COLUMNS, else the terminal's,
  /// else kDefaultWidth, and at least kLeastWidth.
  static Style of(int descriptor);
  std::string bold(const std::string& text) const;
  std::string dim(const std::string& text) const;
};

/// Breaks the lines of `text` between words, so that none is longer than `width`; a longer word is cut. Each line keeps its indentation.
std::string wrap(const std::string& text, int width);

}  // namespace vitrine::tools
