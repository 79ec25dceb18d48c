// SPDX-License-Identifier: Apache-2.0
#include "runtime/error.h"

#include <cstdio>
#include <cstdlib>
#include <new>

namespace vitrine {
namespace {

[[noreturn]] void throw_kind(ErrorKind kind, const std::string& message) {
  switch (kind) {
    case ErrorKind::shape:
      throw ShapeError(message);
    case ErrorKind::dtype:
      throw DtypeError(message);
    case ErrorKind::device:
      throw DeviceError(message);
    case ErrorKind::out_of_memory:
      throw OutOfMemory(message);
    case ErrorKind::unsupported:
      throw UnsupportedError(message);
    case ErrorKind::order:
      throw OrderError(message);
    case ErrorKind::cuda:
      throw CudaError(message);
    case ErrorKind::comm:
      throw CommError(message);
    case ErrorKind::data:
      throw DataError(message);
    case ErrorKind::config:
      throw ConfigError(message);
    case ErrorKind::diverged:
      throw DivergedError(message);
  }
  throw Error(kind, message);
}

}  // namespace

const char* error_kind_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::shape:
      return "ShapeError";
    case ErrorKind::dtype:
      return "DtypeError";
    case ErrorKind::device:
      return "DeviceError";
    case ErrorKind::out_of_memory:
      return "OutOfMemory";
    case ErrorKind::unsupported:
      return "UnsupportedError";
    case ErrorKind::order:
      return "OrderError";
    case ErrorKind::cuda:
      return "CudaError";
    case ErrorKind::comm:
      return "CommError";
    case ErrorKind::data:
      return "DataError";
    case ErrorKind::config:
      return "ConfigError";
    case ErrorKind::diverged:
      return "DivergedError";
  }
  return "Error";
}

Error::Error(ErrorKind kind, const std::string& message) : std::runtime_error(message), kind_(kind) {}

void rethrow_with_prefix(std::exception_ptr error, const std::string& prefix) {
  VITRINE_ASSERT(error != nullptr, "rethrow_with_prefix needs an exception");
  try {
    std::rethrow_exception(error);
  } catch (const Error& e) {
    const std::string message = e.what();
    throw_kind(e.kind(), message.rfind(prefix, 0) == 0 ? message : prefix + message);
  } catch (const std::bad_alloc&) {
    throw OutOfMemory(prefix + "host memory is exhausted");
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
