// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tools/program/report/curves.h"
#include "tools/program/report/findings.h"
#include "tools/program/report/memory_chart.h"
#include "tools/program/report/page.h"
#include "tools/program/report/step_chart.h"

namespace vitrine::tools {

/// A fact and what it is: "scheme", "dp, split equal, ...".
using Facts = std::vector<std::pair<std::string, std::string>>;

/// An epoch's figures; NaN where there are none.
struct EpochFigures {
  double end_step = 0;
  double train_loss = 0, test_loss = 0, test_accuracy = 0;
};

/// All that a training run's page shows.
struct TrainReport {
  std::string title;
  std::string command_line;
  Facts facts;
  FindingsInput figures;
  std::string outside;  // what lies outside the pools
  // Of this process's devices:
  int64_t shown_step = 0;  // from 0
  std::vector<html::MemoryChart> memory;
  std::vector<html::DeviceStep> steps;
  int processes = 1;
  std::vector<double> step_losses;
  std::vector<EpochFigures> epochs;
  std::vector<html::CurvePoint> loss_scales;  // from which step on; empty where losses are not scaled
};

html::Page train_page(const TrainReport& report);

/// The card at the head of a page.
std::string facts_section(const std::string& command_line, const Facts& facts);

}  // namespace vitrine::tools
