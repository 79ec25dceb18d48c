// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/onednn_plans.h"

#include <utility>

#include <fmt/format.h>

#include "runtime/error.h"

namespace vitrine::cpu::onednn {

void OneDnnPlans::add_argument(Plan& plan, int argument, const dnnl::memory::desc& layout) const {
  plan.arguments.emplace(argument, dnnl::memory(layout, engine, DNNL_MEMORY_NONE));
}

void OneDnnPlans::run(Plan& plan, std::initializer_list<std::pair<int, const void*>> addresses, void* scratch) {
  try {
    for (const auto& [argument, address] : addresses) {
      const auto found = plan.arguments.find(argument);
      if (found != plan.arguments.end()) found->second.set_data_handle(const_cast<void*>(address));
    }
    if (plan.scratch_bytes > 0) plan.arguments.at(DNNL_ARG_SCRATCHPAD).set_data_handle(scratch);
    plan.primitive.execute(stream, plan.arguments);
    stream.wait();
  } catch (const dnnl::error& error) {
    throw UnsupportedError(fmt::format("oneDNN failed: {} (status {})", error.what(), static_cast<int>(error.status)));
  }
}

dnnl::primitive_attr workspace_attributes() {
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attributes;
}

dnnl::memory::data_type data_type_of(DType dtype) {
  VITRINE_ASSERT(dtype == DType::f32 || dtype == DType::bf16, "oneDNN computes with f32 and bf16 here");
  return dtype == DType::f32 ? dnnl::memory::data_type::f32 : dnnl::memory::data_type::bf16;
}

namespace {

bool processor_has(dnnl::cpu_isa instructions) {
  const auto wanted = static_cast<int>(instructions);
  return (static_cast<int>(dnnl::get_effective_cpu_isa()) & wanted) == wanted;
}

bool made_by_amd() {
#if defined(__x86_64__)
  return __builtin_cpu_is("amd") != 0;
#else
  return false;
#endif
}

/// The widest one of those that oneDNN uses here.
const char* instruction_set() {
  using dnnl::cpu_isa;
  for (const auto& [set, name] : {std::pair{cpu_isa::avx512_core_amx, "AVX512_CORE_AMX"},
                                  {cpu_isa::avx512_core_bf16, "AVX512_CORE_BF16"},
                                  {cpu_isa::avx512_core_vnni, "AVX512_CORE_VNNI"},
                                  {cpu_isa::avx512_core, "AVX512_CORE"},
                                  {cpu_isa::avx2_vnni, "AVX2_VNNI"},
                                  {cpu_isa::avx2, "AVX2"},
                                  {cpu_isa::avx, "AVX"},
                                  {cpu_isa::sse41, "SSE41"}}) {
    if (processor_has(set)) return name;
  }
  return "none";
}

}  // namespace

bool computes(DType dtype) {
  if (dtype != DType::bf16) return dtype == DType::f32;
  const auto wanted = made_by_amd() ? dnnl::cpu_isa::avx512_core_bf16 : dnnl::cpu_isa::avx512_core_amx;
  return processor_has(wanted);
}

std::optional<LibraryInfo> library() {
  const dnnl_version_t* const version = dnnl_version();
  return LibraryInfo{
      "oneDNN", fmt::format("{}.{}.{}", version->major, version->minor, version->patch),
      fmt::format("convolution and matrix products on the CPU, {}", computes(DType::bf16) ? "f32 and bf16" : "f32"),
      instruction_set()};
}

}  // namespace vitrine::cpu::onednn
