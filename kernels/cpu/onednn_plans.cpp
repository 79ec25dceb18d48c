// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/onednn_plans.h"

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

Arena::Arena(const View& workspace) {
  if (!workspace) return;
  const auto address = reinterpret_cast<uintptr_t>(workspace.data);
  const auto skipped = static_cast<int64_t>((kAlignment - address % kAlignment) % kAlignment);
  if (skipped >= workspace.bytes()) return;
  next_ = workspace.as<char>() + skipped;
  left_ = workspace.bytes() - skipped;
}

bool Arena::fits(std::initializer_list<int64_t> pieces) const {
  int64_t total = 0;
  for (const int64_t bytes : pieces) total += aligned(bytes);
  return total <= left_;
}

void* Arena::take(int64_t bytes) {
  if (bytes == 0) return nullptr;
  VITRINE_ASSERT(aligned(bytes) <= left_, "a kernel takes more of the workspace than it asked for");
  char* piece = next_;
  next_ += aligned(bytes);
  left_ -= aligned(bytes);
  return piece;
}

}  // namespace vitrine::cpu::onednn
