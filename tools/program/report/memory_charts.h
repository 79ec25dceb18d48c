// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "tools/program/report/memory_chart.h"

namespace vitrine::tools::html {

/// HTML: the charts of several devices on one scale, with a legend, captions, and who holds most at the peak. Devices that hold the same to the byte
/// share a chart. Empty where no device has one.
///   introduction  told before them
std::string memory_charts(const std::vector<MemoryChart>& charts, const std::string& introduction);

/// "cpu:1, cpu:2"; of more than four "cuda:1 to cuda:63, 63 devices".
std::string name_together(const std::vector<std::string>& devices);

}  // namespace vitrine::tools::html
