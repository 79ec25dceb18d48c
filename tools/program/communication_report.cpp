// SPDX-License-Identifier: Apache-2.0
#include "tools/program/communication_report.h"

#include <fmt/format.h>

#include "runtime/units.h"

namespace vitrine::tools {

namespace {

std::string bandwidth(double bytes_per_second) { return bytes_per_second > 0 ? fmt::format("{:.2f}", bytes_per_second * 1e-9) : "-"; }

std::vector<std::string> cells(const std::string& name, const CommunicationRow& row, int64_t steps) {
  const auto per_step = [&](double seconds) { return format_ms(seconds / static_cast<double>(steps)); };
  return {name,
          format_bytes(row.buffer_bytes / steps),
          per_step(row.seconds()),
          row.seconds() > 0 ? format_share(row.hidden_seconds / row.seconds()) : "",
          per_step(row.exposed_seconds),
          per_step(row.late_hidden_seconds + row.late_exposed_seconds),
          per_step(row.late_exposed_seconds),
          bandwidth(row.algbw()),
          bandwidth(row.busbw())};
}

}  // namespace

std::string communication_report(const std::vector<std::string>& devices, const std::vector<CommunicationTable>& tables, const Style& style) {
  if (tables.empty()) return {};
  const CommunicationTable& slowest = tables[least_late(tables)];
  if (slowest.rows.empty()) return {};
  Table table({{"ms per step", Table::Align::left},
               {"size"},
               {"time"},
               {"hidden"},
               {"exposed"},
               {"late peers"},
               {"of it exposed"},
               {"algbw GB/s"},
               {"busbw GB/s"}},
              fmt::format("Communication of {}, which waited least for its peers", devices[static_cast<size_t>(slowest.ordinal)]));
  for (const CommunicationRow& row : slowest.rows) table.add_row(cells(row.name(), row, slowest.steps));
  table.add_rule();
  table.add_row(cells("all", slowest.total(), slowest.steps));
  table.set_hint(
      "time: from when all devices were there until all were done. 'hidden' ran beside forward, backward or update, 'exposed' while the device could "
      "do nothing else. 'late peers': the wait before. algbw: size / time; busbw: what a link carries (nccl-tests).");
  return table.str(style);
}

}  // namespace vitrine::tools
