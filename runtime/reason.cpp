// SPDX-License-Identifier: Apache-2.0
#include "runtime/reason.h"

#include <algorithm>
#include <iterator>

#include "runtime/text.h"

namespace vitrine {
namespace {

std::string render(const Reason::Part& part, const char* (*name)(Setting)) {
  if (part.kind == Reason::Part::Kind::text) return part.text;
  std::string text = name(Setting(part.setting.c_str()));
  if (!part.text.empty()) text.append(" ").append(part.text);
  return text;
}

}  // namespace

Reason::Reason(std::initializer_list<Part> parts) {
  for (const Part& part : parts) append(part);
}

std::string Reason::str(const char* (*name)(Setting)) const {
  std::string text;
  for (const Part& part : parts_) text += render(part, name);
  return text;
}

std::vector<Reason::Part> Reason::parts(Part::Kind kind) const {
  std::vector<Part> found;
  std::ranges::copy_if(parts_, std::back_inserter(found), [kind](const Part& part) { return part.kind == kind; });
  return found;
}

Reason& Reason::operator+=(const Reason& other) {
  const std::vector<Part> added = other.parts_;  // a copy: `other` may be this object
  for (const Part& part : added) append(part);
  return *this;
}

void Reason::append(Part part) {
  part.text = printable_lines(part.text);  // names of files and values that users gave may hold anything
  if (part.kind == Part::Kind::text && part.text.empty()) return;
  text_ += render(part, [](Setting setting) { return setting.name(); });
  if (part.kind == Part::Kind::text && !parts_.empty() && parts_.back().kind == Part::Kind::text) {
    parts_.back().text += part.text;
  } else {
    parts_.push_back(std::move(part));
  }
}

Reason::Part given(Setting setting, std::string value) {
  return {Reason::Part::Kind::given, setting, std::move(value)};
}
Reason::Part propose(Setting setting, std::string value) {
  return {Reason::Part::Kind::proposed, setting, std::move(value)};
}
Reason::Part propose(Setting setting, int64_t value) { return propose(setting, std::to_string(value)); }

}  // namespace vitrine
