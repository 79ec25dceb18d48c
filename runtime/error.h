// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include <vitrine/runtime/memory/category.h>
#include <vitrine/runtime/reason.h>

namespace vitrine {

/// Kinds of errors, from the caller's point of view.
enum class ErrorKind { shape, dtype, device, out_of_memory, unsupported, order, cuda, comm, data, config, diverged };

/// Name of the exception class of a kind: "ShapeError", "DtypeError", ...
const char* error_kind_name(ErrorKind kind);

/// Base class of all exceptions that Vitrine throws. The message names operation, argument, expected, actual and
/// remedy; what() renders it in the API's words. Exceptions report errors of the user or the machine. A broken
/// invariant of Vitrine itself ends in VITRINE_ASSERT.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, Reason reason);
  ErrorKind kind() const noexcept { return kind_; }
  /// The message, in which the settings to change are typed values.
  const Reason& reason() const noexcept { return *reason_; }
  /// An error of the same class with the same facts and another message.
  virtual std::exception_ptr with(Reason reason) const {
    return std::make_exception_ptr(Error(kind_, std::move(reason)));
  }

 private:
  ErrorKind kind_;
  std::shared_ptr<const Reason> reason_;  // shared, so that copies of the exception do not throw
};

#define VITRINE_DEFINE_ERROR(Name, kind_value)                                                                         \
  class Name : public Error {                                                                                          \
   public:                                                                                                             \
    explicit Name(Reason reason) : Error(ErrorKind::kind_value, std::move(reason)) {}                                  \
    std::exception_ptr with(Reason reason) const override { return std::make_exception_ptr(Name(std::move(reason))); } \
  };

VITRINE_DEFINE_ERROR(ShapeError, shape)
VITRINE_DEFINE_ERROR(DtypeError, dtype)
VITRINE_DEFINE_ERROR(DeviceError, device)
VITRINE_DEFINE_ERROR(UnsupportedError, unsupported)
VITRINE_DEFINE_ERROR(OrderError, order)
VITRINE_DEFINE_ERROR(CudaError, cuda)
VITRINE_DEFINE_ERROR(CommError, comm)
VITRINE_DEFINE_ERROR(DataError, data)
VITRINE_DEFINE_ERROR(ConfigError, config)
VITRINE_DEFINE_ERROR(DivergedError, diverged)
#undef VITRINE_DEFINE_ERROR

/// Which memory is too small, and for what. What is unknown is 0 or empty.
struct MemoryShortage {
  enum class Memory : uint8_t { host, device, workspace };
  Memory memory = Memory::device;
  std::string device = {};             // "cpu:1"
  std::string user = {};               // the tensor, or the operation that needs a workspace
  std::string layer = {}, phase = {};  // during which it was needed
  int64_t needed_bytes = 0;            // of the tensor, the reservation or the smallest workspace
  int64_t capacity_bytes = 0;          // of the device or the workspace
  int64_t allocated_bytes = 0, reserved_bytes = 0, free_bytes = 0;
  BytesByCategory by_category = {};  // of what is allocated
};

class OutOfMemory : public Error {
 public:
  explicit OutOfMemory(Reason reason, MemoryShortage shortage = {})
      : Error(ErrorKind::out_of_memory, std::move(reason)),
        shortage_(std::make_shared<const MemoryShortage>(std::move(shortage))) {}
  const MemoryShortage& shortage() const noexcept { return *shortage_; }
  std::exception_ptr with(Reason reason) const override {
    return std::make_exception_ptr(OutOfMemory(std::move(reason), *shortage_));
  }

 private:
  std::shared_ptr<const MemoryShortage> shortage_;
};

/// The message of an exception: reason() of an Error, what() of others.
Reason reason_of(const std::exception_ptr& error);

/// Rethrows the error with the same class and facts and `prefix` in front of its message, unless it already starts with
/// `prefix`. Adds the device to errors of a replica. std::bad_alloc becomes OutOfMemory; other foreign exceptions
/// become the nearest standard class that carries a message.
[[noreturn]] void rethrow_with_prefix(std::exception_ptr error, const std::string& prefix);

namespace detail {
[[noreturn]] void assert_failed(const char* expression, const char* file, int line, const char* message);
}

/// Checks an invariant of Vitrine itself in every build: on failure prints expression, place and message, then aborts.
#define VITRINE_ASSERT(condition, message) \
  (static_cast<bool>(condition) ? void(0)  \
                                : ::vitrine::detail::assert_failed(#condition, __FILE_NAME__, __LINE__, message))

}  // namespace vitrine
