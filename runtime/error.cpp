// SPDX-License-Identifier: Apache-2.0
#include "runtime/error.h"

#include <cstdio>
#include <cstdlib>
#include <new>

namespace vitrine {

const char* error_kind_name(ErrorKind kind) {
  static constexpr const char* kNames[] = {"ShapeError",       "DtypeError",  "DeviceError",  "OutOfMemory",
                                           "UnsupportedError", "OrderError",  "CudaError",    "CommError",
                                           "DataError",        "ConfigError", "DivergedError"};
  return kNames[static_cast<int>(kind)];
}

Error::Error(ErrorKind kind, Reason reason)
    : std::runtime_error(reason.str()), kind_(kind), reason_(std::make_shared<const Reason>(std::move(reason))) {}

Reason reason_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    return e.reason();
  } catch (const std::exception& e) {
    return e.what();
  } catch (...) {
    return "an exception of unknown type";
  }
}

void rethrow_with_prefix(std::exception_ptr error, const std::string& prefix) {
  VITRINE_ASSERT(error != nullptr, "rethrow_with_prefix needs an exception");
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    std::rethrow_exception(e.with(e.reason().str().starts_with(prefix) ? e.reason() : Reason(prefix) + e.reason()));
  } catch (const std::bad_alloc&) {
    throw OutOfMemory(prefix + "host memory is exhausted", {.memory = MemoryShortage::Memory::host});
  } catch (const std::invalid_argument& e) {
    throw std::invalid_argument(prefix + e.what());
  } catch (const std::out_of_range& e) {
    throw std::out_of_range(prefix + e.what());
  } catch (const std::logic_error& e) {
    throw std::logic_error(prefix + e.what());
  } catch (const std::exception& e) {
    throw std::runtime_error(prefix + e.what());
  } catch (...) {
    throw std::runtime_error(prefix + "an exception that is not a std::exception");
  }
}

namespace detail {

void assert_failed(const char* expression, const char* file, int line, const char* message) {
  std::fprintf(stderr, "%s:%d: invariant broken: %s (%s)\n", file, line, message, expression);
  std::fflush(stderr);
  std::abort();
}

}  // namespace detail
}  // namespace vitrine
