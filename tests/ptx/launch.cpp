// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA runtime that nvcc's host code calls and the stand-ins lack: registration of fat binaries, and
// launches of kernels, which the interpreter runs. run.py links it into programs, with --wrap for Pool's functions.
#include "tests/standins/launch.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "runtime/memory/pool.h"
#include "tests/ptx/findings.h"
#include "tests/standins/machine.h"

namespace {

namespace ptx = vitrine::ptx;
namespace standins = vitrine::standins;

/// The PTX of a fat binary.
struct Binary {
  const char* data = nullptr;
  size_t bytes = 0, real_bytes = 0;                // real_bytes 0: not compressed
  std::unique_ptr<const ptx::Module> module = {};  // once a kernel of it is launched
};
struct Function {
  Binary* binary = nullptr;
  ptx::Kernel kernel;
};
/// All of the program, until it ends.
struct Program {
  std::mutex mutex;
  std::map<const void*, Function> functions;
  std::map<uintptr_t, uintptr_t> blocks;  // of all pools, begin and end. A kernel may access those it has pointers to.
};
Program& program() {
  static auto* const all = new Program;
  return *all;
}

std::string decompressed(const Binary& binary) {
  using Decompress = size_t (*)(void*, size_t, const void*, size_t);
  static void* const library = dlopen("libzstd.so.1", RTLD_NOW);
  static const auto decompress =
      library == nullptr ? nullptr : reinterpret_cast<Decompress>(dlsym(library, "ZSTD_decompress"));
  std::string text(binary.real_bytes, '\0');
  if (decompress == nullptr || decompress(text.data(), text.size(), binary.data, binary.bytes) != text.size())
    ptx::fatal("compressed PTX that libzstd.so.1 does not decompress");
  return text;
}

// Finds the PTX in a fat binary: a header of 16 bytes, then entries with a header each. Kind 1 is PTX; at 16 and 56 of
// its header are the compressed and the real size, 0 if it is not compressed.
Binary find_ptx(const char* fatbin) {
  const auto read = [](const char* from, auto value) {
    std::memcpy(&value, from, sizeof value);
    return value;
  };
  if (read(fatbin, uint32_t{}) != 0xBA55ED50) ptx::fatal("no fat binary of nvcc");
  Binary binary;
  const char *at = fatbin + read(fatbin + 6, uint16_t{}), *const end = at + read(fatbin + 8, uint64_t{});
  while (at < end) {
    const auto header = read(at + 4, uint32_t{});
    const auto payload = read(at + 8, uint64_t{});
    if (read(at, uint16_t{}) == 1) {
      const uint64_t real = header >= 64 ? read(at + 56, uint64_t{}) : 0;
      binary = {at + header, real != 0 ? read(at + 16, uint32_t{}) : payload, real};
    }
    at += header + payload;
  }
  return binary;
}

/// Null if no kernel is registered for the function.
ptx::Kernel* kernel_of(const void* host) {
  const std::lock_guard lock(program().mutex);
  const auto found = program().functions.find(host);
  if (found == program().functions.end()) return nullptr;
  auto& [binary, kernel] = found->second;
  if (binary->module == nullptr)
    binary->module =
        ptx::make_module(binary->real_bytes != 0 ? decompressed(*binary) : std::string(binary->data, binary->bytes));
  if (kernel.module == nullptr) ptx::decode(*binary->module, kernel);
  return &kernel;
}

/// The blocks of pools to which parameters point.
std::vector<ptx::Region> blocks_of(const std::vector<std::byte>& parameters) {
  std::vector<ptx::Region> result;
  const std::lock_guard lock(program().mutex);
  for (size_t at = 0; at + sizeof(uintptr_t) <= parameters.size(); at += sizeof(uintptr_t)) {
    uintptr_t p = 0;
    std::memcpy(&p, parameters.data() + at, sizeof p);
    const auto next = program().blocks.upper_bound(p);
    if (next == program().blocks.begin()) continue;
    const auto [begin, end] = *std::prev(next);
    if (p < end) result.push_back({begin, end});
  }
  return result;
}

/// See Launch. A kernel may access these blocks, and whole allocations without any pool's block.
const char* find_region(const standins::Device& device, const std::vector<ptx::Region>& blocks, uintptr_t p,
                        ptx::Region& region) {
  const auto a = standins::find_allocation(reinterpret_cast<const void*>(p), true);
  if (!a) return "outside all allocations";
  if (a->freed) return "in a freed allocation";
  {
    const std::shared_lock lock(standins::state().mutex);
    if (a->device != standins::kHost && a->device != device.index && !device.peers[static_cast<size_t>(a->device)])
      return "on a GPU without peer access";
  }
  region = {a->begin, a->begin + a->bytes};
  for (const ptx::Region& block : blocks) {
    if (p >= block.begin && p < block.end) return region = block, nullptr;
  }
  const std::lock_guard lock(program().mutex);
  const auto other = program().blocks.lower_bound(region.begin);
  return other != program().blocks.end() && other->first < region.end ? "in a pool where no parameter points" : nullptr;
}

cudaError_t launch(const void* host, dim3 grid, dim3 block, void** args, size_t dynamic_shared, cudaStream_t stream) {
  ptx::Kernel* const kernel = kernel_of(host);
  if (kernel == nullptr) {
    standins::explain("a launch: no kernel is registered for %p", host);
    return standins::set_last_error(cudaErrorInvalidDeviceFunction);
  }
  if (!standins::fits(grid, block) || block.x * block.y * block.z > kernel->max_threads || dynamic_shared != 0 ||
      kernel->shared_bytes > 48 << 10) {
    standins::explain(
        "%s: no GPU takes a grid of (%u, %u, %u) blocks of (%u, %u, %u) threads (most %u), %u bytes of shared memory, "
        "or the interpreter none with %zu dynamic ones",
        kernel->name.c_str(), grid.x, grid.y, grid.z, block.x, block.y, block.z, kernel->max_threads,
        kernel->shared_bytes, dynamic_shared);
    return standins::set_last_error(cudaErrorInvalidConfiguration);
  }
  ptx::Launch made{{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, {}, {}};
  made.parameters.resize(kernel->parameter_bytes);
  for (size_t i = 0; i < kernel->parameters.size(); ++i)
    std::memcpy(made.parameters.data() + kernel->parameters[i].offset, args[i], kernel->parameters[i].bytes);
  standins::Device* const device = stream == nullptr ? nullptr : &stream->device;
  made.find_region = [device, blocks = blocks_of(made.parameters)](uintptr_t p, ptx::Region& region) {
    return find_region(*device, blocks, p, region);
  };
  return standins::queue_kernel(stream, dim3(1), dim3(1), standins::Threads::independent, kernel, {},
                                [kernel, device, made = std::move(made)] {
                                  const int code = ptx::run(*kernel, made);
                                  if (code != 0) device->error.store(code, std::memory_order_relaxed);
                                });
}

[[noreturn]] void refuse_brackets() { ptx::fatal("launches in triple angle brackets are not supported"); }

void note_block(const vitrine::Pool::Block& block, int64_t bytes) {  // 0: it is freed
  if (block.address == nullptr) return;
  const auto begin = reinterpret_cast<uintptr_t>(block.address);
  const std::lock_guard lock(program().mutex);
  if (bytes > 0)
    program().blocks[begin] = begin + static_cast<uintptr_t>(bytes);
  else
    program().blocks.erase(begin);
}

}  // namespace

void vitrine::ptx::for_each_kernel(const std::function<void(const Kernel&)>& visit) {
  const std::lock_guard lock(program().mutex);
  for (const auto& [host, function] : program().functions) visit(function.kernel);
}

extern "C" {

vitrine::Pool::Block
__real__ZN7vitrine4Pool8allocateElNS_8CategoryERNS_6StreamESt17basic_string_viewIcSt11char_traitsIcEE(
    vitrine::Pool*, int64_t, vitrine::Category, vitrine::Stream&, std::string_view);
vitrine::Pool::Block
__wrap__ZN7vitrine4Pool8allocateElNS_8CategoryERNS_6StreamESt17basic_string_viewIcSt11char_traitsIcEE(
    vitrine::Pool* pool, int64_t bytes, vitrine::Category category, vitrine::Stream& stream, std::string_view name) {
  const vitrine::Pool::Block block =
      __real__ZN7vitrine4Pool8allocateElNS_8CategoryERNS_6StreamESt17basic_string_viewIcSt11char_traitsIcEE(
          pool, bytes, category, stream, name);
  note_block(block, bytes);
  return block;
}
void __real__ZN7vitrine4Pool4freeERKNS0_5BlockE(vitrine::Pool*, const vitrine::Pool::Block&);
void __wrap__ZN7vitrine4Pool4freeERKNS0_5BlockE(vitrine::Pool* pool, const vitrine::Pool::Block& block) {
  if (block.bytes > 0) note_block(block, 0);
  __real__ZN7vitrine4Pool4freeERKNS0_5BlockE(pool, block);
}

void** __cudaRegisterFatBinary(void* wrapper) {
  struct Wrapper {
    int magic, version;
    const char* data;
    void* file;
  };
  return reinterpret_cast<void**>(new Binary(find_ptx(static_cast<const Wrapper*>(wrapper)->data)));  // kept
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void** binary, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  ptx::settings();  // has the log written at the end
  const std::lock_guard lock(program().mutex);
  Function& function = program().functions[host];
  function.binary = reinterpret_cast<Binary*>(binary);
  function.kernel.name = name;
}
void __cudaRegisterVar(void**, char*, char*, const char* name, int, size_t, int, int) {
  ptx::fatal("the variable %s of device code is not supported", name);
}
char __cudaInitModule(void**) { return 1; }
// nvcc's stubs refer to these, for launches in triple angle brackets, which the project does not make.
cudaError_t __cudaPopCallConfiguration(dim3*, dim3*, size_t*, void*) { refuse_brackets(); }
cudaError_t __cudaGetKernel(cudaKernel_t*, const void*) { refuse_brackets(); }
cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) { refuse_brackets(); }
cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) { refuse_brackets(); }
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* host, void** args) {
  return launch(host, config->gridDim, config->blockDim, args, config->dynamicSmemBytes, config->stream);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* host) {
  *attributes = {};
  const ptx::Kernel* const kernel = kernel_of(host);
  if (kernel == nullptr) return standins::set_last_error(cudaErrorInvalidDeviceFunction);
  attributes->maxThreadsPerBlock = static_cast<int>(kernel->max_threads);
  attributes->sharedSizeBytes = kernel->shared_bytes;
  attributes->ptxVersion = attributes->binaryVersion = 90;
  return cudaSuccess;
}
}
