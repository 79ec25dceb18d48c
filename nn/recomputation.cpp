// SPDX-License-Identifier: Apache-2.0
#include "nn/recomputation.h"

#include <algorithm>
#include <array>
#include <limits>

#include "runtime/error.h"

namespace vitrine {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

/// The parts before a position: what matters to those after it.
struct Held {
  int64_t bytes = 0;
  bool input = false;       // the input of the next part is one of the blocks
  bool begins_run = true;   // the next part begins a run, and therefore leaves its input as it is
  int64_t model_input = 0;  // bytes of the model's input, if forward has it in use although no part keeps it
};

/// The next part of a run: what it adds to the blocks, and the sums of bytes that it reaches beyond the base.
struct Step {
  Held after;
  int64_t forward = 0, recompute = 0, backward = 0;
};

Step keep(const PartCost& part, const Held& before) {
  const bool overwrites = part.in_place && !before.begins_run;
  const int64_t input = before.input ? 0 : part.input;  // beyond what is held
  Step step;
  const int64_t in_use = before.bytes + input + (overwrites ? 0 : part.output);
  step.forward = in_use + part.forward;
  step.recompute = in_use + part.recompute;
  const bool keeps_block = part.keeps_input || (overwrites && part.keeps_output);
  step.after = {before.bytes + part.own + (keeps_block ? input : 0), false, false, before.model_input};
  if (overwrites) {
    step.after.input = before.input || keeps_block;
  } else if (part.keeps_output) {
    step.after.bytes += part.output;
    step.after.input = true;
  }
  if (part.runs_backward) step.backward = step.after.bytes + part.grad_output + part.grad_input + part.backward;
  return step;
}

/// Sums of bytes that a segment reaches beyond the base and the blocks held before it.
struct SegmentCost {
  int64_t forward = 0, backward = 0, work = 0;
};

/// Evaluates choices step by step, for one model.
class Evaluator {
 public:
  explicit Evaluator(const RecomputationModel& model) : model_(model) {}

  Held start() const { return {0, model_.input_is_held, true, 0}; }

  /// Appends a kept part; returns the sum that it reaches.
  int64_t add_kept(size_t k, Held& held) const {
    const PartCost& part = model_.parts[k];
    const Step step = keep(part, held);
    const int64_t reached = model_.base + std::max(model_.gathered + held.model_input + step.forward, step.backward);
    held = step.after;
    if (k == 0 && !model_.input_is_held && !part.keeps_input) held.model_input = part.input;
    return reached;
  }

  /// The segments that begin at part `i`, whose input is held or not: element e is the one that ends with part i + e.
  /// Without the last part.
  std::vector<SegmentCost> segments_from(size_t i, bool input_is_held) const {
    std::vector<SegmentCost> costs;
    const int64_t input = input_is_held ? 0 : model_.parts[i].input;
    Held again{0, input_is_held, true, 0};
    int64_t forward = 0, recompute = 0, backward = 0, work = 0;
    for (size_t m = i; m + 1 < model_.parts.size(); ++m) {
      const PartCost& part = model_.parts[m];
      const bool overwrites = part.in_place && m > i;
      forward = std::max(forward, input + (m > i ? part.input : 0) + (overwrites ? 0 : part.output) + part.forward);
      const Step step = keep(part, again);
      again = step.after;
      recompute = std::max(recompute, step.recompute);
      backward = std::max(backward, step.backward);
      work += part.work;
      // A segment before all parameters has no backward pass.
      const bool recomputes = part.runs_backward;
      costs.push_back(
          {forward, recomputes ? std::max(recompute + part.grad_output, backward) : 0, recomputes ? work : 0});
    }
    return costs;
  }

  int64_t add_segment(size_t i, const SegmentCost& cost, Held& held) const {
    const int64_t reached =
        model_.base + held.bytes + std::max(model_.gathered + held.model_input + cost.forward, cost.backward);
    held = {held.bytes + (held.input ? 0 : model_.parts[i].input), false, true, held.model_input};
    return reached;
  }

  int64_t with_output(const Held& held) const { return held.bytes + (held.input ? 0 : model_.parts.back().output); }
  /// The sum that the loss reaches.
  int64_t end(const Held& held) const { return model_.loss + with_output(held); }

 private:
  const RecomputationModel& model_;
};

/// The forward and backward pass under a choice: the largest sum, and what is held at the end of forward.
struct Outcome {
  int64_t peak = 0;
  Held held;
};

Outcome evaluate(const Evaluator& evaluator, const RecomputationModel& model,
                 const std::vector<PartRange>& recomputed) {
  Outcome outcome{0, evaluator.start()};
  size_t next = 0;
  for (size_t k = 0; k < model.parts.size();) {
    if (next == recomputed.size() || model.parts[k].part < recomputed[next].begin) {
      outcome.peak = std::max(outcome.peak, evaluator.add_kept(k++, outcome.held));
      continue;
    }
    size_t end = k;
    while (end < model.parts.size() && model.parts[end].part < recomputed[next].end) ++end;
    const std::vector<SegmentCost> costs = evaluator.segments_from(k, outcome.held.input);
    VITRINE_ASSERT(end > k && end - k <= costs.size(), "a segment has parts that compute, and not the last of them");
    outcome.peak = std::max(outcome.peak, evaluator.add_segment(k, costs[end - k - 1], outcome.held));
    k = end;
    ++next;
  }
  VITRINE_ASSERT(next == recomputed.size(), "a segment has parts that compute");
  return outcome;
}

/// A choice for the parts before a position. The best ones are kept for each state: what is held besides bytes.
struct Partial {
  Held held;
  int64_t work = 0;
  // Where it comes from; a kept part leads one position on.
  size_t from = 0, state = 0, index = 0;
  bool kept = true;
};
constexpr size_t kStates = 8;
using PartialsByState = std::array<std::vector<Partial>, kStates>;

size_t state_of(const Held& held) {
  return (held.input ? 1U : 0U) + (held.begins_run ? 2U : 0U) + (held.model_input > 0 ? 4U : 0U);
}

/// Leaves the partial choices that no other one betters in bytes and work.
void prune(std::vector<Partial>& partials) {
  std::sort(partials.begin(), partials.end(), [](const Partial& a, const Partial& b) {
    return a.held.bytes != b.held.bytes ? a.held.bytes < b.held.bytes : a.work < b.work;
  });
  int64_t least = kNoLimit;
  std::erase_if(partials, [&](const Partial& partial) {
    if (partial.work >= least) return true;
    least = partial.work;
    return false;
  });
}

}  // namespace

void set_gradients(std::vector<PartCost>& parts, int64_t last) {
  for (size_t k = parts.size(); k-- > 0;) {
    if (k + 1 < parts.size()) last = parts[k + 1].grad_input > 0 ? parts[k + 1].input : parts[k + 1].grad_output;
    parts[k].grad_output = last;
  }
}

KeptBytes kept_after_forward(const RecomputationModel& model, const std::vector<PartRange>& recomputed) {
  if (model.parts.empty()) return {};
  const Evaluator evaluator(model);
  const Held held = evaluate(evaluator, model, recomputed).held;
  return {held.bytes, evaluator.with_output(held)};
}

int64_t peak_of(const RecomputationModel& model, const std::vector<PartRange>& recomputed) {
  if (model.parts.empty()) return std::max(model.other, model.loss);
  const Evaluator evaluator(model);
  const Outcome outcome = evaluate(evaluator, model, recomputed);
  return std::max({model.other, outcome.peak, evaluator.end(outcome.held)});
}

std::optional<RecomputationChoice> cheapest_recomputation(const RecomputationModel& model, int64_t most_bytes) {
  const size_t count = model.parts.size();
  if (count == 0 || model.other > most_bytes) return std::nullopt;
  // Segments before all parameters are no work either; without need there are none.
  if (const int64_t peak = peak_of(model, {}); peak <= most_bytes) return RecomputationChoice{{}, peak, 0};
  const Evaluator evaluator(model);
  std::vector<PartialsByState> at(count + 1);
  const Held start = evaluator.start();
  at[0][state_of(start)].push_back({start});
  for (size_t k = 0; k < count; ++k) {
    for (size_t s = 0; s < kStates; ++s) {
      std::vector<Partial>& partials = at[k][s];
      if (partials.empty()) continue;
      prune(partials);
      const std::vector<SegmentCost> segments = evaluator.segments_from(k, partials.front().held.input);
      for (size_t w = 0; w < partials.size(); ++w) {
        Partial next{partials[w].held, partials[w].work, k, s, w, true};
        if (evaluator.add_kept(k, next.held) <= most_bytes) at[k + 1][state_of(next.held)].push_back(next);
        for (size_t e = 0; e < segments.size(); ++e) {
          Partial longer{partials[w].held, partials[w].work + segments[e].work, k, s, w, false};
          if (evaluator.add_segment(k, segments[e], longer.held) <= most_bytes)
            at[k + e + 1][state_of(longer.held)].push_back(longer);
        }
      }
    }
  }
  const Partial* best = nullptr;
  for (const std::vector<Partial>& partials : at[count]) {
    for (const Partial& partial : partials) {
      if (evaluator.end(partial.held) <= most_bytes && (best == nullptr || partial.work < best->work)) best = &partial;
    }
  }
  if (best == nullptr) return std::nullopt;
  RecomputationChoice choice{{}, 0, best->work};
  for (size_t end = count; end > 0;) {
    if (!best->kept) choice.recomputed.push_back({model.parts[best->from].part, model.parts[end - 1].part + 1});
    end = best->from;
    best = &at[end][best->state][best->index];
  }
  std::reverse(choice.recomputed.begin(), choice.recomputed.end());
  choice.peak_bytes = peak_of(model, choice.recomputed);
  return choice;
}

std::vector<RecomputationChoice> recomputation_frontier(const RecomputationModel& model, int64_t step_bytes) {
  std::vector<RecomputationChoice> frontier;
  int64_t limit = kNoLimit, step = std::max<int64_t>(1, step_bytes);
  std::optional<size_t> apart;  // the number of choices whose peaks differ by at least step_bytes
  while (true) {
    std::optional<RecomputationChoice> choice = cheapest_recomputation(model, limit);
    if (choice) {
      // The same work with a lower peak: the earlier choice is of no use.
      if (!frontier.empty() && frontier.back().work >= choice->work) frontier.pop_back();
      if (apart) apart = std::min(*apart, frontier.size());
      frontier.push_back(std::move(*choice));
    } else {
      // The lowest peak lies between this limit and the last choice.
      if (!apart) apart = frontier.size();
      if (frontier.empty() || step == 1) break;
      step = (step + 1) / 2;
    }
    limit = frontier.back().peak_bytes - step;
  }
  if (frontier.size() > *apart + 1)
    frontier.erase(frontier.begin() + static_cast<std::ptrdiff_t>(*apart), frontier.end() - 1);
  return frontier;
}

}  // namespace vitrine
