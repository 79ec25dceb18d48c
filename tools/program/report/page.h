// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace vitrine::tools::html {

/// A page that needs nothing beside itself: style and script stand in it, and no address. The script only shows what a shape under the pointer says;
/// all else is there without it.
class Page {
 public:
  explicit Page(std::string title) : title_(std::move(title)) {}
  /// `content` is HTML. An empty one adds nothing.
  void add_section(std::string_view title, std::string_view content);
  std::string str() const;

 private:
  std::string title_, navigation_, body_;
  int sections_ = 0;
};

/// Writes it. throws DataError naming the option.
void write_page(const std::string& option, const std::string& path, const Page& page);

}  // namespace vitrine::tools::html
