// SPDX-License-Identifier: Apache-2.0
// The part of the CUDA runtime that nvcc's host code calls and the stand-ins lack: registration of fat binaries, and
// launches of kernels, which the interpreter runs. run.py links it into programs, with --wrap for Pool's functions.
#include "tests/standins/launch.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
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
  const void* data = nullptr;
  size_t bytes = 0, real_bytes = 0;  // real_bytes 0: not compressed
  std::string text;
  ptx::Module* module = nullptr;  // once a kernel of it is launched
};
struct Function {
  Binary* binary = nullptr;
  std::string name;
  ptx::Kernel* kernel = nullptr;
};

std::mutex& mutex() {
  static auto* const m = new std::mutex;
  return *m;
}
std::map<const void*, Function>& functions() {
  static auto* const f = new std::map<const void*, Function>;
  return *f;
}

std::string decompressed(const void* from, size_t bytes, size_t size) {
  using Decompress = size_t (*)(void*, size_t, const void*, size_t);
  static const auto decompress = [] {
    void* const library = dlopen("libzstd.so.1", RTLD_NOW);
    return library == nullptr ? nullptr : reinterpret_cast<Decompress>(dlsym(library, "ZSTD_decompress"));
  }();
  std::string text(size, '\0');
  if (decompress == nullptr || decompress(text.data(), size, from, bytes) != size) {
    ptx::fatal("compressed PTX that libzstd.so.1 does not decompress");
  }
  return text;
}

// Finds the PTX in a fat binary: a header of 16 bytes, then entries with a header each. Kind 1 is PTX; at 16 and 56 of
// its header are the compressed and the real size, 0 if it is not compressed.
void find_ptx(const void* fatbin, Binary& binary) {
  const auto* const bytes = static_cast<const unsigned char*>(fatbin);
  const auto read = [](const unsigned char* from, auto value) {
    std::memcpy(&value, from, sizeof value);
    return value;
  };
  if (read(bytes, uint32_t{}) != 0xBA55ED50) ptx::fatal("no fat binary of nvcc");
  const unsigned char *at = bytes + read(bytes + 6, uint16_t{}), *const end = at + read(bytes + 8, uint64_t{});
  while (at < end) {
    const auto header = read(at + 4, uint32_t{});
    const auto payload = read(at + 8, uint64_t{});
    if (read(at, uint16_t{}) == 1) {
      binary.bytes = read(at + 16, uint32_t{});
      binary.real_bytes = header >= 64 ? read(at + 56, uint32_t{}) : 0;
      binary.data = at + header;
      if (binary.real_bytes == 0) binary.bytes = payload;
    }
    at += header + payload;
  }
}
ptx::Module& module_of(Binary& binary) {
  if (binary.module != nullptr) return *binary.module;
  binary.text = binary.real_bytes != 0 ? decompressed(binary.data, binary.bytes, binary.real_bytes)
                                       : std::string(static_cast<const char*>(binary.data), binary.bytes);
  binary.text.resize(std::strlen(binary.text.c_str()));
  binary.module = &ptx::make_module(binary.text);
  return *binary.module;
}

// The blocks of all pools. A kernel may access those that contain an address in its parameters.
struct Blocks {
  std::mutex mutex;
  std::map<uintptr_t, size_t> live;
};
Blocks& blocks() {
  static auto* const b = new Blocks;
  return *b;
}

// What a kernel with these parameters may access: blocks of pools that they point into; of memory without a pool, whole
// allocations.
struct Reach {
  std::vector<ptx::Allocation> blocks;  // device -3: no parameter points there
};
std::shared_ptr<const Reach> reach_of(const std::vector<std::byte>& values) {
  auto reach = std::make_shared<Reach>();
  Blocks& b = blocks();
  const std::lock_guard lock(b.mutex);
  for (const auto& [begin, bytes] : b.live) reach->blocks.push_back({begin, bytes, -3, false});
  for (size_t at = 0; at + 8 <= values.size(); at += 8) {
    uintptr_t p = 0;
    std::memcpy(&p, values.data() + at, 8);
    auto found = std::upper_bound(reach->blocks.begin(), reach->blocks.end(), p,
                                  [](uintptr_t x, const ptx::Allocation& a) { return x < a.begin; });
    if (found == reach->blocks.begin()) continue;
    --found;
    if (p < found->begin + found->bytes) found->device = 0;
  }
  return reach;
}
// The allocations, those with blocks replaced by the blocks.
std::vector<ptx::Allocation> accessible(const standins::Device& device, const Reach& reach) {
  std::vector<ptx::Allocation> result;
  const std::shared_lock lock(standins::state().mutex);
  auto block = reach.blocks.begin();
  for (const auto& [begin, a] : standins::state().allocations) {
    bool peer = a.device == standins::kHost || a.device == device.index;
    if (!peer) peer = device.peers[static_cast<size_t>(a.device)];
    while (block != reach.blocks.end() && block->begin < begin) ++block;
    const size_t before = result.size();
    for (; block != reach.blocks.end() && block->begin < begin + a.bytes; ++block) {
      result.push_back(*block);
      if (!peer) result.back().device = -2;
    }
    if (result.size() == before)
      result.push_back({begin, a.freed ? a.mapped_bytes : a.bytes, peer ? a.device : -2, a.freed});
  }
  return result;
}

Function* function_of(const void* handle) {
  const std::lock_guard lock(mutex());
  const auto found = functions().find(handle);
  if (found == functions().end() || found->second.binary->data == nullptr) return nullptr;
  Function& f = found->second;
  if (f.kernel == nullptr) f.kernel = ptx::find_kernel(module_of(*f.binary), f.name);
  return f.kernel == nullptr ? nullptr : &f;
}

cudaError_t launch(const void* handle, dim3 grid, dim3 block, void** args, size_t dynamic_shared, cudaStream_t stream) {
  const Function* const f = function_of(handle);
  if (f == nullptr) {
    standins::explain("a launch: no kernel is registered for %p", handle);
    return standins::set_last_error(cudaErrorInvalidDeviceFunction);
  }
  const std::vector<ptx::Param>& params = f->kernel->params;
  const size_t count = params.size();
  std::vector<std::byte> values(count == 0 ? 0 : params.back().offset + params.back().size);
  std::vector<const void*> pointers;
  for (size_t i = 0; i < count; ++i) {
    std::memcpy(values.data() + params[i].offset, args[i], params[i].size);
    const void* p = nullptr;
    if (params[i].pointer) std::memcpy(&p, args[i], sizeof p);
    pointers.push_back(p);
  }
  const uint32_t most = f->kernel->max_threads;
  const uint64_t shared = f->kernel->shared_bytes;
  const bool sane = block.x >= 1 && block.y >= 1 && block.z >= 1 && block.x <= 1024 && block.y <= 1024 &&
                    block.z <= 64 && uint64_t{block.x} * block.y * block.z <= std::min<uint64_t>(most, 1024) &&
                    grid.x >= 1 && grid.y >= 1 && grid.z >= 1 && grid.x <= INT32_MAX && grid.y <= 65535 &&
                    grid.z <= 65535 && shared + dynamic_shared <= 48 << 10;
  if (!sane) {
    standins::explain(
        "%s: no GPU takes a grid of (%u, %u, %u) blocks of (%u, %u, %u) threads (most %u), %llu bytes of shared memory",
        f->name.c_str(), grid.x, grid.y, grid.z, block.x, block.y, block.z, most,
        static_cast<unsigned long long>(shared + dynamic_shared));
    return standins::set_last_error(cudaErrorInvalidConfiguration);
  }
  standins::Device* const device = stream == nullptr ? nullptr : &stream->device;
  return standins::queue_kernel(
      stream, dim3(1), dim3(1), standins::Threads::independent, pointers,
      [kernel = f->kernel, grid, block, dynamic_shared, reach = reach_of(values), values = std::move(values), device] {
        const std::vector<ptx::Allocation> live = accessible(*device, *reach);
        const ptx::Launch launch{{grid.x, grid.y, grid.z},
                                 {block.x, block.y, block.z},
                                 dynamic_shared,
                                 values.data(),
                                 values.size(),
                                 live.data(),
                                 live.size(),
                                 device->index};
        const int code = ptx::run(*kernel, launch);
        if (code != 0) device->error.store(code, std::memory_order_relaxed);
      });
}

extern "C" vitrine::Pool::Block
__real__ZN7vitrine4Pool8allocateElNS_8CategoryERNS_6StreamESt17basic_string_viewIcSt11char_traitsIcEE(
    vitrine::Pool*, int64_t, vitrine::Category, vitrine::Stream&, std::string_view);
extern "C" void __real__ZN7vitrine4Pool4freeERKNS0_5BlockE(vitrine::Pool*, const vitrine::Pool::Block&);

struct Configuration {
  dim3 grid, block;
  size_t shared = 0;
  cudaStream_t stream = nullptr;
};
thread_local std::vector<Configuration> configurations;

}  // namespace

extern "C" {

vitrine::Pool::Block
__wrap__ZN7vitrine4Pool8allocateElNS_8CategoryERNS_6StreamESt17basic_string_viewIcSt11char_traitsIcEE(
    vitrine::Pool* pool, int64_t bytes, vitrine::Category category, vitrine::Stream& stream, std::string_view name) {
  const vitrine::Pool::Block block =
      __real__ZN7vitrine4Pool8allocateElNS_8CategoryERNS_6StreamESt17basic_string_viewIcSt11char_traitsIcEE(
          pool, bytes, category, stream, name);
  if (block.address != nullptr && bytes > 0) {
    const std::lock_guard lock(blocks().mutex);
    blocks().live[reinterpret_cast<uintptr_t>(block.address)] = static_cast<size_t>(bytes);
  }
  return block;
}
void __wrap__ZN7vitrine4Pool4freeERKNS0_5BlockE(vitrine::Pool* pool, const vitrine::Pool::Block& block) {
  if (block.address != nullptr && block.bytes > 0) {
    const std::lock_guard lock(blocks().mutex);
    blocks().live.erase(reinterpret_cast<uintptr_t>(block.address));
  }
  __real__ZN7vitrine4Pool4freeERKNS0_5BlockE(pool, block);
}

void** __cudaRegisterFatBinary(void* wrapper) {
  struct Wrapper {
    int magic, version;
    const void* data;
    void* file;
  };
  auto* const binary = new Binary;  // until the process ends
  find_ptx(static_cast<const Wrapper*>(wrapper)->data, *binary);
  return reinterpret_cast<void**>(binary);
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
void __cudaRegisterFunction(void** binary, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*,
                            int*) {
  ptx::note_kernel(name);
  const std::lock_guard lock(mutex());
  functions()[host] = {reinterpret_cast<Binary*>(binary), name, nullptr};
}
void __cudaRegisterVar(void**, char*, char*, const char* name, int, size_t, int, int) {
  ptx::fatal("the variable %s of device code is not supported", name);
}
char __cudaInitModule(void**) { return 1; }
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) {
  configurations.push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  if (configurations.empty()) return cudaErrorMissingConfiguration;
  const Configuration c = configurations.back();
  configurations.pop_back();
  *grid = c.grid;
  *block = c.block;
  *shared = c.shared;
  *static_cast<cudaStream_t*>(stream) = c.stream;
  return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(host));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** args, size_t shared,
                               cudaStream_t stream) {
  return launch(kernel, grid, block, args, shared, stream);
}
cudaError_t cudaLaunchKernel(const void* host, dim3 grid, dim3 block, void** args, size_t shared, cudaStream_t stream) {
  return launch(host, grid, block, args, shared, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* host, void** args) {
  return launch(host, config->gridDim, config->blockDim, args, config->dynamicSmemBytes, config->stream);
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* host) {
  *attributes = {};
  const Function* const f = function_of(host);
  if (f == nullptr) return standins::set_last_error(cudaErrorInvalidDeviceFunction);
  const uint32_t most = f->kernel->max_threads;
  const uint64_t shared = f->kernel->shared_bytes;
  attributes->maxThreadsPerBlock = static_cast<int>(most);
  attributes->sharedSizeBytes = shared;
  attributes->ptxVersion = attributes->binaryVersion = 90;
  return cudaSuccess;
}
}
