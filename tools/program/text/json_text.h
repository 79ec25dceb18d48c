// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <optional>
#include <string>

#include <nlohmann/json.hpp>

namespace vitrine::tools {

using Json = nlohmann::ordered_json;

/// JSON as text. Bytes that are not UTF-8, which names of files may have, become U+FFFD.
///   indent  spaces of each level; -1: one line
template <class JsonValue>
std::string json_text(const JsonValue& json, int indent = -1) {
  return json.dump(indent, ' ', false, JsonValue::error_handler_t::replace);
}

/// "lr_gamma": the key of the flag --lr-gamma.
inline std::string json_key(std::string flag) {
  std::replace(flag.begin(), flag.end(), '-', '_');
  return flag;
}
/// null for an empty text.
inline Json text_or_null(const std::string& text) { return text.empty() ? Json() : Json(text); }
/// null without a value.
template <class Value>
Json value_or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json();
}

}  // namespace vitrine::tools
