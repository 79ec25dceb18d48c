// SPDX-License-Identifier: Apache-2.0
// Reads modules and decodes kernels.
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>
#include <span>

#include "tests/ptx/findings.h"

namespace vitrine::ptx {

namespace {

using Words = std::vector<std::string_view>;

Words words(std::string_view text, const char* separators = " \t\n,|{}()[]<>") {
  Words result;
  for (size_t at = text.find_first_not_of(separators), end = 0; at != std::string_view::npos;
       at = text.find_first_not_of(separators, end)) {
    end = std::min(text.find_first_of(separators, at), text.size());
    result.push_back(text.substr(at, end - at));
  }
  return result;
}
/// The text behind a word ends it.
int64_t number(std::string_view word, int base = 0) {
  char* end = nullptr;
  const int64_t value = word[0] == '-' ? std::strtoll(word.data(), &end, base)
                                       : static_cast<int64_t>(std::strtoull(word.data(), &end, base));
  if (end < word.data() + word.size() && *end != 'U') fatal("no number: %s", std::string(word).c_str());
  return value;
}
/// Bytes of a type such as b32; 1 for a predicate, 0 if it is none.
uint32_t bytes_of(std::string_view type) {
  if (type.ends_with("pred")) return 1;
  const size_t digits = type.find_first_of("0123456789");
  return digits == std::string_view::npos ? 0 : static_cast<uint32_t>(number(type.substr(digits))) / 8;
}
Declaration declaration(std::span<const std::string_view> words) {
  Declaration d;
  size_t i = 1;
  for (; i < words.size() && words[i][0] == '.'; ++i) {
    if (words[i] == ".align")
      d.alignment = static_cast<uint32_t>(number(words[++i]));
    else if (const uint32_t bytes = bytes_of(words[i]); bytes != 0)
      d.bytes = bytes;
  }
  d.name = words[i];
  d.count = i + 1 < words.size() ? static_cast<uint32_t>(number(words[i + 1])) : 1;
  d.alignment = std::max(d.alignment, d.bytes);
  return d;
}
/// Returns the offset of the variable among others that take `used` bytes.
uint32_t place(const Declaration& d, uint32_t& used) {
  const uint32_t offset = (used + d.alignment - 1) / d.alignment * d.alignment;
  used = offset + d.bytes * d.count;
  return offset;
}

struct Symbol {
  bool is_register = false;
  uint32_t offset = 0, bytes = 0, count = 0;  // offset: in the register file, or of a variable in its space
};
struct Operand {
  uint32_t offset = kNone, bytes = 0;
};

class Decoder {
 public:
  Decoder(const Module& module, Kernel& kernel) : text_(module.text), module_(module), kernel_(kernel) {}

  void entry() {
    for (size_t axis = 0; axis < 3; ++axis) {
      Kernel::Axes& a = kernel_.axes[axis];
      for (const auto& [name, offset] : std::initializer_list<std::pair<const char*, uint32_t*>>{
               {"%tid.", &a.tid}, {"%ntid.", &a.ntid}, {"%nctaid.", &a.nctaid}, {"%ctaid.", &a.ctaid}}) {
        *offset = allocate(4);
        scopes_.back()[name + std::string(1, "xyz"[axis])] = {true, *offset, 4};
      }
    }
    position_ = module_.bodies.at(kernel_.name);
    const std::string_view head = until('{');
    for (const std::string_view part : words(head, ",()")) {
      const Words w = words(part);
      if (w.empty() || w[0] != ".param") continue;
      const Declaration d = declaration(w);
      const uint32_t offset = place(d, kernel_.parameter_bytes);
      kernel_.parameters.push_back({offset, d.bytes * d.count});
      scopes_.back()[std::string(d.name)] = {false, offset};
    }
    if (const size_t at = head.find(".maxntid"); at != std::string_view::npos) {
      const Words most = words(head.substr(at));
      kernel_.max_threads = static_cast<uint32_t>(number(most[1]) * number(most[2]) * number(most[3]));
    }
    block();
    const Kind last = kernel_.code.empty() ? Kind::plain : kernel_.code.back().kind;
    if (last != Kind::exit && last != Kind::branch) fail("no ret at the end");
    for (const auto& [from, label] : jumps_) {
      const auto found = labels_.find(label);
      if (found == labels_.end()) fail("no label " + label);
      kernel_.code[from].target = found->second;
    }
    kernel_.local_offset = static_cast<uint32_t>(kernel_.registers.size());
    kernel_.local_bytes = (kernel_.local_bytes + 15) / 16 * 16;
    kernel_.registers.resize(kernel_.local_offset + 32 * kernel_.local_bytes, std::byte{0xFB});
    kernel_.covered = std::vector<std::atomic<bool>>(kernel_.code.size());
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    fatal("%s, ptx line %ld: %s", kernel_.name.c_str(),
          1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(position_), '\n'), what.c_str());
  }
  std::string_view until(char end) {
    const size_t begin = position_, found = text_.find(end, begin);
    if (found == std::string_view::npos) fail("unexpected end");
    position_ = found + 1;
    return text_.substr(begin, found - begin);
  }

  /// A register of this many bytes for each lane.
  uint32_t allocate(uint32_t bytes) {
    const size_t offset = kernel_.registers.size();
    kernel_.registers.resize(offset + size_t{32} * bytes, std::byte{0xFB});
    return static_cast<uint32_t>(offset);
  }
  uint32_t constant(uint64_t bits, uint32_t bytes) {
    const auto [found, is_new] = constants_.try_emplace({bits, bytes});
    if (is_new) {
      found->second = allocate(bytes);
      if (bytes == 1) bits = bits != 0 ? kAll : 0;
      std::byte* const to = kernel_.registers.data() + found->second;
      for (uint32_t lane = 0; lane < (bytes == 1 ? 1 : 32); ++lane)
        std::memcpy(to + size_t{lane} * bytes, &bits, bytes == 1 ? 4 : bytes);
    }
    return found->second;
  }

  const Symbol* find(std::string_view name) {
    for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
      if (const auto found = scope->find(name); found != scope->end()) return &found->second;
    }
    const auto shared = module_.shared.find(name);
    if (shared == module_.shared.end()) return nullptr;
    return &(scopes_.front()[std::string(name)] = {false, place(shared->second, kernel_.shared_bytes)});
  }
  /// bytes: of a constant; a register has its own.
  Operand operand(std::string_view word, uint32_t bytes) {
    if (word == "_") return {};
    if (const Symbol* const symbol = find(word)) {
      if (symbol->is_register) return {symbol->offset, symbol->bytes};
      return {constant(symbol->offset, bytes), bytes};
    }
    if (word[0] == '%') {
      const size_t digits = word.find_last_not_of("0123456789") + 1;
      const Symbol* const range = find(word.substr(0, digits));
      const int64_t index = digits < word.size() ? number(word.substr(digits), 10) : 0;
      if (range == nullptr || index >= range->count) fail("unknown register " + std::string(word));
      return {range->offset + static_cast<uint32_t>(index) * 32 * range->bytes, range->bytes};
    }
    const bool is_float = word.starts_with("0f") || word.starts_with("0d");
    const int64_t value = is_float ? number(word.substr(2), 16) : number(word);
    return {constant(static_cast<uint64_t>(value) & ~uint64_t{0} >> (64 - 8 * bytes), bytes), bytes};
  }

  void declare(std::string_view statement) {
    const Words w = words(statement);
    if (w[0] == ".shared") return;  // make_module() has found it
    const Declaration d = declaration(w);
    Symbol& symbol = scopes_.back()[std::string(d.name)];
    if (w[0] == ".local")
      symbol = {false, place(d, kernel_.local_bytes)};
    else if (w[0] == ".reg" || w[0] == ".param")  // a parameter of an inlined function
      symbol = {true, allocate(d.bytes * d.count), d.bytes, d.count};
    else
      fail("unsupported declaration");
  }

  /// Behind '{', to the matching '}'.
  void block() {
    scopes_.emplace_back();
    while (true) {
      position_ = std::min(text_.find_first_not_of(" \t\n", position_), text_.size() - 1);
      const size_t begin = position_, stop = text_.find_first_of(" \t\n:;{}", begin);
      if (stop == std::string_view::npos) fail("unexpected end");
      const std::string_view first = text_.substr(begin, stop - begin);
      if (text_[begin] == '{' || text_[begin] == '}') {
        ++position_;
        if (text_[begin] == '}') break;
        block();
      } else if (text_[stop] == ':') {
        labels_[inlined_ + std::string(first)] = static_cast<uint32_t>(kernel_.code.size());
        position_ = stop + 1;
      } else if (first == ".loc") {
        position_ = text_.find('\n', begin);
      } else if (first == ".pragma") {
        until(';');
      } else if (first[0] == '.') {
        declare(until(';'));
      } else {
        const std::string_view all = until(';');
        const size_t after = position_;
        position_ = begin;  // for messages
        statement(all);
        position_ = std::max(position_, after);
      }
    }
    scopes_.pop_back();
  }

  /// call.uni (retval0), name, (param0, param1): the function is inlined.
  void call(const Words& names) {
    const auto function =
        std::find_if(names.begin(), names.end(), [&](auto name) { return module_.bodies.contains(name); });
    if (function == names.end()) fail("a call of an unknown function");
    const size_t after = position_;
    const std::string caller = inlined_;
    position_ = module_.bodies.at(*function);
    Words formals = words(until('{'));
    std::erase_if(formals, [](std::string_view word) { return word[0] == '.'; });
    if (formals.size() != names.size()) fail("a call with other parameters");
    Scope scope;
    for (size_t k = 0; k < names.size(); ++k) {
      if (const Symbol* const actual = find(names[k])) scope[std::string(formals[k])] = *actual;
    }
    scopes_.push_back(std::move(scope));
    inlined_ = std::to_string(kernel_.code.size()) + " ";
    block();
    labels_[inlined_] = static_cast<uint32_t>(kernel_.code.size());
    inlined_ = caller;
    scopes_.pop_back();
    position_ = after;
  }

  /// [@guard] name operand, operand
  void statement(std::string_view text) {
    Instruction i;
    i.position = position_;
    Words operands = words(text);
    if (operands[0][0] == '@') {
      i.negated = operands[0][1] == '!';
      i.guard = operand(operands[0].substr(i.negated ? 2 : 1), 1).offset;
      operands.erase(operands.begin());
    }
    Words parts = words(operands[0], ".");
    operands.erase(operands.begin());
    std::erase_if(parts, [](std::string_view p) {
      return p == "rn" || p == "uni" || p == "nc" || p == "sys" || p == "gpu" || p == "relaxed" || p == "weak";
    });
    std::string name(parts[0]);
    for (size_t k = 1; k < parts.size(); ++k) name.append(".").append(parts[k]);
    if (name == "bar.sync" && operands != Words{"0"}) fail("only barrier 0 is supported");
    const bool returns = name == "ret" && !inlined_.empty();
    if (name == "bra" || returns) {
      i.kind = Kind::branch;
      jumps_.emplace_back(kernel_.code.size(), inlined_ + std::string(returns ? "" : operands[0]));
      kernel_.code.push_back(i);
    } else if (name == "call") {
      call(operands);
    } else if (parts[0] == "ld" || parts[0] == "st" || parts[0] == "atom") {
      access(i, parts, operands);
    } else if (parts[0] == "mov" && operands.size() == 3) {  // a vector of two
      if (text.find('{') > text.find(',')) return emit(i, "pack." + std::string(parts[1]), operands);
      emit(i, "low." + std::string(parts[1]), {operands[0], operands[2]});
      emit(i, "high." + std::string(parts[1]), {operands[1], operands[2]});
    } else {
      emit(i, name, operands);
    }
  }
  void emit(Instruction i, const std::string& name, const Words& operands) {
    const auto found = operations().find(name);
    if (found == operations().end() || found->second.bytes.size() != operands.size())
      fail("unsupported instruction " + name);
    const Operation& operation = found->second;
    for (size_t k = 0; k < operands.size(); ++k) {
      const uint32_t bytes = operation.bytes[k];
      Operand o = operand(operands[k], bytes);
      if (name.starts_with("cvt") && k == 1 && o.bytes > bytes) {  // the low part of a wider register
        Instruction narrow = i;
        narrow.handler =
            operations().at("cvt.u" + std::to_string(bytes * 8) + ".u" + std::to_string(o.bytes * 8)).handler;
        narrow.operands[1] = o.offset;
        narrow.operands[0] = o.offset = allocate(bytes);
        kernel_.code.push_back(narrow);
      } else if (o.bytes != bytes) {
        fail("the operand " + std::string(operands[k]) + " does not fit " + name);
      }
      i.operands[k] = o.offset;
    }
    if (operation.kind == Kind::meeting && i.guard != kNone) fail(name + " with a guard is not supported");
    i.handler = operation.handler;
    i.kind = operation.kind;
    kernel_.code.push_back(i);
  }

  /// ld.shared.v2.f32 {%f1, %f2}, [%r1+8]   st.global.u8 [%rd1], %rs1   atom.global.add.u32 %r1, [%rd1], %r2
  void access(Instruction i, const Words& parts, const Words& operands) {
    constexpr std::string_view kSpaces[] = {"global", "shared", "param", "local"};
    const std::string_view type = parts.back();
    std::string name(parts[0]);
    bool has_space = false;
    for (const std::string_view part : std::span(parts).subspan(1, parts.size() - 2)) {
      if (const auto* const space = std::find(std::begin(kSpaces), std::end(kSpaces), part);
          space != std::end(kSpaces)) {
        i.space = static_cast<Space>(space - std::begin(kSpaces));
        has_space = true;
      } else if (part == "v2" || part == "v4") {
        i.count = static_cast<uint8_t>(part[1] - '0');
      } else if (part == "volatile") {
        i.is_volatile = true;
      } else {
        name.append(".").append(part);
      }
    }
    if (!has_space) fail("generic addresses are not supported");
    const bool is_atomic = name.starts_with("atom");
    const size_t where = name == "st" ? 0 : is_atomic ? 1 : operands.size() - 1;
    const std::string_view address = operands[where], base = address.substr(0, address.find('+'));
    Words values = operands;
    values.erase(values.begin() + static_cast<std::ptrdiff_t>(where));
    if (!is_atomic && values.size() != i.count) fail("an access of another length");
    const uint32_t bytes = bytes_of(type);
    const Symbol* const symbol = find(base);
    if (i.space == Space::param && base[0] != '%' && symbol != nullptr &&
        symbol->is_register)  // of an inlined function
      return emit(i, "mov.b" + std::to_string(8 * bytes),
                  name == "ld" ? Words{values[0], base} : Words{base, values[0]});
    const Operand from = operand(base, 8);
    i.operands[0] = from.offset;
    i.address_bytes = static_cast<uint8_t>(from.bytes);
    if (base.size() < address.size()) i.offset = number(address.substr(base.size() + 1));
    uint32_t register_bytes = 0;
    for (size_t k = 0; k < values.size(); ++k) {
      const Operand value = operand(values[k], std::max(bytes, 2U));
      i.operands[k + 1] = value.offset;
      register_bytes = std::max(register_bytes, value.bytes);
    }
    const std::string sign = name == "ld" && type[0] == 's' ? ".s" : ".u";
    if (is_atomic)
      name.append(".").append(type);
    else
      name += sign + std::to_string(8 * bytes) + "." + std::to_string(register_bytes);
    const auto found = operations().find(name);
    if (found == operations().end()) fail("unsupported access " + name);
    i.handler = found->second.handler;
    kernel_.code.push_back(i);
  }

  using Scope = std::map<std::string, Symbol, std::less<>>;
  const std::string_view text_;
  const Module& module_;
  Kernel& kernel_;
  size_t position_ = 0;
  std::vector<Scope> scopes_{1};
  std::string inlined_;  // goes before the labels of an inlined function; by itself it is the label of its end
  std::map<std::string, uint32_t> labels_;
  std::vector<std::pair<size_t, std::string>> jumps_;
  std::map<std::pair<uint64_t, uint32_t>, uint32_t> constants_;
};

}  // namespace

std::unique_ptr<const Module> make_module(std::string text) {
  auto module = std::make_unique<Module>();
  module->text = std::move(text);
  const std::string_view t = module->text;
  for (size_t at = 0, end = 0; at < t.size(); at = end + 1) {
    end = std::min(t.find('\n', at), t.size());
    const std::string_view line = t.substr(at, end - at);
    if (line.find(".entry") != std::string_view::npos || line.find(".func") != std::string_view::npos) {
      module->bodies[words(line).back()] = at;  // a definition comes after the mere declaration
    } else if (line.starts_with(".shared")) {
      const Declaration d = declaration(words(line.substr(0, line.find(';'))));
      module->shared[d.name] = d;
    }
  }
  return module;
}

void decode(const Module& module, Kernel& kernel) {
  if (!module.bodies.contains(kernel.name)) fatal("no kernel %s", kernel.name.c_str());
  kernel.module = &module;
  Decoder(module, kernel).entry();
}

}  // namespace vitrine::ptx
