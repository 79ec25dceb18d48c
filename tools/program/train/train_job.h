// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nn/checkpoint_directory.h"
#include "tools/program/checkpoint/resume.h"
#include "tools/program/flags/options.h"
#include "tools/program/record/record.h"
#include "tools/program/run/attempts.h"
#include "tools/program/run/processes.h"
#include "tools/program/run/run.h"
#include "tools/program/train/training.h"

/// One training run, which `vitrine train` and `vitrine reproduce` share.
namespace vitrine::tools {

/// What a run takes over.
struct TrainSetup {
  std::vector<DeviceId> devices;                     // of this process
  std::unique_ptr<DeviceGroup> group;                // of all processes
  std::unique_ptr<CheckpointDirectory> checkpoints;  // open_checkpoint_directory()
  std::vector<std::string> notes = {};               // what the program chose
  std::string name = {};  // how the run is described: "single device"; empty: the scheme's name
};

struct Trained {
  std::optional<Record> record;  // nothing if it could not be made: the attempts have the error
  std::string files;             // sentences that name the weights that were saved
  int status = 0;                // 130 or 143 if training was interrupted
};

/// Trains as the options say, from the checkpoint that --resume names if there is one: prints the run and its epochs,
/// writes --log, --tensorboard, checkpoints, --save, --trace and --memory-history. The record says whether training
/// diverged. Errors after the last step go to `attempts`.
///   options  without choices that are left to plans      job  must outlive the call
/// throws  ConfigError, DeviceError, OutOfMemory, DataError, CommError
Trained train_job(const Options& options, const Job& job, TrainSetup setup, const Processes& processes,
                  Attempts& attempts);

/// throws  ConfigError for CPU devices, which have nothing to time
void check_autotune(const Options& options, const std::vector<DeviceId>& devices);

}  // namespace vitrine::tools
