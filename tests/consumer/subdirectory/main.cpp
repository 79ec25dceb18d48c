// SPDX-License-Identifier: Apache-2.0
#include <cstdio>

#include <vitrine/runtime/device_id.h>
#include <vitrine_version.h>

int main() {
  const auto devices = vitrine::parse_device_list("meta:0-2", 0);
  std::printf("vitrine %s, %zu devices, the last is %s\n", VITRINE_VERSION, devices.size(),
              devices.back().str().c_str());
  return devices.size() == 3 && devices.back().str() == "meta:2" ? 0 : 1;
}
