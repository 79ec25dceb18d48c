// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "runtime/error.h"
#include "runtime/process_group/acceptor.h"
#include "runtime/process_group/connection.h"
#include "runtime/process_group/failure_detector.h"
#include "runtime/process_group/message.h"
#include "runtime/process_group/mpi_session.h"
#include "runtime/process_group/process_group.h"
#include "runtime/process_group/rendezvous.h"

/// Private to runtime/process_group.
namespace vitrine {

namespace process_group {
inline constexpr int64_t kMs = 1'000'000;  // in nanoseconds
inline constexpr const char* kEndOfRun = "the end of the run";

/// Name of this process: "rank 2 (pid 77 on node1)".
std::string process_name(int rank);
}  // namespace process_group

/// State of a process group. Rank 0 is its server, with a connection to each other process (its members) and the
/// failure detector.
struct ProcessGroup::State {
  explicit State(const ProcessGroupOptions& o) : options(o), rank(o.rank), size(o.size), detector(o.size) {}

  // Rendezvous: server.cpp on rank 0, joining.cpp elsewhere.
  void connect();
  void wait_for_members();
  /// Opens the listeners and sets the address and key that members must know.
  process_group::Acceptor open_acceptor(process_group::Address& address);
  /// Accepts or refuses a process.
  void admit(process_group::Acceptor::JoinRequest request, process_group::Acceptor& acceptor);
  /// Forgets processes that disconnected before all had joined.
  void drop_disconnected();
  void find_server();
  bool try_server(const process_group::Address& address, std::string& problem);
  /// Runs the handshake with the server. False if it is not rank 0 of this run.
  bool shake_hands(process_group::Connection& connection, const process_group::Address& address,
                   const std::string& where, std::string& problem);
  /// Waits for the server's answers until all processes have joined.
  bool wait_for_welcome(process_group::Connection& connection, const std::string& where, std::string& problem);
  /// Returns the next message while the connection is open; without one, `problem` describes it in terms of `where`.
  std::optional<process_group::Message> wait_for_answer(process_group::Connection& connection, int64_t patience_ms,
                                                        const std::string& where, std::string& problem) const;
  /// Of MPI_Init and MPI_Finalize; 0: none, the process must not be ended.
  int64_t mpi_deadline_ms() const { return options.exit_after_ms > 0 ? options.timeout_ms : 0; }
  int64_t rendezvous_ms() const { return options.timeout_ms * process_group::FailureDetector::kPatience; }

  // The process group's own thread: watch.cpp.
  void watch();
  void listen_to_all();
  void wait_for_something();
  /// Makes wait_for_something() report received data of a connection, and when it accepts more if it has unsent data.
  void listen_to(int peer);
  void send_to(int peer, const std::string& bytes);
  std::optional<process_group::Connection>& connection_to(int peer) {
    return is_server() ? members[static_cast<size_t>(peer)] : server;
  }
  void report_local(int64_t now_ns);
  void report_progress();
  void check_waits(int64_t now_ns);
  void serve_member(int peer, int64_t now_ns);
  void serve_members(int64_t now_ns);
  void handle_from_member(int from, const std::string& bytes, int64_t now_ns);
  void handle_from_server(const std::string& bytes);
  void send_to_server(const std::string& bytes);
  void send_to_members(const std::string& bytes);
  /// Stores rank 0's answer to the pending gathering for this process.
  void take_answer(std::string answer);
  void send_answers(const std::vector<std::string>& answers);
  void declare(const Reason& verdict, bool found_here = true);
  /// Ends the process unless it is stopped within options.exit_after_ms.
  void exit_in_time();
  /// "; rank 2 has reached collective 17 (...)", or empty.
  std::string own_position() const;
  bool has_unsent() const;
  bool done(int64_t now_ns);
  /// After the end of watch(): returns when all processes have called it, or have ended.
  void leave_together();

  void wake();
  /// Stops and joins the process group's threads.
  void stop();
  bool is_server() const { return rank == 0; }
  void throw_if_failed_locked() const {
    if (!failure.empty()) throw CommError(failure);
  }
  static constexpr int64_t kByeTimeoutNs = 10'000 * process_group::kMs;
  int64_t timeout_ns() const { return options.timeout_ms * process_group::kMs; }

  struct Slot {
    std::string name;
    uint64_t finished = 0, reported_finished = 0;
    std::optional<CollectiveRecord> last;
    std::vector<CollectiveRecord> fresh;  // begun and not yet reported
  };
  struct Wait {
    std::string what;
    int64_t since_ns = 0;
  };
  struct Gathering {
    uint64_t sequence;
    std::string what, part;
  };

  ProcessGroupOptions options;
  int rank, size, local_rank = 0, local_size = 1;
  std::string connected_text;  // "over MPI", "at file:PATH"; empty for one process
  std::string machine;
  int host_count = 1;
  std::unique_ptr<process_group::MpiSession> mpi;
  Descriptor wake_up = process_group::make_event();
  std::thread thread, exit_thread;

  // Guarded by the mutex: data that other threads exchange with the process group's thread.
  mutable std::mutex mutex;
  std::condition_variable changed;
  Reason failure;
  bool warm = false, closing = false, stopping = false, closed = false;
  std::vector<Slot> slots;
  bool slots_reported = true;
  std::map<uint64_t, Wait> waits;
  uint64_t next_id = 1, next_gathering = 0;
  int next_group = 0;
  std::optional<Gathering> to_gather;
  std::optional<std::vector<std::string>> gathered;   // on the server: all parts
  std::optional<std::vector<std::string>> to_answer;  // on the server: one for all, or one for each rank
  std::optional<std::string> answered;
  Reason error_to_report;
  std::recursive_mutex handler_mutex;  // held while handlers run, which may call this object
  bool announced = false;
  bool all_reported = false;  // the failure was reported to the other processes and the handlers; guarded by `mutex`
  std::map<uint64_t, std::function<void(const Reason&)>> handlers;

  std::atomic<int64_t> transfers{0};

  // Used by the process group's thread only.
  process_group::FailureDetector detector;
  std::vector<std::optional<process_group::Connection>> members;  // on the server, by rank
  std::optional<process_group::Connection> server;                // on the members
  process_group::Rendezvous rendezvous;                           // from the options
  std::string last_refusal;  // on the server of a process that knows the key, on members of this one
  std::string server_name, server_position = "nothing is known of its collectives";
  int64_t server_heard_ns = 0, last_beat_ns = 0, failed_ns = 0, bye_ns = 0, progressed_ns = 0;
  Descriptor poll_set;                     // of the connections, by the rank at their other end
  std::vector<int> ready;                  // ranks whose connection has data or accepts more
  std::vector<char> listened, wants_more;  // by rank: it is in the set; it is watched for accepting more
  int64_t watched_ns = 0;                  // when the thread last looked
  uint64_t reported_wait = 0;              // the wait reported to the server
  bool said_bye = false, server_said_bye = false;
};

}  // namespace vitrine
