// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vitrine {

/// A setting that messages refer to, by its name in the API: "DeviceGroupOptions::memory_bytes". Each layer declares
/// its own in its settings.h. Programs can render messages with their own names of the settings: see Reason::str().
class Setting {
 public:
  /// requires  `name` outlives this object; declared settings are made of literals
  constexpr explicit Setting(const char* name) : name_(name) {}
  constexpr const char* name() const { return name_; }
  friend constexpr bool operator==(Setting a, Setting b) { return std::string_view(a.name_) == b.name_; }
  friend constexpr bool operator==(Setting setting, std::string_view name) { return setting.name_ == name; }

 private:
  const char* name_;
};

/// Why something failed: text, in which settings are typed values. Converts from and to text, in the API's words.
class Reason {
 public:
  struct Part {
    enum class Kind : uint8_t {
      text,
      setting,   // a setting by its name
      given,     // a setting with the value that it has
      proposed,  // a setting with a value that helps: part of a remedy
    };
    // NOLINTBEGIN(google-explicit-constructor): messages are lists of texts and settings
    Part(const char* words) : text(words) {}
    Part(std::string words) : text(std::move(words)) {}
    Part(Setting named) : kind(Kind::setting), setting(named.name()) {}
    // NOLINTEND(google-explicit-constructor)
    Part(Kind of, Setting named, std::string value) : kind(of), setting(named.name()), text(std::move(value)) {}
    friend bool operator==(const Part&, const Part&) = default;

    Kind kind = Kind::text;
    std::string setting;  // its name in the API; empty for text
    std::string text;     // or the value of the setting; may be empty
  };

  Reason() = default;
  // NOLINTBEGIN(google-explicit-constructor): every text is a reason, and every reason has a text
  Reason(const char* text) { append(text); }
  Reason(std::string text) { append(std::move(text)); }
  Reason(Part part) { append(std::move(part)); }
  Reason(std::initializer_list<Part> parts);

  /// In the API's words: "set EngineConfig::workspace_bytes 64MiB".
  const std::string& str() const { return text_; }
  operator const std::string&() const { return text_; }
  // NOLINTEND(google-explicit-constructor)
  /// With the names that a program or binding gives the settings: "set workspace 64MiB". `name` may be given settings
  /// that it does not know, such as other libraries' settings: Setting::name() names them. What it returns must stay
  /// valid as long as its argument.
  std::string str(const char* (*name)(Setting)) const;
  bool empty() const { return text_.empty(); }
  const std::vector<Part>& parts() const { return parts_; }
  /// The parts of this kind, in their order.
  std::vector<Part> parts(Part::Kind kind) const;

  void append(Part part);
  Reason& operator+=(const Reason& other);
  friend Reason operator+(Reason a, const Reason& b) { return a += b; }
  friend bool operator==(const Reason& a, std::string_view text) { return a.text_ == text; }

 private:
  std::vector<Part> parts_;
  std::string text_;
};

/// A setting with the value that it has: "LaunchFlags::rank 4".
Reason::Part given(Setting setting, std::string value);
/// A setting with a value that helps: "EngineConfig::batch_size 48".
Reason::Part propose(Setting setting, std::string value);
Reason::Part propose(Setting setting, int64_t value);

}  // namespace vitrine
