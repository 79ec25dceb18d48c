// SPDX-License-Identifier: Apache-2.0
#include "nn/tuned_plans_file.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "nn/json_file.h"
#include "runtime/error.h"

namespace vitrine {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr const char* kFormat = "vitrine plans 1";

}  // namespace

std::string tuned_plans_json(const TunedPlans& plans, int indent) {
  OrderedJson json = {{"format", kFormat},
                      {"device", plans.device},
                      {"libraries", plans.libraries},
                      {"workspace_bytes", plans.workspace_bytes},
                      {"tf32", plans.tf32},
                      {"plans", OrderedJson::array()}};
  for (const TunedPlan& plan : plans.plans) {
    json["plans"].push_back({{"operation", plan.operation},
                             {"plan", plan.plan},
                             {"us", plan.microseconds},
                             {"library_us", plan.first_microseconds},
                             {"candidates", plan.candidates}});
  }
  return json.dump(indent, ' ', false, OrderedJson::error_handler_t::replace);
}

TunedPlans parse_tuned_plans(const std::string& source, const std::string& text) {
  TunedPlans plans;
  check_json_text(source, text);
  try {
    const OrderedJson json = OrderedJson::parse(text);
    if (const auto format = json.at("format").get<std::string>(); format != kFormat)
      throw DataError(
          fmt::format("{}: the format of the plans is '{}', expected '{}'; time them again", source, format, kFormat));
    plans.device = json.at("device").get<std::string>();
    plans.libraries = json.at("libraries").get<std::string>();
    plans.workspace_bytes = json.at("workspace_bytes").get<int64_t>();
    plans.tf32 = json.at("tf32").get<bool>();
    for (const OrderedJson& plan : json.at("plans")) {
      plans.put({plan.at("operation").get<std::string>(), plan.at("plan").get<std::string>(),
                 plan.at("us").get<double>(), plan.at("library_us").get<double>(), plan.at("candidates").get<int>()});
    }
  } catch (const OrderedJson::exception& problem) {
    throw DataError(fmt::format("{}: no plans that were timed: {}; remove it, or name another file", source,
                                describe_json_error(problem)));
  }
  return plans;
}

}  // namespace vitrine
