// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <nlohmann/json.hpp>

namespace vitrine::tools {

/// JSON as text. Bytes that are not UTF-8, which names of files may have, become U+FFFD.
///   indent  spaces of each level; -1: one line
template <class JsonValue>
std::string json_text(const JsonValue& json, int indent = -1) {
  return json.dump(indent, ' ', false, JsonValue::error_handler_t::replace);
}

}  // namespace vitrine::tools
