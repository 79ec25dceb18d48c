// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <stdexcept>
#include <string>

namespace vitrine {

/// Kinds of errors, from the caller's point of view.
enum class ErrorKind { shape, dtype, device, out_of_memory, unsupported, order, cuda, comm, data, config, diverged };

/// Name of the exception class of a kind: "ShapeError", "DtypeError", ...
const char* error_kind_name(ErrorKind kind);

/// Base class of all exceptions that Vitrine throws. The message names operation, argument, expected, actual and remedy.
/// Exceptions report errors of the user or the machine. A broken invariant of Vitrine itself ends in VITRINE_ASSERT.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message);
  ErrorKind kind() const noexcept { return kind_; }

 private:
  ErrorKind kind_;
};

#define VITRINE_DEFINE_ERROR(Name, kind_value)                                           \
  class Name : public Error {                                                            \
   public:                                                                               \
    explicit Name(const std::string& message) : Error(ErrorKind::kind_value, message) {} \
  };

VITRINE_DEFINE_ERROR(ShapeError, shape)
VITRINE_DEFINE_ERROR(DtypeError, dtype)
VITRINE_DEFINE_ERROR(DeviceError, device)
VITRINE_DEFINE_ERROR(OutOfMemory, out_of_memory)
VITRINE_DEFINE_ERROR(UnsupportedError, unsupported)
VITRINE_DEFINE_ERROR(OrderError, order)
VITRINE_DEFINE_ERROR(CudaError, cuda)
VITRINE_DEFINE_ERROR(CommError, comm)
VITRINE_DEFINE_ERROR(DataError, data)
VITRINE_DEFINE_ERROR(ConfigError, config)
VITRINE_DEFINE_ERROR(DivergedError, diverged)
#undef VITRINE_DEFINE_ERROR

/// Rethrows the current error with the same class and `prefix` in front of its message, unless it already starts with `prefix`. Adds the device to
/// errors of a replica. std::bad_alloc becomes OutOfMemory; other foreign exceptions become the nearest standard class that carries a message.
[[noreturn]] void rethrow_with_prefix(std::exception_ptr error, const std::string& prefix);

namespace detail {
[[noreturn]] void assert_failed(const char* expression, const char* file, int line, const char* message);
}

/// Checks an invariant of Vitrine itself in every build: on failure prints expression, place and message, then aborts.
#define VITRINE_ASSERT(condition, message) \
  (static_cast<bool>(condition) ? void(0) : ::vitrine::detail::assert_failed(#condition, __FILE__, __LINE__, message))

}  // namespace vitrine
