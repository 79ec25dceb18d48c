// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstdio>

#include <fmt/format.h>
#include <unistd.h>

#include "nn/weights_file.h"
#include "tools/program/commands/commands.h"
#include "tools/program/flags/configuration.h"
#include "tools/program/process/attempts.h"
#include "tools/program/process/interrupt.h"
#include "tools/program/render/reports.h"
#include "tools/program/run/describe.h"
#include "tools/program/run/evaluate.h"
#include "tools/program/run/measure.h"
#include "tools/program/run/unread.h"
#include "tools/program/run/warnings.h"
#include "tools/program/text/json_text.h"
#include "tools/program/text/output_file.h"
#include "tools/program/text/tables.h"

namespace vitrine::tools {

int run_eval(const Options& options, const Processes& processes) {
  const std::vector<DeviceId> devices = resolve_devices(options, cuda_device_count());
  DeviceGroupOptions group_options = device_group_options(options, devices, processes.process_group());
  if (processes.leads()) check_writable("--save-logits", options.save_logits);
  const Job job = open_job(options);
  group_options.host_bytes = host_copies(options, job);
  auto group = std::make_unique<DeviceGroup>(group_options);
  print_device_warnings(options, *group);
  if (processes.process_group()) agree_on_run(options, job, devices, *processes.process_group(), group->world_size());
  Run run = open_evaluation(options, job, std::move(group), options.weights);

  std::vector<float> logits;
  const auto result = evaluate_test_set(options, job, run, "evaluating", options.confusion,
                                        options.save_logits.empty() ? nullptr : &logits);
  if (!result) {
    if (processes.leads()) fmt::print(stderr, "vitrine: interrupted before all samples were evaluated; no result\n");
    return interrupt_status();
  }
  Attempts attempts;
  const bool has_logits = !options.save_logits.empty() && processes.leads() && attempts.run([&] {
    write_npy(options.save_logits, logits, static_cast<int64_t>(logits.size()) / job.model.classes, job.model.classes);
  });
  attempts.run([&] { run.engine->finish(); });

  const std::vector<std::string> skipped = gather_skipped(job, processes.process_group().get());
  const std::vector<DeviceRecord> measured = gather_devices(
      processes,
      measure_devices(run, {{"dataset", dataset_bytes(job.data)}, {"weights", weight_copies(options, job)}}));
  const double rate = static_cast<double>(result->samples) / result->seconds;
  const Tokens tokens = tokens_of(job);
  const bool usable = options.allow_non_finite || std::isfinite(result->loss);
  const int status = usable ? kExitOk : kExitFailure;
  if (!usable && processes.leads()) {
    fmt::print(stderr,
               "vitrine: the test loss is not finite, although the weights are: the training that saved them "
               "diverged{}; use an earlier file, or accept the result with --allow-non-finite\n",
               resolve_precision(options).compute == DType::f16
                   ? ", or values exceed the range of fp16 (--precision bf16 or fp32)"
                   : "");
  }
  if (options.json) {
    Json json;
    json["config"] = config_json({options, job, devices});
    json["test_loss"] = result->loss;
    json["test_accuracy"] = result->accuracy;
    json["test_top5_accuracy"] = value_or_null(result->top5);
    json["confusion"] = result->confusion ? result->confusion->json() : Json();
    json["class_names"] = job.data.test.class_names;
    json["samples"] = result->samples;
    json["skipped"] = skipped;
    json["seconds"] = result->seconds;
    json["samples_per_second"] = rate;
    tokens.add_to(json, result->loss, rate);
    json["devices"] = devices_json(measured);
    print_json(json);
    attempts.rethrow();
    return status;
  }
  const Style style = Style::of(STDOUT_FILENO);
  const std::string line =
      fmt::format("test loss {}{}  test accuracy {:.4f}{}  {}, each once  {}", format_loss(result->loss),
                  tokens.describe(result->loss), result->accuracy, describe_top5(result->top5),
                  counted(result->samples, "sample"), tokens.rate(rate));
  fmt::print("{}\n{}\n", style.prose(describe_job(job, run.engine->parameters().layout())), style.prose(line));
  fmt::print("{}", style.prose(skipped_report(skipped)));
  if (result->confusion) fmt::print("\n{}", result->confusion->report(job.data.test.class_names, style));
  fmt::print("\n{}", memory_report(measured, processes.count(), style));
  if (has_logits) fmt::print("{}\n", style.prose("The outputs are in " + options.save_logits));
  attempts.rethrow();
  return status;
}

}  // namespace vitrine::tools
