// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "runtime/error.h"

namespace vitrine {

/// The message of the `ErrorClass` that `call` throws; empty if it throws nothing. Other exceptions pass.
template <class ErrorClass = Error, class Call>
std::string error_of(const Call& call) {
  try {
    call();
  } catch (const ErrorClass& error) {
    return error.what();
  }
  return {};
}

}  // namespace vitrine
