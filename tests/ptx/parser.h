// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tests/ptx/code.h"
#include "tests/ptx/text.h"

/// Decodes kernels.
namespace vitrine::ptx {

struct Name {
  enum What { reg, shared, param, local, slot } what = reg;  // slot: a .param inside a body, kept in registers
  uint32_t offset = 0, bytes = 0, count = 0;                 // count: %r<count>
  bool predicate = false;
};
using Scope = std::map<std::string, Name, std::less<>>;

class Parser {
 public:
  Parser(Module& module, Kernel& kernel) : module_(module), kernel_(kernel) {}
  void entry(size_t position);

 private:
  [[noreturn]] void fail(const std::string& what) const {
    fatal("%s, ptx line %d: %s", kernel_.pretty.c_str(), module_.line_of(position_), what.c_str());
  }
  void skip_space();
  std::string_view word();
  std::string_view until(char end);
  uint32_t allocate(uint32_t bytes) {
    // Constants come first and are few; registers follow at fixed offsets after parsing, see relocate().
    const uint32_t offset = next_register_;
    next_register_ += bytes;
    return offset;
  }
  uint32_t constant(uint64_t bits, uint32_t bytes);
  const Name* find(std::string_view name) const;
  const Name* find_register(std::string_view name, uint32_t& offset) const;
  struct Operand {
    uint32_t offset = kNone, bytes = 0;
  };
  /// wider: the register may be wider than the type, as in ld, st and cvt
  Operand operand(std::string_view text, Type type, bool destination = false, bool wider = false);
  void body(const std::vector<std::pair<std::string, Name>>& formals, bool inlined);
  void declaration(std::string_view statement);
  void statement(std::string_view statement);
  void call(std::string_view statement);
  void address(std::string_view text, Inst& inst, Name::What& what);
  void integer_or_float(Inst& inst, const std::vector<std::string_view>& parts,
                        const std::vector<std::string_view>& operands);
  void convert(Inst& inst, const std::vector<std::string_view>& parts);
  void memory(Inst& inst, const std::vector<std::string_view>& parts, const std::vector<std::string_view>& operands);
  Inst& push(Inst inst) {
    inst.line = module_.line_of(position_);
    inst.file = file_;
    inst.source_line = line_;
    inst.outer_file = outer_file_;
    inst.outer_line = outer_line_;
    inst.used_bytes = used_bytes_;
    kernel_.code.push_back(inst);
    return kernel_.code.back();
  }

  static constexpr uint32_t kConstantBase = 1U << 30;  // offsets of constants until relocate()

  Module& module_;
  Kernel& kernel_;
  size_t position_ = 0;
  std::vector<Scope> scopes_;
  std::vector<std::map<std::string, uint32_t, std::less<>>> labels_;
  std::vector<std::vector<std::pair<size_t, std::string>>> jumps_;
  std::vector<std::vector<size_t>> returns_;  // jumps to the end of an inlined function
  std::map<std::pair<uint64_t, uint32_t>, uint32_t> constants_;
  uint32_t next_register_ = 0;
  int file_ = 0, line_ = 0, outer_file_ = 0, outer_line_ = 0;
  uint32_t used_bytes_ = kAll;
};

}  // namespace vitrine::ptx
