// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

/// The interpreter of nvcc's PTX: modules, kernels and their instructions as they are decoded.
namespace vitrine::ptx {

inline constexpr uint32_t kNone = ~0U, kAll = ~0U;
inline constexpr int kIllegalAddress = 700, kIllegalInstruction = 715, kMisaligned = 716, kLaunchFailure = 719;

/// Ends the program: what the interpreter does not support must not pass.
[[noreturn, gnu::format(printf, 1, 2)]] void fatal(const char* format, ...);

struct Param {
  uint32_t offset, size;
  bool pointer;
};

struct Ctx;
struct Inst;
using Handler = void (*)(Ctx&, const Inst&, uint32_t);
enum class Kind : uint8_t { plain, branch, exit, barrier, shuffle };

struct Inst {
  Handler fn = nullptr;
  Kind kind = Kind::plain;
  bool negated = false;                           // the guard
  uint8_t base_bytes = 0, count = 1, vector = 0;  // of an address; elements of an access; operands that are vectors
  uint32_t guard = kNone;                         // offset of a predicate
  uint32_t d = kNone, a = kNone, b = kNone, c = kNone, e = kNone;  // offsets in the register file
  uint32_t v[4] = {kNone, kNone, kNone, kNone};
  uint32_t target = 0;
  int64_t imm = 0;
  uint32_t used_bytes = kAll;
  bool is_volatile = false;
  int line = 0, file = 0, source_line = 0, outer_file = 0, outer_line = 0;
};

struct Module;
struct Kernel {
  Module* module = nullptr;
  std::string name, pretty;
  std::vector<Param> params;
  uint32_t param_bytes = 0;
  std::vector<Inst> code;
  std::vector<std::byte> constants;  // the start of the register file
  uint32_t register_bytes = 0, shared_bytes = 0, local_bytes = 0, local_offset = 0,
           max_threads = 1024;  // local: of a lane
  uint32_t tid[3], ctaid[3], ntid[3], nctaid[3], laneid = 0;
  std::vector<std::atomic<uint8_t>> covered;
  std::atomic<int64_t> launches{0}, blocks{0}, warp_instructions{0}, lane_instructions{0}, ns{0};
};

struct Module {
  std::string_view text;
  std::map<std::string, size_t, std::less<>> entries, functions;             // position of .entry or .func
  std::map<std::string, std::pair<uint32_t, uint32_t>, std::less<>> shared;  // module scope: bytes, alignment
  std::map<int, std::string> files;
  std::map<std::string, std::unique_ptr<Kernel>, std::less<>> kernels;
  std::vector<size_t> lines;  // positions of line starts
  int line_of(size_t position) const {
    return static_cast<int>(std::upper_bound(lines.begin(), lines.end(), position) - lines.begin());
  }
};

/// Reads a module's entries; `text` stays in place.
Module& make_module(std::string_view text);
/// Decodes a kernel at its first use; null if the module has none of that name.
Kernel* find_kernel(Module& module, const std::string& name);
/// Calls `visit` for every kernel that has been decoded.
void for_each_kernel(const std::function<void(const Kernel&)>& visit);

}  // namespace vitrine::ptx
