// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "tools/program/run/run.h"

namespace vitrine::tools {

/// A run in three lines: model and data, devices and split, optimizer.
std::string describe_run(const Options& options, const Job& job, Run& run);
/// The first of them.
std::string describe_job(const Job& job, const FlatLayout& layout);

/// "32+32", "2+3+3 | 2+3+3": samples of each device, micro-batch by micro-batch.
std::string describe_batch(const BatchPlan& plan);

/// "adamw, lr 0.001, schedule cosine, seed 0": the optimizer with the learning rate of the flags, which a schedule
/// changes.
std::string describe_training(const Options& options);
/// ", fp16, loss scale dynamic, clipped at norm 1, gradients reduced in f16"; empty when all is f32.
std::string describe_precision(const EngineConfig& config);
/// ", 4 recompute segments, gradient of outputs apart, batch norm local"; empty if none is used.
std::string describe_memory(const EngineConfig& config);

/// "after two steps of a shape", and what was replayed so far; "off: REASON". Empty without GPUs.
std::string describe_graphs(const Options& options, const Run& run);

/// "19 kinds of operations timed in 2.13 s; 7 of 19 run by a faster plan than the library's choice"; empty without
/// --autotune.
std::string describe_autotune(const Engine& engine);

/// Bytes of images and labels.
int64_t dataset_bytes(const DatasetPair& data);

}  // namespace vitrine::tools
