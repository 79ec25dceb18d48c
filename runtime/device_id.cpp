// SPDX-License-Identifier: Apache-2.0
#include "runtime/device_id.h"

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include "runtime/error.h"
#include "runtime/gpu_info.h"
#include "runtime/text.h"

namespace vitrine {
namespace {

constexpr int kMaxIndex = 4095;

struct Item {
  Backend backend;
  int first, last;
};

[[noreturn]] void reject(std::string_view list, std::string_view item, const std::string& why) {
  throw ConfigError(fmt::format("device list \"{}\": item \"{}\": {}", list, item, why));
}

std::optional<int> parse_index(std::string_view digits) {
  const std::optional<int> index = parse_number<int>(digits);
  return index && digits.front() != '-' && *index <= kMaxIndex ? index : std::nullopt;
}

Item parse_item(std::string_view list, std::string_view item, int cuda_device_count) {
  const size_t colon = item.find(':');
  const std::string_view name = item.substr(0, colon);
  Backend backend = Backend::cpu;
  if (name == "cuda") {
    backend = Backend::cuda;
  } else if (name == "meta") {
    backend = Backend::meta;
  } else if (name != "cpu") {
    if (const std::optional<int> count = parse_index(list); count && *count > 0)
      reject(list, item, fmt::format("for {} devices write cpu:0-{} or cuda:0-{}", *count, *count - 1, *count - 1));
    reject(list, item,
           name == "gpu" ? "GPUs are called cuda, such as cuda:0, cuda:0-3 or cuda:all"
                         : "expected cpu:, cuda: or meta: and an index, such as cpu:0, cpu:0-3 or cuda:all");
  }
  if (colon == std::string_view::npos)
    reject(list, item, fmt::format("no index; write {}:0 or a range such as {}:0-3", name, name));
  const std::string_view range = item.substr(colon + 1);
  if (range == "all") {
    if (backend != Backend::cuda)
      reject(list, item, fmt::format("\"all\" goes with cuda only; write a range such as {}:0-3", name));
    if (cuda_device_count <= 0) {
      const std::string problem = query_gpus(false).problem;
      throw UnsupportedError(fmt::format(
          "{}: {}", item, problem.empty() ? "no GPU was found; list cpu devices such as cpu:0 instead" : problem));
    }
    return {backend, 0, cuda_device_count - 1};
  }
  const size_t dash = range.find('-');
  const auto first = parse_index(range.substr(0, dash));
  const auto last = dash == std::string_view::npos ? first : parse_index(range.substr(dash + 1));
  if (!first || !last)
    reject(list, item, fmt::format("\"{}\" is not an index or a range of indices from 0 to {}", range, kMaxIndex));
  if (*last < *first) reject(list, item, "the range ends before it begins");
  return {backend, *first, *last};
}

}  // namespace

const char* backend_name(Backend backend) {
  static constexpr const char* kNames[] = {"cpu", "cuda", "meta"};
  return kNames[static_cast<int>(backend)];
}

std::string DeviceId::str() const { return is_host() ? "host" : fmt::format("{}:{}", backend_name(backend), index); }

std::vector<DeviceId> parse_device_list(std::string_view text, int cuda_device_count) {
  if (text.empty()) throw ConfigError("device list is empty; name at least one device, such as cpu:0 or cuda:all");
  std::vector<DeviceId> devices;
  for (const std::string& item_text : split_text(text, ',')) {
    const Item item = parse_item(text, item_text, cuda_device_count);
    if (!devices.empty() && devices.front().backend != item.backend) {
      reject(text, item_text, fmt::format("mixes backends; the list begins with {}", devices.front().str()));
    }
    for (int index = item.first; index <= item.last; ++index) {
      const DeviceId device{item.backend, index};
      // One GPU may serve several logical devices; for a virtual device there is another index.
      if (item.backend != Backend::cuda && std::find(devices.begin(), devices.end(), device) != devices.end()) {
        reject(text, item_text, fmt::format("{} is listed twice; only cuda devices may be repeated", device.str()));
      }
      devices.push_back(device);
    }
  }
  return devices;
}

}  // namespace vitrine
