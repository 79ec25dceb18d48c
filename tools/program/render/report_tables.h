// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tools/program/record/record.h"
#include "tools/program/text/tables.h"

/// The tables of a record. The terminal and the HTML page show the same ones.
namespace vitrine::tools {

/// Up to this many devices have columns of their own; more are shown as minimum, median and maximum.
inline constexpr size_t kDevicesApart = 4, kDevicesApartOnPage = 16;

/// Where the time went: a row for each phase and each cause of waiting. With more than `apart` devices, those that run
/// the same phases share a table. Empty without steps.
std::vector<Table> time_tables(const std::vector<DeviceRecord>& devices, size_t apart = kDevicesApart);

/// One row for each bucket of the device that waited least for its peers (least_late()): what was hidden behind compute
/// and what was not, how late peers were, and bandwidth. Nothing if the devices did not communicate.
std::optional<Table> communication_table(const std::vector<DeviceRecord>& devices);

/// What the plan said of a measured peak: "to the byte", or its bytes.
std::string planned_peak(const DeviceRecord& device);
/// Where the memory went: bytes by category at the moment of the peak, measured and planned. Devices that agree share
/// their columns.
Table memory_table(const std::vector<DeviceRecord>& devices);
/// The same for a page, where tables stand side by side if the screen is wide enough: one for each set of devices.
std::vector<Table> memory_tables(const std::vector<DeviceRecord>& devices);
/// Memory outside the pools, and how it is measured.
std::string describe_outside(const std::vector<DeviceRecord>& devices, int processes);

/// What each device of a plan needs: bytes by category, and the moment of the peak. Devices with the same plan share a
/// column.
Table plan_table(const std::vector<DeviceRecord>& devices);
/// What each layer of a plan holds from its forward to its backward pass; nothing without layers.
std::optional<Table> held_table(const std::vector<DeviceRecord>& devices);
/// What each device moves in a step, a row for each phase that moves something; nothing for a device alone.
std::optional<Table> movement_table(const RunRecord& run);
/// plan_table()'s peaks as bars of letters, for the terminal.
std::string plan_bars(const std::vector<DeviceRecord>& devices, const Style& style);

/// What exact mode costs beside the ordinary way, three rows for each run; nothing without --exact.
std::optional<Table> exact_price_table(std::span<const RunRecord> runs);

/// The choices of what is recomputed, a row each; nothing without --frontier.
std::optional<Table> frontier_table(const PlanRecord& record);

/// Losses and test accuracy of a run's epochs; nothing without epochs.
std::optional<Table> epochs_table(const RunRecord& run);

/// A comparison: speed, gradients and memory of each scheme, then where each scheme's time went.
Table schemes_table(const ComparisonRecord& record);
Table scheme_times_table(const std::vector<RunRecord>& runs);

}  // namespace vitrine::tools
