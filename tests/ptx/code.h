// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

/// The interpreter of nvcc's PTX: modules, kernels and their instructions as they are decoded.
namespace vitrine::ptx {

inline constexpr uint32_t kNone = ~0U, kAll = ~0U;

/// Ends the program: what the interpreter does not support must not pass.
[[noreturn, gnu::format(printf, 1, 2)]] void fatal(const char* format, ...);

struct Context;
struct Instruction;
/// Executes an instruction for the lanes of a mask.
using Handler = void (*)(Context&, const Instruction&, uint32_t lanes);
enum class Kind : uint8_t { plain, branch, exit, barrier, meeting };  // meeting: of lanes, as at a shuffle
enum class Space : uint8_t { global, shared, param, local };

struct Instruction {
  Handler handler = nullptr;
  Kind kind = Kind::plain;
  bool negated = false;                                               // the guard
  uint32_t guard = kNone;                                             // a predicate
  uint32_t operands[6] = {kNone, kNone, kNone, kNone, kNone, kNone};  // offsets in the register file, the result first
  uint32_t target = 0;                                                // of a branch
  // An access: operand 0 is the address, the others are the values.
  Space space = Space::global;
  uint8_t address_bytes = 8, count = 1;
  bool is_volatile = false;
  int64_t offset = 0;
  size_t position = 0;  // in the module's text
};

/// What instructions of a name have in common.
struct Operation {
  Handler handler = nullptr;
  Kind kind = Kind::plain;
  std::vector<uint32_t> bytes;  // of each operand; 1: a predicate
};
using Operations = std::unordered_map<std::string, Operation>;
/// By name without rounding to nearest, such as "add.f32". Loads and stores end with the bytes of their registers,
/// "ld.u8.4"; atomic operations have no space, "atom.add.u32".
const Operations& operations();
void define_accesses(Operations& all);

/// .shared .align 4 .b8 name[1024]
struct Declaration {
  std::string_view name;
  uint32_t bytes = 0, count = 0, alignment = 1;  // bytes: of an element
};
struct Module {  // its keys lie in its text
  std::string text;
  std::map<std::string_view, size_t> bodies;  // positions of entries and functions
  std::map<std::string_view, Declaration> shared;
};
struct Parameter {
  uint32_t offset, bytes;
};
struct Kernel {
  std::string name;
  const Module* module = nullptr;  // null until it is decoded
  std::vector<Parameter> parameters;
  uint32_t parameter_bytes = 0, shared_bytes = 0, local_bytes = 0, max_threads = 1024;  // local: of a lane
  std::vector<Instruction> code;
  /// Of a warp, with constants in place: 32 values of a register lie side by side, a predicate is a mask. Local memory
  /// of the lanes follows.
  std::vector<std::byte> registers;
  uint32_t local_offset = 0;
  struct Axes {
    uint32_t tid, ntid, nctaid, ctaid;
  };
  std::array<Axes, 3> axes;  // special registers
  std::vector<std::atomic<bool>> covered;
  std::atomic<int64_t> launches{0}, lane_instructions{0}, ns{0};
};

std::unique_ptr<const Module> make_module(std::string text);
/// requires  the module has an entry of the kernel's name
void decode(const Module& module, Kernel& kernel);
/// Visits every kernel of the program.
void for_each_kernel(const std::function<void(const Kernel&)>& visit);

}  // namespace vitrine::ptx
