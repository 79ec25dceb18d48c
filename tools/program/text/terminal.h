// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace vitrine::tools {

/// Whether the descriptor is a terminal that supports escape sequences: not with TERM=dumb, and not under mpirun, which
/// gives its processes a pseudo terminal and copies what they write into one stream.
bool is_terminal(int descriptor);

/// The style of text on a stream.
struct Style {
  static constexpr int kDefaultWidth = 120, kLeastWidth = 40;

  bool color = false;
  int width = kDefaultWidth;  // characters of a line
  bool wraps_prose = false;

  /// The style for a file descriptor. Colors only on a terminal, and never with NO_COLOR in the environment; the width
  /// is COLUMNS, else the terminal's, else kDefaultWidth, and at least kLeastWidth. Prose is wrapped only if the width
  /// is known.
  static Style of(int descriptor);
  std::string bold(const std::string& text) const;
  std::string dim(const std::string& text) const;
  /// Lines outside tables: broken between words where wraps_prose is set. A word that is longer than a line stays
  /// whole, because it may be a path.
  std::string prose(const std::string& text) const;
};

enum class LongWords { cut, kept };

/// Breaks the lines of `text` between words, so that none is longer than `width`, except for longer words that are
/// kept. Each line keeps its indentation.
std::string wrap(const std::string& text, int width, LongWords long_words = LongWords::cut);

}  // namespace vitrine::tools
