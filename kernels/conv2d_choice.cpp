// SPDX-License-Identifier: Apache-2.0
#include "kernels/conv2d_choice.h"

#include <set>

#include "kernels/conv2d_call.h"
#include "kernels/cpu/onednn.h"

namespace vitrine {
namespace {

struct Choices {
  std::set<RecordedConv2d::Key> known;
  std::vector<Conv2dChoice> list;
};

}  // namespace

void note_choice(ExecContext& ctx, RecordedConv2d operation, const std::string& implementation, const Reason& reason) {
  auto& choices = ctx.plans().get<Choices>();
  operation.config.relu = operation.bias = operation.accumulate = false;
  if (choices.known.insert(operation.key()).second) choices.list.push_back({operation.str(), implementation, reason});
}

std::vector<Conv2dChoice> conv2d_choices(ExecContext& ctx) { return ctx.plans().get<Choices>().list; }

Reason winograd_refusal() { return cpu::onednn::winograd_refusal(); }

}  // namespace vitrine
