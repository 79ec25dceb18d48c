// SPDX-License-Identifier: Apache-2.0
#include "nn/parallel/step/output_exchange.h"

#include <utility>

#include <fmt/format.h>

#include "kernels/elementwise.h"
#include "nn/parallel/replicas/replica_group.h"
#include "runtime/copy.h"

namespace vitrine {

OutputExchange::OutputExchange(const EngineSetup& setup, ReplicaGroup& replicas)
    : setup_(setup),
      replicas_(replicas),
      gradient_over_output_(setup.config.loss_gradient_in_place &&
                            setup.model.net->output_is_free(setup.model.input_shape(1), Pass{})),
      events_(static_cast<size_t>(replicas.size())) {
  const int device = setup.config.scheme.output_device;
  if (device < 0 || device >= replicas.size()) {
    throw ConfigError(fmt::format("output device: {} is not one of the {} devices, which are numbered from 0", device,
                                  replicas.size()));
  }
  make_events();
  replicas_.on_recovery([this] {
    forget_scattered();
    make_events();
  });
}

void OutputExchange::make_events() {
  for (auto& r : replicas_) {
    DeviceEvents& events = events_of(*r);
    for (auto* event : {&events.outputs_ready, &events.loss_ready, &events.outputs_read, &events.gradients_taken})
      *event = r->compute().stream().make_event();
  }
}

OutputExchange::DeviceEvents& OutputExchange::events_of(const Replica& r) {
  return events_[static_cast<size_t>(r.ordinal())];
}

Shape OutputExchange::all_logits_shape() const {
  return setup_.model.logits_shape(replicas_.samples_before(replicas_.size()));
}

const Tensor& OutputExchange::on_device(int device) const { return replicas_[device].batch.output; }

ConstView OutputExchange::targets(int device) const { return replicas_[device].batch.targets; }

void OutputExchange::set_gradient(int device, const Tensor& gradient) {
  Replica& r = replicas_[device];
  const Tensor& output = r.batch.output;
  const auto refuse = [&]<class Refusal>(const char* what, const auto& found, const auto& expected) {
    throw Refusal(fmt::format("set_gradient: the gradient on {} has {} {}, expected {}, as the outputs there",
                              r.device.name(), what, found, expected));
  };
  if (gradient.shape() != output.shape())
    refuse.operator()<ShapeError>("shape", gradient.shape().str(), output.shape().str());
  if (gradient.dtype() != output.dtype())
    refuse.operator()<DtypeError>("dtype", dtype_name(gradient.dtype()), dtype_name(output.dtype()));
  if (gradient.view().device != output.view().device)
    refuse.operator()<DeviceError>("device", gradient.view().device.str(), output.view().device.str());
  r.batch.output_gradient = gradient;
}

void OutputExchange::add_totals(const Tensor& totals, int device) {
  Replica& r = replicas_[device];
  if (r.exact != nullptr)
    throw UnsupportedError("add_totals: exact mode adds up losses by leaf, so it has no custom loss; set leaves to 0");
  const PhaseScope phase(r.compute(), Phase::loss);
  add(r.compute(), totals, r.totals(), r.totals());
}

int64_t OutputExchange::nominal_targets() const { return setup_.nominal_targets(); }

View OutputExchange::loss_scale(int device) const { return replicas_[device].scaler->scale(); }

Tensor OutputExchange::allocate_output(Replica& r) {
  if (setup_.config.scheme.loss_at != LossAt::gathered || r.ordinal() != setup_.config.scheme.output_device) return {};
  const int64_t before = replicas_.samples_before(r.ordinal()) * setup_.model.targets_per_sample;
  r.batch.gathered = r.compute().allocate(all_logits_shape(), setup_.config.precision.compute, Category::activations,
                                          "gathered outputs");
  return r.batch.gathered.rows(before, before + setup_.model.logits_shape(r.batch.samples)[0]);
}

Tensor OutputExchange::gather(int device) {
  Replica& target = replicas_[device];
  ExecContext& ctx = target.compute();
  const PhaseScope phase(ctx, Phase::gather);
  Tensor all = std::exchange(target.batch.gathered, {});
  if (!all)
    all = ctx.allocate(all_logits_shape(), setup_.config.precision.compute, Category::activations, "gathered outputs");
  int64_t at = 0;
  for (auto& r : replicas_) {
    if (r->batch.samples == 0) continue;
    const Tensor& output = r->batch.output;
    const Tensor rows = all.rows(at, at + output.shape()[0]);
    if (r.get() != &target) {
      r->compute().record(*events_of(*r).outputs_ready);
      ctx.wait(*events_of(*r).outputs_ready, "forward of another device");
    }
    if (output.view().data != rows.view().data) copy(ctx, output, rows);
    at += output.shape()[0];
  }
  ctx.record(*events_of(target).outputs_read);
  for (auto& r : replicas_) {
    if (r->batch.samples == 0 || r.get() == &target) continue;
    const PhaseScope gather_phase(r->compute(), Phase::gather);
    r->compute().wait(*events_of(target).outputs_read, "gather");
  }
  return all;
}

void OutputExchange::scatter(const Tensor& gradients, int device) {
  Replica& source = replicas_[device];
  source.compute().record(*events_of(source).loss_ready);
  int64_t at = 0;
  replicas_.for_each([&](Replica& r) {
    if (r.batch.samples == 0) return;
    ExecContext& ctx = r.compute();
    const PhaseScope phase(ctx, Phase::scatter_grad);
    const Tensor& output = r.batch.output;
    const Tensor rows = gradients.rows(at, at + output.shape()[0]);
    at += output.shape()[0];
    if (&r == &source) {
      r.batch.output_gradient = rows;
      return;
    }
    r.batch.output_gradient = gradient_over_output_ ? output
                                                    : ctx.allocate(output.shape(), output.dtype(),
                                                                   Category::activations, "gradient of outputs");
    ctx.wait(*events_of(source).loss_ready, "loss");
    copy(ctx, rows, r.batch.output_gradient);
    ctx.record(*events_of(r).gradients_taken);
  });
  scattered_ = gradients;
  scattered_from_ = device;
}

void OutputExchange::release_scattered(Replica& r) {
  if (r.ordinal() != scattered_from_ || !scattered_) return;
  const PhaseScope phase(r.compute(), Phase::scatter_grad);
  for (auto& other : replicas_) {
    if (other->batch.samples > 0 && other.get() != &r)
      r.compute().wait(*events_of(*other).gradients_taken, "scatter_grad");
  }
  scattered_ = Tensor();
}

void OutputExchange::compute_loss(Replica& r, const Tensor& logits, const Tensor& targets, const View& gradients,
                                  const View& totals) {
  const PhaseScope phase(r.compute(), Phase::loss);
  const EngineConfig& config = setup_.config;
  const CrossEntropyConfig loss{config.ignore_index, 1.0F / static_cast<float>(setup_.nominal_targets()),
                                gradients ? config.label_smoothing : 0.0F};
  softmax_cross_entropy(r.compute(), loss, logits, targets, gradients ? r.scaler->scale() : View(), gradients, totals);
}

template <class TotalsOf>
void OutputExchange::compute_loss_by_leaf(Replica& r, int begin, int end, const Tensor& logits, const Tensor& gradients,
                                          const TotalsOf& totals_of) {
  int64_t at = 0;
  for (int d = begin; d < end; ++d) {
    for (const Leaf& leaf : replicas_[d].batch.leaves.own) {
      const int64_t first = at, targets = leaf.rows.size() * setup_.model.targets_per_sample;
      at += targets;
      compute_loss(r, logits.rows(first, at), r.batch.targets.rows(first, at),
                   gradients ? gradients.rows(first, at).view() : View(), totals_of(leaf.number));
    }
  }
}

void OutputExchange::evaluate_loss(Replica& r) {
  const View totals = r.evaluate_totals;
  const auto row = [&](int64_t i) { return totals.rows(i, i + 1).reshape({LossTotals::kCount}); };
  if (!setup_.config.exact()) return compute_loss(r, r.batch.output, r.batch.targets, View(), row(0));
  compute_loss_by_leaf(r, r.ordinal(), r.ordinal() + 1, r.batch.output, {}, row);
}

void OutputExchange::compute_loss() {
  // Of the outputs of replicas [begin, end), on replica r.
  const auto compute_with_gradient = [&](Replica& r, int begin, int end, const Tensor& logits) {
    Tensor gradient = logits;
    if (!gradient_over_output_) {
      const PhaseScope phase(r.compute(), Phase::loss);
      gradient = r.compute().allocate(logits.shape(), logits.dtype(), Category::activations, "gradient of outputs");
    }
    if (r.exact == nullptr) {
      compute_loss(r, logits, r.batch.targets, gradient, r.totals());
    } else {
      compute_loss_by_leaf(r, begin, end, logits, gradient, [&](int leaf) { return r.exact->totals_of(leaf); });
    }
    return gradient;
  };
  if (setup_.config.scheme.loss_at == LossAt::parallel) {
    return replicas_.for_each_at_once([&](Replica& r) {
      if (r.batch.samples > 0)
        r.batch.output_gradient = compute_with_gradient(r, r.ordinal(), r.ordinal() + 1, r.batch.output);
    });
  }
  const int device = setup_.config.scheme.output_device;
  const Tensor all = gather(device);
  scatter(compute_with_gradient(replicas_[device], 0, replicas_.size(), all), device);
}

}  // namespace vitrine
