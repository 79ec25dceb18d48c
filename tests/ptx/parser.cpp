// SPDX-License-Identifier: Apache-2.0
// The structure of a kernel: declarations, operands, bodies and inlined functions. instructions.cpp decodes statements.
#include "tests/ptx/parser.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace vitrine::ptx {

void Parser::skip_space() {
  const std::string_view t = module_.text;
  while (position_ < t.size()) {
    if (std::isspace(static_cast<unsigned char>(t[position_])))
      ++position_;
    else if (t.substr(position_, 2) == "//")
      position_ = std::min(t.find('\n', position_), t.size());
    else
      break;
  }
}
std::string_view Parser::until(char end) {
  const size_t found = module_.text.find(end, position_);
  if (found == std::string_view::npos) fail("unexpected end");
  const std::string_view text = module_.text.substr(position_, found - position_);
  position_ = found + 1;
  return text;
}

uint32_t Parser::constant(uint64_t bits, uint32_t bytes) {
  const auto [found, made] = constants_.try_emplace({bits, bytes}, static_cast<uint32_t>(kernel_.constants.size()));
  if (made) {
    const uint32_t lanes = bytes == 0 ? 1 : 32, each = bytes == 0 ? 4 : bytes;
    for (uint32_t l = 0; l < lanes; ++l) {
      const auto* const raw = reinterpret_cast<const std::byte*>(&bits);
      kernel_.constants.insert(kernel_.constants.end(), raw, raw + each);
    }
    kernel_.constants.resize((kernel_.constants.size() + 31) / 32 * 32);
  }
  return kConstantBase + found->second;
}

const Name* Parser::find(std::string_view name) const {
  for (auto s = scopes_.rbegin(); s != scopes_.rend(); ++s) {
    if (const auto found = s->find(name); found != s->end()) return &found->second;
  }
  return nullptr;
}
const Name* Parser::find_register(std::string_view name, uint32_t& offset) const {
  if (const Name* const exact = find(name); exact != nullptr && exact->what == Name::reg && exact->count == 0)
    return offset = exact->offset, exact;
  size_t digits = name.size();
  while (digits > 0 && std::isdigit(static_cast<unsigned char>(name[digits - 1]))) --digits;
  if (digits == name.size()) return nullptr;
  const Name* const range = find(name.substr(0, digits));
  const auto number = static_cast<uint32_t>(std::strtoul(std::string(name.substr(digits)).c_str(), nullptr, 10));
  if (range == nullptr || range->what != Name::reg || number >= range->count) return nullptr;
  offset = range->offset + number * (range->predicate ? 4 : 32 * range->bytes);
  return range;
}

Parser::Operand Parser::operand(std::string_view text, Type type, bool destination, bool wider) {
  if (text == "_") return {};
  const auto bytes = static_cast<uint32_t>(std::max(type.bits, 16) / 8);
  uint32_t offset = 0;
  if (const Name* const r = find_register(text, offset)) {
    if (r->predicate != (type.letter == 'p') || (!r->predicate && (wider ? r->bytes < bytes : r->bytes != bytes))) {
      fail("register " + std::string(text) + " does not fit the type of the instruction");
    }
    return {offset, r->predicate ? 0 : r->bytes};
  }
  if (text[0] == '%') {
    for (int axis = 0; axis < 3; ++axis) {
      const std::string letter(1, "xyz"[axis]);
      if (text == "%tid." + letter) return {kernel_.tid[axis], 4};
      if (text == "%ctaid." + letter) return {kernel_.ctaid[axis], 4};
      if (text == "%ntid." + letter) return {kernel_.ntid[axis], 4};
      if (text == "%nctaid." + letter) return {kernel_.nctaid[axis], 4};
    }
    if (text == "%laneid") return {kernel_.laneid, 4};
    fail("unknown register " + std::string(text));
  }
  if (destination) fail("no register: " + std::string(text));
  if (const Name* const n = find(text);
      n != nullptr && (n->what == Name::shared || n->what == Name::param || n->what == Name::local))
    return {constant(n->offset, bytes), bytes};
  uint64_t bits = 0;
  const std::string s(text);
  if (s.rfind("0f", 0) == 0 || s.rfind("0F", 0) == 0) {
    bits = std::strtoull(s.c_str() + 2, nullptr, 16);
  } else if (s.rfind("0d", 0) == 0 || s.rfind("0D", 0) == 0) {
    bits = std::strtoull(s.c_str() + 2, nullptr, 16);
  } else {
    char* end = nullptr;
    bits = s[0] == '-' ? static_cast<uint64_t>(std::strtoll(s.c_str(), &end, 0)) : std::strtoull(s.c_str(), &end, 0);
    if (end == s.c_str() || (*end != '\0' && *end != 'U')) fail("unknown operand " + s);
  }
  if (type.letter == 'p') return {constant(bits != 0 ? kAll : 0, 0), 0};
  return {constant(bytes == 8 ? bits : bytes == 4 ? bits & 0xFFFFFFFFU : bits & 0xFFFFU, bytes), bytes};
}

void Parser::declaration(std::string_view s) {
  // .reg .b32 %r<8>   .shared .align 4 .b8 name[1024]   .param .b64 param0
  std::vector<std::string_view> words;
  for (std::string_view w : split(s, ' ')) {
    for (std::string_view x : split(w, '\t')) words.push_back(x);
  }
  uint32_t alignment = 0;
  Type type;
  size_t i = 1;
  for (; i < words.size(); ++i) {
    if (words[i].empty()) continue;
    if (words[i] == ".align")
      alignment = static_cast<uint32_t>(std::atoi(std::string(words[++i]).c_str()));
    else if (words[i][0] == '.') {
      if (!parse_type(words[i].substr(1), type)) fail("unknown type in " + std::string(s));
    } else {
      break;
    }
  }
  const auto bytes = static_cast<uint32_t>(type.bits / 8);
  for (std::string_view name : split(s.substr(static_cast<size_t>(words[i].data() - s.data())), ',')) {
    Name n;
    n.bytes = bytes;
    if (words[0] == ".reg") {
      n.predicate = type.letter == 'p';
      const size_t open = name.find('<');
      if (open != std::string_view::npos)
        n.count = static_cast<uint32_t>(std::atoi(std::string(name.substr(open + 1)).c_str()));
      name = name.substr(0, open);
      n.bytes = std::max(bytes, 2U);
      const uint32_t each = n.predicate ? 4 : 32 * n.bytes;
      next_register_ = (next_register_ + 31) / 32 * 32;
      n.offset = allocate(each * std::max(n.count, 1U));
    } else {
      const size_t open = name.find('[');
      if (open != std::string_view::npos)
        n.bytes = bytes * static_cast<uint32_t>(std::atoi(std::string(name.substr(open + 1)).c_str()));
      name = name.substr(0, open);
      if (words[0] == ".shared") {
        alignment = std::max(alignment, bytes);
        n.what = Name::shared;
        n.offset = (kernel_.shared_bytes + alignment - 1) / alignment * alignment;
        kernel_.shared_bytes = n.offset + n.bytes;
      } else if (words[0] == ".local") {
        alignment = std::max(alignment, bytes);
        n.what = Name::local;
        n.offset = (kernel_.local_bytes + alignment - 1) / alignment * alignment;
        kernel_.local_bytes = n.offset + n.bytes;
      } else if (words[0] == ".param") {
        n.what = Name::slot;
        next_register_ = (next_register_ + 31) / 32 * 32;
        n.offset = allocate(32 * n.bytes);
      } else {
        fail("unsupported declaration: " + std::string(s));
      }
    }
    scopes_.back()[std::string(name)] = n;
  }
}

void Parser::address(std::string_view text, Inst& inst, Name::What& what) {
  if (text.size() < 2 || text.front() != '[' || text.back() != ']') fail("no address: " + std::string(text));
  text = text.substr(1, text.size() - 2);
  const size_t plus = text.find('+');
  std::string_view base = trim(text.substr(0, plus));
  if (plus != std::string_view::npos) inst.imm = std::strtoll(std::string(text.substr(plus + 1)).c_str(), nullptr, 0);
  what = Name::reg;
  if (base[0] == '%') {
    uint32_t offset = 0;
    const Name* const r = find_register(base, offset);
    if (r == nullptr) fail("unknown base " + std::string(base));
    inst.a = offset;
    inst.base_bytes = static_cast<uint8_t>(r->bytes);
  } else if (const Name* const n = find(base)) {
    what = n->what;
    if (n->what == Name::slot)
      inst.a = n->offset;
    else
      inst.imm += n->offset;
  } else {
    fail("unknown base " + std::string(base));
  }
}

// call.uni (retval0), name, (param0, param1): the function is inlined.
void Parser::call(std::string_view s) {
  auto parts = split(trim(s), ',');
  std::vector<Name> actual;
  std::string_view name;
  const auto names = [&](std::string_view group) {
    for (std::string_view n : split(group.substr(1, group.size() - 2), ',')) {
      const Name* const found = find(n);
      if (found == nullptr) fail("unknown argument " + std::string(n));
      actual.push_back(*found);
    }
  };
  for (std::string_view p : parts) {
    if (p[0] == '(')
      names(p);
    else
      name = p;
  }
  const auto function = module_.functions.find(name);
  if (function == module_.functions.end()) fail("unknown function " + std::string(name));
  const size_t after = position_;
  position_ = function->second;
  const std::string_view head = until('{');
  std::vector<std::pair<std::string, Name>> formals;
  for (size_t i = head.find(".param"), k = 0; i != std::string_view::npos; i = head.find(".param", i + 1), ++k) {
    const size_t stop = head.find_first_of(",)", i);
    std::string_view declared = trim(head.substr(i, stop - i));
    declared = declared.substr(declared.find_last_of(" \t") + 1);
    if (k >= actual.size()) fail("too few arguments");
    formals.emplace_back(std::string(declared), actual[k]);
  }
  const int file = file_, line = line_;
  body(formals, true);
  file_ = file;
  line_ = line;
  position_ = after;
}

// After '{', to the matching '}'.
void Parser::body(const std::vector<std::pair<std::string, Name>>& formals, bool inlined) {
  scopes_.emplace_back();
  for (const auto& [name, n] : formals) scopes_.back()[name] = n;
  labels_.emplace_back();
  jumps_.emplace_back();
  if (inlined) returns_.emplace_back();
  const std::string_view t = module_.text;
  for (int depth = 1; depth > 0;) {
    skip_space();
    if (position_ >= t.size()) fail("unexpected end");
    if (t[position_] == '{') {
      ++position_;
      ++depth;
      scopes_.emplace_back();
      continue;
    }
    if (t[position_] == '}') {
      ++position_;
      --depth;
      scopes_.pop_back();
      continue;
    }
    if (t.substr(position_, 4) == ".loc" && std::isspace(static_cast<unsigned char>(t[position_ + 4]))) {
      const std::string text(until('\n'));
      std::sscanf(text.c_str(), ".loc %d %d", &file_, &line_);
      outer_file_ = outer_line_ = 0;
      if (const size_t at = text.find("inlined_at"); at != std::string::npos)
        std::sscanf(text.c_str() + at, "inlined_at %d %d", &outer_file_, &outer_line_);
      continue;
    }
    // A label, or a statement up to ';'.
    size_t stop = position_;
    while (stop < t.size() && (std::isalnum(static_cast<unsigned char>(t[stop])) || t[stop] == '_' || t[stop] == '$'))
      ++stop;
    if (stop > position_ && t[stop] == ':') {
      labels_.back()[std::string(t.substr(position_, stop - position_))] = static_cast<uint32_t>(kernel_.code.size());
      position_ = stop + 1;
      continue;
    }
    const size_t begin = position_;
    const std::string_view s = trim(until(';'));
    const size_t after = position_;
    position_ = begin;  // for messages and lines
    if (s.empty()) {
    } else if (s.substr(0, 7) == ".pragma") {
      if (const size_t at = s.find("used_bytes_mask "); at != std::string_view::npos)
        used_bytes_ = static_cast<uint32_t>(std::strtoul(s.data() + at + 16, nullptr, 0));
    } else if (s[0] == '.') {
      declaration(s);
    } else {
      statement(s);
    }
    position_ = after;
  }
  for (const auto& [from, label] : jumps_.back()) {
    const auto found = labels_.back().find(label);
    if (found == labels_.back().end()) fail("unknown label " + label);
    kernel_.code[from].target = found->second;
  }
  labels_.pop_back();
  jumps_.pop_back();
  if (inlined) {
    for (size_t from : returns_.back()) kernel_.code[from].target = static_cast<uint32_t>(kernel_.code.size());
    returns_.pop_back();
  }
}

void Parser::entry(size_t position) {
  scopes_.emplace_back();
  position_ = position;
  for (uint32_t* group : {kernel_.tid, kernel_.ctaid, kernel_.ntid, kernel_.nctaid}) {
    for (int axis = 0; axis < 3; ++axis) group[axis] = allocate(128);
  }
  kernel_.laneid = allocate(128);
  for (const auto& [name, size] : module_.shared) {
    // Only those that the kernel uses count.
    size_t end = module_.text.size();
    for (const auto* group : {&module_.entries, &module_.functions}) {
      for (const auto& [other, at] : *group) {
        if (at > position_) end = std::min(end, at);
      }
    }
    if (module_.text.substr(position_, end - position_).find(name) == std::string_view::npos) continue;
    const uint32_t offset = (kernel_.shared_bytes + size.second - 1) / size.second * size.second;
    scopes_.back()[name] = Name{Name::shared, offset, size.first, 0, false};
    kernel_.shared_bytes = offset + size.first;
  }
  const std::string_view head = until('{');
  const size_t close = head.find(')');
  for (size_t i = head.find(".param"); i != std::string_view::npos; i = head.find(".param", i + 1)) {
    std::string_view declared = trim(head.substr(i, head.find_first_of(",)", i) - i));
    uint32_t alignment = 0, bytes = 0;
    if (const size_t a = declared.find(".align"); a != std::string_view::npos)
      alignment = static_cast<uint32_t>(std::atoi(declared.data() + a + 6));
    const bool pointer = declared.find(".ptr") != std::string_view::npos;
    std::string_view rest = declared.substr(6);
    Type type;
    for (std::string_view w : split(rest, ' ')) {
      Type found;
      if (w.size() > 1 && w[0] == '.' && parse_type(w.substr(1), found)) type = found;
    }
    bytes = static_cast<uint32_t>(type.bits / 8);
    std::string_view name = declared.substr(declared.find_last_of(" \t") + 1);
    if (pointer) alignment = 8;
    alignment = std::max(alignment, bytes);
    if (const size_t open = name.find('['); open != std::string_view::npos) {
      bytes *= static_cast<uint32_t>(std::atoi(name.data() + open + 1));
      name = name.substr(0, open);
    }
    const uint32_t offset = (kernel_.param_bytes + alignment - 1) / alignment * alignment;
    kernel_.params.push_back({offset, bytes, pointer});
    kernel_.param_bytes = offset + bytes;
    scopes_.back()[std::string(name)] = Name{Name::param, offset, bytes, 0, false};
  }
  if (close != std::string_view::npos) {
    const std::string_view tail = head.substr(close);
    for (const char* word : {".maxntid", ".reqntid"}) {
      if (const size_t i = tail.find(word); i != std::string_view::npos) {
        unsigned x = 1, y = 1, z = 1;
        std::sscanf(std::string(tail.substr(i + 8)).c_str(), " %u, %u, %u", &x, &y, &z);
        kernel_.max_threads = x * y * z;
      }
    }
  }
  body({}, false);
  if (kernel_.code.empty() || kernel_.code.back().kind != Kind::exit) {
    Inst exit;
    exit.kind = Kind::exit;
    push(exit);
  }
  // Constants go before the registers.
  const auto base = static_cast<uint32_t>(kernel_.constants.size());
  const auto relocate = [base](uint32_t& offset) {
    if (offset == kNone) return;
    offset = offset >= kConstantBase ? offset - kConstantBase : offset + base;
  };
  for (Inst& i : kernel_.code) {
    for (uint32_t* o : {&i.guard, &i.d, &i.a, &i.b, &i.c, &i.e, &i.v[0], &i.v[1], &i.v[2], &i.v[3]}) relocate(*o);
  }
  for (uint32_t* group : {kernel_.tid, kernel_.ctaid, kernel_.ntid, kernel_.nctaid}) {
    for (int axis = 0; axis < 3; ++axis) relocate(group[axis]);
  }
  relocate(kernel_.laneid);
  kernel_.local_bytes = (kernel_.local_bytes + 15) / 16 * 16;
  kernel_.local_offset = (base + next_register_ + 63) / 64 * 64;
  kernel_.register_bytes = (kernel_.local_offset + 32 * kernel_.local_bytes + 63) / 64 * 64;
  kernel_.covered = std::vector<std::atomic<uint8_t>>(kernel_.code.size());
}

}  // namespace vitrine::ptx
