// SPDX-License-Identifier: Apache-2.0
// Stand-in for the CUDA runtime: launches of graphs. Each captured stream's work runs on a thread of its own, ordered
// only by what was captured, so that ThreadSanitizer and wrong bits show a missing edge.
#include <utility>

#include "tests/standins/machine.h"

namespace standins = vitrine::standins;
using standins::Call;
using standins::explain;
using standins::note_call;
using standins::set_last_error;
using standins::state;

namespace vitrine::standins {

GraphWork graph_work(Capture& capture, const CapturedBefore& joined) {
  GraphWork work;
  std::map<cudaStream_t, size_t> branch_of{{capture.origin, 0}};
  std::vector<CapturedBefore> waited(1);  // of each branch
  work.branches.resize(1);
  const auto add = [&](cudaStream_t stream, GraphNode node, const CapturedBefore& before) {
    const size_t branch = branch_of.try_emplace(stream, work.branches.size()).first->second;
    GraphWork::Step step;
    if (branch == work.branches.size()) {
      work.branches.emplace_back();
      waited.emplace_back();
      step.waits.push_back(0);
    }
    for (const auto& [other, count] : before) {
      if (other == stream || count <= waited[branch][other]) continue;
      waited[branch][other] = count;
      GraphWork::Step& source = work.steps[work.branches[branch_of.at(other)][count - 1]];
      if (!source.mark) source.mark = work.marks++;
      step.waits.push_back(*source.mark);
    }
    step.node = std::move(node);
    work.branches[branch].push_back(work.steps.size());
    work.steps.push_back(std::move(step));
  };
  for (GraphNode& node : capture.nodes) {
    const CapturedBefore before = std::move(node.before);
    add(node.stream, std::move(node), before);
  }
  if (work.branches.size() > 1) add(capture.origin, {}, joined);
  return work;
}

namespace {

/// A step of one launch.
struct LaunchedStep {
  const GraphNode* node = nullptr;
  CUevent_st::Record* event = nullptr;
  std::function<void()> made;  // for this launch
  std::vector<CUevent_st::Record*> waits;
  CUevent_st::Record* mark = nullptr;

  void run(const Device& device) const {
    for (CUevent_st::Record* record : waits) {
      record->wait();
      record->users.fetch_sub(1, std::memory_order_release);
    }
    if (event != nullptr) {
      event->finish(device);
    } else if (made) {
      made();
    } else if (node->work) {
      node->work();
    }
    if (mark != nullptr) mark->finish(device);
  }
};

/// Null, with an explanation, if the launch is not possible.
CUgraphExec_st* launchable(cudaGraphExec_t executable, cudaStream_t stream) {
  const std::shared_lock lock(state().mutex);
  if (!state().executables.contains(executable)) {
    explain("cudaGraphLaunch: %p is no executable graph, or a destroyed one", static_cast<void*>(executable));
    return nullptr;
  }
  if (&executable->device != &stream->device) {
    explain("cudaGraphLaunch: the graph is of device %d, the stream of device %d", executable->device.index,
            stream->device.index);
    return nullptr;
  }
  for (const GraphWork::Step& step : executable->work->steps) {
    if (step.node.event == nullptr || state().events.contains(step.node.event)) continue;
    explain("cudaGraphLaunch: an event that the graph records was destroyed");
    return nullptr;
  }
  return executable;
}

/// Queues the graph on the stream and its branches. Returns false if a node refuses the launch.
bool launch(CUgraphExec_st& executable, CUstream_st& stream) {
  const GraphWork& work = *executable.work;
  std::vector<LaunchedStep> steps(work.steps.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    const GraphNode& node = work.steps[i].node;
    steps[i].node = &node;
    if (!node.at_launch) continue;
    steps[i].made = node.at_launch();
    if (steps[i].made == nullptr) return false;
  }
  std::vector<CUevent_st::Record*> marks;
  for (const auto& mark : executable.marks) marks.push_back(&mark->begin_record());
  for (size_t i = 0; i < steps.size(); ++i) {
    const GraphWork::Step& step = work.steps[i];
    if (step.node.event != nullptr) steps[i].event = &step.node.event->begin_record();
    if (step.mark) steps[i].mark = marks[*step.mark];
    for (const size_t mark : step.waits) {
      marks[mark]->users.fetch_add(1, std::memory_order_relaxed);
      steps[i].waits.push_back(marks[mark]);
    }
  }
  for (size_t b = 0; b < work.branches.size(); ++b) {
    std::vector<LaunchedStep> of_branch;
    for (const size_t i : work.branches[b]) of_branch.push_back(std::move(steps[i]));
    CUevent_st::Record* const begin = b == 0 && !marks.empty() ? marks[0] : nullptr;
    CUstream_st& on = b == 0 ? stream : stream.branch(b);
    on.enqueue_always([begin, of_branch = std::move(of_branch), &device = stream.device] {
      if (begin != nullptr) begin->finish(device);
      for (const LaunchedStep& step : of_branch) step.run(device);
    });
  }
  return true;
}

}  // namespace
}  // namespace vitrine::standins

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  if (note_call(Call::other)) return set_last_error(cudaErrorUnknown);
  if (standins::fails_in_capture()) return set_last_error(cudaErrorMemoryAllocation);
  const std::unique_lock lock(state().mutex);
  if (!state().graphs.contains(graph)) {
    explain("cudaGraphInstantiate: %p is no graph, or a destroyed one", static_cast<void*>(graph));
    return set_last_error(cudaErrorInvalidValue);
  }
  auto made = std::make_unique<CUgraphExec_st>(CUgraphExec_st{graph->device, graph->work, graph->owners, {}});
  const size_t marks = graph->work->branches.size() > 1 ? graph->work->marks : 0;
  for (size_t i = 0; i < marks; ++i)
    made->marks.push_back(std::make_unique<CUevent_st>(graph->device, cudaEventDisableTiming));
  *executable = made.release();
  state().executables.insert(*executable);
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  if (note_call(Call::other)) return set_last_error(cudaErrorUnknown);
  const std::unique_lock lock(state().mutex);
  if (state().graphs.erase(graph) == 0) {
    explain("cudaGraphDestroy: %p is no graph, or a destroyed one", static_cast<void*>(graph));
    return set_last_error(cudaErrorInvalidValue);
  }
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  if (note_call(Call::other)) return set_last_error(cudaErrorUnknown);
  const std::unique_lock lock(state().mutex);
  if (state().executables.erase(executable) == 0) {
    explain("cudaGraphExecDestroy: %p is no executable graph, or a destroyed one", static_cast<void*>(executable));
    return set_last_error(cudaErrorInvalidValue);
  }
  // Launches may be in progress.
  state().destroyed_graphs.push_back(std::move(executable->work));
  std::move(executable->marks.begin(), executable->marks.end(), std::back_inserter(state().destroyed_events));
  delete executable;
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  if (note_call(Call::graph_launch)) return set_last_error(cudaErrorUnknown);
  if (!standins::is_live(stream, "cudaGraphLaunch")) return set_last_error(cudaErrorInvalidResourceHandle);
  if (standins::launchable(executable, stream) == nullptr) return set_last_error(cudaErrorInvalidValue);
  if (stream->capture != nullptr) {
    explain("cudaGraphLaunch: the stand-in does not support graphs within graphs");
    return set_last_error(cudaErrorStreamCaptureUnsupported);
  }
  if (const int code = stream->device.error.load(std::memory_order_relaxed); code != cudaSuccess)
    return set_last_error(static_cast<cudaError_t>(code));
  if (standins::fails_in_capture()) return set_last_error(cudaErrorMemoryAllocation);
  const std::lock_guard launching(stream->launching);
  return standins::launch(*executable, *stream) ? cudaSuccess : set_last_error(cudaErrorLaunchFailure);
}
