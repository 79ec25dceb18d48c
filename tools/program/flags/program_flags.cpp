// SPDX-License-Identifier: Apache-2.0
// The flags of the program and their help.
#include "tools/program/flags/program_flags.h"

#include <fmt/format.h>

#include "nn/model.h"
#include "runtime/error.h"
#include "runtime/text.h"
#include "tools/program/flags/flag_values.h"
#include "tools/program/flags/memory_options.h"
#include "tools/program/flags/renamed_flags.h"
#include "tools/program/learn/experiment.h"
#include "tools/program/learn/lessons.h"
#include "tools/program/run/autotune.h"
#include "vitrine_version.h"

namespace vitrine::tools {

namespace {

constexpr int64_t kMostSamples = int64_t{1} << 40, kMostSteps = int64_t{1} << 40;

constexpr const char* kExamples = R"(
Examples:
  vitrine train --model small-cnn --data synthetic --devices cpu:0-1 --epochs 2
  vitrine train --model alexnet --data cifar10:DIR --devices cpu:0-3 --mode balanced --split gpu0=4 --batch-size 64
  vitrine compare --model small-cnn --data fashion-mnist:DIR --devices cpu:0-3 --steps 20
  vitrine reproduce --data cifar10:DIR --out runs --devices cuda:0-1 --seeds 3
  vitrine eval --model small-cnn --data cifar10:DIR --weights model.safetensors
  vitrine plan --model alexnet --devices cuda:0-3 --mode dp --device-memory 8GiB --batch-size max
  mpirun -np 4 vitrine train --model small-cnn --data synthetic
  vitrine collectives all_reduce --devices cpu:0-3 -b 64K -e 64M -f 4
  vitrine lab average-of-averages
  vitrine info
  vitrine lesson 1

Results go to stdout, progress and messages to stderr. Exit status: 0 ok, 1 failure, 2 usage, 130 interrupted, 143 terminated
(SIGTERM; checkpoint saved).
)";

void add_model_options(CLI::App& app, Options& o) {
  app.option_defaults()->group("Model and data");
  app.add_option("--model", o.model,
                 "Model to train; a FILE.json describes one by its layers (see docs/model_files.md)")
      ->check(one_of_or_file(model_names(), "FILE.json"))
      ->capture_default_str();
  app.add_option("--data", o.data,
                 "cifar10:DIR, fashion-mnist:DIR, idx:DIR, image-folder:DIR (a folder per class in train and val) or "
                 "synthetic[:COUNT]")
      ->capture_default_str();
  app.add_option("--image-size", o.image_size,
                 "Height and width of the model's input [227 for alexnet, 224 for vgg16, resnet18 and resnet50, else "
                 "the data's]; images of an "
                 "image-folder are resized and cropped to it")
      ->check(whole_number(1, 1 << 16));
  app.add_option("--classes", o.classes, "Outputs of the model, at least the data's classes [as many]")
      ->check(whole_number(1, 1 << 24));
  app.add_option("--limit-samples", o.limit_samples,
                 "Use only the first N training images, and the same share of the test set [all]")
      ->check(whole_number(1, kMostSamples));
  app.add_option("--preprocess", o.preprocess, "Where images are resized and normalized: host (the loader) or device")
      ->check(one_of({"host", "device"}))
      ->capture_default_str();
  app.add_option(
      "--normalize", o.normalize,
      "Mean and deviation of each channel, for pixels from 0 to 1: 0.5,0.5,0.5/0.2,0.2,0.2; or none [the data set's]");
  app.add_option("--workers", o.workers, "Threads that load batches")
      ->check(whole_number(1, 256))
      ->capture_default_str();
}

void add_device_options(CLI::App& app, Options& o) {
  app.option_defaults()->group("Devices");
  app.add_option("--devices", o.devices,
                 "A list: cpu:0-3 | cpu:0,cpu:1 | cuda:0-1 | cuda:all | cuda:0,cuda:0 (logical devices of one GPU); "
                 "for each process [the GPU of its "
                 "local rank, else cpu:0]");
  app.add_option("--device-memory", o.device_memory,
                 "Capacity of each device: 512MiB, or a list; a plain number is bytes [the machine's memory, divided]");
  app.add_option("--workspace", o.workspace,
                 "Scratch memory for each device's libraries: 64MiB [planned: what the model's convolutions want, 1MiB "
                 "to 32MiB; on GPUs 32MiB or more]");
  app.add_option("--threads-per-device", o.threads_per_device,
                 "Threads of each CPU device: 2, or a list [the cores, divided]");
  app.add_flag("--tf32", o.tf32,
               "Let GPUs round the inputs of matrix products and convolutions to TF32: faster, 10 bits of mantissa");
  app.add_flag("--nccl-defaults", o.nccl_defaults,
               "Let NCCL choose its algorithm and protocol, not Ring and Simple: often faster, but results may differ "
               "in their last bits from run to run");
  app.add_flag("--check-order", o.check_order, "Check that operations on the same memory are ordered");
}

void add_process_options(CLI::App& app, Options& o) {
  app.option_defaults()->group("Processes");
  app.add_option("--rank", o.rank, "Rank of this process [set by torchrun, mpirun or srun]")
      ->check(whole_number(0, 1 << 20));
  app.add_option("--world-size", o.world_size, "Number of processes, with --rank")->check(whole_number(1, 1 << 20));
  app.add_option("--local-rank,--local_rank", o.local_rank,
                 "Rank of this process on its machine, and the number of its GPU")
      ->check(whole_number(0, 1 << 20));
  app.add_option(
      "--rendezvous", o.rendezvous,
      "Address at which processes find each other: tcp://HOST:PORT or file:PATH [MPI, or the launcher's address]");
  app.add_option("--timeout", o.timeout_seconds,
                 "Seconds a process waits for the others in one collective; five times as long in the first step")
      ->check(number(0.1, 1e6))
      ->capture_default_str();
}

/// An integer from 1 to `most`, or `word`, which lets the program choose.
template <class Number>
CLI::Option* add_number_or_word(CLI::App& app, const std::string& names, Number& number, Number most,
                                const std::string& word, bool& chosen, const std::string& help) {
  const auto read = [&number, &chosen, most, word, names](const std::string& text) {
    chosen = text == word;
    if (chosen) return;
    const std::optional<int64_t> value = parse_number<int64_t>(text);
    if (!value || *value < 1 || *value > int64_t{most}) {
      throw ConfigError(fmt::format("{} {}: it must be an integer from 1 to {}, or {}",
                                    names.substr(0, names.find(',')), text, most, word));
    }
    number = static_cast<Number>(*value);
  };
  return app.add_option_function<std::string>(names, read, help)
      ->type_name("N|" + word)
      ->default_str(std::to_string(number));
}

void add_batch_options(CLI::App& app, Options& o, bool may_choose) {
  app.option_defaults()->group("Batch");
  const std::string help = "Samples of one optimizer step, over all devices and micro-batches";
  if (may_choose) {
    add_number_or_word(app, "--batch-size", o.batch_size, kMostSamples, "max", o.choices.batch_size,
                       help + "; max: the most that fit");
  } else {
    app.add_option("--batch-size", o.batch_size, help)->check(whole_number(1, kMostSamples))->capture_default_str();
  }
}

void add_split_options(CLI::App& app, Options& o, bool may_choose) {
  app.option_defaults()->group("Scheme");
  const std::string help = "Shares of the devices: equal | 2,3,3 (weights) | gpu0=N (N samples per step on device 0)";
  if (may_choose) {
    const auto read = [&o](const std::string& text) {
      o.choices.split = text == "auto";
      o.split = o.choices.split ? std::optional<std::string>() : text;
    };
    app.add_option_function<std::string>("--split", read, help + " | auto (by --balance)");
    app.add_option(
           "--balance", o.balance,
           "What --split auto equalizes: the memory left on each device (planned), or its time (measured first)")
        ->check(one_of({"memory", "time"}))
        ->capture_default_str();
  } else {
    app.add_option("--split", o.split, help);
  }
  app.add_option("--gpu0-bsz", o.gpu0_batch_size, "N: the same as --mode balanced --split gpu0=N")
      ->check(whole_number(0));
}

void add_bucket_options(CLI::App& app, Options& o) {
  app.option_defaults()->group("Scheme");
  const CLI::Validator sizes = number(1e-6, 1e6);
  app.add_option("--bucket-mb", o.bucket_mb, "MiB of gradients in each bucket of an all-reduce")
      ->check(sizes)
      ->capture_default_str();
  app.add_option("--first-bucket-mb", o.first_bucket_mb, "MiB in the first bucket, which can start earliest")
      ->check(sizes)
      ->capture_default_str();
}

void add_scheme_options(CLI::App& app, Options& o) {
  app.option_defaults()->group("Scheme");
  app.add_option("--mode", o.mode, "dp, balanced, criterion or ddp [ddp]")->check(one_of(scheme_names()));
  add_split_options(app, o, true);
  app.add_option("--staging", o.staging,
                 "device0 (whole batch there first) or host (slices straight to their devices) [the mode's]")
      ->check(one_of({"device0", "host"}));
  app.add_option("--loss-at", o.loss_at, "gathered (on the output device) or parallel (on each) [the mode's]")
      ->check(one_of({"gathered", "parallel"}));
  app.add_option("--reduce", o.reduce, "gpu0 (update there, then broadcast) or allreduce [the mode's]")
      ->check(one_of({"gpu0", "allreduce"}));
  add_bucket_options(app, o);
  app.add_option("--output-device", o.output_device, "Where outputs are gathered: one of --devices [the first]");
}

void add_training_options(CLI::App& app, Options& o, bool may_choose) {
  app.option_defaults()->group("Training");
  if (may_choose) {
    add_number_or_word(app, "--accumulate,--acc-grad", o.accumulate, 1 << 20, "auto", o.choices.accumulate,
                       "Micro-batches of each step; auto: the fewest that fit");
  } else {
    app.add_option("--accumulate,--acc-grad", o.accumulate, "Micro-batches of each step")
        ->check(whole_number(1, 1 << 20))
        ->capture_default_str();
  }
  app.add_flag_callback(
      "--no-cuda-graph", [&o] { o.cuda_graph = false; },
      "Issue every operation of each step; a process with one GPU replays CUDA graphs otherwise");
  add_recompute_options(app, o, may_choose);
  add_deprecated_recompute(app, o, may_choose);
  app.add_option("--loss-gradient", o.loss_gradient,
                 "Where the gradient of the outputs is written: in-place (over them) or apart")
      ->check(one_of({"in-place", "apart"}))
      ->capture_default_str();
  app.add_option("--batch-norm", o.batch_norm,
                 "Samples of a batch norm's statistics: exact (the whole micro-batch, on any split) or local (each "
                 "device's, as PyTorch's dp and ddp)")
      ->check(one_of({"exact", "local"}))
      ->capture_default_str();
  app.add_option("--optimizer", o.optimizer, "sgd, adam or adamw")
      ->check(one_of({"sgd", "adam", "adamw"}))
      ->capture_default_str();
  app.add_option("--lr", o.lr, "Learning rate [0.001]")->check(number_of_at_least_0());
  app.add_option("--momentum", o.momentum, "Momentum, for sgd [0]")->check(number_of_at_least_0());
  app.add_flag("--nesterov", o.nesterov, "Nesterov's momentum, for sgd");
  app.add_option("--weight-decay", o.weight_decay, "Weight decay [0.01 for adamw, else 0]")
      ->check(number_of_at_least_0());
  add_recipe_options(app, o.recipe);
  app.add_option("--dropout", o.dropout, "Probability of dropout [the model's]")->check(number());
  app.add_option("--seed", o.seed, "Seed of initial weights, order of samples, dropout and augmentation")
      ->check(whole_number(0))
      ->capture_default_str();
  app.add_flag("--shuffle,!--no-shuffle", o.shuffle, "Shuffle the samples in each epoch [on]");
  app.add_flag("--drop-last", o.drop_last, "Drop the last batch of an epoch if it is not full");
  app.add_option("--init-weights", o.init_weights,
                 "FILE.safetensors or checkpoint to start from [drawn from the seed]");
  add_deprecated_init(app, o, true);
}

void add_precision_option(CLI::App& app, Options& o) {
  app.add_option("--precision", o.precision, "fp32, or fp16 or bf16 layers and activations with f32 master weights")
      ->check(one_of({"fp32", "fp16", "bf16"}))
      ->capture_default_str()
      ->group("Precision");
}

/// What every precision takes.
void add_precision_limits(CLI::App& app, Options& o) {
  app.option_defaults()->group("Precision");
  app.add_option("--loss-scale-growth-interval", o.loss_scale_growth_interval,
                 "Steps without overflow before the scale doubles [2000]")
      ->check(whole_number(1, 1 << 30));
  app.add_option("--clip-norm", o.clip_norm, "Largest norm of the gradient over all parameters [not clipped]")
      ->check(number());
  app.add_flag("--allow-non-finite", o.allow_non_finite,
               "Continue when a loss or gradient is not finite [stop, and keep the last finite weights]");
  app.add_option("--reduce-dtype", o.reduce_dtype, "Data type used to reduce gradients: f32, f16 or bf16")
      ->check(one_of({"f32", "f16", "bf16"}))
      ->capture_default_str();
  add_broadcast_option(app, o);
}

void add_precision_options(CLI::App& app, Options& o) {
  add_precision_option(app, o);
  app.add_option("--loss-scale", o.loss_scale, "none, dynamic, or a fixed NUMBER [dynamic for fp16, else none]")
      ->group("Precision");
  add_precision_limits(app, o);
}

void add_output_options(CLI::App& app, Options& o) {
  app.add_flag("--json", o.json, "Print one JSON object on stdout")->group("Output");
}

void add_report_option(CLI::App& app, Options& o) {
  app.add_option("--report", o.report, "Write a page with charts and findings to FILE.html")->group("Output");
}

void add_confusion_option(CLI::App& app, Options& o) {
  app.add_flag("--confusion", o.confusion,
               "Print the confusion matrix of the test set: a row for each class, a column for each prediction")
      ->group("Output");
}

void add_log_option(CLI::App& app, Options& o) {
  app.add_option("--log-every", o.log_every,
                 "Print a line of progress on stderr after every N steps [one every 10 s, or a bar on a terminal]")
      ->check(whole_number(1, kMostSteps))
      ->group("Output");
}

/// Options of train and plan.
void add_run_options(CLI::App& app, Options& o) {
  add_model_options(app, o);
  app.add_option("--data-on-device", o.data_on_device,
                 "Whether the training images lie on the devices, which gather their batches there: on (all of them on "
                 "each device that takes batches "
                 "from the host; plans count them) or off; results have the same bits")
      ->check(one_of({"on", "off"}))
      ->capture_default_str();
  add_device_options(app, o);
  add_scheme_options(app, o);
  add_batch_options(app, o, true);
  add_training_options(app, o, true);
  add_precision_options(app, o);
  app.option_defaults()->group("Training");
  app.add_option("--epochs", o.epochs, "Passes over the training set [1]")->check(whole_number(1, kMostSteps));
  app.add_option("--steps", o.steps, "Optimizer steps, instead of --epochs")->check(whole_number(1, kMostSteps));
  app.add_flag_callback(
      "--no-eval", [&o] { o.evaluate = false; }, "Do not evaluate on the test set");
  add_output_options(app, o);
}

void add_train(CLI::App& parent, Options& o) {
  CLI::App& app = *parent.add_subcommand("train", "Train a model data-parallel");
  add_run_options(app, o);
  add_process_options(app, o);
  add_schedule_options(app, o.schedule);
  add_autotune_option(app, o);
  app.add_option("--verify-replicas", o.verify_replicas,
                 "Compare the parameters of all replicas every N steps, not only at the start")
      ->check(whole_number(1, 1 << 30))
      ->group("Processes");
  add_checkpoint_options(app, o.checkpoints);
  app.option_defaults()->group("Output");
  app.add_option("--save", o.save, "Write the weights to FILE.safetensors at the end");
  add_report_option(app, o);
  app.add_option(
      "--tensorboard", o.tensorboard,
      "Write loss, learning rate, accuracy, confusion matrix, speed and memory to a new event file in the folder DIR");
  app.add_option("--log", o.log,
                 "Write steps and epochs to FILE.jsonl (an object per line) or FILE.csv as they finish");
  add_confusion_option(app, o);
  app.add_option("--trace", o.trace, "Write a Chrome trace to FILE.json (open it in Perfetto)");
  app.add_option("--memory-history", o.memory_history,
                 "Write what the devices held to FILE.pickle (open it at pytorch.org/memory_viz)");
  add_log_option(app, o);
  app.add_option("--record-steps", o.record_steps,
                 "Steps that --report, --trace and --memory-history show in detail [2-4; with --trace all]");
  app.add_option("--trace-level", o.trace_level, "What is timed: off, phase or operation")
      ->check(one_of({"off", "phase", "operation"}))
      ->capture_default_str();
}

void add_plan(CLI::App& parent, Options& o) {
  CLI::App& app =
      *parent.add_subcommand("plan", "Report how much memory each device of a train command needs, without running it");
  add_run_options(app, o);
  add_checkpoint_plan_option(app, o.checkpoints);
  app.add_option("--processes", o.processes,
                 "Plan for the first of N processes with these devices each, as mpirun -np N would start them")
      ->check(whole_number(1, 1 << 16))
      ->capture_default_str()
      ->group("Processes");
  app.add_flag("--frontier", o.frontier,
               "Show what recomputation of parts of the model saves in bytes and costs in time, for --recompute")
      ->group("Output");
  add_report_option(app, o);
}

void add_eval(CLI::App& parent, Options& o) {
  CLI::App& app = *parent.add_subcommand("eval", "Evaluate weights on the test set: every sample once");
  add_model_options(app, o);
  app.add_option("--weights", o.weights,
                 "FILE.safetensors with PyTorch's names and layouts, a checkpoint's folder, or a folder of "
                 "checkpoints: its newest")
      ->required()
      ->group("Model and data");
  app.add_flag("--allow-non-finite", o.allow_non_finite, "Accept weights that are NaN or infinite [refuse them]")
      ->group("Model and data");
  add_device_options(app, o);
  add_precision_option(app, o);
  add_batch_options(app, o, false);
  add_process_options(app, o);
  add_deprecated_init(app, o, false);
  add_output_options(app, o);
  add_log_option(app, o);
  add_confusion_option(app, o);
  app.add_option("--save-logits", o.save_logits, "Write the outputs of all samples, in order, to FILE.npy")
      ->group("Output");
}

void add_compare(CLI::App& parent, Options& o) {
  CLI::App& app = *parent.add_subcommand("compare", "Run the same steps under each scheme, side by side");
  app.add_option("--modes", o.modes, "Schemes to run")->capture_default_str()->group("Scheme");
  app.add_option("--precisions", o.precisions,
                 "Precisions to run each scheme in, with loss scales: fp32,fp16:none,fp16:dynamic [--precision]")
      ->group("Precision");
  add_split_options(app, o, false);
  add_bucket_options(app, o);
  add_model_options(app, o);
  add_device_options(app, o);
  add_batch_options(app, o, false);
  add_training_options(app, o, false);
  add_precision_options(app, o);
  app.add_option("--steps", o.steps, "Optimizer steps of each scheme in each round; the first is not measured [6]")
      ->check(whole_number(2, kMostSteps))
      ->group("Training");
  app.add_option("--rounds", o.rounds,
                 "Rounds in which the schemes take turns; differences within the spread of the rounds are noise")
      ->check(whole_number(1, 1000))
      ->capture_default_str()
      ->group("Training");
  add_output_options(app, o);
  add_log_option(app, o);
  add_report_option(app, o);
}

void add_reproduce(CLI::App& parent, Options& o) {
  CLI::App& app = *parent.add_subcommand(
      "reproduce", "Train in every mode and precision, one run after the other, and put the results side by side");
  add_reproduce_options(app, o);
  add_model_options(app, o);
  app.get_option("--data")->required();
  add_device_options(app, o);
  add_bucket_options(app, o);
  add_batch_options(app, o, false);
  add_training_options(app, o, false);
  app.add_option("--epochs", o.epochs, "Passes over the training set [20]")
      ->check(whole_number(1, kMostSteps))
      ->group("Training");
  add_schedule_options(app, o.schedule);
  app.get_option("--lr")->description("Learning rate [0.0001]");
  app.get_option("--lr-patience")->description("Epochs without improvement before a decay, for plateau [3]");
  add_precision_limits(app, o);
  app.add_option("--keep-last", o.checkpoints.keep_last, "Keep the newest K checkpoints of each run [all]")
      ->check(whole_number(1, kMostSteps))
      ->group("Checkpoints");
  add_output_options(app, o);
  add_log_option(app, o);
  app.add_option("--report", o.report, "Where the page with tables and charts is written [OUT/report.html]")
      ->group("Output");
}

void add_collectives(CLI::App& parent, Options& o, CollectiveTexts& t) {
  CLI::App& app = *parent.add_subcommand("collectives",
                                         "Time collectives between devices and check their results, as nccl-tests do");
  add_device_options(app, o);
  add_process_options(app, o);
  add_deprecated_init(app, o, false);
  add_collective_options(app, o.collectives, t);
  add_output_options(app, o);
}

void add_lab(CLI::App& parent, Options& o) {
  CLI::App& app = *parent.add_subcommand(
      "lab", "Plant known bugs of data-parallel training, and measure how wrong each makes a result");
  app.add_option("NAME", o.lab.names, "Bugs to show in full [a table of all]")
      ->check(one_of(lab::experiment_names()))
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  CLI::Option* list =
      app.add_flag("--list", o.lab.list, "List the bugs and their questions, and run nothing")->group("Output");
  add_output_options(app, o);
  add_report_option(app, o);
  app.get_option("--report")->description("Write a page with a chart for each bug to FILE.html");
  for (const char* other : {"NAME", "--json", "--report"}) list->excludes(app.get_option(other));
}

void add_lesson(CLI::App& parent, Options& o) {
  CLI::App& app = *parent.add_subcommand(
      "lesson", "A course in data-parallel training: questions, commands that answer them, and exercises");
  app.option_defaults()->group("Lesson");
  CLI::Option* const number = app.add_option("number", o.lesson, "The lesson to run [list the lessons]")
                                  ->check(whole_number(1, std::ssize(lesson_pages())));
  app.add_flag("--answer", o.answer, "Print the exercise and its answer instead of running the lesson")->needs(number);
}

}  // namespace

ProgramFlags::ProgramFlags()
    : reproduction(reproduction_defaults()),
      app("Vitrine: the same training step under every data-parallel scheme, showing where time and memory go.",
          "vitrine") {
  app.footer(kExamples);
  app.set_version_flag("--version", "vitrine " VITRINE_VERSION);
  app.require_subcommand(1);
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.get_formatter()->column_width(34);
  add_train(app, options);
  add_plan(app, options);
  add_eval(app, options);
  add_compare(app, options);
  add_reproduce(app, reproduction);
  add_collectives(app, options, texts);
  add_lab(app, options);
  CLI::App& info = *app.add_subcommand("info", "Show devices, cores, memory, libraries, and what was built in");
  add_output_options(info, options);
  add_lesson(app, options);
}

}  // namespace vitrine::tools
