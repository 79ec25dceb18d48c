// SPDX-License-Identifier: Apache-2.0
#include "tools/program/run/trace_file.h"

#include <fmt/format.h>

#include "runtime/trace/chrome_trace.h"
#include "tools/program/text/output_file.h"

namespace vitrine::tools {

void write_trace_file(const std::string& path, DeviceGroup& devices, const std::vector<DeviceSpans>& spans) {
  std::vector<TraceProcess> processes;
  const std::string rank = devices.process_count() > 1 ? fmt::format("rank {} ", devices.process()) : std::string();
  // The waits for data are the same in every device's spans.
  processes.push_back({rank + "host", {{"data", spans.front().host}}, {}});
  for (const DeviceSpans& device : spans) {
    processes.push_back({rank + devices[device.ordinal].name(),
                         {{"compute", device.compute}, {"copy", device.copy}, {"communication", device.communication}},
                         devices[device.ordinal].pool().history()});
  }
  write_output_file("--trace", path, [&](std::ostream& file) { write_chrome_trace(file, processes); });
}

}  // namespace vitrine::tools
